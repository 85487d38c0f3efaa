// A mixture of experts: each row goes through the few that its router likes best.
//
// Rows are gathered by expert, so that an expert's weights leave memory once for all of its rows, and only the chosen
// ones' do. What an expert makes of a row depends on that row alone, and a row's experts are added in ascending order of
// their rank, so neither the neighbours nor the gathering shows in the bits.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "model/decoder.h"

namespace ipex_lookahead {
namespace {

// Rows of an expert that are gathered at a time.
constexpr int64_t kGathered = 128;
// Results of experts that a thread holds before it adds them up, in floats: they stay in its cache.
constexpr int64_t kHeld = 1 << 16;
// Pieces for each thread where experts have unequal numbers of rows to do.
constexpr int64_t kUnequalPieces = 16;

}  // namespace

void ExpertChoice::reserve(int64_t rows, int64_t used) {
  ensure(experts, rows * used);
  ensure(weights, rows * used);
}

void ExpertPlan::reserve(int64_t rows, int64_t used, int64_t of) {
  ensure(begins, of + 1);
  ensure(touched, std::min(rows * used, of));
  ensure(row_of, rows * used);
  ensure(at, rows * used);
}

// Sorts (row, rank) by expert.
void ExpertPlan::make(const ExpertChoice& choice, int64_t rows, int64_t used, int64_t of) {
  std::fill(begins.begin(), begins.begin() + of + 1, 0);
  for (int64_t i = 0; i < rows * used; ++i) ++begins[size_t(choice.experts[size_t(i)] + 1)];
  experts_touched = 0;
  for (int64_t e = 0; e < of; ++e) {
    if (begins[size_t(e + 1)] > 0) touched[size_t(experts_touched++)] = int32_t(e);
    begins[size_t(e + 1)] += begins[size_t(e)];
  }
  for (int64_t i = 0; i < rows * used; ++i) {
    const int32_t place = begins[size_t(choice.experts[size_t(i)])]++;
    at[size_t(i)] = place;
    row_of[size_t(place)] = int32_t(i / used);
  }
  for (int64_t e = of; e > 0; --e) begins[size_t(e)] = begins[size_t(e - 1)];  // each has become the next one's
  begins[0] = 0;
}

// The experts of a row, best first, the lowest first among equals, and their weights.
void Decoder::choose(const Layer& l, const float* logits, float* scratch, int32_t* experts, float* weights) const {
  const auto taken = [&](int k, int32_t e) { return std::find(experts, experts + k, e) != experts + k; };
  for (int k = 0; k < l.experts_used; ++k) {
    int32_t best = -1;
    for (int32_t e = 0; e < l.experts; ++e)
      if ((best < 0 || logits[e] > logits[best]) && !taken(k, e)) best = e;
    experts[k] = best;
  }
  const bool all = l.router_softmax == RouterSoftmax::all;
  const int n = all ? l.experts : l.experts_used;
  for (int i = 0; i < n; ++i) scratch[i] = logits[all ? i : experts[i]];
  kernels_->softmax(scratch, n);
  float sum = 0;
  for (int k = 0; k < l.experts_used; ++k) {
    weights[k] = scratch[all ? experts[k] : k];
    sum += weights[k];
  }
  for (int k = 0; k < l.experts_used; ++k) {
    if (l.renormalise) weights[k] /= sum;
    if (!std::isfinite(logits[experts[k]])) weights[k] = NAN;  // what overflowed must show in the end
  }
}

void Decoder::experts(ThreadContext& context, const Block& block) {
  const Layer& l = block.shape;
  const int64_t used = l.experts_used, assigned = rows_ * used, stride = padded(l.experts, kLanes);
  const bool integer = std::any_of(block.mlps.begin(), block.mlps.end(), [](const Mlp& mlp) {
    return !is_float(mlp.gate.format) || !is_float(mlp.up.format);
  });
  context.enter(Phase::router);
  auto x = context.inputs(rows_, shape_.hidden, integer, nullptr,
                       [&](int64_t row, float* out) { norm(hidden(row), block.at(Vector::mlp_norm), out); });
  context.split_tiles(block.router.tiles(), [&](int64_t begin, int64_t end) {
    kernels_->linear(block.router, x.get(), begin, end, router_logits_.data() + begin * kLanes, stride, false);
  });

  // As with rows, few choices are made by every thread for itself; and like rows, inside an item: a thread that comes late
  // finds the phase over, and what it would look at belongs to the next layer.
  const bool alone = rows_ <= kPreparedByAll;
  ThreadMemory& own = own_[size_t(context.thread())];
  ExpertChoice& choice = alone ? own.choice : shared_choice_;
  ExpertPlan& plan = own.plan;
  const auto choose_row = [&](int64_t row) {
    choose(l, router_logits_.data() + row * stride, context.scratch(), choice.experts.data() + row * used,
           choice.weights.data() + row * used);
  };
  if (!alone) context.each(rows_, choose_row);
  bool planned = false;
  const auto make_plan = [&] {
    if (planned) return;
    for (int64_t row = 0; alone && row < rows_; ++row) choose_row(row);
    plan.make(choice, rows_, used, l.experts);
    planned = true;
  };

  const Rows gated = gated_rows_.view(assigned, l.intermediate);
  // Places [a, a + n) of expert e: an expert's rows are banded together, whatever the others have.
  const auto gated_of = [&](int32_t e, int64_t a, int64_t n) {
    const int64_t first = plan.begins[size_t(e)];
    return rows_of(rows_apart(gated, first, plan.begins[size_t(e + 1)] - first), a - first, n);
  };
  int64_t gathered = -1;  // the first of the places whose rows are in own.gathered
  // Groups [begin, end) of one expert's outputs, for all of its rows.
  const auto gate_up = [&](int32_t e, int64_t begin, int64_t end) {
    const Mlp& mlp = block.mlps[size_t(e)];
    const bool floats = is_float(mlp.gate.format) || is_float(mlp.up.format);
    const bool codes = !is_float(mlp.gate.format) || !is_float(mlp.up.format);
    for (int64_t a = plan.begins[size_t(e)]; a < plan.begins[size_t(e + 1)]; a += kGathered) {
      const int64_t n = std::min<int64_t>(plan.begins[size_t(e + 1)] - a, kGathered);
      const int32_t* rows = plan.row_of.data() + a;
      Rows those;
      if (rows[n - 1] - rows[0] == n - 1) {  // they lie together
        those = rows_of(x.get(), rows[0], n);
      } else {
        those = own.gathered.view(n, shape_.hidden);
        if (gathered != a) gather(x.get(), rows, n, codes, floats, those);
        gathered = a;
      }
      kernels_->gate_up(mlp.gate, mlp.up, l.activation, those, begin, end, gated_of(e, a, n), !is_float(mlp.down.format));
    }
  };
  context.enter(Phase::gate_up);
  const int64_t pieces = (alone ? kPieces : kUnequalPieces) * threads_;
  context.each(pieces, [&](int64_t piece) {
    make_plan();
    if (piece == 0) experts_touched_ += plan.experts_touched;
    const auto part = part_of(plan.experts_touched * gated.blocks, pieces, piece);
    for (int64_t begin = part.first, end; begin < part.second; begin = end) {
      const int64_t i = begin / gated.blocks, first = i * gated.blocks;
      end = std::min(part.second, first + gated.blocks);
      gate_up(plan.touched[size_t(i)], begin - first, end - first);
    }
  });

  context.enter(Phase::down);
  add_to_hidden(context, block, Vector::mlp_after, [&](int64_t begin, int64_t end, float* out, bool add) {
    make_plan();
    const int64_t first = begin * kLanes, width = (end - begin) * kLanes;
    const int64_t n = std::min<int64_t>(end * kLanes, shape_.hidden) - first;
    float* sum = context.scratch();
    float* made = sum + width;  // [assigned][width]
    for (int64_t i = 0; i < plan.experts_touched; ++i) {
      const int32_t e = plan.touched[size_t(i)];
      const int64_t a = plan.begins[size_t(e)];
      kernels_->linear(block.mlps[size_t(e)].down, gated_of(e, a, plan.begins[size_t(e + 1)] - a), begin, end,
                       made + a * width, width, false);
    }
    for (int64_t row = 0; row < rows_; ++row) {
      std::fill(sum, sum + n, 0.0f);
      for (int64_t k = row * used; k < (row + 1) * used; ++k)
        kernels_->add_scaled(made + plan.at[size_t(k)] * width, n, choice.weights[size_t(k)], sum);
      float* to = out + row * hidden_stride_;
      if (add)
        kernels_->add_scaled(sum, n, 1, to);
      else
        std::copy(sum, sum + n, to);
    }
  }, expert_tiles(assigned));
}

// Tiles of outputs that a thread adds up the experts of at a time: pairs of them.
int64_t Decoder::expert_tiles(int64_t assigned) const { return 2 * std::max<int64_t>(1, kHeld / (2 * assigned * kLanes)); }

void Decoder::reserve_experts(int64_t rows) {
  int64_t used = 0, of = 0;
  for (const Block& block : blocks_) {
    used = std::max<int64_t>(used, block.shape.experts_used);
    of = std::max<int64_t>(of, block.shape.experts);
    gated_rows_.reserve(rows * std::max(block.shape.experts_used, 1), block.shape.intermediate);
  }
  if (of == 0) return;
  if (rows * used > INT32_MAX) throw std::invalid_argument("the step has too many rows for so many experts");
  ensure(router_logits_, rows * padded(of, kLanes));
  if (rows > kPreparedByAll) shared_choice_.reserve(rows, used);
  const int64_t tiles = std::min(expert_tiles(rows * used), hidden_stride_ / kLanes);
  for (ThreadMemory& own : own_) {
    own.choice.reserve(std::min(rows, kPreparedByAll), used);
    own.plan.reserve(rows, used, of);
    own.gathered.reserve(std::min(rows, kGathered), shape_.hidden);
    ensure(own.scratch, std::max((rows * used + 1) * tiles * kLanes, padded(of, kLanes)));
  }
}

}  // namespace ipex_lookahead
