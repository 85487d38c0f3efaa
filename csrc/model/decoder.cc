// Weights, checks and memory of the decoder; the step itself is in decoder_step.cc.
#include "model/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <stdexcept>

#include "runtime/dispatch.h"

namespace ipex_lookahead {
namespace {

int64_t padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

const char* const kSlotNames[kSlots] = {"q", "k", "v", "o", "gate", "up", "down"};

template <typename Vector>
void ensure(Vector& v, int64_t n) {
  if (int64_t(v.size()) < n) v.resize(size_t(n));
}

const DecoderShape& checked(const DecoderShape& s) {
  const auto within = [](const char* name, int64_t value, int64_t most) {
    if (value < 1 || value > most)
      throw std::invalid_argument(std::string(name) + " is " + std::to_string(value) + "; it must be from 1 to " +
                                  std::to_string(most));
  };
  within("layers", s.layers, kMostLayers);
  within("hidden", s.hidden, kMostWidth);
  within("intermediate", s.intermediate, kMostWidth);
  within("heads", s.heads, kMostHeads);
  within("kv_heads", s.kv_heads, s.heads);
  within("head_dim", s.head_dim, kMostHeadDim);
  within("vocab", s.vocab, kMostVocab);
  within("max_context", s.max_context, INT32_MAX);
  if (s.heads % s.kv_heads != 0) throw std::invalid_argument("heads must be a multiple of kv_heads");
  if (s.head_dim % 8 != 0) throw std::invalid_argument("head_dim must be a multiple of 8");
  if (int64_t(s.rope_frequencies.size()) != s.head_dim / 2)
    throw std::invalid_argument("there must be head_dim / 2 rope frequencies");
  bool finite = std::isfinite(s.rms_epsilon) && s.rms_epsilon >= 0 && std::isfinite(s.rope_attention_factor);
  for (float f : s.rope_frequencies) finite = finite && std::isfinite(f);
  if (!finite) throw std::invalid_argument("rms_epsilon, rope_attention_factor and rope frequencies must be finite");
  return s;
}

// The caches of a step, claimed.
class StepClaim {
 public:
  explicit StepClaim(const std::vector<KVCache*>& caches) : caches_(caches) {
    for (; taken_ < caches_.size(); ++taken_)
      if (!caches_[taken_]->claimable().try_claim()) {
        release();
        throw std::runtime_error("a cache of the step is in use by another thread");
      }
  }
  ~StepClaim() { release(); }
  StepClaim(const StepClaim&) = delete;
  StepClaim& operator=(const StepClaim&) = delete;

 private:
  void release() {
    while (taken_ > 0) caches_[--taken_]->claimable().release();
  }

  const std::vector<KVCache*>& caches_;
  size_t taken_ = 0;
};

}  // namespace

Decoder::Decoder(const DecoderShape& shape, int threads, const std::string& isa)
    : shape_(checked(shape)),
      cache_shape_{shape.layers, shape.kv_heads, shape.head_dim, shape.kv_format, shape.max_context},
      kernels_(kernels_for(isa)),
      threads_(checked_threads(threads)),
      layers_(size_t(shape.layers)),
      phases_(threads),
      scratch_(size_t(threads)),
      own_rows_(size_t(threads)) {
  hidden_stride_ = padded(shape.hidden, kLanes);
  k_column_ = padded(int64_t(shape.heads) * shape.head_dim, kLanes);
  v_column_ = k_column_ + padded(int64_t(shape.kv_heads) * shape.head_dim, kLanes);
  qkv_stride_ = v_column_ + padded(int64_t(shape.kv_heads) * shape.head_dim, kLanes);
  widest_ = std::max(int64_t(shape.hidden), int64_t(shape.heads) * shape.head_dim);
}

const float* Decoder::copy_vector(const float* values, int64_t n) {
  if (values == nullptr) return nullptr;
  float* copy = static_cast<float*>(arena_.take(size_t(padded(n, kLanes)) * sizeof(float)));
  std::memcpy(copy, values, size_t(n) * sizeof(float));
  return copy;
}

const Decoder::Layer& Decoder::layer_at(int layer) const {
  if (layer < 0 || layer >= shape_.layers)
    throw std::out_of_range("layer " + std::to_string(layer) + " is not one of " + std::to_string(shape_.layers));
  return layers_[size_t(layer)];
}

void Decoder::set_matrix(int layer, Slot slot, const PlainMatrix& plain, const float* bias) {
  const int64_t q = int64_t(shape_.heads) * shape_.head_dim, kv = int64_t(shape_.kv_heads) * shape_.head_dim;
  const int64_t h = shape_.hidden, f = shape_.intermediate;
  const int64_t outs[kSlots] = {q, kv, kv, h, f, f, h}, ins[kSlots] = {h, h, h, q, h, h, f};
  const int s = int(slot);
  layer_at(layer);
  if (plain.n_out != outs[s] || plain.n_in != ins[s])
    throw std::invalid_argument(std::string("weight ") + kSlotNames[s] + " of layer " + std::to_string(layer) +
                                " has shape [" + std::to_string(plain.n_out) + ", " + std::to_string(plain.n_in) +
                                "], not [" + std::to_string(outs[s]) + ", " + std::to_string(ins[s]) + "]");
  Crew crew(threads_);
  Matrix m = prepack(plain, arena_, crew);
  m.bias = copy_vector(bias, plain.n_out);
  layers_[size_t(layer)].matrix[s] = m;
}

void Decoder::set_norms(int layer, const float* attention, const float* mlp) {
  layer_at(layer);
  Crew crew(threads_);
  layers_[size_t(layer)].attention_norm = copy_vector(attention, shape_.hidden);
  layers_[size_t(layer)].mlp_norm = copy_vector(mlp, shape_.hidden);
}

void Decoder::set_final_norm(const float* weight) {
  Crew crew(threads_);
  final_norm_ = copy_vector(weight, shape_.hidden);
}

void Decoder::set_lm_head(const PlainMatrix& plain, const float* bias) {
  if (plain.n_out != shape_.vocab || plain.n_in != shape_.hidden)
    throw std::invalid_argument("lm_head must have shape [vocab, hidden]");
  Crew crew(threads_);
  lm_head_ = prepack(plain, arena_, crew);
  lm_head_.bias = copy_vector(bias, plain.n_out);
}

void Decoder::set_embedding(const PlainMatrix& plain) {
  if (plain.n_out != shape_.vocab || plain.n_in != shape_.hidden)
    throw std::invalid_argument("the embedding must have shape [vocab, hidden]");
  Crew crew(threads_);
  embedding_ = prepack(plain, arena_, crew);
}

void Decoder::tie_embedding() {
  const Matrix shared = lm_head();
  Crew crew(threads_);
  embedding_ = shared;
}

namespace {

const Matrix& set_or_throw(const Matrix& m, const std::string& name) {
  if (m.codes == nullptr) throw std::runtime_error("the weight " + name + " is not set");
  return m;
}

const float* set_or_throw(const float* norm, const std::string& name) {
  if (norm == nullptr) throw std::runtime_error("the weight " + name + " is not set");
  return norm;
}

}  // namespace

Matrix Decoder::matrix(int layer, Slot slot) const {
  return set_or_throw(layer_at(layer).matrix[int(slot)], kSlotNames[int(slot)]);
}
Matrix Decoder::lm_head() const { return set_or_throw(lm_head_, "lm_head"); }
Matrix Decoder::embedding() const { return set_or_throw(embedding_, "embedding"); }
const float* Decoder::attention_norm(int layer) const { return set_or_throw(layer_at(layer).attention_norm, "norm"); }
const float* Decoder::mlp_norm(int layer) const { return set_or_throw(layer_at(layer).mlp_norm, "norm"); }
const float* Decoder::final_norm() const { return set_or_throw(final_norm_, "final norm"); }

std::string Decoder::missing() const {
  for (int i = 0; i < shape_.layers; ++i) {
    const Layer& layer = layers_[size_t(i)];
    const std::string where = " of layer " + std::to_string(i);
    for (int s = 0; s < kSlots; ++s)
      if (layer.matrix[s].codes == nullptr) return kSlotNames[s] + where;
    if (layer.attention_norm == nullptr || layer.mlp_norm == nullptr) return "norm" + where;
  }
  if (final_norm_ == nullptr) return "final norm";
  if (lm_head_.codes == nullptr) return "lm_head";
  return embedding_.codes == nullptr ? "embedding" : "";
}

// A weight once set is never unset, so this looks once.
void Decoder::check_complete() {
  if (complete_) return;
  const std::string absent = missing();
  if (!absent.empty()) throw std::runtime_error("the weight " + absent + " is not set");
  complete_ = true;
}

KVCache Decoder::new_cache() const { return KVCache(cache_shape_); }

void Decoder::check(const Step& step) const {
  const auto fail = [](const std::string& what) { throw std::invalid_argument(what); };
  if (step.caches.size() != step.counts.size() || step.caches.empty()) fail("a step needs one count a cache");
  if (step.rows < 1 || step.rows > kMostRows || step.wanted < 0 || step.wanted > step.rows)
    fail("a step has from 1 to " + std::to_string(kMostRows) + " rows, and wants no more of them");
  int64_t first = 0;
  for (size_t i = 0; i < step.caches.size(); ++i) {
    const KVCache* cache = step.caches[i];
    if (cache == nullptr) fail("a cache is None");
    if (!(cache->shape() == cache_shape_)) fail("a cache of another model was given");
    if (std::find(step.caches.begin(), step.caches.begin() + std::ptrdiff_t(i), cache) !=
        step.caches.begin() + std::ptrdiff_t(i))
      fail("the same cache was given twice in one step");
    if (step.counts[i] < 1 || step.counts[i] > step.rows - first) fail("counts must be positive and sum to the rows");
    for (int64_t r = 0; r < step.counts[i]; ++r) {
      const int32_t token = step.tokens[first + r], parent = step.parents[first + r];
      if (token < 0 || token >= shape_.vocab)
        fail("token id " + std::to_string(token) + " is outside the vocabulary of " + std::to_string(shape_.vocab));
      if (parent < -1 || parent >= r)
        fail("row " + std::to_string(r) + " has parent " + std::to_string(parent) + "; parents are -1 or an earlier row");
    }
    first += step.counts[i];
  }
  if (first != step.rows) fail("counts must be positive and sum to the rows");
  for (int64_t i = 0; i < step.wanted; ++i)
    if (step.want[i] < (i == 0 ? 0 : step.want[i - 1] + 1) || step.want[i] >= step.rows)
      fail("wanted rows must be ascending rows of the step");
}

void Decoder::plan(const Step& step) {
  rows_ = step.rows;
  want_ = step.want;
  sequences_.clear();
  ensure(depth_, rows_);
  ensure(sequence_of_, rows_);
  int64_t first = 0, paths = 0, furthest = 0;
  for (size_t i = 0; i < step.caches.size(); ++i) {
    const int64_t rows = step.counts[i], length = step.caches[i]->length();
    bool chain = true;
    int64_t deepest = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const int32_t parent = step.parents[first + r];
      const int32_t depth = parent < 0 ? 0 : depth_[size_t(first + parent)] + 1;
      depth_[size_t(first + r)] = depth;
      sequence_of_[size_t(first + r)] = int32_t(i);
      deepest = std::max<int64_t>(deepest, depth);
      chain = chain && parent == r - 1;
    }
    if (length + deepest >= shape_.max_context)
      throw std::out_of_range("position " + std::to_string(length + deepest) + " is beyond the context of " +
                              std::to_string(shape_.max_context) + " tokens");
    furthest = std::max(furthest, length + deepest);
    sequences_.push_back({step.caches[i], first, rows, length, chain, paths, (length + deepest) / kBlock + 1});
    if (!chain) {
      if (rows > kMostTree)
        throw std::invalid_argument("a tree has " + std::to_string(rows) + " rows; it may have " +
                                    std::to_string(kMostTree));
      ensure(ancestors_, paths + rows * rows);
      for (int64_t r = 0; r < rows; ++r) {
        int64_t at = r;
        for (int32_t d = depth_[size_t(first + r)]; d >= 0; --d, at = step.parents[first + at])
          ancestors_[size_t(paths + r * rows + d)] = int32_t(at);
      }
      paths += rows * rows;
    }
    first += rows;
  }
  reserve_rope(furthest + 1);
  plan_attention();
}

void Decoder::reserve_rope(int64_t positions) {
  const int64_t half = shape_.head_dim / 2, have = int64_t(cos_.size()) / half;
  if (positions <= have) return;
  const int64_t wanted = std::min(std::max({positions, 2 * have, int64_t(1024)}), shape_.max_context);
  cos_.resize(size_t(wanted * half));
  sin_.resize(size_t(wanted * half));
  for (int64_t p = have; p < wanted; ++p)
    for (int64_t i = 0; i < half; ++i) {
      // The angle is rounded to float32 first, as the models were trained with it.
      const double angle = double(float(p) * shape_.rope_frequencies[size_t(i)]);
      cos_[size_t(p * half + i)] = float(std::cos(angle)) * shape_.rope_attention_factor;
      sin_[size_t(p * half + i)] = float(std::sin(angle)) * shape_.rope_attention_factor;
    }
}

void Decoder::RowsMemory::reserve(int64_t rows, int64_t width) {
  const int64_t blocks = (width + kGroup - 1) / kGroup;
  ensure(values, rows * blocks * kGroup);
  ensure(codes, rows * blocks * kGroup);
  ensure(scales, rows * blocks);
  ensure(sums, rows * blocks);
  ensure(bias4, rows * blocks);
  ensure(bias8, rows * blocks);
}

Rows Decoder::RowsMemory::view(int64_t rows, int64_t width) {
  Rows r;
  r.values = values.data();
  r.codes = codes.data();
  r.scales = scales.data();
  r.bias4 = bias4.data();
  r.bias8 = bias8.data();
  r.sums = sums.data();
  r.blocks = (width + kGroup - 1) / kGroup;
  r.stride = r.blocks * kGroup;
  r.count = rows;
  return r;
}

void Decoder::forward(const Step& step, int top, int32_t* ids, float* logits) {
  Crew crew(threads_);
  check_complete();
  check(step);
  const StepClaim claim(step.caches);
  plan(step);
  reserve(step, top);
  for (size_t i = 0; i < step.caches.size(); ++i) step.caches[i]->prepare(step.counts[i]);
  const auto job = [&](int thread) { run(thread, step, top, ids, logits); };
  crew.run(std::cref(job));  // a reference fits into std::function without memory of its own
  int64_t first = 0;
  for (size_t i = 0; i < step.caches.size(); first += step.counts[i], ++i)
    step.caches[i]->set_step(step.parents + first, step.counts[i]);
}

}  // namespace ipex_lookahead
