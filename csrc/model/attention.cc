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

}  // namespace

void Decoder::plan_attention() {
  attention_items_.clear();
  const int group = heads_.heads / heads_.kv_heads;
  const bool by_blocks = rows_ <= kSplitPositions;
  partial_blocks_ = 1;
  int64_t items = 0;
  for (const Sequence& s : sequences_) {
    if (by_blocks) partial_blocks_ = std::max(partial_blocks_, s.blocks);
    items += heads_.kv_heads * (by_blocks ? s.blocks : (s.rows + kRowTile - 1) / kRowTile);
  }
  // Where there are few items, heads that share keys are done apart: the keys come from the cache the second time.
  const int heads = by_blocks && items < 4 * threads_ && threads_ > 1 ? 1 : group;
  if (items > Phases::kMostItems) throw std::invalid_argument("the step has too many rows for so many heads");
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const Sequence& s = sequences_[i];
    for (int kv = 0; kv < heads_.kv_heads; ++kv)
      for (int h = 0; h < group; h += heads)
        if (by_blocks)
          for (int64_t b = 0; b < s.blocks; ++b) attention_items_.push_back({int(i), kv, h, heads, b, 0, s.rows});
        else
          for (int64_t r = 0; r < s.rows; r += kRowTile)
            attention_items_.push_back({int(i), kv, h, heads, -1, r, std::min(r + kRowTile, s.rows)});
  }
}

int64_t Decoder::attention_floats(int64_t rows) const {
  const int64_t group = heads_.heads / heads_.kv_heads, head = kPartialHead + cache_shape_.head_dim16();
  return attention_scratch(rows) + kRowTile * group * head + head;
}

float* Decoder::partial(int64_t row, int64_t head, int64_t block) {
  const int64_t size = kPartialHead + cache_shape_.head_dim16();
  return partials_.data() + ((row * heads_.heads + head) * partial_blocks_ + block) * size;
}

void Decoder::attention(Walk& walk, int layer) {
  const Block& block = blocks_[size_t(layer)];
  const int64_t heads = heads_.heads + 2 * int64_t(heads_.kv_heads);
  auto normed = walk.inputs(rows_, shape_.hidden, !is_float(block.q.format) || !is_float(block.k.format) || !is_float(block.v.format),
                            [&](int64_t row, float* out) { norm(hidden(row), block.at(Vector::attention_norm), out); });
  walk.split(whole_heads() ? heads : block.q.tiles() + block.k.tiles() + block.v.tiles(), 1,
             [&](int64_t begin, int64_t end) {
               qkv(block, normed.get(), begin, end);
               if (whole_heads()) rope_and_store(layer, begin, end);
             });
  if (!whole_heads())
    walk.split(heads, kLeastHeads, [&](int64_t begin, int64_t end) { rope_and_store(layer, begin, end); });
  walk.each(int64_t(attention_items_.size()), [&](int64_t i) { attend(walk, layer, attention_items_[size_t(i)]); });
  auto merged = walk.inputs(rows_, heads_.q_width(), !is_float(block.o.format),
                            [&](int64_t row, float* out) { merge_heads(walk, row, out); });
  walk.split(block.o.tiles(), 1, [&](int64_t begin, int64_t end) {
    kernels_->linear(block.o, merged.get(), begin, end, hidden_.data(), hidden_stride_, true);
  });
}

// Joins the blocks of every head, in ascending order, and divides by the sum.
void Decoder::merge_heads(Walk& walk, int64_t row, float* out) {
  const Sequence& s = sequences_[size_t(sequence_of_[size_t(row)])];
  const int64_t last = partial_blocks_ == 1 ? 0 : (s.length + depth_[size_t(row)]) / kBlock;
  const int64_t size = kPartialHead + cache_shape_.head_dim16();
  float* state = walk.scratch();
  for (int h = 0; h < heads_.heads; ++h) {
    const float* first = partial(row, h, 0);
    if (last > 0) {
      std::memcpy(state, first, size_t(size) * sizeof(float));
      for (int64_t b = 1; b <= last; ++b) kernels_->merge(state, partial(row, h, b), heads_.head_dim);
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
    kernels_->linear(*matrices[s], x, from, to, qkv_.data() + columns[s], qkv_stride_, false);
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

// Rotates and stores heads [begin, end) of every row.
void Decoder::rope_and_store(int layer, int64_t begin, int64_t end) {
  const Layer& l = blocks_[size_t(layer)].shape;
  const int d = l.head_dim, format = int(shape_.kv_format);
  const int64_t half = shape_.ropes[size_t(l.rope)].half();
  const RopeTable& table = ropes_[size_t(l.rope)];
  for (int64_t i = begin; i < end; ++i)
    for (int64_t row = 0; row < rows_; ++row) {
      const Head head = head_of(i);
      const Sequence& s = sequences_[size_t(sequence_of_[size_t(row)])];
      const int64_t position = s.length + depth_[size_t(row)], slot = s.length + row - s.first_row;
      float* base = qkv_.data() + row * qkv_stride_ + head.number * d;
      const float *cos = table.cos.data() + position * half, *sin = table.sin.data() + position * half;
      if (head.part == Part::q) {
        kernels_->rope(base, cos, sin, d, l.query_scale);
        continue;
      }
      uint8_t* page = s.cache->pages()[slot / kPage];
      float* scales = reinterpret_cast<float*>(page + cache_shape_.scale_offset(layer, head.number));
      if (head.part == Part::k) {
        kernels_->rope(base + k_column_, cos, sin, d, 1.0f);
        kernels_->store_key[format](base + k_column_, page + cache_shape_.k_offset(layer, head.number), scales,
                                    slot % kPage, d);
      } else {
        kernels_->store_value[format](base + v_column_, page + cache_shape_.v_offset(layer, head.number),
                                      scales + kPage, slot % kPage, d);
      }
    }
}

Keys Decoder::keys_of(const Sequence& s, int layer, int head) const {
  Keys keys;
  keys.pages = s.cache->pages();
  keys.k_offset = cache_shape_.k_offset(layer, head);
  keys.v_offset = cache_shape_.v_offset(layer, head);
  keys.scale_offset = cache_shape_.scale_offset(layer, head);
  keys.length = s.length;
  keys.depth = depth_.data() + s.first_row;
  if (!s.chain) {
    keys.ancestors = ancestors_.data() + s.ancestors;
    keys.ancestor_stride = s.rows;
  }
  return keys;
}

void Decoder::attend(Walk& walk, int layer, const AttentionItem& item) {
  const Sequence& s = sequences_[size_t(item.sequence)];
  const Keys keys = keys_of(s, layer, item.kv_head);
  const int64_t size = kPartialHead + cache_shape_.head_dim16();
  const int64_t head = int64_t(item.kv_head) * (heads_.heads / heads_.kv_heads) + item.first_head;
  const float* q = qkv_.data() + s.first_row * qkv_stride_ + head * heads_.head_dim;
  float* scratch = walk.scratch();
  const auto block = [&](int64_t b, float* to, int64_t row_stride, int64_t head_stride) {
    kernels_->attend[int(shape_.kv_format)](keys, q, qkv_stride_, item.heads, heads_.head_dim, item.first_row,
                                            item.last_row, s.rows, b, to, row_stride, head_stride, scratch);
  };
  const int64_t blocks = partial_blocks_;
  if (item.block >= 0) {
    block(item.block, partial(s.first_row, head, item.block), heads_.heads * blocks * size, blocks * size);
    return;
  }
  // Many rows: the tile walks its blocks in ascending order, each merged as soon as it is there. attend() adds the rows'
  // offsets itself, so the tile's own memory is addressed from the sequence's first row on.
  float* next = scratch + attention_scratch(rows_) - item.first_row * item.heads * size;
  block(0, partial(s.first_row, head, 0), heads_.heads * size, size);
  for (int64_t b = 1; b < s.blocks; ++b) {
    block(b, next, item.heads * size, size);
    for (int64_t r = item.first_row; r < item.last_row; ++r)
      if ((s.length + keys.depth[r]) / kBlock >= b)
        for (int64_t h = 0; h < item.heads; ++h)
          kernels_->merge(partial(s.first_row + r, head + h, 0), next + (r * item.heads + h) * size, heads_.head_dim);
  }
}

}  // namespace ipex_lookahead
