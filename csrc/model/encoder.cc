#include "model/encoder.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "runtime/dispatch.h"

namespace ipex_lookahead {
namespace {

constexpr int64_t kBandRows = 32;       // rows of a work item, a multiple of a tile
constexpr int64_t kBandsPerThread = 2;  // in a slice
constexpr int64_t kMaxRows = 1 << 20;

// `count` rows of `width` values that float linear layers read: zero from the width to the stride.
Rows float_rows(Buffer<float>& memory, int64_t count, int64_t width) {
  Rows r;
  r.blocks = (width + kGroup - 1) / kGroup;
  r.stride = r.blocks * kGroup;
  ensure(memory, count * r.stride);
  r.values = memory.data();
  r.count = r.total = count;
  for (int64_t i = 0; i < count; ++i) std::fill(r.values + i * r.stride + width, r.values + (i + 1) * r.stride, 0.0f);
  return r;
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

void check(const std::string& name, const LinearShape& linear, int64_t n_out, int64_t n_in) {
  if (linear.n_out != n_out || linear.n_in != n_in)
    fail(name + " is " + std::to_string(linear.n_out) + " x " + std::to_string(linear.n_in) + "; it must be " +
         std::to_string(n_out) + " x " + std::to_string(n_in));
}

void check(const std::string& name, const NormShape& norm, int64_t width) {
  if (norm.width != 0 && norm.width != width)
    fail(name + " is over " + std::to_string(norm.width) + " values; it must be over " + std::to_string(width));
  if (norm.bias && !norm.centered) fail(name + " has a bias; only layer norms do");
}

void check(const EncoderBlockShape& b, int64_t hidden, int parts) {
  if (b.heads < 1 || b.heads > kMaxHeads || b.kv_heads < 1 || b.heads % b.kv_heads != 0)
    fail("heads must be a multiple of kv_heads");
  if (b.head_dim < 8 || b.head_dim > kMaxHeadDim || b.head_dim % 8 != 0) fail("head_dim must be a multiple of 8, at most 1024");
  if (b.rope >= 0 && (parts < 1 || parts > b.head_dim || b.head_dim % (2 * parts) != 0)) fail("a head must have rope_parts parts of two halves");
  if (b.distance < 0 || b.distance > INT32_MAX) fail("the distance of visible rows must not be negative or above 2^31 - 1");
  const int64_t q = int64_t(b.heads) * b.head_dim, kv = int64_t(b.kv_heads) * b.head_dim;
  check("q", b.q, q, hidden);
  check("k", b.k, kv, hidden);
  check("v", b.v, kv, hidden);
  check("o", b.o, hidden, q);
  if (b.gate.n_out != 0) check("gate", b.gate, b.up.n_out, hidden);
  check("up", b.up, b.up.n_out, hidden);
  check("down", b.down, hidden, b.up.n_out);
  for (const NormShape* norm : {&b.mixer_norm, &b.mixer_after, &b.feed_forward_norm, &b.feed_forward_after})
    check("a norm of a block", *norm, hidden);
  for (const NormShape* norm : {&b.q_norm, &b.k_norm}) check("a norm of heads", *norm, b.head_dim);
}

const EncoderShape& checked(const EncoderShape& s) {
  if (s.hidden < 1 || s.hidden > kMaxLayerWidth) fail("hidden is " + std::to_string(s.hidden) + ", out of range");
  if (s.layers.size() > size_t(kMaxLayers)) fail("there are too many layers");
  for (const EncoderBlockShape& block : s.layers) check(block, s.hidden, s.rope_parts);
  int rotated = 0;
  for (const EncoderBlockShape& block : s.layers) {
    if (block.rope < 0) continue;
    if (rotated != 0 && rotated != block.head_dim) fail("layers with rope must have heads of one size");
    rotated = block.head_dim;
    if (s.vocab > 0 && s.ropes.at(size_t(block.rope)).half() * 2 != rotated) fail("the ropes of texts must rotate whole heads");
  }
  for (const int64_t rows : {s.vocab, s.types, s.positions})
    if (rows < 0 || rows > kMaxVocab) fail("a table has " + std::to_string(rows) + " rows, out of range");
  for (const NormShape* norm : {&s.embedding_norm, &s.final_norm}) check("a norm of rows", *norm, s.hidden);
  for (const EncoderBlockShape& block : s.layers) {
    if (!s.slopes.empty() && s.slopes.size() != size_t(block.heads)) fail("slopes must be one number per head");
    if (s.post_norm && (block.mixer_after.width == 0 || block.feed_forward_after.width == 0)) fail("post_norm needs norms after both branches");
  }
  for (const float slope : s.slopes)
    if (!(slope >= 0 && slope <= 1)) fail("slopes must be from 0 to 1");
  if (!std::isfinite(s.embedding_multiplier)) fail("the factor on embeddings must be finite");
  return s;
}

}  // namespace

void Encoder::LinearLayer::declare(const std::string& name, const LinearShape& shape, DecoderWeights& weights) {
  n_out = shape.n_out;
  n_in = shape.n_in;
  if (!any()) return;
  if (n_out > kMaxLayerWidth || n_in < 1 || n_in > kMaxLayerWidth) fail(name + " is out of range");
  weights.declare_linear(name, matrix, n_out, n_in, {Phase::gate_up, 1, true});
  if (!shape.clip) return;
  weights.declare(name + ".clip.input_min", input_min, 1);
  weights.declare(name + ".clip.input_max", input_max, 1);
  weights.declare(name + ".clip.output_min", output_min, 1);
  weights.declare(name + ".clip.output_max", output_max, 1);
}

Encoder::Encoder(const EncoderShape& shape, int threads, const std::string& isa)
    : shape_(checked(shape)),
      kernels_(*kernels_for(isa)),
      threads_(checked_threads(threads)),
      stride_(padded(shape.hidden, kLanes)),
      widest_(std::max<int64_t>(padded(shape.hidden, kGroup), kMaxHeadDim)),
      weights_(threads),
      ropes_(shape.ropes.size()),
      blocks_(shape.layers.size()),
      scratch_(size_t(threads)) {
  for (const ChainShape& chain : shape_.chains)
    for (const LinkShape& link : chain) {
      if (const auto* norm = std::get_if<NormShape>(&link)) widen(norm->width);
      if (const auto* norm = std::get_if<PlainNormShape>(&link)) widen(norm->width);
      if (const auto* linear = std::get_if<LinearShape>(&link)) widen(std::max(linear->n_out, linear->n_in));
    }
  for (const EncoderBlockShape& block : shape_.layers) widen(std::max({block.q.n_out, block.k.n_out, block.up.n_out}));
  ones_.assign(size_t(widest_), 1.0f);
  for (size_t i = 0; i < shape_.chains.size(); ++i) {
    chains_.emplace_back(shape_.chains[i].size());
    for (size_t j = 0; j < shape_.chains[i].size(); ++j) {
      const std::string name = "chains." + std::to_string(i) + "." + std::to_string(j);
      Link& link = chains_[i][j];
      const LinkShape& of = shape_.chains[i][j];
      if (const auto* norm = std::get_if<NormShape>(&of)) link.norm.declare(name, *norm, weights_);
      if (const auto* norm = std::get_if<PlainNormShape>(&of)) link.norm = {ones_.data(), nullptr, norm->width, norm->epsilon};
      if (const auto* linear = std::get_if<LinearShape>(&of)) link.linear.declare(name, *linear, weights_);
      if (const auto* kind = std::get_if<GateKind>(&of)) link.activation = *kind;
    }
    widths(int64_t(i));
  }
  const auto declare_table = [&](const char* name, Matrix& table, int64_t rows) {
    if (rows > 0) weights_.declare(name, table, rows, shape_.hidden, {Phase::embedding});
  };
  declare_table("embedding", embedding_, shape_.vocab);
  declare_table("types", types_, shape_.types);
  declare_table("positions", positions_, shape_.positions);
  embedding_norm_.declare("embedding_norm", shape_.embedding_norm, weights_);
  final_norm_.declare("final_norm", shape_.final_norm, weights_);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".", mixer = layer + "mixer", mlp = layer + "feed_forward";
    const EncoderBlockShape& of = shape_.layers[i];
    Block& block = blocks_[i];
    block.mixer_norm.declare(mixer + "_norm", of.mixer_norm, weights_);
    block.q.declare(mixer + ".q", of.q, weights_);
    block.k.declare(mixer + ".k", of.k, weights_);
    block.v.declare(mixer + ".v", of.v, weights_);
    block.q_norm.declare(mixer + ".q_norm", of.q_norm, weights_);
    block.k_norm.declare(mixer + ".k_norm", of.k_norm, weights_);
    block.o.declare(mixer + ".o", of.o, weights_);
    block.mixer_after.declare(mixer + "_after", of.mixer_after, weights_);
    block.feed_forward_norm.declare(mlp + "_norm", of.feed_forward_norm, weights_);
    block.gate.declare(mlp + ".gate", of.gate, weights_);
    block.up.declare(mlp + ".up", of.up, weights_);
    block.down.declare(mlp + ".down", of.down, weights_);
    block.feed_forward_after.declare(mlp + "_after", of.feed_forward_after, weights_);
  }
}

int64_t Encoder::rope_width() const {
  for (const EncoderBlockShape& block : shape_.layers)
    if (block.rope >= 0) return int64_t(shape_.ropes.size()) * (block.head_dim / 2);
  return 0;
}

void Encoder::widen(int64_t width) {
  if (width < 0 || width > kMaxLayerWidth) fail("a width is " + std::to_string(width) + "; it must be at most " + std::to_string(kMaxLayerWidth));
  widest_ = std::max(widest_, padded(width, kGroup));
}

int64_t Encoder::slice_rows() const { return kBandRows * kBandsPerThread * threads_; }

void Encoder::Scratch::reserve(int64_t widest, int64_t row_scores) {
  for (Buffer<float>* one : {&input, &clipped, &q, &kv, &merged, &up, &gate}) ensure(*one, kBandRows * widest);
  ensure(branch, std::max(kBandRows * widest, row_scores));
  ensure(scores, kBandRows * row_scores);
}

// Calls work(scratch, begin, end) for bands of the rows [begin, end). `scores`: rows that a row sees.
template <typename Work>
void Encoder::each_band(int64_t begin, int64_t end, int64_t scores, const Work& work) {
  std::atomic<int64_t> next{begin};
  Crew crew(threads_);
  weights_.check_complete();
  for (Scratch& scratch : scratch_) scratch.reserve(widest_, padded(scores, kGroup));  // work must not throw
  crew.run([&](int thread) {
    for (int64_t first; (first = next.fetch_add(kBandRows)) < end;)
      work(scratch_[size_t(thread)], first, std::min(first + kBandRows, end));
  });
}

// Writes the linear layer of rows x, with its limits, to out [rows][stride].
void Encoder::apply(Scratch& scratch, const LinearLayer& linear, const Rows& x, float* out, int64_t stride) const {
  Rows in = x;
  if (linear.input_min != nullptr) {
    in = float_rows(scratch.clipped, x.count, linear.n_in);
    for (int64_t r = 0; r < x.count; ++r) {
      std::copy_n(x.values_of(r), linear.n_in, in.values_of(r));
      kernels_.clamp(in.values_of(r), linear.n_in, *linear.input_min, *linear.input_max);
    }
  }
  kernels_.linear(linear.matrix, in, 0, linear.matrix.tiles(), out, stride, false);
  if (linear.input_min == nullptr) return;
  for (int64_t r = 0; r < x.count; ++r) kernels_.clamp(out + r * stride, linear.n_out, *linear.output_min, *linear.output_max);
}

std::pair<int64_t, int64_t> Encoder::widths(int64_t chain) const {
  if (chain < 0 || chain >= int64_t(chains_.size())) fail("chain " + std::to_string(chain) + " does not exist");
  int64_t first = 0, now = 0;
  for (const Link& link : chains_[size_t(chain)]) {
    const int64_t in = link.linear.any() ? link.linear.n_in : link.norm.width;
    if (in == 0) continue;
    if (now != 0 && in != now) fail("a part of a chain reads " + std::to_string(in) + " values of " + std::to_string(now));
    if (first == 0) first = in;
    now = link.linear.any() ? link.linear.n_out : in;
  }
  if (first == 0) fail("a chain must have a norm or a linear layer");
  return {first, now};
}

void Encoder::run_chain(int64_t chain, const float* x, int64_t rows, float* out) {
  const auto [inputs, outputs] = widths(chain);
  if (rows < 0 || rows > kMaxRows) fail("rows is " + std::to_string(rows) + "; it must be at most " + std::to_string(kMaxRows));
  const int64_t n_in = inputs, n_out = outputs;
  each_band(0, rows, 0, [&](Scratch& scratch, int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    Buffer<float>*now = &scratch.input, *other = &scratch.branch;
    Rows r = float_rows(*now, count, n_in);
    for (int64_t i = 0; i < count; ++i) std::copy_n(x + (begin + i) * n_in, n_in, r.values_of(i));
    int64_t width = n_in;
    for (const Link& link : chains_[size_t(chain)]) {
      if (!link.linear.any() && link.norm.width == 0) {
        Rows ones = float_rows(*other, count, width);
        for (int64_t i = 0; i < count; ++i) {
          std::fill_n(ones.values_of(i), width, 1.0f);
          kernels_.gate(r.values_of(i), width, link.activation, ones.values_of(i));
        }
        r = ones;
      } else {
        width = link.linear.any() ? link.linear.n_out : width;
        const Rows next = float_rows(*other, count, width);
        if (link.linear.any())
          apply(scratch, link.linear, r, next.values, next.stride);
        else
          for (int64_t i = 0; i < count; ++i) link.norm(kernels_, r.values_of(i), next.values_of(i));
        r = next;
      }
      std::swap(now, other);
    }
    for (int64_t i = 0; i < count; ++i) std::copy_n(r.values_of(i), n_out, out + (begin + i) * n_out);
  });
}

void Encoder::check_texts(const Texts& texts) const {
  if (shape_.vocab == 0) fail("the encoder has no embedding of tokens");
  if (shape_.rope_parts != 1) fail("texts have ropes of one part");
  int64_t rows = 0;
  for (const int64_t length : texts.lengths) {
    if (length < 1) fail("a text has no tokens");
    if (shape_.positions > 0 && length > shape_.positions)
      fail("a text has " + std::to_string(length) + " tokens; the encoder has positions for " + std::to_string(shape_.positions));
    rows += length;
  }
  const auto check_rows = [&](const char* name, const int32_t* indices, int64_t of) {
    for (int64_t r = 0; indices != nullptr && r < rows; ++r)
      if (indices[r] < 0 || indices[r] >= of)
        fail(std::string(name) + " " + std::to_string(indices[r]) + " has no row: the table has " + std::to_string(of));
  };
  check_rows("token", texts.tokens, shape_.vocab);
  check_rows("token type", texts.types, std::max<int64_t>(shape_.types, 1));
}

// Computes the first rows of texts, and their cosines and sines.
void Encoder::embed(EncoderPass& pass, const Texts& texts) {
  each_band(0, pass.rows_, 0, [&](Scratch& scratch, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      embed_row(scratch, texts.tokens[r], texts.types == nullptr ? 0 : texts.types[r], r - pass.segment(r).first,
                pass.hidden_.data() + r * stride_);
  });
  if (shape_.ropes.empty()) return;
  Crew crew(threads_);
  const int64_t half = shape_.ropes[0].half(), ropes = int64_t(shape_.ropes.size());
  pass.cos_.resize(size_t(pass.rows_ * ropes * half));
  pass.sin_.resize(size_t(pass.rows_ * ropes * half));
  for (int64_t i = 0; i < ropes; ++i) {
    RopeTable& table = ropes_[size_t(i)];
    table.reserve(shape_.ropes[size_t(i)], pass.longest_, kMaxRows);
    for (int64_t r = 0; r < pass.rows_; ++r) {
      const int64_t from = (r - pass.segment(r).first) * half, to = (r * ropes + i) * half;
      std::copy_n(table.cos.data() + from, half, pass.cos_.data() + to);
      std::copy_n(table.sin.data() + from, half, pass.sin_.data() + to);
    }
  }
}

void Encoder::embed_row(Scratch& scratch, int64_t token, int64_t type, int64_t position, float* out) const {
  const int64_t n = shape_.hidden;
  float* const row = float_rows(scratch.input, 1, n).values;
  float* const other = float_rows(scratch.branch, 1, n).values;
  kernels_.dequantize_row(embedding_, token, row);
  if (shape_.embedding_multiplier != 1) kernels_.scale(row, n, shape_.embedding_multiplier);
  const auto add = [&](const Matrix& table, int64_t index) {
    kernels_.dequantize_row(table, index, other);
    kernels_.add_scaled(other, n, 1.0f, row);
  };
  if (shape_.types > 0) add(types_, type);
  if (shape_.positions > 0) add(positions_, position);
  if (embedding_norm_.width > 0) embedding_norm_(kernels_, row, other);
  std::copy_n(embedding_norm_.width > 0 ? other : row, n, out);
}

EncoderPass::EncoderPass(Encoder& encoder, const std::vector<int64_t>& lengths) : encoder_(encoder) {
  int64_t tiles = 0;
  for (const int64_t length : lengths) {
    if (length < 1 || length > kMaxRows - rows_) fail("an input has " + std::to_string(length) + " rows; all must have from 1 to " + std::to_string(kMaxRows));
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

void EncoderPass::advance() {
  if (layer_ >= int64_t(encoder_.blocks_.size())) fail("the pass has completed all layers");
  const int64_t end = std::min(next_ + encoder_.slice_rows(), rows_);
  encoder_.each_band(next_, end, longest_, [&](Encoder::Scratch& scratch, int64_t first, int64_t last) {
    if (attends_)
      encoder_.attend(scratch, *this, first, last);
    else
      encoder_.project(scratch, *this, first, last);
  });
  next_ = end;
  if (next_ < rows_) return;
  next_ = 0;
  layer_ += attends_ ? 1 : 0;
  attends_ = !attends_;
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

// Computes queries, keys and values of the rows [begin, end).
void Encoder::project(Scratch& scratch, EncoderPass& pass, int64_t begin, int64_t end) {
  const EncoderBlockShape& shape = shape_.layers[size_t(pass.layer_)];
  const Block& block = blocks_[size_t(pass.layer_)];
  const int64_t count = end - begin, kv_width = int64_t(shape.kv_heads) * shape.head_dim;
  const int64_t q_stride = padded(int64_t(shape.heads) * shape.head_dim, kLanes), kv_stride = padded(kv_width, kLanes);
  const int d = shape.head_dim;
  const Rows x = float_rows(scratch.input, count, shape_.hidden);
  for (int64_t r = 0; r < count; ++r) {
    const float* from = pass.hidden_.data() + (begin + r) * stride_;
    if (block.mixer_norm.width == 0)
      std::copy_n(from, shape_.hidden, x.values_of(r));
    else
      block.mixer_norm(kernels_, from, x.values_of(r));
  }
  float* const queries = pass.queries_.data() + begin * q_stride;
  apply(scratch, block.q, x, queries, q_stride);
  for (int64_t r = 0; r < count; ++r)
    for (int h = 0; h < shape.heads; ++h) {
      float* const q = queries + r * q_stride + h * d;
      if (block.q_norm.width > 0) norm_head(block.q_norm, d, q);
      rotate(pass, begin + r, d, shape.query_scale, shape.rope, q);
    }
  ensure(scratch.kv, count * kv_stride);
  float* const kv = scratch.kv.data();
  apply(scratch, block.k, x, kv, kv_stride);
  for (int64_t r = 0; r < count; ++r)
    for (int h = 0; h < shape.kv_heads; ++h) {
      float* const k = kv + r * kv_stride + h * d;
      if (block.k_norm.width > 0) norm_head(block.k_norm, d, k);
      rotate(pass, begin + r, d, 1.0f, shape.rope, k);
      const int64_t row = begin + r;
      const EncoderPass::Segment& segment = pass.segment(row);
      const int64_t at = row - segment.first, tile = segment.first_tile * shape.kv_heads + h * segment.tiles + at / kLanes;
      float* const to = pass.keys_.data() + tile * d * kLanes + at % kLanes;
      for (int i = 0; i < d; ++i) to[i * kLanes] = k[i];
    }
  apply(scratch, block.v, x, kv, kv_stride);
  const Norm value_norm{ones_.data(), nullptr, d, shape.value_norm};
  for (int64_t r = 0; r < count; ++r)
    for (int h = 0; h < shape.kv_heads; ++h) {
      float* const v = kv + r * kv_stride + h * d;
      if (shape.value_norm != 0) norm_head(value_norm, d, v);
      const EncoderPass::Segment& segment = pass.segment(begin + r);
      const int64_t at = (segment.first * shape.kv_heads + h * segment.rows) * padded(d, kLanes);
      float* const to = pass.values_.data() + at + (begin + r - segment.first) * kLanes;
      for (int i = 0; i < d; ++i) to[i / kLanes * segment.rows * kLanes + i % kLanes] = v[i];
    }
}

// Adds after(linear(x)) to the hidden states of the rows.
void Encoder::add(Scratch& scratch, const Norm& after, const LinearLayer& linear, const Rows& x, float* hidden) const {
  const Rows out = float_rows(scratch.branch, x.count, shape_.hidden);
  apply(scratch, linear, x, out.values, out.stride);
  const Rows normed = float_rows(scratch.input, x.count, shape_.hidden);
  for (int64_t r = 0; r < x.count; ++r) {
    float* const row = hidden + r * stride_;
    if (after.width > 0 && !shape_.post_norm) after(kernels_, out.values_of(r), normed.values_of(r));
    kernels_.add_scaled(after.width > 0 && !shape_.post_norm ? normed.values_of(r) : out.values_of(r), shape_.hidden, 1.0f, row);
    if (!shape_.post_norm) continue;
    after(kernels_, row, normed.values_of(r));
    std::copy_n(normed.values_of(r), shape_.hidden, row);
  }
}

// Attention of the rows [begin, end) of one input, after all its rows have their queries, keys and values: heads in `merged`.
void Encoder::attend_within(Scratch& scratch, EncoderPass& pass, int64_t begin, int64_t end, const Rows& merged) {
  const EncoderBlockShape& shape = shape_.layers[size_t(pass.layer_)];
  const EncoderPass::Segment& segment = pass.segment(begin);
  const int64_t count = end - begin, n = segment.rows, at = begin - segment.first;
  const int64_t q_stride = padded(int64_t(shape.heads) * shape.head_dim, kLanes);
  const int d = shape.head_dim;
  // The rows that one of these rows sees: the tiles from `first`.
  const int64_t first = shape.distance == 0 ? 0 : std::max<int64_t>(0, at - shape.distance) / kLanes;
  const int64_t last = shape.distance == 0 ? segment.tiles : (std::min(n, at + count + shape.distance) + kLanes - 1) / kLanes;
  for (int h = 0; h < shape.heads; ++h) {
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

// Attention and MLP of the rows [begin, end).
void Encoder::attend(Scratch& scratch, EncoderPass& pass, int64_t begin, int64_t end) {
  const EncoderBlockShape& shape = shape_.layers[size_t(pass.layer_)];
  const Block& block = blocks_[size_t(pass.layer_)];
  const int64_t count = end - begin;
  const Rows merged = float_rows(scratch.merged, count, int64_t(shape.heads) * shape.head_dim);
  for (int64_t r = begin, last; r < end; r = last) {
    const EncoderPass::Segment& segment = pass.segment(r);
    last = std::min(end, segment.first + segment.rows);
    Rows own = merged;
    own.values = merged.values_of(r - begin);
    attend_within(scratch, pass, r, last, own);
  }
  float* const hidden = pass.hidden_.data() + begin * stride_;
  add(scratch, block.mixer_after, block.o, merged, hidden);
  const Rows x = float_rows(scratch.input, count, shape_.hidden);
  for (int64_t r = 0; r < count; ++r) {
    if (block.feed_forward_norm.width == 0)
      std::copy_n(hidden + r * stride_, shape_.hidden, x.values_of(r));
    else
      block.feed_forward_norm(kernels_, hidden + r * stride_, x.values_of(r));
  }
  const int64_t width = block.up.n_out;
  Rows up = float_rows(scratch.up, count, width);
  const Rows gate = float_rows(scratch.gate, count, width);
  apply(scratch, block.up, x, up.values, up.stride);
  if (block.gate.any()) {
    apply(scratch, block.gate, x, gate.values, gate.stride);
    for (int64_t r = 0; r < count; ++r) kernels_.gate(gate.values_of(r), width, shape.activation, up.values_of(r));
  } else {
    for (int64_t r = 0; r < count; ++r) {
      std::fill_n(gate.values_of(r), width, 1.0f);
      kernels_.gate(up.values_of(r), width, shape.activation, gate.values_of(r));
    }
    up = gate;
  }
  add(scratch, block.feed_forward_after, block.down, up, hidden);
  if (final_norm_.width == 0 || pass.layer_ + 1 < int64_t(blocks_.size())) return;
  for (int64_t r = 0; r < count; ++r) {
    final_norm_(kernels_, hidden + r * stride_, x.values_of(r));
    std::copy_n(x.values_of(r), shape_.hidden, hidden + r * stride_);
  }
}

}  // namespace ipex_lookahead
