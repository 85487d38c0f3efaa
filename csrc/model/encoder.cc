#include "model/encoder.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "runtime/dispatch.h"

namespace ipex_lookahead {
namespace {

constexpr int64_t kBandRows = 32;       // rows of a chain's work item
constexpr int64_t kBandsPerThread = 2;  // in a chain's slice

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

void Encoder::LinearLayer::declare(const std::string& name, const LinearShape& shape, bool floats, DecoderWeights& weights) {
  n_out = shape.n_out;
  n_in = shape.n_in;
  if (!any()) return;
  if (n_out > kMaxLayerWidth || n_in < 1 || n_in > kMaxLayerWidth) fail(name + " is out of range");
  weights.declare_linear(name, matrix, n_out, n_in, {Phase::gate_up, 1, floats});
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
      scratch_(size_t(threads)),
      phases_(threads_) {
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
      if (const auto* linear = std::get_if<LinearShape>(&of)) link.linear.declare(name, *linear, true, weights_);
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
    block.q.declare(mixer + ".q", of.q, false, weights_);
    block.k.declare(mixer + ".k", of.k, false, weights_);
    block.v.declare(mixer + ".v", of.v, false, weights_);
    block.q_norm.declare(mixer + ".q_norm", of.q_norm, weights_);
    block.k_norm.declare(mixer + ".k_norm", of.k_norm, weights_);
    block.o.declare(mixer + ".o", of.o, false, weights_);
    block.mixer_after.declare(mixer + "_after", of.mixer_after, weights_);
    block.feed_forward_norm.declare(mlp + "_norm", of.feed_forward_norm, weights_);
    block.gate.declare(mlp + ".gate", of.gate, false, weights_);
    block.up.declare(mlp + ".up", of.up, false, weights_);
    block.down.declare(mlp + ".down", of.down, false, weights_);
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
  for (Buffer<float>* one : {&input, &branch}) ensure(*one, std::max(kBandRows * widest, row_scores));
  clipped.reserve(kRowsOfItem, widest);
  ensure(q, kRowsOfRun * padded(kMaxHeadDim, kGroup));
  ensure(scores, kRowsOfRun * row_scores);
}

// Calls work(scratch, begin, end) for bands of the rows [begin, end).
template <typename Work>
void Encoder::each_band(int64_t begin, int64_t end, const Work& work) {
  std::atomic<int64_t> next{begin};
  Crew crew(threads_);
  weights_.check_complete();
  for (Scratch& scratch : scratch_) scratch.reserve(widest_, 0);  // work must not throw
  crew.run([&](int thread) {
    for (int64_t first; (first = next.fetch_add(kBandRows)) < end;)
      work(scratch_[size_t(thread)], first, std::min(first + kBandRows, end));
  });
}

// Writes the outputs of tiles [begin, end) of a linear layer of rows x, with its limits, to out [rows][stride].
void Encoder::apply(Scratch& scratch, const LinearLayer& linear, const Rows& x, int64_t begin, int64_t end, float* out,
                    int64_t stride) const {
  Rows in = x;
  if (linear.input_min != nullptr) {
    in = scratch.clipped.view(x.count, linear.n_in);
    for (int64_t r = 0; r < x.count; ++r) {
      float* const row = in.values_of(r);
      std::fill(std::copy_n(x.values_of(r), linear.n_in, row), row + in.stride, 0.0f);
      kernels_.clamp(row, linear.n_in, *linear.input_min, *linear.input_max);
      if (linear.integer()) kernels_.quantize_row(in, r);
    }
  }
  kernels_.linear(linear.matrix, in, begin, end, out, stride, false);
  if (linear.input_min == nullptr) return;
  const int64_t n = std::min(end * kLanes, linear.n_out) - begin * kLanes;
  for (int64_t r = 0; r < x.count; ++r) kernels_.clamp(out + r * stride, n, *linear.output_min, *linear.output_max);
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
  each_band(0, rows, [&](Scratch& scratch, int64_t begin, int64_t end) {
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
          apply(scratch, link.linear, r, 0, link.linear.matrix.tiles(), next.values, next.stride);
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
  each_band(0, pass.rows_, [&](Scratch& scratch, int64_t begin, int64_t end) {
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

}  // namespace ipex_lookahead
