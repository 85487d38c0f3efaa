// Attention of one block: queries, keys and values, who sees whom, and the sum over what is seen.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "model/decoder.h"

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

void Decoder::plan_attention() {
  const bool by_blocks = rows_ <= kSplitPositions;
  partial_blocks_ = 1;
  for (const Sequence& s : sequences_)
    if (by_blocks) partial_blocks_ = std::max(partial_blocks_, s.blocks);
  for (AttentionPlan& plan : attention_plans_) plan_attention(plan, by_blocks);
}

void Decoder::plan_attention(AttentionPlan& plan, bool by_blocks) const {
  plan.items.clear();
  const int group = heads_.heads / heads_.kv_heads;
  int64_t items = 0;
  for (const Sequence& s : sequences_)
    items += heads_.kv_heads * (by_blocks ? s.blocks - first_block(plan.window, s.length)
                                          : (s.rows + kRowTile - 1) / kRowTile);
  // Where there are few items, heads that share keys are done apart: the keys come from the cache the second time.
  const int heads = by_blocks && items < 4 * threads_ && threads_ > 1 ? 1 : group;
  if (items > Phases::kMostItems) throw std::invalid_argument("the step has too many rows for so many heads");
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const Sequence& s = sequences_[i];
    for (int kv = 0; kv < heads_.kv_heads; ++kv)
      for (int h = 0; h < group; h += heads)
        if (by_blocks)
          for (int64_t b = first_block(plan.window, s.length); b < s.blocks; ++b)
            plan.items.push_back({int(i), kv, h, heads, b, 0, s.rows});
        else
          for (int64_t r = 0; r < s.rows; r += kRowTile)
            plan.items.push_back({int(i), kv, h, heads, -1, r, std::min(r + kRowTile, s.rows)});
  }
}

int64_t Decoder::attention_floats(int64_t rows) const {
  const int64_t group = heads_.heads / heads_.kv_heads, head = kPartialHead + cache_shape_.head_dim16();
  return std::max({attention_scratch(rows) + kRowTile * group * head + 2 * head, k_column_, hidden_stride_});
}

float* Decoder::partial(int64_t row, int64_t head, int64_t block) {
  const int64_t size = kPartialHead + cache_shape_.head_dim16();
  return partials_.data() + ((row * heads_.heads + head) * partial_blocks_ + block) * size;
}

void Decoder::attention(ThreadContext& context, const Block& block) {
  const Layer& l = block.shape;
  const bool integer = !is_float(block.q.format) || !is_float(block.k.format) || !is_float(block.v.format);
  const int64_t heads = l.heads + 2 * int64_t(l.kv_heads);
  const bool whole_norm = l.q_norm == HeadNorm::whole || l.k_norm == HeadNorm::whole;
  // Where heads consist of whole tiles, who computes a head of q, k or v also norms, rotates and stores it.
  const bool fused = whole_heads() && !whole_norm;
  context.enter(Phase::qkv);
  auto x = context.inputs(rows_, shape_.hidden, integer, block.order(Slot::q),
                       [&](int64_t row, float* out) { norm(hidden(row), block.at(Vector::attention_norm), out); });
  context.split(whole_heads() ? heads : block.q.tiles() + block.k.tiles() + block.v.tiles(), 1,
             [&](int64_t begin, int64_t end) {
               qkv(block, x.get(), begin, end);
               if (fused) finish_heads(block, begin, end);
             });
  context.enter(Phase::heads);
  if (whole_norm) context.each(rows_, [&](int64_t row) { norm_whole(context, block, row); });
  if (!fused) context.split(heads, kLeastHeads, [&](int64_t begin, int64_t end) { finish_heads(block, begin, end); });
  const AttentionPlan& plan = attention_plans_[block.group];
  context.enter(Phase::attention);
  context.each(int64_t(plan.items.size()), [&](int64_t i) { attend(context, block, plan.items[size_t(i)]); });
  context.enter(Phase::output);
  auto merged = context.inputs(rows_, l.q_width(), !is_float(block.o.format), block.order(Slot::o),
                            [&](int64_t row, float* out) { merge_heads(context, block, row, out); });
  add_to_hidden(context, block, Vector::attention_after, [&](int64_t begin, int64_t end, float* out, bool add) {
    kernels_->linear(block.o, merged.get(), begin, end, out, hidden_stride_, add);
  });
}

// Norms q and k of a row over their whole width.
void Decoder::norm_whole(ThreadContext& context, const Block& block, int64_t row) {
  const auto norm_part = [&](HeadNorm kind, Vector vector, int64_t column, int64_t width) {
    if (kind != HeadNorm::whole) return;
    float* x = qkv_.data() + row * qkv_stride_ + column;
    kernels_->rms_norm(x, block.at(vector), width, shape_.rms_epsilon, context.scratch());
    std::memcpy(x, context.scratch(), size_t(width) * sizeof(float));  // and what pads it stays zero
  };
  norm_part(block.shape.q_norm, Vector::q_norm, 0, block.shape.q_width());
  norm_part(block.shape.k_norm, Vector::k_norm, k_column_, block.shape.kv_width());
}

// Joins the blocks of every head in ascending order, then the sink, and divides by the sum.
void Decoder::merge_heads(ThreadContext& context, const Block& block, int64_t row, float* out) {
  const Sequence& s = sequences_[size_t(sequence_of_[size_t(row)])];
  const int64_t position = s.length + depth_[size_t(row)];
  const bool whole = partial_blocks_ == 1;
  const int64_t from = whole ? 0 : first_block(block.shape.window, position), last = whole ? 0 : position / kBlock;
  const int64_t size = kPartialHead + cache_shape_.head_dim16();
  const float* sinks = block.at(Vector::sinks);
  float *state = context.scratch(), *sink = state + size;
  if (sinks != nullptr) std::fill(sink, sink + size, 0.0f);
  for (int h = 0; h < heads_.heads; ++h) {
    const float* first = partial(row, h, from);
    if (last > from || sinks != nullptr) {
      std::memcpy(state, first, size_t(size) * sizeof(float));
      for (int64_t b = from + 1; b <= last; ++b) kernels_->merge(state, partial(row, h, b), heads_.head_dim);
      if (sinks != nullptr) {  // a block whose only score is the sink, and whose value is zero
        sink[0] = sinks[h];
        sink[1] = 1;
        kernels_->merge(state, sink, heads_.head_dim);
      }
      first = state;
    }
    kernels_->finish(first, heads_.head_dim, out + h * heads_.head_dim);
  }
}

// Pieces [begin, end) of q, k and v as one run, so that the three are shared out together: heads where they consist of
// whole tiles, else tiles.
void Decoder::qkv(const Block& block, const Rows& x, int64_t begin, int64_t end) {
  const int64_t columns[3] = {0, k_column_, v_column_};
  const Matrix* const matrices[3] = {&block.q, &block.k, &block.v};
  const auto tiles_of = [&](int s, int64_t from, int64_t to) {
    kernels_->linear(*matrices[s], x, from, to, qkv_.data() + columns[s] + from * kLanes, qkv_stride_, false);
  };
  if (whole_heads()) {
    const int64_t tiles = heads_.head_dim / kLanes;
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
Decoder::Head Decoder::head_of(int64_t index) const {
  const int group = heads_.heads / heads_.kv_heads, kv = int(index / (group + 2)), i = int(index % (group + 2));
  return i < group ? Head{Part::q, kv * group + i} : Head{i == group ? Part::k : Part::v, kv};
}

// Norms, rotates and stores heads [begin, end) of every row.
void Decoder::finish_heads(const Block& block, int64_t begin, int64_t end) {
  const Layer& l = block.shape;
  const int d = l.head_dim, format = int(shape_.kv_format);
  const RopeTable* rope = l.rope < 0 ? nullptr : &ropes_[size_t(l.rope)];
  const int half = rope == nullptr ? 0 : int(shape_.ropes[size_t(l.rope)].half());
  for (int64_t i = begin; i < end; ++i)
    for (int64_t row = 0; row < rows_; ++row) {
      const Head head = head_of(i);
      const Sequence& s = sequences_[size_t(sequence_of_[size_t(row)])];
      const int64_t position = s.length + depth_[size_t(row)], slot = s.length + row - s.first_row;
      float* base = qkv_.data() + row * qkv_stride_ + head.number * d;
      const auto rotate = [&](float* x, float scale) {
        const int64_t at = position * half;
        const float* cos = rope == nullptr ? nullptr : rope->cos.data() + at;
        kernels_->rope(x, cos, rope == nullptr ? nullptr : rope->sin.data() + at, half, d, scale);
      };
      if (head.part == Part::q) {
        if (l.q_norm == HeadNorm::head) norm_head(base, block.at(Vector::q_norm));
        rotate(base, rope == nullptr ? l.query_scale : l.query_scale * rope->query[size_t(position)]);
        kernels_->prepare_query[format](base, d);
        continue;
      }
      uint8_t* page = s.cache->pages(block.group)[slot / kPage];
      float* scales = reinterpret_cast<float*>(page + cache_shape_.scale_offset(block.group, block.number, head.number));
      if (head.part == Part::k) {
        if (l.k_norm == HeadNorm::head) norm_head(base + k_column_, block.at(Vector::k_norm));
        rotate(base + k_column_, 1.0f);
        kernels_->store_key[format](base + k_column_, page + cache_shape_.k_offset(block.number, head.number), scales,
                                    slot % kPage, d);
      } else {
        kernels_->store_value[format](base + v_column_, page + cache_shape_.v_offset(block.group, block.number, head.number),
                                      scales + kPage, slot % kPage, d);
      }
    }
}

// The norm reads and writes whole vectors of 16, and what follows the head is another's.
void Decoder::norm_head(float* x, const float* weight) const {
  alignas(64) float in[kMostHeadDim], out[kMostHeadDim];
  const int d = heads_.head_dim;
  std::memcpy(in, x, size_t(d) * sizeof(float));
  std::fill(in + d, in + padded(d, kLanes), 0.0f);
  kernels_->rms_norm(in, weight, d, shape_.rms_epsilon, out);
  std::memcpy(x, out, size_t(d) * sizeof(float));
}

Keys Decoder::keys_of(const Sequence& s, const Block& block, int head) const {
  Keys keys;
  keys.pages = s.cache->pages(block.group);
  keys.k_offset = cache_shape_.k_offset(block.number, head);
  keys.v_offset = cache_shape_.v_offset(block.group, block.number, head);
  keys.scale_offset = cache_shape_.scale_offset(block.group, block.number, head);
  keys.length = s.length;
  keys.depth = depth_.data() + s.first_row;
  if (!s.chain) {
    keys.ancestors = ancestors_.data() + s.ancestors;
    keys.ancestor_stride = s.rows;
  }
  return keys;
}

void Decoder::attend(ThreadContext& context, const Block& block, const AttentionItem& item) {
  const Layer& l = block.shape;
  const Sequence& s = sequences_[size_t(item.sequence)];
  const Keys keys = keys_of(s, block, item.kv_head);
  const int64_t size = kPartialHead + cache_shape_.head_dim16();
  const int64_t head = int64_t(item.kv_head) * (l.heads / l.kv_heads) + item.first_head;
  Attend a;
  a.heads = item.heads;
  a.head_dim = l.head_dim;
  a.q = qkv_.data() + s.first_row * qkv_stride_ + head * l.head_dim;
  a.q_stride = qkv_stride_;
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
    kernels_->attend[int(shape_.kv_format)](keys, a);
  };
  const int64_t blocks = partial_blocks_;
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
          kernels_->merge(state, more, l.head_dim);
      }
    }
  }
}

}  // namespace ipex_lookahead
