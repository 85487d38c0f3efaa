#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "model/encoder.h"

namespace ipex_lookahead {
namespace {

constexpr int64_t kItemsPerThread = 4;
constexpr int64_t kSliceRows = 64;    // at least, per thread
constexpr int64_t kSliceWork = int64_t(1) << 28;  // multiply-adds per thread, some milliseconds
constexpr size_t kPhasesOfSlice = 8;

// Float rows from `first`.
Rows rows_of_values(Rows rows, int64_t first) {
  rows.values += first * rows.stride;
  return rows;
}

// A matrix [n_out, n_in] in the layout of float weights, [n_out / 16][n_in][16].
Matrix matrix_of(const float* values, int64_t n_out, int64_t n_in) {
  Matrix m;
  m.format = WeightFormat::fp32;
  m.n_out = n_out;
  m.n_in = n_in;
  m.blocks = int32_t((n_in + kGroup - 1) / kGroup);
  m.codes = reinterpret_cast<const uint8_t*>(values);
  return m;
}

[[noreturn]] void fail(const std::string& what) { throw std::invalid_argument(what); }

}  // namespace

EncoderPass::EncoderPass(Encoder& encoder, const std::vector<int64_t>& lengths) : encoder_(encoder) {
  int64_t tiles = 0;
  for (const int64_t length : lengths) {
    if (length < 1 || length > Encoder::kMaxRows - rows_) fail("an input has " + std::to_string(length) + " rows; all must have from 1 to " + std::to_string(Encoder::kMaxRows));
    const int64_t own = (length + kLanes - 1) / kLanes;
    segment_of_.resize(size_t(rows_ + length), int32_t(segments_.size()));
    segments_.push_back({rows_, length, tiles, own});
    rows_ += length;
    tiles += own;
    longest_ = std::max(longest_, length);
  }
  if (rows_ == 0) fail("there is no input");
  int64_t q = 0, keys = 0, values = 0;
  for (const EncoderBlockShape& block : encoder.shape_.layers) {
    q = std::max<int64_t>(q, padded(int64_t(block.heads) * block.head_dim, kLanes));
    keys = std::max<int64_t>(keys, block.kv_heads * tiles * kLanes * block.head_dim);
    values = std::max<int64_t>(values, block.kv_heads * rows_ * padded(block.head_dim, kLanes));
  }
  hidden_.resize(size_t(rows_ * encoder.stride_));
  queries_.resize(size_t(rows_ * q));
  keys_.resize(size_t(keys));
  values_.resize(size_t(values));
  if (encoder.shape_.slopes.empty()) return;
  distances_.resize(size_t(2 * longest_ - 1));
  for (int64_t i = 0; i < 2 * longest_ - 1; ++i) distances_[size_t(i)] = float(std::abs(i - longest_ + 1));
}

EncoderPass::EncoderPass(Encoder& encoder, const float* x, int64_t rows, const float* cos, const float* sin)
    : EncoderPass(encoder, std::vector<int64_t>{rows}) {
  const int64_t hidden = encoder.shape_.hidden, width = encoder.rope_width();
  if (width > 0 && (cos == nullptr || sin == nullptr)) fail("an encoder with rope needs cosines and sines");
  for (int64_t r = 0; r < rows; ++r) std::copy_n(x + r * hidden, hidden, hidden_.data() + r * encoder.stride_);
  if (width == 0) return;
  cos_.assign(cos, cos + rows * width);
  sin_.assign(sin, sin + rows * width);
}

EncoderPass::EncoderPass(Encoder& encoder, const Texts& texts) : EncoderPass(encoder, texts.lengths) {
  encoder.check_texts(texts);
  encoder.embed(*this, texts);
}

void EncoderPass::advance(int64_t until, int64_t work) {
  if (until <= layer_ || until > int64_t(encoder_.blocks_.size()))
    fail("layer " + std::to_string(until) + " is complete or does not exist; " + std::to_string(layer_) + " are complete");
  if (work < 0) fail("the work of a slice is " + std::to_string(work) + "; it must not be negative");
  const int64_t layer = layer_, next = next_;
  const bool attends = attends_;
  std::vector<Encoder::Slice> slices;
  if (work == 0) work = kSliceWork * encoder_.threads_;
  for (int64_t done = 0; done < work && layer_ < until;) {
    // Half of the work per row is an estimate for both halves.
    const int64_t row_work = std::max<int64_t>(encoder_.layer_work(layer_) / 2, 1);
    const int64_t least = work < kSliceWork ? kLanes : kSliceRows * encoder_.threads_;
    const int64_t rows = padded(std::max(least, (work - done) / row_work), kLanes);
    Encoder::Slice slice{layer_, attends_, next_, std::min(next_ + rows, rows_), {}};
    for (int64_t r = slice.begin, last; attends_ && r < slice.end; r = last) {
      last = std::min({slice.end, segment(r).first + segment(r).rows, r + Encoder::kRowsOfRun});
      slice.runs.emplace_back(r, last);
    }
    done += (slice.end - slice.begin) * row_work;
    next_ = slice.end;
    slices.push_back(std::move(slice));
    if (next_ < rows_) continue;
    next_ = 0;
    layer_ += attends_ ? 1 : 0;
    attends_ = !attends_;
  }
  try {
    encoder_.run(*this, slices);
  } catch (...) {  // before any work
    layer_ = layer;
    next_ = next;
    attends_ = attends;
    throw;
  }
}

void EncoderPass::copy(float* out) const {
  if (next_ != 0 || attends_) fail("the pass is within a layer");
  const int64_t hidden = encoder_.shape_.hidden;
  for (int64_t r = 0; r < rows_; ++r) std::copy_n(hidden_.data() + r * encoder_.stride_, hidden, out + r * hidden);
}

// Copies the head, because the norm reads and writes whole vectors of 16, beyond the head's end.
void Encoder::norm_head(const Norm& norm, int d, float* x) const {
  alignas(64) float in[kMaxHeadDim], out[kMaxHeadDim];
  std::copy_n(x, d, in);
  std::fill(in + d, in + padded(d, kLanes), 0.0f);
  norm(kernels_, in, out);
  std::copy_n(out, d, x);
}

void Encoder::rotate(const EncoderPass& pass, int64_t row, int d, float scale, int rope, float* x) const {
  if (rope < 0) return scale == 1 ? void() : kernels_.scale(x, d, scale);
  const int part = d / shape_.rope_parts, half = part / 2;
  const int64_t at = (row * int64_t(shape_.ropes.size()) + rope) * (d / 2);
  const float *cos = pass.cos_.data() + at, *sin = pass.sin_.data() + at;
  for (int i = 0; i < shape_.rope_parts; ++i) kernels_.rope(x + i * part, cos + i * half, sin + i * half, half, part, scale);
}

// Multiply-adds of a row in the matrices of a layer.
int64_t Encoder::layer_work(int64_t layer) const {
  int64_t sum = 0;
  const Block& b = blocks_[size_t(layer)];
  for (const LinearLayer* one : {&b.q, &b.k, &b.v, &b.o, &b.gate, &b.up, &b.down}) sum += one->n_out * one->n_in;
  return sum;
}

struct Encoder::Worker {
  Phases& phases;
  const int thread, threads;
  Scratch& scratch;
  size_t phase = 0;

  template <typename Work>
  void each(int64_t items, const Work& work) { phases.run(thread, phase++, items, work); }
  template <typename Work>
  void each_row(int64_t rows, const Work& work) {
    each((rows + kLanes - 1) / kLanes, [&](int64_t item) {
      for (int64_t r = item * kLanes; r < std::min((item + 1) * kLanes, rows); ++r) work(r);
    });
  }
  // Calls work(first row, number of rows, first tile, end of tiles) for parts of a linear layer's outputs; tiles in pairs.
  template <typename Work>
  void each_part(int64_t rows, int64_t tiles, const Work& work) {
    const int64_t chunks = (rows + kRowsOfItem - 1) / kRowsOfItem, pairs = (tiles + 1) / 2;
    const int64_t parts = std::min(pairs, (kItemsPerThread * threads + chunks - 1) / chunks);
    each(chunks * parts, [&](int64_t item) {
      const int64_t first = item / parts * kRowsOfItem;
      const auto part = part_of(pairs, parts, item % parts);
      work(first, std::min(kRowsOfItem, rows - first), 2 * part.first, std::min(2 * part.second, tiles));
    });
  }
};

// Memory for rows of a slice. Work must not throw.
void Encoder::reserve(int64_t rows, int64_t row_scores) {
  int64_t kv = 0, heads = 0, inner = 0;
  for (const EncoderBlockShape& block : shape_.layers) {
    kv = std::max<int64_t>(kv, padded(int64_t(block.kv_heads) * block.head_dim, kLanes));
    heads = std::max<int64_t>(heads, int64_t(block.heads) * block.head_dim);
    inner = std::max(inner, block.up.n_out);
  }
  inputs_.reserve(rows, shape_.hidden + kLanes);
  merged_.reserve(rows, heads + kLanes);
  gated_.reserve(rows, inner + kLanes);
  ensure(kv_, rows * 2 * kv);
  ensure(branch_, rows * stride_);
  ensure(gate_, rows * padded(inner, kGroup));
  for (Scratch& scratch : scratch_) scratch.reserve(widest_, padded(row_scores, kGroup));
}

// Rows with a distance in memory other than a multiple of a page: they would evict each other from the first-level cache.
Rows Encoder::view(RowsMemory& memory, int64_t rows, int64_t width) const {
  Rows r = memory.view(rows, width);
  if (r.stride % 512 == 0) r.stride += kLanes;
  return r;
}

void Encoder::run(EncoderPass& pass, const std::vector<Slice>& slices) {
  Crew crew(threads_);
  weights_.check_complete();
  int64_t most = 0;
  for (const Slice& slice : slices) most = std::max(most, slice.end - slice.begin);
  reserve(most, pass.longest_);
  phases_.begin(kPhasesOfSlice * slices.size());
  crew.run([&](int thread) {
    Worker worker{phases_, thread, threads_, scratch_[size_t(thread)]};
    for (size_t i = 0; i < slices.size(); ++i) {
      worker.phase = i * kPhasesOfSlice;
      if (slices[i].attends)
        attend(worker, pass, slices[i]);
      else
        project(worker, pass, slices[i]);
    }
  });
}

// Writes row r as linear layers read it: the hidden state, normed.
void Encoder::read_row(const Norm& norm, const float* hidden, const Rows& x, int64_t r, bool integer) const {
  float* const row = x.values_of(r);
  std::fill(row + shape_.hidden, row + x.stride, 0.0f);
  if (norm.width == 0)
    std::copy_n(hidden, shape_.hidden, row);
  else
    norm(kernels_, hidden, row);
  if (integer) kernels_.quantize_row(x, r);
}

// Computes queries, keys and values.
void Encoder::project(Worker& worker, EncoderPass& pass, const Slice& slice) {
  const EncoderBlockShape& shape = shape_.layers[size_t(slice.layer)];
  const Block& block = blocks_[size_t(slice.layer)];
  const int64_t count = slice.end - slice.begin, d = shape.head_dim;
  const int64_t q_stride = padded(shape.heads * d, kLanes), kv_stride = padded(shape.kv_heads * d, kLanes);
  const Rows x = view(inputs_, count, shape_.hidden);
  const bool integer = block.q.integer() || block.k.integer() || block.v.integer();
  worker.each_row(count, [&](int64_t r) {
    read_row(block.mixer_norm, pass.hidden_.data() + (slice.begin + r) * stride_, x, r, integer);
  });
  float *const queries = pass.queries_.data() + slice.begin * q_stride, *const keys = kv_.data(), *const values = keys + count * kv_stride;
  const int64_t q_tiles = block.q.matrix.tiles(), kv_tiles = block.k.matrix.tiles();
  worker.each_part(count, q_tiles + 2 * kv_tiles, [&](int64_t first, int64_t rows, int64_t begin, int64_t end) {
    int64_t from = 0;
    const auto part = [&](const LinearLayer& linear, float* out, int64_t stride) {
      const int64_t tiles = linear.matrix.tiles(), low = std::max<int64_t>(begin - from, 0), high = std::min(end - from, tiles);
      from += tiles;
      if (low < high) apply(worker.scratch, linear, rows_of(x, first, rows), low, high, out + first * stride + low * kLanes, stride);
    };
    part(block.q, queries, q_stride);
    part(block.k, keys, kv_stride);
    part(block.v, values, kv_stride);
  });
  worker.each_row(count, [&](int64_t r) {
    for (int h = 0; h < shape.heads; ++h) {
      float* const q = queries + r * q_stride + h * d;
      if (block.q_norm.width > 0) norm_head(block.q_norm, int(d), q);
      rotate(pass, slice.begin + r, int(d), shape.query_scale, shape.rope, q);
    }
    store_row(pass, slice, slice.begin + r, keys + r * kv_stride, values + r * kv_stride);
  });
}

// Stores a row's keys and values in the layouts of matrices.
void Encoder::store_row(EncoderPass& pass, const Slice& slice, int64_t row, float* keys, float* values) const {
  const EncoderBlockShape& shape = shape_.layers[size_t(slice.layer)];
  const Block& block = blocks_[size_t(slice.layer)];
  const EncoderPass::Segment& segment = pass.segment(row);
  const int64_t at = row - segment.first, value_tiles = padded(shape.head_dim, kLanes);
  const Norm value_norm{ones_.data(), nullptr, shape.head_dim, shape.value_norm};
  const int d = shape.head_dim;
  for (int h = 0; h < shape.kv_heads; ++h) {
    float *const k = keys + h * d, *const v = values + h * d;
    if (block.k_norm.width > 0) norm_head(block.k_norm, d, k);
    rotate(pass, row, d, 1.0f, shape.rope, k);
    const int64_t tile = segment.first_tile * shape.kv_heads + h * segment.tiles + at / kLanes;
    float* const k_to = pass.keys_.data() + tile * d * kLanes + at % kLanes;
    for (int i = 0; i < d; ++i) k_to[i * kLanes] = k[i];
    if (shape.value_norm != 0) norm_head(value_norm, d, v);
    float* const v_to = pass.values_.data() +
                        (segment.first * shape.kv_heads + h * segment.rows) * value_tiles + at * kLanes;
    for (int i = 0; i < d; i += kLanes) std::copy_n(v + i, std::min(kLanes, d - i), v_to + i * segment.rows);
  }
}

// Attention of heads [first_head, last_head) of the rows [begin, end) of one input, after all its rows have their queries, keys
// and values. Head h is written to merged.values + h * head_dim.
void Encoder::attend_within(Scratch& scratch, EncoderPass& pass, int64_t layer, int64_t begin, int64_t end,
                            int64_t first_head, int64_t last_head, const Rows& merged) const {
  const EncoderBlockShape& shape = shape_.layers[size_t(layer)];
  const EncoderPass::Segment& segment = pass.segment(begin);
  const int64_t count = end - begin, n = segment.rows, at = begin - segment.first;
  const int64_t q_stride = padded(int64_t(shape.heads) * shape.head_dim, kLanes);
  const int d = shape.head_dim;
  // The rows that one of these rows sees: the tiles from `first`.
  const int64_t first = shape.distance == 0 ? 0 : std::max<int64_t>(0, at - shape.distance) / kLanes;
  const int64_t last = shape.distance == 0 ? segment.tiles : (std::min(n, at + count + shape.distance) + kLanes - 1) / kLanes;
  for (int64_t h = first_head; h < last_head; ++h) {
    const int64_t kv = h / (shape.heads / shape.kv_heads);
    const Rows q = float_rows(scratch.q, count, d);
    for (int64_t r = 0; r < count; ++r) std::copy_n(pass.queries_.data() + (begin + r) * q_stride + h * d, d, q.values_of(r));
    const Rows scores = float_rows(scratch.scores, count, n);
    const Matrix keys = matrix_of(
        pass.keys_.data() + (segment.first_tile * shape.kv_heads + kv * segment.tiles) * d * kLanes, n, d);
    kernels_.linear(keys, q, first, last, scores.values + first * kLanes, scores.stride, false);
    for (int64_t r = 0; r < count; ++r) {
      float* const row = scores.values_of(r);
      if (!shape_.slopes.empty())
        kernels_.add_scaled(pass.distances_.data() + pass.longest_ - 1 - at - r, n, -shape_.slopes[size_t(h)], row);
      if (shape.distance == 0) {
        kernels_.softmax(row, n);
        continue;
      }
      const int64_t from = std::max<int64_t>(0, at + r - shape.distance), to = std::min(n, at + r + shape.distance + 1);
      const Rows own = float_rows(scratch.branch, 1, to - from);
      std::copy_n(row + from, to - from, own.values);
      kernels_.softmax(own.values, to - from);
      std::fill(row, row + scores.stride, 0.0f);
      std::copy_n(own.values, to - from, row + from);
    }
    const Matrix values = matrix_of(
        pass.values_.data() + (segment.first * shape.kv_heads + kv * n) * padded(d, kLanes), d, n);
    kernels_.linear(values, scores, 0, values.tiles(), merged.values + h * d, merged.stride, false);
  }
}

// Adds after(branch) to a row's hidden state, or norms the sum; `memory` has room for a row.
void Encoder::add_row(const Norm& after, const float* branch, float* memory, float* hidden) const {
  if (after.width > 0 && !shape_.post_norm) {
    after(kernels_, branch, memory);
    branch = memory;
  }
  kernels_.add_scaled(branch, shape_.hidden, 1.0f, hidden);
  if (!shape_.post_norm) return;
  after(kernels_, hidden, memory);
  std::copy_n(memory, shape_.hidden, hidden);
}

// Attention and MLP, after all rows of the inputs have their queries, keys and values.
void Encoder::attend(Worker& worker, EncoderPass& pass, const Slice& slice) {
  const EncoderBlockShape& shape = shape_.layers[size_t(slice.layer)];
  const Block& block = blocks_[size_t(slice.layer)];
  const int64_t count = slice.end - slice.begin, heads = shape.heads, q_width = heads * shape.head_dim, width = block.up.n_out;
  const Rows merged = view(merged_, count, q_width);
  const int64_t runs = int64_t(slice.runs.size());
  const int64_t head_parts = std::min(heads, (kItemsPerThread * threads_ + runs - 1) / runs);
  worker.each(runs * head_parts, [&](int64_t item) {
    const auto [begin, end] = slice.runs[size_t(item / head_parts)];
    const auto part = part_of(heads, head_parts, item % head_parts);
    attend_within(worker.scratch, pass, slice.layer, begin, end, part.first, part.second, rows_of_values(merged, begin - slice.begin));
  });
  worker.each_row(count, [&](int64_t r) {
    std::fill(merged.values_of(r) + q_width, merged.values_of(r) + merged.stride, 0.0f);
    if (block.o.integer()) kernels_.quantize_row(merged, r);
  });
  const auto into_branch = [&](const LinearLayer& linear, const Rows& x) {
    worker.each_part(count, linear.matrix.tiles(), [&](int64_t first, int64_t rows, int64_t begin, int64_t end) {
      apply(worker.scratch, linear, rows_of(x, first, rows), begin, end, branch_.data() + first * stride_ + begin * kLanes, stride_);
    });
  };
  into_branch(block.o, merged);
  float* const hidden = pass.hidden_.data() + slice.begin * stride_;
  const Rows x = view(inputs_, count, shape_.hidden);
  const bool integer = block.gate.integer() || block.up.integer();
  worker.each_row(count, [&](int64_t r) {
    add_row(block.mixer_after, branch_.data() + r * stride_, x.values_of(r), hidden + r * stride_);
    read_row(block.feed_forward_norm, hidden + r * stride_, x, r, integer);
  });
  const Rows gated = view(gated_, count, width);
  const int64_t gate_stride = padded(width, kGroup);
  worker.each_part(count, block.up.matrix.tiles(), [&](int64_t first, int64_t rows, int64_t begin, int64_t end) {
    const int64_t column = begin * kLanes, n = std::min(end * kLanes, width) - column;
    const Rows own = rows_of(x, first, rows);
    float *const gate = gate_.data() + first * gate_stride + column, *const up = gated.values_of(first) + column;
    if (block.gate.any()) {
      apply(worker.scratch, block.gate, own, begin, end, gate, gate_stride);
      apply(worker.scratch, block.up, own, begin, end, up, gated.stride);
    } else {
      apply(worker.scratch, block.up, own, begin, end, gate, gate_stride);
    }
    for (int64_t r = 0; r < rows; ++r) {
      if (!block.gate.any()) std::fill_n(up + r * gated.stride, n, 1.0f);
      kernels_.gate(gate + r * gate_stride, n, shape.activation, up + r * gated.stride);
    }
  });
  worker.each_row(count, [&](int64_t r) {
    std::fill(gated.values_of(r) + width, gated.values_of(r) + gated.stride, 0.0f);
    if (block.down.integer()) kernels_.quantize_row(gated, r);
  });
  into_branch(block.down, gated);
  const bool ends = final_norm_.width > 0 && slice.layer + 1 == int64_t(blocks_.size());
  worker.each_row(count, [&](int64_t r) {
    float* const row = hidden + r * stride_;
    add_row(block.feed_forward_after, branch_.data() + r * stride_, x.values_of(r), row);
    if (!ends) return;
    final_norm_(kernels_, row, x.values_of(r));
    std::copy_n(x.values_of(r), shape_.hidden, row);
  });
}

}  // namespace ipex_lookahead
