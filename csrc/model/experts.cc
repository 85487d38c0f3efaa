#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "model/experts.h"

namespace ipex_lookahead {
namespace {

// Maximum number of an expert's rows that are gathered at a time.
constexpr int64_t kGathered = 128;
// Floats of expert outputs that a thread buffers before adding them to rows; they fit its cache.
constexpr int64_t kHeld = 1 << 16;
// Pieces per thread if experts have different numbers of rows.
constexpr int64_t kUnequalPieces = 16;

// Number of output tiles for which a thread sums the experts at a time, in pairs.
int64_t expert_tiles(int64_t assigned) { return 2 * std::max<int64_t>(1, kHeld / (2 * assigned * kLanes)); }

const ExpertsShape& shape_of(const OperationParts& of) { return std::get<ExpertsShape>(of.shape.operation); }

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

// Groups (row, rank) by expert.
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
  for (int64_t e = of; e > 0; --e) begins[size_t(e)] = begins[size_t(e - 1)];  // each was advanced to the next begin
  begins[0] = 0;
}

// Keeps the groups with the best expert, or the best sum of two experts; ties go to the lower index.
void Experts::limit_to_groups(float* scores) const {
  const int64_t groups = shape_.groups, size = count() / groups;
  if (shape_.groups_used == groups) return;
  const auto worth = [&](int64_t group) {
    float first = -INFINITY, second = -INFINITY;
    for (int64_t e = group * size; e < (group + 1) * size; ++e)
      if (scores[e] > first) {
        second = first;
        first = scores[e];
      } else if (scores[e] > second) {
        second = scores[e];
      }
    return size == 1 || shape_.group_best == 1 ? first : first + second;
  };
  // A group is kept if fewer than groups_used groups are better.
  for (int64_t group = 0; group < groups; ++group) scores[count() + group] = worth(group);
  const float* const worths = scores + count();
  for (int64_t group = 0; group < groups; ++group) {
    int64_t better = 0;
    for (int64_t other = 0; other < groups; ++other)
      better += worths[other] > worths[group] || (worths[other] == worths[group] && other < group);
    if (better >= shape_.groups_used) std::fill_n(scores + group * size, size, -INFINITY);
  }
}

// Chooses a row's experts, best first (ties: the lowest index), and their weights.
void Experts::choose(const KernelTable& kernels, const float* logits, float* scratch, int32_t* experts,
                     float* weights) const {
  const bool sigmoid = shape_.scores == RouterScores::sigmoid, all = shape_.scores == RouterScores::all;
  const int64_t stride = padded(count(), kLanes);
  float *const scores = scratch, *const wanted = scratch + stride;  // scores for the weights, and scores for the choice
  // Softmax keeps the order of the logits, so it is needed for the choice only if a correction is added to it.
  const bool scored = sigmoid || (all && correction_ != nullptr);
  if (sigmoid) {
    std::fill_n(scores, count(), 1.0f);
    kernels.gate(logits, count(), GateKind::sigmoid, scores);
  } else if (scored) {
    std::copy_n(logits, count(), scores);
    kernels.softmax(scores, count());
  }
  const bool corrected = scored || correction_ != nullptr || shape_.groups > 1;
  if (corrected) {
    std::copy_n(scored ? scores : logits, count(), wanted);
    for (int64_t e = 0; correction_ != nullptr && e < count(); ++e) wanted[e] += correction_[e];
    limit_to_groups(wanted);
  }
  const float* const by = corrected ? wanted : logits;
  const auto taken = [&](int k, int32_t e) { return std::find(experts, experts + k, e) != experts + k; };
  for (int k = 0; k < used_; ++k) {
    int32_t best = -1;
    for (int32_t e = 0; e < count(); ++e)
      if ((best < 0 || by[e] > by[best]) && !taken(k, e)) best = e;
    experts[k] = best;
  }
  if (!scored) {
    const int64_t n = all ? count() : used_;
    for (int64_t i = 0; i < n; ++i) scores[i] = logits[all ? i : experts[i]];
    kernels.softmax(scores, n);
  }
  float sum = 0;
  for (int k = 0; k < used_; ++k) {
    weights[k] = scores[all || sigmoid ? experts[k] : k];
    sum += weights[k];
  }
  for (int k = 0; k < used_; ++k) {
    if (shape_.renormalize) weights[k] /= sum + shape_.sum_epsilon;
    if (shape_.scale != 1) weights[k] *= shape_.scale;
    if (expert_scales_ != nullptr) weights[k] *= expert_scales_[experts[k]];
    if (!std::isfinite(logits[experts[k]])) weights[k] = NAN;  // an overflow must stay visible
  }
}

Experts::Experts(const OperationParts& of, RowsMemory& gated, ExpertsScratch& scratch)
    : Operation(of),
      shape_(shape_of(of)),
      used_(shape_.used),
      intermediate_(shape_.experts[0].intermediate),
      experts_(shape_of(of).experts.size()),
      gated_(gated),
      scratch_(scratch) {
  if (!shape_.given) of.weights.declare_linear(of.name + ".router", router_, count(), of.hidden, {Phase::router, 1, true});
  router_norm_.declare(of.name + ".router_norm", shape_.router_norm, of.weights);
  norm_.declare(of.name + ".norm", shape_.norm, of.weights);
  results_norm_.declare(of.name + ".after", shape_.after, of.weights);
  shared_norm_.declare(of.name + ".shared_after", shape_.shared_after, of.weights);
  if (shape_.expert_scales) of.weights.declare(of.name + ".expert_scales", expert_scales_, count());
  if (shape_.correction) of.weights.declare(of.name + ".correction", correction_, count());
  const int64_t width = shape_.latent > 0 ? shape_.latent : of.hidden;
  if (shape_.latent > 0) {
    of.weights.declare_linear(of.name + ".compress", compress_, width, of.hidden, {Phase::router, 1, false});
    of.weights.declare_linear(of.name + ".expand", expand_, of.hidden, width, {Phase::down, 1, false});
  }
  for (size_t e = 0; e < experts_.size(); ++e)  // all of one size: accounted as if the first ones were read
    experts_[e].declare(of.name + ".experts." + std::to_string(e), shape_of(of).experts[e], width,
                        int64_t(e) < used_ ? 1 : 0, nullptr, nullptr, of.weights);
  if (shape_.shared.intermediate == 0) return;
  shared_.declare(of.name + ".shared", shape_.shared, of.hidden, 1, nullptr, nullptr, of.weights);
  if (shape_.shared_gate) of.weights.declare_linear(of.name + ".shared_gate", shared_gate_, 1, of.hidden, {Phase::router, 1, true});
}

void Experts::run(ThreadContext& context, StepRows& rows) {
  const KernelTable& kernels = rows.kernels;
  const int64_t used = used_, assigned = rows.count * used, gate_column = padded(count(), kLanes);
  const int64_t latent_column = gate_column + kLanes, stride = latent_column + padded(shape_.latent, kLanes);
  const bool shares = shape_.shared.intermediate > 0;
  const bool experts_integer = std::any_of(experts_.begin(), experts_.end(), [](const GatedMlp& mlp) { return mlp.integer(); });
  const bool integer = (shares && shared_.integer()) || experts_integer || (shape_.latent > 0 && !is_float(compress_.format));
  const bool normed = shape_.has_norms(), latent = shape_.latent > 0;
  const int64_t width = latent ? shape_.latent : rows.width;  // of what experts read and write
  // Whether the shared expert is added to the experts' sum; else it reads other rows, or is added to their projection.
  const bool shares_sum = shares && !normed && !latent;
  // Prepares the rows after `norm`, or as all operations read them. Invalidates the previously prepared rows.
  const auto inputs = [&](bool quantized, const Norm* norm, float multiplier = 1) {
    return context.inputs(rows.count, rows.width, quantized, nullptr, [&rows, norm, multiplier, this](int64_t row, float* out) {
      if (norm == nullptr) return input(rows, row, out);
      (*norm)(rows.kernels, rows.row(row), out);
      if (multiplier != 1) rows.kernels.scale(out, rows.width, multiplier);
    });
  };
  context.enter(Phase::router);
  auto router_x = inputs(integer && !normed, normed ? &router_norm_ : nullptr, normed ? shape_.router_multiplier : 1);
  const JoinedLinears routers{{{{&router_, 0},
                                {shape_.shared_gate ? &shared_gate_ : nullptr, gate_column},
                                {latent ? &compress_ : nullptr, latent_column}}}};
  if (!shape_.given) context.split_tiles(routers.tiles(), [&](int64_t begin, int64_t end) {
    routers.run(kernels, router_x.get(), begin, end, scratch_.router_logits.data(), stride);
  });

  // Few choices are made by every thread, like few rows, and inside an item: a late thread finds the phase complete and must
  // not read scratch that already belongs to the next layer.
  const bool alone = rows.count <= kPreparedByAll, chooses_alone = alone && !shape_.given;
  ThreadMemory& own = rows.own[size_t(context.thread())];
  ExpertChoice& choice = chooses_alone ? own.choice : scratch_.choice;
  ExpertPlan& plan = own.plan;
  const auto choose_row = [&](int64_t row) {
    choose(kernels, scratch_.router_logits.data() + row * stride, context.scratch(), choice.experts.data() + row * used,
           choice.weights.data() + row * used);
  };
  if (!alone && !shape_.given) context.each(rows.count, choose_row);
  bool planned = false;
  const auto make_plan = [&] {
    if (planned) return;
    for (int64_t row = 0; chooses_alone && row < rows.count; ++row) choose_row(row);
    plan.make(choice, rows.count, used, count());
    planned = true;
  };

  const Rows gated = gated_.view(assigned, intermediate_);
  const Rows shared = shares ? scratch_.shared.view(rows.count, shape_.shared.intermediate) : Rows{};
  // Entries [a, a + n) of expert e: the rows of an expert form bands of their own.
  const auto gated_of = [&](int32_t e, int64_t a, int64_t n) {
    const int64_t first = plan.begins[size_t(e)];
    return rows_of(separate_rows(gated, first, plan.begins[size_t(e + 1)] - first), a - first, n);
  };
  const int64_t pieces = (alone ? kPieces : kUnequalPieces) * rows.threads;
  const auto gate_up_shared = [&](const Rows& x, int64_t piece) {
    const auto part = part_of(shared.blocks, pieces, piece);
    kernels.gate_up(shared_.gate, shared_.up, shared_.activation, x, part.first, part.second, shared, !is_float(shared_.down.format));
  };
  int64_t gathered = -1;  // first entry of the rows in own.gathered
  // Computes output groups [begin, end) of one expert for all of its rows.
  const auto gate_up = [&](const Rows& x, int32_t e, int64_t begin, int64_t end) {
    const GatedMlp& mlp = experts_[size_t(e)];
    const bool floats = is_float(mlp.gate.format) || is_float(mlp.up.format);
    for (int64_t a = plan.begins[size_t(e)]; a < plan.begins[size_t(e + 1)]; a += kGathered) {
      const int64_t n = std::min<int64_t>(plan.begins[size_t(e + 1)] - a, kGathered);
      const int32_t* places = plan.row_of.data() + a;
      Rows those;
      if (places[n - 1] - places[0] == n - 1) {  // consecutive rows
        those = rows_of(x, places[0], n);
      } else {
        those = own.gathered.view(n, width);
        if (gathered != a) gather(x, places, n, mlp.integer(), floats, those);
        gathered = a;
      }
      kernels.gate_up(mlp.gate, mlp.up, mlp.activation, those, begin, end, gated_of(e, a, n), !is_float(mlp.down.format));
    }
  };
  const auto gate_up_experts = [&](auto& x) {
    context.each(pieces, [&](int64_t piece) {
      make_plan();
      if (piece == 0) scratch_.touched += plan.experts_touched;
      if (shares_sum) gate_up_shared(x.get(), piece);
      const auto part = part_of(plan.experts_touched * gated.blocks, pieces, piece);
      for (int64_t begin = part.first, end; begin < part.second; begin = end) {
        const int64_t i = begin / gated.blocks, first = i * gated.blocks;
        end = std::min(part.second, first + gated.blocks);
        gate_up(x.get(), plan.touched[size_t(i)], begin - first, end - first);
      }
    });
  };
  context.enter(Phase::gate_up);
  if (normed) {
    auto shared_x = inputs(shared_.integer(), nullptr);
    context.each(pieces, [&](int64_t piece) { gate_up_shared(shared_x.get(), piece); });
    auto experts_x = inputs(integer, &norm_);
    gate_up_experts(experts_x);
  } else if (latent) {
    if (shares) context.each(pieces, [&](int64_t piece) { gate_up_shared(router_x.get(), piece); });
    auto experts_x = context.inputs(rows.count, width, experts_integer, nullptr, [&](int64_t row, float* out) {
      std::copy_n(scratch_.router_logits.data() + row * stride + latent_column, width, out);
    });
    gate_up_experts(experts_x);
  } else {
    gate_up_experts(router_x);
  }

  context.enter(Phase::down);
  const int64_t sums = latent ? padded(width, kLanes) : rows.stride;  // stride of the experts' sums
  const auto down = [&](int64_t begin, int64_t end, float* out, bool add) {
    make_plan();
    const int64_t first = begin * kLanes, some = (end - begin) * kLanes;
    const int64_t n = std::min<int64_t>(end * kLanes, width) - first;
    float* sum = context.scratch();
    float* made = sum + some;  // [assigned][some]
    for (int64_t i = 0; i < plan.experts_touched; ++i) {
      const int32_t e = plan.touched[size_t(i)];
      const int64_t a = plan.begins[size_t(e)];
      kernels.linear(experts_[size_t(e)].down, gated_of(e, a, plan.begins[size_t(e + 1)] - a), begin, end,
                       made + a * some, some, false);
    }
    float* const of_shared = made + assigned * some;  // [rows][some]
    if (shares_sum) kernels.linear(shared_.down, shared, begin, end, of_shared, some, false);
    for (int64_t row = 0; row < rows.count; ++row) {
      std::fill(sum, sum + n, 0.0f);
      for (int64_t k = row * used; k < (row + 1) * used; ++k)
        kernels.add_scaled(made + plan.at[size_t(k)] * some, n, choice.weights[size_t(k)], sum);
      if (shares_sum) {
        float gate[kLanes] = {1};
        if (shape_.shared_gate)
          kernels.gate(scratch_.router_logits.data() + row * stride + gate_column, 1, GateKind::sigmoid, gate);
        kernels.add_scaled(of_shared + row * some, n, gate[0], sum);
      }
      float* to = out + row * sums;
      if (add)
        kernels.add_scaled(sum, n, 1, to);
      else
        std::copy(sum, sum + n, to);
    }
  };
  if (shape_.given)  // the sum alone
    return context.split_tiles(rows.stride / kLanes, [&](int64_t begin, int64_t end) {
      down(begin, end, rows.branch.data() + begin * kLanes, false);
    }, expert_tiles(held_rows(rows)));
  if (latent) {
    context.split_tiles(sums / kLanes, [&](int64_t begin, int64_t end) {
      down(begin, end, scratch_.results.data() + begin * kLanes, false);
    }, expert_tiles(held_rows(rows)));
    auto sums_x = context.inputs(rows.count, width, !is_float(expand_.format), nullptr, [&](int64_t row, float* out) {
      std::copy_n(scratch_.results.data() + row * sums, width, out);
    });
    return add_to_hidden(context, rows, [&](int64_t begin, int64_t end, float* out, bool add) {
      kernels.linear(expand_, sums_x.get(), begin, end, out, rows.stride, add);
      if (shares) kernels.linear(shared_.down, shared, begin, end, out, rows.stride, true);
    });
  }
  if (!normed) return add_to_hidden(context, rows, down, expert_tiles(held_rows(rows)));
  context.split_tiles(rows.stride / kLanes, [&](int64_t begin, int64_t end) {
    kernels.linear(shared_.down, shared, begin, end, rows.branch.data() + begin * kLanes, rows.stride, false);
    down(begin, end, scratch_.results.data() + begin * kLanes, false);
  }, expert_tiles(held_rows(rows)));
  context.each(rows.count, [&](int64_t r) { add_normed(rows, r, context.scratch()); });
}

// Norms read whole vectors, so the padding is set to 0.
void Experts::add_normed(StepRows& rows, int64_t row, float* scratch) const {
  float *const sum = scratch, *const normed = scratch + rows.stride;
  float* const results = scratch_.results.data() + row * rows.stride;
  std::fill(results + rows.width, results + rows.stride, 0.0f);
  shared_norm_(rows.kernels, rows.branch.data() + row * rows.stride, sum);
  results_norm_(rows.kernels, results, normed);
  rows.kernels.add_scaled(normed, rows.width, 1, sum);
  std::fill(sum + rows.width, sum + rows.stride, 0.0f);
  add_row(rows, row, sum, normed);
}

// Number of rows of outputs that a thread buffers before adding them.
int64_t Experts::held_rows(const StepRows& rows) const {
  return rows.count * (used_ + (shape_.shared.intermediate > 0 ? 1 : 0));
}

void Experts::reserve(StepRows& rows) {
  const int64_t assigned = rows.count * used_, results = held_rows(rows);
  if (assigned > INT32_MAX) throw std::invalid_argument("the step has too many rows for this number of experts");
  gated_.reserve(assigned, intermediate_);
  const int64_t widest = std::max<int64_t>(rows.width, shape_.latent), latent = padded(shape_.latent, kLanes);
  rows.reserve_inputs(widest, false);
  ensure(scratch_.router_logits, rows.count * (padded(count(), kLanes) + kLanes + latent));
  ensure(scratch_.results, rows.count * latent);
  if (shape_.shared.intermediate > 0) scratch_.shared.reserve(rows.count, shape_.shared.intermediate);
  if (rows.count > kPreparedByAll || shape_.given) scratch_.choice.reserve(rows.count, used_);
  if (shape_.has_norms()) {
    ensure(scratch_.results, rows.count * rows.stride);
    rows.reserve_scratch(2 * rows.stride);
  }
  // At least (results + 1) * expert_tiles(results) * kLanes, and monotonic in the number of rows.
  const int64_t held = std::min(2 * kHeld + (results + 1) * 2 * kLanes, (results + 1) * std::max(rows.stride, latent));
  rows.reserve_scratch(std::max(held, 3 * padded(count(), kLanes)));
  for (ThreadMemory& own : rows.own) {
    own.choice.reserve(std::min(rows.count, kPreparedByAll), used_);
    own.plan.reserve(rows.count, used_, count());
    own.gathered.reserve(std::min(rows.count, kGathered), widest);
  }
}

}  // namespace ipex_lookahead
