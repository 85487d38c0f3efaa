// Weights, checks and memory of the decoder; the step itself is in decoder_step.cc.
#include "model/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <stdexcept>

#include "errors.h"
#include "runtime/dispatch.h"

namespace ipex_lookahead {
namespace {

const char* const kSlotNames[kSlots] = {"q", "k", "v", "o", "gate", "up", "down", "router"};
const char* const kVectorNames[kVectors] = {"attention_norm",  "q_norm",   "k_norm",   "sinks",
                                            "attention_after", "mlp_norm", "mlp_after"};

std::string of_layer(const std::string& what, int layer) { return what + " of layer " + std::to_string(layer); }

std::string name_of(int layer, Slot slot, int expert) {
  const std::string name = kSlotNames[int(slot)];
  return of_layer(expert < 0 ? name : name + " of expert " + std::to_string(expert), layer);
}

// The caches of a step, claimed.
class StepClaim {
 public:
  explicit StepClaim(const std::vector<KVCache*>& caches) : caches_(caches) {
    for (; taken_ < caches_.size(); ++taken_)
      if (!caches_[taken_]->claimable().try_claim()) {
        release();
        throw BusyError("a cache of the step is in use by another thread");
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
      heads_(shape.layers[0]),
      cache_shape_{{}, heads_.kv_heads, heads_.head_dim, shape.kv_format, shape.max_context},
      kernels_(kernels_for(isa)),
      threads_(checked_threads(threads)),
      ropes_(shape.ropes.size()),
      phases_(threads),
      own_(size_t(threads)) {
  hidden_stride_ = padded(shape.hidden, kLanes);
  k_column_ = padded(heads_.q_width(), kLanes);
  v_column_ = k_column_ + padded(heads_.kv_width(), kLanes);
  qkv_stride_ = v_column_ + padded(heads_.kv_width(), kLanes);
  widest_ = std::max(int64_t(shape.hidden), heads_.q_width());
  blocks_.reserve(shape.layers.size());
  for (const Layer& layer : shape.layers) {
    blocks_.emplace_back();
    blocks_.back().shape = layer;
    blocks_.back().mlps.resize(size_t(std::max(layer.experts, 1)));
    auto& groups = cache_shape_.groups;
    const auto same = std::find_if(groups.begin(), groups.end(), [&](auto& g) { return g.window == layer.window; });
    blocks_.back().group = size_t(same - groups.begin());
    if (same == groups.end()) {
      groups.push_back({layer.window, 0});
      attention_plans_.push_back({layer.window, {}});
    }
    blocks_.back().number = groups[blocks_.back().group].layers++;
  }
}

const float* Decoder::copy_vector(const float* values, int64_t n) {
  if (values == nullptr) return nullptr;
  float* copy = static_cast<float*>(arena_.take(size_t(padded(n, kLanes)) * sizeof(float)));
  std::memcpy(copy, values, size_t(n) * sizeof(float));
  return copy;
}

// Sets a matrix of that shape.
void Decoder::pack(Matrix& into, const PlainMatrix& plain, const float* bias, int64_t n_out, int64_t n_in,
                   const std::string& name) {
  if (plain.n_out != n_out || plain.n_in != n_in)
    throw std::invalid_argument("weight " + name + " has shape [" + std::to_string(plain.n_out) + ", " +
                                std::to_string(plain.n_in) + "], not [" + std::to_string(n_out) + ", " +
                                std::to_string(n_in) + "]");
  Crew crew(threads_);
  Matrix m = prepack(plain, arena_, crew);
  m.bias = copy_vector(bias, n_out);
  into = m;
}

const Decoder::Block& Decoder::block_at(int layer) const {
  if (layer < 0 || size_t(layer) >= blocks_.size())
    throw std::out_of_range("layer " + std::to_string(layer) + " is not one of " + std::to_string(blocks_.size()));
  return blocks_[size_t(layer)];
}

const Matrix& Decoder::place(int layer, Slot slot, int expert) const {
  const Block& b = block_at(layer);
  const int experts = b.shape.experts;
  const bool of_mlp = slot == Slot::gate || slot == Slot::up || slot == Slot::down;
  if (slot == Slot::router && experts == 0)
    throw std::invalid_argument(of_layer("there is no weight router", layer) + ": it has no experts");
  if (of_mlp && experts > 0 ? expert < 0 || expert >= experts : expert != -1)
    throw std::out_of_range("weight " + of_layer(kSlotNames[int(slot)], layer) + " of expert " + std::to_string(expert) +
                            ": the layer has " + std::to_string(of_mlp ? experts : 0) + " of them (-1: none)");
  const Mlp& mlp = b.mlps[size_t(std::max(expert, 0))];
  switch (slot) {
    case Slot::q: return b.q;
    case Slot::k: return b.k;
    case Slot::v: return b.v;
    case Slot::o: return b.o;
    case Slot::gate: return mlp.gate;
    case Slot::up: return mlp.up;
    case Slot::down: return mlp.down;
    default: return b.router;
  }
}

int64_t Decoder::length_of(int layer, Vector vector) const {
  const Layer& l = block_at(layer).shape;
  const auto norm = [&](HeadNorm kind, int64_t whole) {
    return kind == HeadNorm::none ? 0 : kind == HeadNorm::head ? l.head_dim : whole;
  };
  const auto if_any = [&](bool there) -> int64_t { return there ? shape_.hidden : 0; };
  switch (vector) {
    case Vector::attention_norm: return if_any(l.attention_norm);
    case Vector::q_norm: return norm(l.q_norm, l.q_width());
    case Vector::k_norm: return norm(l.k_norm, l.kv_width());
    case Vector::sinks: return l.sinks ? l.heads : 0;
    case Vector::attention_after: return if_any(l.attention_after);
    case Vector::mlp_norm: return if_any(l.mlp_norm);
    default: return if_any(l.mlp_after);
  }
}

void Decoder::set_matrix(int layer, Slot slot, const PlainMatrix& plain, const float* bias, int expert) {
  const Matrix& at = place(layer, slot, expert);
  const Layer& l = blocks_[size_t(layer)].shape;
  const int64_t h = shape_.hidden, q = l.q_width(), kv = l.kv_width(), f = l.intermediate;
  const int64_t outs[kSlots] = {q, kv, kv, h, f, f, h, l.experts}, ins[kSlots] = {h, h, h, q, h, h, f, h};
  const std::string name = name_of(layer, slot, expert);
  if (slot == Slot::router && !is_float(plain.format))
    throw std::invalid_argument("weight " + name + " is in a low-bit format; a router must be in floats");
  pack(const_cast<Matrix&>(at), plain, bias, outs[int(slot)], ins[int(slot)], name);
}

void Decoder::set_vector(int layer, Vector vector, const float* values) {
  const int64_t n = length_of(layer, vector);
  if (n == 0) throw std::invalid_argument(of_layer(std::string("there is no ") + kVectorNames[int(vector)], layer));
  Crew crew(threads_);
  blocks_[size_t(layer)].vectors[int(vector)] = copy_vector(values, n);
}

void Decoder::set_order(int layer, Slot slot, const int32_t* order, int64_t n) {
  int64_t width;
  this->order(layer, slot, &width);
  const std::string name = of_layer(std::string("the order of the inputs of ") + kSlotNames[int(slot)], layer);
  if (n != width)
    throw std::invalid_argument(name + " has " + std::to_string(n) + " entries, not " + std::to_string(width));
  std::vector<bool> seen(size_t(n), false);
  for (int64_t i = 0; i < n; ++i) {
    if (order[i] < 0 || order[i] >= n || seen[size_t(order[i])])
      throw std::invalid_argument(name + " is no permutation: " + std::to_string(order[i]) + " at " + std::to_string(i));
    seen[size_t(order[i])] = true;
  }
  Crew crew(threads_);
  int32_t* copy = static_cast<int32_t*>(arena_.take(size_t(n) * sizeof(int32_t)));
  std::memcpy(copy, order, size_t(n) * sizeof(int32_t));
  for (ThreadMemory& own : own_) ensure(own.unordered, padded(n, kGroup));
  blocks_[size_t(layer)].orders[int(slot)] = copy;
  widest_ = std::max(widest_, n);
}

const int32_t* Decoder::order(int layer, Slot slot, int64_t* n) const {
  const Block& block = block_at(layer);
  if (slot != Slot::q && slot != Slot::o && slot != Slot::gate && slot != Slot::down)
    throw std::invalid_argument("inputs have an order of their own at q, o, gate and down");
  if (block.shape.experts > 0 && (slot == Slot::gate || slot == Slot::down))
    throw std::invalid_argument(of_layer("experts' inputs have no order", layer));
  *n = slot == Slot::o ? block.shape.q_width() : slot == Slot::down ? block.shape.intermediate : shape_.hidden;
  return block.order(slot);
}

void Decoder::set_final_norm(const float* weight) {
  Crew crew(threads_);
  final_norm_ = copy_vector(weight, shape_.hidden);
}

void Decoder::set_lm_head(const PlainMatrix& plain, const float* bias) {
  pack(lm_head_, plain, bias, shape_.vocab, shape_.hidden, "lm_head");
}

void Decoder::set_embedding(const PlainMatrix& plain) {
  pack(embedding_, plain, nullptr, shape_.vocab, shape_.hidden, "embedding");
}

void Decoder::tie_embedding() {
  const Matrix shared = lm_head();  // once set it stays
  Crew crew(threads_);
  embedding_ = shared;
}

namespace {

const Matrix& set_or_throw(const Matrix& m, const std::string& name) {
  if (m.codes == nullptr) throw MissingWeightError("the weight " + name + " is not set");
  return m;
}

const float* set_or_throw(const float* values, const std::string& name) {
  if (values == nullptr) throw MissingWeightError("the weight " + name + " is not set");
  return values;
}

}  // namespace

// Another thread may be setting weights, here and below.
Matrix Decoder::matrix(int layer, Slot slot, int expert) const {
  const std::string name = name_of(layer, slot, expert);
  const Matrix& at = place(layer, slot, expert);
  Crew crew(threads_);
  return set_or_throw(at, name);
}
const float* Decoder::vector(int layer, Vector vector) const {
  const std::string name = of_layer(kVectorNames[int(vector)], layer);
  if (length_of(layer, vector) == 0) throw std::invalid_argument("there is no " + name);
  return set_or_throw(blocks_[size_t(layer)].at(vector), name);
}
Matrix Decoder::lm_head() const {
  Crew crew(threads_);
  return set_or_throw(lm_head_, "lm_head");
}
Matrix Decoder::embedding() const {
  Crew crew(threads_);
  return set_or_throw(embedding_, "embedding");
}
const float* Decoder::final_norm() const { return set_or_throw(final_norm_, "final norm"); }

size_t Decoder::weight_bytes() const {
  Crew crew(threads_);
  return arena_.used();
}

std::string Decoder::missing() const {
  Crew crew(threads_);
  return absent();
}

std::string Decoder::absent() const {
  for (int i = 0; size_t(i) < blocks_.size(); ++i) {
    const Block& block = blocks_[size_t(i)];
    const auto unset = [&](Slot slot, int expert) { return place(i, slot, expert).codes == nullptr; };
    for (Slot slot : {Slot::q, Slot::k, Slot::v, Slot::o})
      if (unset(slot, -1)) return name_of(i, slot, -1);
    if (block.shape.experts > 0 && unset(Slot::router, -1)) return name_of(i, Slot::router, -1);
    for (int e = 0; size_t(e) < block.mlps.size(); ++e)
      for (Slot slot : {Slot::gate, Slot::up, Slot::down}) {
        const int expert = block.shape.experts > 0 ? e : -1;
        if (unset(slot, expert)) return name_of(i, slot, expert);
      }
    for (int v = 0; v < kVectors; ++v)
      if (block.vectors[v] == nullptr && length_of(i, Vector(v)) > 0) return of_layer(kVectorNames[v], i);
  }
  if (final_norm_ == nullptr) return "final norm";
  if (lm_head_.codes == nullptr) return "lm_head";
  return embedding_.codes == nullptr ? "embedding" : "";
}

// A weight once set is never unset, so this looks once.
void Decoder::check_complete() {
  if (complete_) return;
  const std::string name = absent();
  if (!name.empty()) throw MissingWeightError("the weight " + name + " is not set");
  complete_ = true;
}

int64_t Decoder::experts_touched() const {
  Crew crew(threads_);  // another thread may be in a step
  return experts_touched_;
}

std::array<int64_t, kPhaseKinds> Decoder::phase_bytes() const {
  Crew crew(threads_);
  std::array<int64_t, kPhaseKinds> found{};
  const auto add = [&](Phase kind, const Matrix& m, int64_t times = 1) {
    if (m.codes == nullptr) return;
    const TileBytes bytes = tile_bytes(m);
    found[size_t(kind)] += times * (bytes.codes + bytes.scales + bytes.minimums + bytes.steps);
  };
  for (const Block& block : blocks_) {
    for (const Matrix* m : {&block.q, &block.k, &block.v}) add(Phase::qkv, *m);
    add(Phase::output, block.o);
    add(Phase::router, block.router);
    const Mlp& mlp = block.mlps[0];  // experts are of one size
    const int64_t times = std::max(block.shape.experts_used, 1);
    add(Phase::gate_up, mlp.gate, times);
    add(Phase::gate_up, mlp.up, times);
    add(Phase::down, mlp.down, times);
  }
  add(Phase::head, lm_head_);
  return found;
}

KVCache Decoder::new_cache() const { return KVCache(cache_shape_); }

void Decoder::check(const Step& step, const StepOutputs& out) const {
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
  const auto ascending = [](const int32_t* values, int64_t n, int64_t least, int64_t end) {
    for (int64_t i = 0; i < n; least = values[i++] + 1)
      if (values[i] < least || values[i] >= end) return false;
    return true;
  };
  if (!ascending(step.want, step.wanted, 0, step.rows) || !ascending(out.hidden_rows, out.hidden_wanted, 0, step.rows))
    fail("wanted rows must be ascending rows of the step");
  if (!ascending(out.hidden_layers, out.layers, kFinalNorm, int64_t(blocks_.size()) + 1))
    fail("hidden states are those of 0 to " + std::to_string(blocks_.size()) + " layers, ascending, or -1, after the final norm");
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
  for (size_t i = 0; i < ropes_.size(); ++i) ropes_[i].reserve(shape_.ropes[i], furthest + 1, shape_.max_context);
  plan_attention();
}

void Decoder::forward(const Step& step, const StepOutputs& out) {
  Crew crew(threads_);
  check_complete();
  check(step, out);
  const StepClaim claim(step.caches);
  plan(step);
  reserve(step, out);
  for (size_t i = 0; i < step.caches.size(); ++i) step.caches[i]->prepare(step.counts[i]);
  const auto job = [&](int thread) { run(thread, step, out); };
  crew.run(std::cref(job));  // a reference fits into std::function without memory of its own
  int64_t first = 0;
  for (size_t i = 0; i < step.caches.size(); first += step.counts[i], ++i)
    step.caches[i]->set_step(step.parents + first, step.counts[i]);
}

}  // namespace ipex_lookahead
