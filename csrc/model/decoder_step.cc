// One step of the decoder: the phases that threads go through together.
//
// Items are outputs, rows or heads, never parts of a sum, so neither their number nor who does them shows in the bits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "model/decoder.h"

namespace ipex_lookahead {
namespace {

// Up to this many rows every thread prepares all rows for itself, which is cheaper than sharing them out.
constexpr int64_t kPreparedByAll = 16;
// Up to this many rows attention is shared out by blocks of positions; beyond, by tiles of rows.
constexpr int64_t kSplitPositions = 16;
constexpr int64_t kRowTile = 16;
// Pieces a linear layer is shared out in, for each thread: enough that a late thread does not hold up the others.
constexpr int64_t kPieces = 2;
// Heads to rotate and store in a piece at least; fewer take less time than sharing them out.
constexpr int64_t kLeastHeads = 4;
constexpr size_t kPhasesALayer = 10;

template <typename Vector>
void ensure(Vector& v, int64_t n) {
  if (int64_t(v.size()) < n) v.resize(size_t(n));
}

}  // namespace

void Decoder::plan_attention() {
  attention_items_.clear();
  const int group = shape_.heads / shape_.kv_heads;
  const bool by_blocks = rows_ <= kSplitPositions;
  partial_blocks_ = 1;
  int64_t items = 0;
  for (const Sequence& s : sequences_) {
    if (by_blocks) partial_blocks_ = std::max(partial_blocks_, s.blocks);
    items += shape_.kv_heads * (by_blocks ? s.blocks : (s.rows + kRowTile - 1) / kRowTile);
  }
  // Where there are few items, heads that share keys are done apart: the keys come from the cache the second time.
  const int heads = by_blocks && items < 4 * threads_ && threads_ > 1 ? 1 : group;
  if (items > Phases::kMostItems) throw std::invalid_argument("the step has too many rows for so many heads");
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const Sequence& s = sequences_[i];
    for (int kv = 0; kv < shape_.kv_heads; ++kv)
      for (int h = 0; h < group; h += heads)
        if (by_blocks)
          for (int64_t b = 0; b < s.blocks; ++b) attention_items_.push_back({int(i), kv, h, heads, b, 0, s.rows});
        else
          for (int64_t r = 0; r < s.rows; r += kRowTile)
            attention_items_.push_back({int(i), kv, h, heads, -1, r, std::min(r + kRowTile, s.rows)});
  }
}

void Decoder::reserve(const Step& step, int top) {
  const int64_t rows = step.rows, head = kPartialHead + cache_shape_.head_dim16();
  ensure(hidden_, rows * hidden_stride_);
  ensure(qkv_, rows * qkv_stride_);
  gated_rows_.reserve(rows, shape_.intermediate);
  ensure(partials_, rows * shape_.heads * partial_blocks_ * head);
  // About 16 thousand logits a piece stay in the cache, and no piece is larger than a thread's share.
  const int64_t tiles = lm_head_.tiles();
  const int64_t piece = std::max<int64_t>(1, 1024 / std::max<int64_t>(step.wanted, 1));
  head_items_ = std::max<int64_t>((tiles + piece - 1) / piece, std::min(tiles, kPieces * threads_));
  ensure(top_values_, head_items_ * step.wanted * top);
  ensure(top_ids_, head_items_ * step.wanted * top);
  ensure(top_counts_, head_items_ * step.wanted);
  ensure(merge_at_, head_items_);
  if (rows > kPreparedByAll) shared_rows_.reserve(rows, widest_);
  const int64_t group = shape_.heads / shape_.kv_heads;
  const int64_t attention = attention_scratch(rows) + kRowTile * group * head + head;
  const int64_t outputs = step.wanted * (tiles / head_items_ + 1) * kLanes;
  for (int t = 0; t < threads_; ++t) {
    own_rows_[size_t(t)].reserve(std::min(rows, kPreparedByAll), widest_);
    ensure(scratch_[size_t(t)], std::max(attention, outputs));
  }
  phases_.begin(kPhasesALayer * size_t(shape_.layers) + 4);
}

float* Decoder::partial(int64_t row, int64_t head, int64_t block) {
  const int64_t size = kPartialHead + cache_shape_.head_dim16();
  return partials_.data() + ((row * shape_.heads + head) * partial_blocks_ + block) * size;
}

void Decoder::run(int thread, const Step& step, int top, int32_t* ids, float* logits) {
  size_t phase = 0;
  const auto each = [&](int64_t items, const auto& work) { phases_.run(thread, phase++, items, work); };
  // Shares out `count` things in a few pieces a thread, of `least` things at least: work(begin, end).
  const auto split = [&](int64_t count, int64_t least, const auto& work) {
    const int64_t items = std::max<int64_t>(1, std::min(count / least, kPieces * threads_));
    each(items, [&](int64_t item) {
      const auto part = part_of(count, items, item);
      work(part.first, part.second);
    });
  };
  // A linear layer: its input rows, made by `make`, and then its `count` tiles of outputs. Few rows are made by every
  // thread that gets a piece, once it has one: until that piece is done nobody goes on and changes what rows are made of.
  const auto layer_of = [&](int layer, int64_t rows, int64_t width, bool integer, MakeRow make, int64_t count,
                            const auto& work) {
    const bool alone = rows <= kPreparedByAll;
    const Rows x = (alone ? own_rows_[size_t(thread)] : shared_rows_).view(rows, width);
    bool made = !alone;
    if (!alone) each(rows, [&](int64_t r) { make_row(thread, layer, x, r, width, integer, make); });
    split(count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = 0; !made && r < rows; ++r) make_row(thread, layer, x, r, width, integer, make);
      made = true;
      work(x, begin, end);
    });
  };

  const int64_t rows = step.rows, q_width = int64_t(shape_.heads) * shape_.head_dim;
  const int64_t heads = shape_.heads + 2 * int64_t(shape_.kv_heads);
  split(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      kernels_->dequantize_row(embedding_, step.tokens[r], hidden_.data() + r * hidden_stride_);
  });
  for (int i = 0; i < shape_.layers; ++i) {
    const Layer& layer = layers_[size_t(i)];
    const auto integer = [&](Slot slot) { return !is_float(layer.matrix[int(slot)].format); };
    const auto tiles = [&](Slot slot) { return layer.matrix[int(slot)].tiles(); };
    const auto add_to_hidden = [&](Slot slot) {
      return [&, slot](const Rows& x, int64_t begin, int64_t end) {
        kernels_->linear(layer.matrix[int(slot)], x, begin, end, hidden_.data(), hidden_stride_, true);
      };
    };
    layer_of(i, rows, shape_.hidden, integer(Slot::q) || integer(Slot::k) || integer(Slot::v), &Decoder::norm_attention,
             whole_heads() ? heads : tiles(Slot::q) + tiles(Slot::k) + tiles(Slot::v),
             [&](const Rows& x, int64_t begin, int64_t end) {
               qkv(layer, x, begin, end);
               if (whole_heads()) rope_and_store(i, rows, begin, end);
             });
    if (!whole_heads())
      split(heads, kLeastHeads, [&](int64_t begin, int64_t end) { rope_and_store(i, rows, begin, end); });
    each(int64_t(attention_items_.size()), [&](int64_t item) { attend(thread, i, attention_items_[size_t(item)]); });
    layer_of(i, rows, q_width, integer(Slot::o), &Decoder::merge_heads, tiles(Slot::o), add_to_hidden(Slot::o));
    const Rows gated = gated_rows_.view(rows, shape_.intermediate);
    layer_of(i, rows, shape_.hidden, integer(Slot::gate) || integer(Slot::up), &Decoder::norm_mlp, gated.blocks,
             [&](const Rows& x, int64_t begin, int64_t end) {
               kernels_->gate_up(layer.matrix[int(Slot::gate)], layer.matrix[int(Slot::up)], x, begin, end, gated,
                                 integer(Slot::down));
             });
    split(tiles(Slot::down), 1,
          [&](int64_t begin, int64_t end) { add_to_hidden(Slot::down)(gated, begin, end); });
  }
  if (step.wanted == 0) return;
  const bool alone = step.wanted <= kPreparedByAll, whole = !is_float(lm_head_.format);
  const Rows x = (alone ? own_rows_[size_t(thread)] : shared_rows_).view(step.wanted, shape_.hidden);
  bool made = !alone;
  const auto make = [&](int64_t r) { make_row(thread, 0, x, r, shape_.hidden, whole, &Decoder::norm_final); };
  if (!alone) each(step.wanted, make);
  each(head_items_, [&](int64_t item) {
    for (int64_t r = 0; !made && r < step.wanted; ++r) make(r);
    made = true;
    head_and_top(thread, x, item, step.wanted, top, logits);
  });
  if (thread == 0) merge_tops(step.wanted, top, ids);
}

void Decoder::make_row(int thread, int layer, const Rows& x, int64_t row, int64_t width, bool integer, MakeRow make) {
  float* out = x.values + row * x.stride;
  const int64_t whole = width / kLanes * kLanes;
  std::memset(out + whole, 0, size_t(x.stride - whole) * sizeof(float));
  (this->*make)(thread, layer, row, out);
  if (integer) kernels_->quantize_row(x, row);
}

void Decoder::norm_attention(int, int layer, int64_t row, float* out) {
  kernels_->rms_norm(hidden_.data() + row * hidden_stride_, layers_[size_t(layer)].attention_norm, shape_.hidden,
                     shape_.rms_epsilon, out);
}

void Decoder::norm_mlp(int, int layer, int64_t row, float* out) {
  kernels_->rms_norm(hidden_.data() + row * hidden_stride_, layers_[size_t(layer)].mlp_norm, shape_.hidden,
                     shape_.rms_epsilon, out);
}

void Decoder::norm_final(int, int, int64_t row, float* out) {
  kernels_->rms_norm(hidden_.data() + want_[row] * hidden_stride_, final_norm_, shape_.hidden, shape_.rms_epsilon, out);
}

// Joins the blocks of every head, in ascending order, and divides by the sum.
void Decoder::merge_heads(int thread, int, int64_t row, float* out) {
  const Sequence& s = sequences_[size_t(sequence_of_[size_t(row)])];
  const int64_t last = partial_blocks_ == 1 ? 0 : (s.length + depth_[size_t(row)]) / kBlock;
  const int64_t size = kPartialHead + cache_shape_.head_dim16();
  float* state = scratch_[size_t(thread)].data();
  for (int h = 0; h < shape_.heads; ++h) {
    const float* first = partial(row, h, 0);
    if (last > 0) {
      std::memcpy(state, first, size_t(size) * sizeof(float));
      for (int64_t b = 1; b <= last; ++b) kernels_->merge(state, partial(row, h, b), shape_.head_dim);
      first = state;
    }
    kernels_->finish(first, shape_.head_dim, out + h * shape_.head_dim);
  }
}

// Pieces [begin, end) of q, k and v as one run, so that the three are shared out together: heads where they consist of
// whole tiles, else tiles.
void Decoder::qkv(const Layer& layer, const Rows& x, int64_t begin, int64_t end) {
  const int64_t columns[3] = {0, k_column_, v_column_};
  const auto tiles_of = [&](int s, int64_t from, int64_t to) {
    kernels_->linear(layer.matrix[s], x, from, to, qkv_.data() + columns[s], qkv_stride_, false);
  };
  if (whole_heads()) {
    const int64_t tiles = shape_.head_dim / kLanes;
    for (int64_t i = begin; i < end; ++i) {
      const Head head = head_of(i);
      tiles_of(head.slot, head.number * tiles, (head.number + 1) * tiles);
    }
    return;
  }
  int64_t base = 0;
  for (int s = 0; s < 3; ++s) {
    const int64_t tiles = layer.matrix[s].tiles();
    const int64_t from = std::max(begin - base, int64_t(0)), to = std::min(end - base, tiles);
    if (from < to) tiles_of(s, from, to);
    base += tiles;
  }
}

// Heads in the order in which they are shared out: the query heads of a key head, that key head, its value head, the
// query heads of the next. So a thread's share is about the heads that it will attend with.
Decoder::Head Decoder::head_of(int64_t index) const {
  const int group = shape_.heads / shape_.kv_heads, kv = int(index / (group + 2)), i = int(index % (group + 2));
  return i < group ? Head{int(Slot::q), kv * group + i} : Head{i == group ? int(Slot::k) : int(Slot::v), kv};
}

// Rotates and stores heads [begin, end) of every row.
void Decoder::rope_and_store(int layer, int64_t rows, int64_t begin, int64_t end) {
  const int d = shape_.head_dim, half = d / 2, format = int(shape_.kv_format);
  const float scale = 1.0f / std::sqrt(float(d));
  for (int64_t i = begin; i < end; ++i)
    for (int64_t row = 0; row < rows; ++row) {
      const Head head = head_of(i);
      const Sequence& s = sequences_[size_t(sequence_of_[size_t(row)])];
      const int64_t position = s.length + depth_[size_t(row)], slot = s.length + row - s.first_row;
      float* base = qkv_.data() + row * qkv_stride_ + head.number * d;
      const float *cos = cos_.data() + position * half, *sin = sin_.data() + position * half;
      if (head.slot == int(Slot::q)) {
        kernels_->rope(base, cos, sin, d, scale);
        continue;
      }
      uint8_t* page = s.cache->pages()[slot / kPage];
      float* scales = reinterpret_cast<float*>(page + cache_shape_.scale_offset(layer, head.number));
      if (head.slot == int(Slot::k)) {
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

void Decoder::attend(int thread, int layer, const AttentionItem& item) {
  const Sequence& s = sequences_[size_t(item.sequence)];
  const Keys keys = keys_of(s, layer, item.kv_head);
  const int64_t size = kPartialHead + cache_shape_.head_dim16();
  const int64_t head = int64_t(item.kv_head) * (shape_.heads / shape_.kv_heads) + item.first_head;
  const float* q = qkv_.data() + s.first_row * qkv_stride_ + head * shape_.head_dim;
  float* scratch = scratch_[size_t(thread)].data();
  const auto block = [&](int64_t b, float* to, int64_t row_stride, int64_t head_stride) {
    kernels_->attend[int(shape_.kv_format)](keys, q, qkv_stride_, item.heads, shape_.head_dim, item.first_row,
                                            item.last_row, s.rows, b, to, row_stride, head_stride, scratch);
  };
  const int64_t blocks = partial_blocks_;
  if (item.block >= 0) {
    block(item.block, partial(s.first_row, head, item.block), shape_.heads * blocks * size, blocks * size);
    return;
  }
  // Many rows: the tile walks its blocks in ascending order, each merged as soon as it is there. attend() adds the rows'
  // offsets itself, so the tile's own memory is addressed from the sequence's first row on.
  float* next = scratch + attention_scratch(rows_) - item.first_row * item.heads * size;
  block(0, partial(s.first_row, head, 0), shape_.heads * size, size);
  for (int64_t b = 1; b < s.blocks; ++b) {
    block(b, next, item.heads * size, size);
    for (int64_t r = item.first_row; r < item.last_row; ++r)
      if ((s.length + keys.depth[r]) / kBlock >= b)
        for (int64_t h = 0; h < item.heads; ++h)
          kernels_->merge(partial(s.first_row + r, head + h, 0), next + (r * item.heads + h) * size, shape_.head_dim);
  }
}

// Logits nobody asked for never exist all at once: each piece of the outputs goes from the linear layer into the piece's
// top and is forgotten.
void Decoder::head_and_top(int thread, const Rows& x, int64_t item, int64_t wanted, int top, float* logits) {
  const auto part = part_of(lm_head_.tiles(), head_items_, item);
  const int64_t first = part.first * kLanes, n = std::min<int64_t>(part.second * kLanes, shape_.vocab) - first;
  const int64_t stride = logits != nullptr ? shape_.vocab : (part.second - part.first) * kLanes;
  float* out = logits != nullptr ? logits + first : scratch_[size_t(thread)].data();
  kernels_->linear(lm_head_, x, part.first, part.second, out - first, stride, false);
  for (int64_t w = 0; w < wanted; ++w) {
    const int64_t at = item * wanted + w;
    top_counts_[size_t(at)] = kernels_->top_k(out + w * stride, n, first, top, top_values_.data() + at * top,
                                              top_ids_.data() + at * top);
  }
}

// Pieces are ascending ranges of outputs, so an earlier piece wins a tie. Ids are -1 where a logit is not finite: the
// caller is told.
void Decoder::merge_tops(int64_t wanted, int top, int32_t* ids) {
  for (int64_t w = 0; w < wanted; ++w) {
    bool finite = true;
    for (int64_t item = 0; item < head_items_; ++item) finite = finite && top_counts_[size_t(item * wanted + w)] != kNotFinite;
    if (!finite) {
      std::fill_n(ids + w * top, top, -1);
      continue;
    }
    std::fill(merge_at_.begin(), merge_at_.begin() + head_items_, 0);
    for (int i = 0; i < top; ++i) {
      int64_t best = -1;
      float best_value = -INFINITY;
      for (int64_t item = 0; item < head_items_; ++item) {
        const int next = merge_at_[size_t(item)];
        const int64_t at = item * wanted + w;
        if (next < top_counts_[size_t(at)] && top_values_[size_t(at * top + next)] > best_value) {
          best = item;
          best_value = top_values_[size_t(at * top + next)];
        }
      }
      ids[w * top + i] = best < 0 ? -1 : top_ids_[size_t((best * wanted + w) * top + merge_at_[size_t(best)])];
      if (best >= 0) ++merge_at_[size_t(best)];
    }
  }
}

}  // namespace ipex_lookahead
