#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "model/attention.h"

namespace ipex_lookahead {
namespace {

// Up to this many rows attention is shared out by blocks of positions; beyond, by tiles of rows.
constexpr int64_t kSplitPositions = 16;
constexpr int64_t kRowTile = 16;
// Heads to rotate and store in a piece at least; fewer take less time than sharing them out.
constexpr int64_t kLeastHeads = 4;

// The block of the first position that one at `position` sees.
int64_t first_block(int64_t window, int64_t position) {
  return window > 0 && position >= window ? (position - window + 1) / kBlock : 0;
}

}  // namespace

size_t AttentionScratch::plan_for(const AttentionShape& shape) {
  const auto same = std::find_if(plans_.begin(), plans_.end(), [&](const Plan& plan) {
    return plan.window == shape.window && plan.heads == shape.heads && plan.kv_heads == shape.kv_heads;
  });
  const size_t number = size_t(same - plans_.begin());
  if (same == plans_.end()) plans_.push_back({shape.window, shape.heads, shape.kv_heads, {}});
  return number;
}

void AttentionScratch::plan(const StepRows& rows, int64_t positions) {
  for (size_t i = 0; i < ropes_.size(); ++i) tables_[i].reserve(ropes_[i], positions, max_context_);
  const bool by_blocks = rows.count <= kSplitPositions;
  partial_blocks = 1;
  for (const Sequence& s : rows.sequences)
    if (by_blocks) partial_blocks = std::max(partial_blocks, s.blocks);
  for (Plan& one : plans_) plan(one, rows, by_blocks);
}

void AttentionScratch::plan(Plan& plan, const StepRows& rows, bool by_blocks) const {
  plan.items.clear();
  const int group = plan.heads / plan.kv_heads;
  int64_t items = 0;
  for (const Sequence& s : rows.sequences)
    items += plan.kv_heads * (by_blocks ? s.blocks - first_block(plan.window, s.length) : (s.rows + kRowTile - 1) / kRowTile);
  // Where there are few items, heads that share keys are done apart: the keys come from the cache the second time.
  const int heads = by_blocks && items < 4 * threads_ && threads_ > 1 ? 1 : group;
  if (items > Phases::kMostItems) throw std::invalid_argument("the step has too many rows for so many heads");
  for (size_t i = 0; i < rows.sequences.size(); ++i) {
    const Sequence& s = rows.sequences[i];
    for (int kv = 0; kv < plan.kv_heads; ++kv)
      for (int h = 0; h < group; h += heads)
        if (by_blocks)
          for (int64_t b = first_block(plan.window, s.length); b < s.blocks; ++b)
            plan.items.push_back({int(i), kv, h, heads, b, 0, s.rows});
        else
          for (int64_t r = 0; r < s.rows; r += kRowTile)
            plan.items.push_back({int(i), kv, h, heads, -1, r, std::min(r + kRowTile, s.rows)});
  }
}

Attention::Attention(const OperationParts& of, AttentionScratch& scratch)
    : Operation(of), shape_(std::get<AttentionShape>(of.shape.operation)), scratch_(scratch) {
  const int64_t q = shape_.q_width(), kv = shape_.kv_width();
  of.weights.declare_linear(of.name + ".q", q_, q, of.hidden, {Phase::qkv, 1, false, &order_});
  of.weights.declare_linear(of.name + ".k", k_, kv, of.hidden, {Phase::qkv});
  of.weights.declare_linear(of.name + ".v", v_, kv, of.hidden, {Phase::qkv});
  q_norm_.declare(of.name + ".q_norm", shape_.q_norm, of.weights);
  k_norm_.declare(of.name + ".k_norm", shape_.k_norm, of.weights);
  if (shape_.sinks) of.weights.declare(of.name + ".sinks", sinks_, shape_.heads);
  of.weights.declare_linear(of.name + ".o", o_, of.hidden, q, {Phase::output, 1, false, &o_order_});
  k_column_ = padded(q, kLanes);
  v_column_ = k_column_ + padded(kv, kLanes);
  stride_ = v_column_ + padded(kv, kLanes);
  plan_ = scratch.plan_for(shape_);
  const KvShape own{shape_.window, 0, shape_.kv_heads, shape_.head_dim, of.kv_format};
  std::vector<StateShape>& states = of.cache.states;
  const auto same = std::find_if(states.begin(), states.end(), [&](const StateShape& state) {
    const auto* pages = std::get_if<KvShape>(&state);
    return pages != nullptr && pages->alike(own);
  });
  state_ = size_t(same - states.begin());
  if (same == states.end()) states.emplace_back(own);
  number_ = std::get<KvShape>(states[state_]).layers++;
}

void Attention::reserve(StepRows& rows) {
  const int64_t group = shape_.heads / shape_.kv_heads, head = partial_floats();
  rows.reserve_inputs(rows.width, order_ != nullptr);
  rows.reserve_inputs(shape_.q_width(), o_order_ != nullptr);
  rows.reserve_scratch(std::max({attention_scratch(rows.count) + kRowTile * group * head + 2 * head, k_column_, rows.stride}));
  ensure(scratch_.qkv, rows.count * stride_);
  ensure(scratch_.partials, rows.count * shape_.heads * scratch_.partial_blocks * head);
}

void Attention::run(ThreadContext& context, StepRows& rows) {
  const bool integer = !is_float(q_.format) || !is_float(k_.format) || !is_float(v_.format);
  const int64_t heads = shape_.heads + 2 * int64_t(shape_.kv_heads);
  const bool whole_norm = std::max(q_norm_.width, k_norm_.width) > shape_.head_dim;
  // Where heads consist of whole tiles, who computes a head of q, k or v also norms, rotates and stores it.
  const bool fused = whole_heads() && !whole_norm;
  context.enter(Phase::qkv);
  auto x = context.inputs(rows.count, rows.width, integer, order_,
                          [&](int64_t row, float* out) { input(rows, row, out); });
  context.split(whole_heads() ? heads : q_.tiles() + k_.tiles() + v_.tiles(), 1, [&](int64_t begin, int64_t end) {
    qkv(rows, x.get(), begin, end);
    if (fused) finish_heads(rows, begin, end);
  });
  context.enter(Phase::heads);
  if (whole_norm) context.each(rows.count, [&](int64_t row) { norm_whole(context, rows, row); });
  if (!fused) context.split(heads, kLeastHeads, [&](int64_t begin, int64_t end) { finish_heads(rows, begin, end); });
  const AttentionScratch::Plan& plan = scratch_.plan(plan_);
  context.enter(Phase::attention);
  context.each(int64_t(plan.items.size()), [&](int64_t i) { attend(context, rows, plan.items[size_t(i)]); });
  context.enter(Phase::output);
  auto merged = context.inputs(rows.count, shape_.q_width(), !is_float(o_.format), o_order_,
                               [&](int64_t row, float* out) { merge_heads(context, rows, row, out); });
  add_to_hidden(context, rows, [&](int64_t begin, int64_t end, float* out, bool add) {
    rows.kernels.linear(o_, merged.get(), begin, end, out, rows.stride, add);
  });
}

// Norms q and k of a row over their whole width.
void Attention::norm_whole(ThreadContext& context, const StepRows& rows, int64_t row) const {
  const auto norm_part = [&](const Norm& norm, int64_t column) {
    if (norm.width <= shape_.head_dim) return;
    float* x = scratch_.qkv.data() + row * stride_ + column;
    norm(rows.kernels, x, context.scratch());
    std::memcpy(x, context.scratch(), size_t(norm.width) * sizeof(float));  // and what pads it stays zero
  };
  norm_part(q_norm_, 0);
  norm_part(k_norm_, k_column_);
}

// Joins the blocks of every head in ascending order, then the sink, and divides by the sum.
void Attention::merge_heads(ThreadContext& context, const StepRows& rows, int64_t row, float* out) const {
  const int64_t position = rows.position(row), size = partial_floats();
  const bool whole = scratch_.partial_blocks == 1;
  const int64_t from = whole ? 0 : first_block(shape_.window, position), last = whole ? 0 : position / kBlock;
  float *state = context.scratch(), *sink = state + size;
  if (sinks_ != nullptr) std::fill(sink, sink + size, 0.0f);
  for (int h = 0; h < shape_.heads; ++h) {
    const float* first = partial(row, h, from);
    if (last > from || sinks_ != nullptr) {
      std::memcpy(state, first, size_t(size) * sizeof(float));
      for (int64_t b = from + 1; b <= last; ++b) rows.kernels.merge(state, partial(row, h, b), shape_.head_dim);
      if (sinks_ != nullptr) {  // a block whose only score is the sink, and whose value is zero
        sink[0] = sinks_[h];
        sink[1] = 1;
        rows.kernels.merge(state, sink, shape_.head_dim);
      }
      first = state;
    }
    rows.kernels.finish(first, shape_.head_dim, out + h * shape_.head_dim);
  }
}

// Pieces [begin, end) of q, k and v as one run, so that the three are shared out together: heads where they consist of
// whole tiles, else tiles.
void Attention::qkv(const StepRows& rows, const Rows& x, int64_t begin, int64_t end) const {
  const int64_t columns[3] = {0, k_column_, v_column_};
  const Matrix* const matrices[3] = {&q_, &k_, &v_};
  const auto tiles_of = [&](int s, int64_t from, int64_t to) {
    rows.kernels.linear(*matrices[s], x, from, to, scratch_.qkv.data() + columns[s] + from * kLanes, stride_, false);
  };
  if (whole_heads()) {
    const int64_t tiles = shape_.head_dim / kLanes;
    for (int64_t i = begin; i < end; ++i) {
      const Head head = head_of(i);
      tiles_of(int(head.part), head.number * tiles, (head.number + 1) * tiles);
    }
    return;
  }
  int64_t base = 0;
  for (int s = 0; s < 3; ++s) {
    const int64_t tiles = matrices[s]->tiles();
    const int64_t from = std::max(begin - base, int64_t(0)), to = std::min(end - base, tiles);
    if (from < to) tiles_of(s, from, to);
    base += tiles;
  }
}

// Heads in the order in which they are shared out: the query heads of a key head, that key head, its value head, the
// query heads of the next. So a thread's share is about the heads that it will attend with.
Attention::Head Attention::head_of(int64_t index) const {
  const int group = shape_.heads / shape_.kv_heads, kv = int(index / (group + 2)), i = int(index % (group + 2));
  return i < group ? Head{Part::q, kv * group + i} : Head{i == group ? Part::k : Part::v, kv};
}

// Norms, rotates and stores heads [begin, end) of every row.
void Attention::finish_heads(const StepRows& rows, int64_t begin, int64_t end) const {
  const int d = shape_.head_dim, format = int(kv_.format);
  const RopeTable* rope = scratch_.table(shape_.rope);
  const int half = rope == nullptr ? 0 : int(scratch_.rope(shape_.rope).half());
  for (int64_t i = begin; i < end; ++i)
    for (int64_t row = 0; row < rows.count; ++row) {
      const Head head = head_of(i);
      const Sequence& s = rows.sequence(row);
      const int64_t position = rows.position(row), slot = s.length + row - s.first_row;
      float* base = scratch_.qkv.data() + row * stride_ + head.number * d;
      const auto rotate = [&](float* x, float scale) {
        const int64_t at = position * half;
        const float* cos = rope == nullptr ? nullptr : rope->cos.data() + at;
        rows.kernels.rope(x, cos, rope == nullptr ? nullptr : rope->sin.data() + at, half, d, scale);
      };
      if (head.part == Part::q) {
        if (q_norm_.width == d) norm_head(rows, q_norm_, base);
        rotate(base, rope == nullptr ? shape_.query_scale : shape_.query_scale * rope->query[size_t(position)]);
        rows.kernels.prepare_query[format](base, d);
        continue;
      }
      uint8_t* page = pages(s)[slot / kPage];
      float* scales = reinterpret_cast<float*>(page + kv_.scale_offset(number_, head.number));
      if (head.part == Part::k) {
        if (k_norm_.width == d) norm_head(rows, k_norm_, base + k_column_);
        rotate(base + k_column_, 1.0f);
        rows.kernels.store_key[format](base + k_column_, page + kv_.k_offset(number_, head.number), scales, slot % kPage, d);
      } else {
        rows.kernels.store_value[format](base + v_column_, page + kv_.v_offset(number_, head.number), scales + kPage,
                                          slot % kPage, d);
      }
    }
}

// The norm reads and writes whole vectors of 16, and what follows the head is another's.
void Attention::norm_head(const StepRows& rows, const Norm& norm, float* x) const {
  alignas(64) float in[kMostHeadDim], out[kMostHeadDim];
  const int d = shape_.head_dim;
  std::memcpy(in, x, size_t(d) * sizeof(float));
  std::fill(in + d, in + padded(d, kLanes), 0.0f);
  norm(rows.kernels, in, out);
  std::memcpy(x, out, size_t(d) * sizeof(float));
}

Keys Attention::keys_of(const StepRows& rows, const Sequence& s, int head) const {
  Keys keys;
  keys.pages = pages(s);
  keys.k_offset = kv_.k_offset(number_, head);
  keys.v_offset = kv_.v_offset(number_, head);
  keys.scale_offset = kv_.scale_offset(number_, head);
  keys.length = s.length;
  keys.depth = rows.depth.data() + s.first_row;
  if (!s.chain) {
    keys.ancestors = rows.ancestors.data() + s.ancestors;
    keys.ancestor_stride = s.rows;
  }
  return keys;
}

void Attention::attend(ThreadContext& context, const StepRows& rows, const AttentionScratch::Item& item) const {
  const AttentionShape& l = shape_;
  const Sequence& s = rows.sequences[size_t(item.sequence)];
  const Keys keys = keys_of(rows, s, item.kv_head);
  const int64_t size = partial_floats();
  const int64_t head = int64_t(item.kv_head) * (l.heads / l.kv_heads) + item.first_head;
  Attend a;
  a.heads = item.heads;
  a.head_dim = l.head_dim;
  a.q = scratch_.qkv.data() + s.first_row * stride_ + head * l.head_dim;
  a.q_stride = stride_;
  a.begin = item.first_row;
  a.end = item.last_row;
  a.step_rows = s.rows;
  a.window = l.window;
  a.softcap = l.softcap;
  a.scratch = context.scratch();
  const auto attend_block = [&](int64_t b, float* to, int64_t row_stride, int64_t head_stride) {
    a.block = b;
    a.partials = to;
    a.partial_row_stride = row_stride;
    a.partial_head_stride = head_stride;
    rows.kernels.attend[int(kv_.format)](keys, a);
  };
  const int64_t blocks = scratch_.partial_blocks;
  if (item.block >= 0) {
    attend_block(item.block, partial(s.first_row + item.first_row, head, item.block), l.heads * blocks * size, blocks * size);
    return;
  }
  // Many rows: the tile walks its blocks in ascending order, each merged as soon as it is there.
  float* next = a.scratch + attention_scratch(s.rows);
  int64_t b = s.blocks;
  for (int64_t r = item.first_row; r < item.last_row; ++r)
    b = std::min(b, first_block(l.window, s.length + keys.depth[r]));
  attend_block(b, partial(s.first_row + item.first_row, head, 0), l.heads * size, size);
  for (++b; b < s.blocks; ++b) {
    attend_block(b, next, item.heads * size, size);
    for (int64_t r = item.first_row; r < item.last_row; ++r) {
      const int64_t position = s.length + keys.depth[r], first = first_block(l.window, position);
      if (b < first || b > position / kBlock) continue;
      for (int64_t h = 0; h < item.heads; ++h) {
        float* state = partial(s.first_row + r, head + h, 0);
        const float* more = next + ((r - item.first_row) * item.heads + h) * size;
        if (b == first)
          std::memcpy(state, more, size_t(size) * sizeof(float));
        else
          rows.kernels.merge(state, more, l.head_dim);
      }
    }
  }
}

}  // namespace ipex_lookahead
