#include "model/weights.h"

#include <cstring>
#include <stdexcept>

#include "errors.h"

namespace ipex_lookahead {
namespace {

std::string text_of(int64_t n_out, int64_t n_in) { return "[" + std::to_string(n_out) + ", " + std::to_string(n_in) + "]"; }

}  // namespace

void DecoderWeights::add(const Weight& weight) {
  places_.emplace(weight.name, weights_.size());
  weights_.push_back(weight);
}

void DecoderWeights::declare(const std::string& name, Matrix& at, int64_t n_out, int64_t n_in, const Use& use) {
  add({name, &at, nullptr, n_out, n_in, use, false});
}

void DecoderWeights::declare_linear(const std::string& name, Matrix& at, int64_t n_out, int64_t n_in, const Use& use) {
  declare(name + ".weight", at, n_out, n_in, use);
  add({name + ".bias", nullptr, &at.bias, n_out, 0, use, true});
}

void DecoderWeights::declare(const std::string& name, const float*& at, int64_t n) {
  add({name, nullptr, &at, n, 0, {}, false});
}

void DecoderWeights::take_adapters(std::initializer_list<const Matrix*> layers, const int32_t* const* order) {
  for (const Matrix* layer : layers) adaptable_.emplace(layer, order);
}

DecoderWeights::Adaptable DecoderWeights::adaptable(const std::string& name) const {
  const Weight& w = at(name, true);
  const auto found = adaptable_.find(w.matrix);
  if (found == adaptable_.end()) throw std::invalid_argument("weight " + name + " takes no adapter");
  return {w.matrix, w.n_out, w.n_in, found->second == nullptr ? nullptr : *found->second};
}

const DecoderWeights::Weight& DecoderWeights::at(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) throw std::invalid_argument("the model has no weight " + name);
  return weights_[found->second];
}

const DecoderWeights::Weight& DecoderWeights::at(const std::string& name, bool matrix) const {
  const Weight& w = at(name);
  if ((w.matrix != nullptr) != matrix) throw std::invalid_argument("weight " + name + " is not a " + (matrix ? "matrix" : "vector"));
  return w;
}

std::pair<int64_t, int64_t> DecoderWeights::shape(const std::string& name) const { return {at(name).n_out, at(name).n_in}; }

void DecoderWeights::set_matrix(const std::string& name, const PlainMatrix& plain) {
  const Weight& w = at(name, true);
  if (plain.n_out != w.n_out || plain.n_in != w.n_in)
    throw std::invalid_argument("weight " + name + " has shape " + text_of(plain.n_out, plain.n_in) + ", not " +
                                text_of(w.n_out, w.n_in));
  if (w.use.floats && !is_float(plain.format))
    throw std::invalid_argument("weight " + name + " is in a low-bit format; a router must be in floats");
  Crew crew(threads_);
  Matrix made = prepack(plain, arena_, crew);
  made.bias = w.matrix->bias;
  *w.matrix = made;
}

Matrix DecoderWeights::hold(const PlainMatrix& plain) {
  Crew crew(threads_);
  return prepack(plain, arena_, crew);
}

void DecoderWeights::share_matrix(const std::string& name, const Matrix& other) {
  const Weight& w = at(name, true);
  if (other.n_out != w.n_out || other.n_in != w.n_in)
    throw std::invalid_argument("weight " + name + " would have shape " + text_of(other.n_out, other.n_in) + ", not " +
                                text_of(w.n_out, w.n_in));
  if (w.use.floats && !is_float(other.format))
    throw std::invalid_argument("weight " + name + " is in a low-bit format; a router must be in floats");
  Crew crew(threads_);
  const float* const bias = w.matrix->bias;
  *w.matrix = other;
  w.matrix->bias = bias;
}

void DecoderWeights::set_vector(const std::string& name, const float* values, int64_t n) {
  const Weight& w = at(name, false);
  if (n != w.n_out)
    throw std::invalid_argument("weight " + name + " has " + std::to_string(n) + " values, not " + std::to_string(w.n_out));
  Crew crew(threads_);
  float* copy = static_cast<float*>(arena_.take(size_t((n + kLanes - 1) / kLanes * kLanes) * sizeof(float)));
  std::memcpy(copy, values, size_t(n) * sizeof(float));
  *w.vector = copy;
}

void DecoderWeights::set_order(const std::string& name, const int32_t* order, int64_t n) {
  const Weight& w = at(name, true);
  if (w.use.order == nullptr) throw std::invalid_argument("weight " + name + " takes no input order");
  const std::string what = "the order of the inputs of " + name;
  if (n != w.n_in) throw std::invalid_argument(what + " has " + std::to_string(n) + " entries, not " + std::to_string(w.n_in));
  std::vector<bool> seen(size_t(n), false);
  for (int64_t i = 0; i < n; ++i) {
    if (order[i] < 0 || order[i] >= n || seen[size_t(order[i])])
      throw std::invalid_argument(what + " is not a permutation: " + std::to_string(order[i]) + " at " + std::to_string(i));
    seen[size_t(order[i])] = true;
  }
  Crew crew(threads_);
  int32_t* copy = static_cast<int32_t*>(arena_.take(size_t(n) * sizeof(int32_t)));
  std::memcpy(copy, order, size_t(n) * sizeof(int32_t));
  *w.use.order = copy;
  ++orders_;
}

// Another thread may be setting weights meanwhile, hence the Crew here and below.
Matrix DecoderWeights::matrix(const std::string& name) const {
  const Weight& w = at(name, true);
  Crew crew(threads_);
  if (!w.is_set()) throw MissingWeightError("the weight " + name + " is not set");
  return *w.matrix;
}

const float* DecoderWeights::vector(const std::string& name, int64_t* n) const {
  const Weight& w = at(name, false);
  Crew crew(threads_);
  if (!w.is_set() && !w.optional) throw MissingWeightError("the weight " + name + " is not set");
  *n = w.n_out;
  return *w.vector;
}

std::string DecoderWeights::missing() const {
  Crew crew(threads_);
  return absent();
}

std::string DecoderWeights::absent() const {
  for (const Weight& w : weights_)
    if (!w.optional && !w.is_set()) return w.name;
  return "";
}

// A weight once set is never unset, so one complete check is enough.
void DecoderWeights::check_complete() {
  if (complete_) return;
  const std::string name = absent();
  if (!name.empty()) throw MissingWeightError("the weight " + name + " is not set");
  complete_ = true;
}

size_t DecoderWeights::bytes() const {
  Crew crew(threads_);
  return arena_.used();
}

std::array<int64_t, kPhaseKinds> DecoderWeights::phase_bytes() const {
  Crew crew(threads_);
  std::array<int64_t, kPhaseKinds> found{};
  for (const Weight& w : weights_) {
    if (w.matrix == nullptr || !w.is_set()) continue;
    const TileBytes bytes = tile_bytes(*w.matrix);
    found[size_t(w.use.phase)] += w.use.reads * (bytes.codes + bytes.scales + bytes.minimums + bytes.steps);
  }
  return found;
}

}  // namespace ipex_lookahead
