#include "model/cached_attention.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace ipex_lookahead {
namespace {

// Up to this number of rows, attention is split by blocks of positions; beyond it, by tiles of rows.
constexpr int64_t kSplitPositions = 16;
constexpr int64_t kRowTile = 16;

// The block of the first position that a row at `position` sees.
int64_t first_block(int64_t window, int64_t position) {
  return window > 0 && position >= window ? (position - window + 1) / kBlock : 0;
}

}  // namespace

size_t AttentionScratch::plan_for(const HeadsShape& shape) {
  const auto same = std::find_if(plans_.begin(), plans_.end(), [&](const Plan& plan) {
    return plan.window == shape.window && plan.heads == shape.heads && plan.kv_heads == shape.kv_heads;
  });
  const size_t number = size_t(same - plans_.begin());
  if (same == plans_.end()) plans_.push_back({shape.window, shape.heads, shape.kv_heads, {}});
  return number;
}

void AttentionScratch::plan(const StepRows& rows, int64_t positions) {
  for (size_t i = 0; i < ropes_.size(); ++i) {
    tables_[i].reserve(ropes_[i], positions, max_context_);
    if (rows.has_positions && !ropes_[i].axes.empty()) mix(i, rows);
  }
  const bool by_blocks = rows.count <= kSplitPositions;
  partial_blocks = 1;
  for (const Sequence& s : rows.sequences)
    if (by_blocks) partial_blocks = std::max(partial_blocks, s.blocks);
  for (Plan& one : plans_) plan(one, rows, by_blocks);
}

// Takes each pair's cosine and sine from the position that it turns by.
void AttentionScratch::mix(size_t rope, const StepRows& rows) {
  const Rope& of = ropes_[rope];
  const RopeTable& table = tables_[rope];
  Mixed& mixed = mixed_[rope];
  const int64_t half = of.half();
  ensure(mixed.cos, rows.count * half);
  ensure(mixed.sin, rows.count * half);
  for (int64_t r = 0; r < rows.count; ++r)
    for (int64_t k = 0; k < half; ++k) {
      const int64_t from = rows.position(r, of.axes[size_t(k)]) * half + k;
      mixed.cos[size_t(r * half + k)] = table.cos[size_t(from)];
      mixed.sin[size_t(r * half + k)] = table.sin[size_t(from)];
    }
}

Turn AttentionScratch::turn(int rope, const StepRows& rows, int64_t row) const {
  if (rope < 0) return {};
  const Rope& of = ropes_[size_t(rope)];
  const RopeTable& table = tables_[size_t(rope)];
  const int64_t position = rows.position(row), half = of.half();
  if (rows.has_positions && !of.axes.empty()) {
    const Mixed& mixed = mixed_[size_t(rope)];
    return {mixed.cos.data() + row * half, mixed.sin.data() + row * half, table.query[size_t(position)]};
  }
  return {table.cos.data() + position * half, table.sin.data() + position * half, table.query[size_t(position)]};
}

void AttentionScratch::plan(Plan& plan, const StepRows& rows, bool by_blocks) const {
  plan.items.clear();
  const int group = plan.heads / plan.kv_heads;
  int64_t items = 0;
  for (const Sequence& s : rows.sequences)
    items += plan.kv_heads * (by_blocks ? s.blocks - first_block(plan.window, s.length) : (s.rows + kRowTile - 1) / kRowTile);
  // With few items, heads that share keys become separate items: the second read of the keys hits the cache.
  const bool split_heads = by_blocks && items < 4 * threads_ && threads_ > 1;
  const int heads = split_heads ? std::max(1, int(group * items / (4 * threads_))) : group;
  if (items > Phases::kMaxItems) throw std::invalid_argument("the step has too many rows for this number of heads");
  for (size_t i = 0; i < rows.sequences.size(); ++i) {
    const Sequence& s = rows.sequences[i];
    for (int kv = 0; kv < plan.kv_heads; ++kv)
      for (int h = 0; h < group; h += heads)
        if (by_blocks)
          for (int64_t b = first_block(plan.window, s.length); b < s.blocks; ++b)
            plan.items.push_back({int(i), kv, h, std::min(heads, group - h), b, 0, s.rows});
        else
          for (int64_t r = 0; r < s.rows; r += kRowTile)
            plan.items.push_back({int(i), kv, h, std::min(heads, group - h), -1, r, std::min(r + kRowTile, s.rows)});
  }
}

CachedAttention::CachedAttention(const HeadsShape& shape, KvFormat format, CacheShape& cache, AttentionScratch& scratch)
    : shape_(shape), scratch_(scratch), plan_(scratch.plan_for(shape)) {
  state_ = cache.state_index(KvShape{shape.window, 0, shape.kv_heads, shape.head_dim, shape.value_dim, format});
  number_ = std::get<KvShape>(cache.states[state_]).layers++;
}

void CachedAttention::reserve(StepRows& rows) {
  const int64_t group = shape_.heads / shape_.kv_heads, head = partial_floats();
  rows.reserve_scratch(attention_scratch(rows.count) + kRowTile * group * head + floats());
  ensure(scratch_.partials, rows.count * shape_.heads * scratch_.partial_blocks * head);
}

std::pair<uint8_t*, int64_t> CachedAttention::slot(const StepRows& rows, int64_t row) const {
  const Sequence& s = rows.sequence(row);
  const int64_t slot = s.length + row - s.first_row;
  return {pages(s)[slot / kPage], slot % kPage};
}

void CachedAttention::store_key(const StepRows& rows, int64_t row, int head, const float* key) const {
  const auto [page, at] = slot(rows, row);
  float* scales = reinterpret_cast<float*>(page + kv_.scale_offset(number_, head));
  rows.kernels.store_key[int(kv_.format)](key, page + kv_.k_offset(number_, head), scales, at, shape_.head_dim);
}

void CachedAttention::store_value(const StepRows& rows, int64_t row, int head, const float* value) const {
  const auto [page, at] = slot(rows, row);
  float* scales = reinterpret_cast<float*>(page + kv_.scale_offset(number_, head)) + kPage;
  rows.kernels.store_value[int(kv_.format)](value, page + kv_.v_offset(number_, head), scales, at, shape_.value_dim);
}

void CachedAttention::run(ThreadContext& context, const StepRows& rows, const float* q, int64_t q_stride) const {
  const AttentionScratch::Plan& plan = scratch_.plan(plan_);
  context.enter(Phase::attention);
  context.each(int64_t(plan.items.size()), [&](int64_t i) { attend(context, rows, plan.items[size_t(i)], q, q_stride); });
}

// Merges the head's blocks in ascending order, then the sink, and divides by the sum.
void CachedAttention::result(const StepRows& rows, int64_t row, int head, const float* sink, float* memory, float* out) const {
  const int64_t size = partial_floats();
  const bool whole = scratch_.partial_blocks == 1;
  const int64_t from = whole ? 0 : first_block(shape_.window, rows.last_seen(row));
  const int64_t last = whole ? 0 : rows.last_visible(row, shape_.spans) / kBlock;
  const float* first = partial(row, head, from);
  if (last > from || sink != nullptr) {
    std::memcpy(memory, first, size_t(size) * sizeof(float));
    for (int64_t b = from + 1; b <= last; ++b) rows.kernels.merge(memory, partial(row, head, b), shape_.value_dim);
    if (sink != nullptr) {  // merged as a block with the sink as its only score and a value of zero
      float* const block = memory + size;
      std::fill(block, block + size, 0.0f);
      block[0] = *sink;
      block[1] = 1;
      rows.kernels.merge(memory, block, shape_.value_dim);
    }
    first = memory;
  }
  rows.kernels.finish(first, shape_.value_dim, out);
}

Keys CachedAttention::keys_of(const StepRows& rows, const Sequence& s, int head) const {
  Keys keys;
  keys.pages = pages(s);
  keys.k_offset = kv_.k_offset(number_, head);
  keys.v_offset = kv_.v_offset(number_, head);
  keys.scale_offset = kv_.scale_offset(number_, head);
  keys.length = s.length;
  keys.depth = rows.depth.data() + s.first_row;
  if (shape_.spans && rows.has_spans) keys.seen = rows.seen.data() + s.first_row;
  if (!s.chain) {
    keys.ancestors = rows.ancestors.data() + s.ancestors;
    keys.ancestor_stride = s.rows;
  }
  return keys;
}

void CachedAttention::attend(ThreadContext& context, const StepRows& rows, const AttentionScratch::Item& item, const float* q,
                             int64_t q_stride) const {
  const HeadsShape& l = shape_;
  const Sequence& s = rows.sequences[size_t(item.sequence)];
  const Keys keys = keys_of(rows, s, item.kv_head);
  const int64_t size = partial_floats();
  const int64_t head = int64_t(item.kv_head) * (l.heads / l.kv_heads) + item.first_head;
  Attend a;
  a.heads = item.heads;
  a.head_dim = l.head_dim;
  a.value_dim = l.value_dim;
  a.q = q + s.first_row * q_stride + head * l.head_dim;
  a.q_stride = q_stride;
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
  // Many rows: a tile of rows walks its blocks in ascending order and merges each at once.
  float* next = a.scratch + attention_scratch(s.rows);
  int64_t b = s.blocks;
  for (int64_t r = item.first_row; r < item.last_row; ++r)
    b = std::min(b, first_block(l.window, s.length + keys.depth[r]));
  attend_block(b, partial(s.first_row + item.first_row, head, 0), l.heads * size, size);
  for (++b; b < s.blocks; ++b) {
    attend_block(b, next, item.heads * size, size);
    for (int64_t r = item.first_row; r < item.last_row; ++r) {
      const int64_t position = s.length + keys.depth[r], first = first_block(l.window, position);
      if (b < first || b > (keys.seen == nullptr ? position : s.length + keys.seen[r]) / kBlock) continue;
      for (int64_t h = 0; h < item.heads; ++h) {
        float* state = partial(s.first_row + r, head + h, 0);
        const float* more = next + ((r - item.first_row) * item.heads + h) * size;
        if (b == first)
          std::memcpy(state, more, size_t(size) * sizeof(float));
        else
          rows.kernels.merge(state, more, l.value_dim);
      }
    }
  }
}

}  // namespace ipex_lookahead
