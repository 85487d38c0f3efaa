// One step of the decoder: the phases every thread runs between barriers.
//
// Threads share out outputs, rows or heads, never a sum, so their number does not show in the bits.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "decoder.h"

namespace ipex_lookahead {
namespace {

// Up to this many rows every thread prepares all rows for itself, which is cheaper than waiting for each other.
constexpr int64_t kPreparedByAll = 4;
// Up to this many rows threads share out blocks of positions; beyond, tiles of rows.
constexpr int64_t kSplitPositions = 16;
constexpr int64_t kRowTile = 16;

template <typename T>
void ensure(std::vector<T>& v, int64_t n) {
  if (int64_t(v.size()) < n) v.resize(size_t(n));
}

}  // namespace

void Decoder::reserve(const Step& step, int top) {
  const int64_t rows = step.rows, head = kPartialHead + cache_shape_.head_dim16();
  int64_t blocks = 1;
  if (rows <= kSplitPositions)
    for (const Sequence& s : sequences_) blocks = std::max(blocks, s.blocks);
  partial_blocks_ = blocks;
  ensure(hidden_, rows * hidden_stride_);
  ensure(qkv_, rows * qkv_stride_);
  ensure(gated_, rows * gated_stride_);
  ensure(partials_, rows * shape_.heads * blocks * head);
  ensure(top_values_, pool_.size() * step.wanted * top);
  ensure(top_ids_, pool_.size() * step.wanted * top);
  ensure(top_counts_, pool_.size() * step.wanted);
  if (rows > kPreparedByAll) shared_rows_.reserve(rows, widest_);
  for (int t = 0; t < pool_.size(); ++t) {
    own_rows_[size_t(t)].reserve(std::min(rows, kPreparedByAll), widest_);
    const int64_t group = shape_.heads / shape_.kv_heads;
    ensure(scratch_[size_t(t)], std::max(attention_scratch(rows) + kRowTile * group * head + head,
                                         step.wanted * head_chunk(step.wanted) * kLanes));
  }
}

float* Decoder::partial(int64_t row, int64_t head, int64_t block) {
  const int64_t size = kPartialHead + cache_shape_.head_dim16();
  return partials_.data() + ((row * shape_.heads + head) * partial_blocks_ + block) * size;
}

void Decoder::run(int thread, const Step& step, int top, int32_t* ids, float* logits) {
  const int64_t rows = step.rows, q_width = int64_t(shape_.heads) * shape_.head_dim;
  embed(thread, step);
  pool_.barrier();
  for (int i = 0; i < shape_.layers; ++i) {
    const Layer& layer = layers_[size_t(i)];
    const auto integer = [&](Slot slot) { return !is_float(layer.matrix[int(slot)].format); };

    Rows x = prepare(thread, i, rows, shape_.hidden, integer(Slot::q) || integer(Slot::k) || integer(Slot::v),
                     &Decoder::norm_attention);
    qkv(thread, layer, x);
    pool_.barrier();
    rope_and_store(thread, i);
    pool_.barrier();
    rows <= kSplitPositions ? attend_blocks(thread, i) : attend_tiles(thread, i);
    pool_.barrier();
    x = prepare(thread, i, rows, q_width, integer(Slot::o), &Decoder::merge_heads);
    const Matrix& o = layer.matrix[int(Slot::o)];
    auto part = pool_.share(thread, o.tiles());
    kernels_->linear(o, x, part.first, part.second, hidden_.data(), hidden_stride_, true);
    pool_.barrier();

    x = prepare(thread, i, rows, shape_.hidden, integer(Slot::gate) || integer(Slot::up), &Decoder::norm_mlp);
    const Matrix& gate = layer.matrix[int(Slot::gate)];
    part = pool_.share(thread, gate.tiles());
    kernels_->gate_up(gate, layer.matrix[int(Slot::up)], x, part.first, part.second, gated_.data(), gated_stride_);
    pool_.barrier();
    x = prepare(thread, i, rows, shape_.intermediate, integer(Slot::down), &Decoder::copy_gated);
    const Matrix& down = layer.matrix[int(Slot::down)];
    part = pool_.share(thread, down.tiles());
    kernels_->linear(down, x, part.first, part.second, hidden_.data(), hidden_stride_, true);
    pool_.barrier();
  }
  if (step.wanted == 0) return;
  const Rows x = prepare(thread, 0, step.wanted, shape_.hidden, !is_float(lm_head_.format), &Decoder::norm_final);
  head_and_top(thread, x, step.wanted, top, ids, logits);
}

void Decoder::embed(int thread, const Step& step) {
  const auto part = pool_.share(thread, step.rows);
  for (int64_t r = part.first; r < part.second; ++r)
    kernels_->dequantize_row(embedding_, step.tokens[r], hidden_.data() + r * hidden_stride_);
}

// The input rows of a linear layer, made by `make`: by every thread for itself if they are few (no one has to wait),
// else shared out, with a barrier at the end.
Rows Decoder::prepare(int thread, int layer, int64_t rows, int64_t width, bool integer, MakeRow make) {
  const bool alone = rows <= kPreparedByAll;
  Rows x = (alone ? own_rows_[size_t(thread)] : shared_rows_).view(rows, width);
  const auto part = alone ? std::pair<int64_t, int64_t>(0, rows) : pool_.share(thread, rows);
  for (int64_t r = part.first; r < part.second; ++r) {
    float* out = x.values + r * x.stride;
    std::memset(out + width / kLanes * kLanes, 0, size_t(x.stride - width / kLanes * kLanes) * sizeof(float));
    (this->*make)(thread, layer, r, out);
    if (integer) kernels_->quantize_row(x, r);
  }
  if (!alone) pool_.barrier();
  return x;
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

void Decoder::copy_gated(int, int, int64_t row, float* out) {
  std::memcpy(out, gated_.data() + row * gated_stride_, size_t(shape_.intermediate) * sizeof(float));
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

// q, k and v as one run of tiles, so that threads get equal shares of the three together.
void Decoder::qkv(int thread, const Layer& layer, const Rows& x) {
  const int64_t columns[3] = {0, k_column_, v_column_};
  int64_t total = 0;
  for (int s = 0; s < 3; ++s) total += layer.matrix[s].tiles();
  const auto part = pool_.share(thread, total);
  int64_t base = 0;
  for (int s = 0; s < 3; ++s) {
    const int64_t tiles = layer.matrix[s].tiles();
    const int64_t begin = std::max(part.first - base, int64_t(0)), end = std::min(part.second - base, tiles);
    if (begin < end) kernels_->linear(layer.matrix[s], x, begin, end, qkv_.data() + columns[s], qkv_stride_, false);
    base += tiles;
  }
}

void Decoder::rope_and_store(int thread, int layer) {
  const int d = shape_.head_dim, half = d / 2;
  const float scale = 1.0f / std::sqrt(float(d));
  const int64_t heads = shape_.heads + 2 * int64_t(shape_.kv_heads);
  const auto part = pool_.share(thread, rows_ * heads);
  for (int64_t item = part.first; item < part.second; ++item) {
    const int64_t row = item / heads, head = item % heads;
    const Sequence& s = sequences_[size_t(sequence_of_[size_t(row)])];
    const int64_t position = s.length + depth_[size_t(row)], slot = s.length + row - s.first_row;
    float* base = qkv_.data() + row * qkv_stride_;
    const float *cos = cos_.data() + position * half, *sin = sin_.data() + position * half;
    if (head < shape_.heads) {
      kernels_->rope(base + head * d, cos, sin, d, scale);
      continue;
    }
    uint8_t* page = s.cache->pages()[slot / kPage];
    const int kv = int((head - shape_.heads) % shape_.kv_heads), format = int(shape_.kv_format);
    float* scales = reinterpret_cast<float*>(page + cache_shape_.scale_offset(layer, kv));
    if (head < shape_.heads + shape_.kv_heads) {
      float* k = base + k_column_ + kv * d;
      kernels_->rope(k, cos, sin, d, 1.0f);
      kernels_->store_key[format](k, page + cache_shape_.k_offset(layer, kv), scales, slot % kPage, d);
    } else {
      kernels_->store_value[format](base + v_column_ + kv * d, page + cache_shape_.v_offset(layer, kv), scales + kPage,
                                    slot % kPage, d);
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

// Few rows: an item is a key head and a block of positions.
void Decoder::attend_blocks(int thread, int layer) {
  const int64_t group = shape_.heads / shape_.kv_heads, size = kPartialHead + cache_shape_.head_dim16();
  int64_t item = 0;
  for (const Sequence& s : sequences_)
    for (int kv = 0; kv < shape_.kv_heads; ++kv) {
      const Keys keys = keys_of(s, layer, kv);
      for (int64_t b = 0; b < s.blocks; ++b)
        if (item++ % pool_.size() == thread)
          kernels_->attend[int(shape_.kv_format)](keys, qkv_.data() + s.first_row * qkv_stride_ + kv * group * shape_.head_dim, qkv_stride_,
                           int(group), shape_.head_dim, 0, s.rows, s.rows, b, partial(s.first_row, kv * group, b),
                           shape_.heads * partial_blocks_ * size, partial_blocks_ * size,
                           scratch_[size_t(thread)].data());
    }
}

// Many rows: an item is a key head and a tile of rows, which walks its blocks in ascending order.
void Decoder::attend_tiles(int thread, int layer) {
  const int64_t group = shape_.heads / shape_.kv_heads, size = kPartialHead + cache_shape_.head_dim16();
  float* next = scratch_[size_t(thread)].data() + attention_scratch(rows_);
  int64_t item = 0;
  for (const Sequence& s : sequences_)
    for (int kv = 0; kv < shape_.kv_heads; ++kv) {
      const Keys keys = keys_of(s, layer, kv);
      const float* q = qkv_.data() + s.first_row * qkv_stride_ + kv * group * shape_.head_dim;
      for (int64_t r0 = 0; r0 < s.rows; r0 += kRowTile) {
        if (item++ % pool_.size() != thread) continue;
        const int64_t r1 = std::min(r0 + kRowTile, s.rows);
        for (int64_t b = 0; b < s.blocks; ++b) {
          // attend() adds row offsets itself, so the tile's own memory is addressed from its first row on.
          float* to = b == 0 ? partial(s.first_row, kv * group, 0) : next - r0 * group * size;
          const int64_t row_stride = b == 0 ? shape_.heads * size : group * size;
          kernels_->attend[int(shape_.kv_format)](keys, q, qkv_stride_, int(group), shape_.head_dim, r0, r1, s.rows, b, to, row_stride, size,
                           scratch_[size_t(thread)].data());
          if (b == 0) continue;
          for (int64_t r = r0; r < r1; ++r)
            if ((s.length + keys.depth[r]) / kBlock >= b)
              for (int64_t h = 0; h < group; ++h)
                kernels_->merge(partial(s.first_row + r, kv * group + h, 0), next + ((r - r0) * group + h) * size,
                                shape_.head_dim);
        }
      }
    }
}

// Tiles of the lm_head whose outputs are looked at together: about 16 thousand logits, which stay in the cache.
int64_t Decoder::head_chunk(int64_t wanted) const { return std::max<int64_t>(1, 1024 / std::max<int64_t>(wanted, 1)); }

// Logits nobody asked for never exist all at once: each chunk of outputs goes from the linear layer into the top and is
// forgotten.
void Decoder::head_and_top(int thread, const Rows& x, int64_t wanted, int top, int32_t* ids, float* logits) {
  const int threads = pool_.size();
  const auto values_of = [&](int64_t w, int t) { return top_values_.data() + (w * threads + t) * top; };
  const auto ids_of = [&](int64_t w, int t) { return top_ids_.data() + (w * threads + t) * top; };
  int* counts = top_counts_.data() + thread * wanted;
  std::fill(counts, counts + wanted, 0);
  const auto part = pool_.share(thread, lm_head_.tiles());
  const int64_t chunk = head_chunk(wanted);
  for (int64_t tile = part.first; tile < part.second; tile += chunk) {
    const int64_t end = std::min(tile + chunk, part.second);
    const int64_t first = tile * kLanes, n = std::min<int64_t>(end * kLanes, shape_.vocab) - first;
    const int64_t stride = logits != nullptr ? shape_.vocab : chunk * kLanes;
    float* out = logits != nullptr ? logits + first : scratch_[size_t(thread)].data();
    kernels_->linear(lm_head_, x, tile, end, out - first, stride, false);
    for (int64_t w = 0; w < wanted; ++w)
      counts[w] = kernels_->top_k(out + w * stride, n, first, top, counts[w], values_of(w, thread), ids_of(w, thread));
  }
  for (int64_t w = 0; w < wanted; ++w) std::fill(ids_of(w, thread) + counts[w], ids_of(w, thread) + top, -1);
  pool_.barrier();
  if (thread != 0) return;
  // Threads hold ascending ranges of outputs, so an earlier thread wins a tie.
  for (int64_t w = 0; w < wanted; ++w) {
    std::vector<int>& next = merge_at_;
    std::fill(next.begin(), next.end(), 0);
    for (int i = 0; i < top; ++i) {
      int best = -1;
      for (int t = 0; t < threads; ++t)
        if (next[size_t(t)] < top && ids_of(w, t)[next[size_t(t)]] >= 0 &&
            (best < 0 || values_of(w, t)[next[size_t(t)]] > values_of(w, best)[next[size_t(best)]]))
          best = t;
      ids[w * top + i] = best < 0 ? -1 : ids_of(w, best)[next[size_t(best)]++];
    }
  }
}

}  // namespace ipex_lookahead
