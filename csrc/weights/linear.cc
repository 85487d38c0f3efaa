#include "weights/linear.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "runtime/dispatch.h"

namespace ipex_lookahead {

LinearPool::LinearPool(int threads, const std::string& isa)
    : kernels_(kernels_for(isa)), threads_(checked_threads(threads)), phases_(threads_) {}

int64_t LinearPool::weight_bytes() const {
  Crew crew(threads_);  // another thread may be adding a layer
  return int64_t(arena_.used());
}

Matrix LinearPool::add(const PlainMatrix& plain, const float* bias) {
  Crew crew(threads_);
  Matrix matrix = prepack(plain, arena_, crew);
  if (bias != nullptr) {
    float* copy = static_cast<float*>(arena_.take(size_t(matrix.tiles() * kLanes) * sizeof(float)));
    std::memcpy(copy, bias, size_t(plain.n_out) * sizeof(float));
    matrix.bias = copy;
  }
  return matrix;
}

void LinearPool::plain(const Matrix& matrix, void* codes, uint16_t* scales, uint16_t* minimums) {
  Crew crew(threads_);
  unpack(matrix, codes, scales, minimums, crew);
}

void LinearPool::run(const Matrix& matrix, const float* x, int64_t rows, float* out) {
  if (rows < 0 || rows > Phases::kMaxItems)
    throw std::invalid_argument("rows is " + std::to_string(rows) + "; it must be from 0 to " +
                                std::to_string(Phases::kMaxItems));
  if (rows == 0) return;
  Crew crew(threads_);
  Rows r;
  r.blocks = matrix.blocks;
  r.stride = r.blocks * kGroup;
  r.count = r.total = rows;
  const bool integer = !is_float(matrix.format);
  if (integer) {
    codes_.resize(size_t(rows * r.stride));
    for (auto* v : {&scales_, &sums_}) v->resize(size_t(rows * r.blocks));
    for (auto* v : {&bias4_, &bias8_, &halves_}) v->resize(size_t(rows * r.blocks));
    r.codes = codes_.data();
    r.scales = scales_.data();
    r.sums = sums_.data();
    r.bias4 = bias4_.data();
    r.bias8 = bias8_.data();
    r.halves = halves_.data();
  }
  // Rows without padding are read in place.
  const bool in_place = r.stride == matrix.n_in;
  if (!in_place) values_.resize(size_t(rows * r.stride));
  r.values = in_place ? const_cast<float*>(x) : values_.data();
  const auto prepare = [&](int64_t i) {
    if (!in_place) {
      float* end = std::copy_n(x + i * matrix.n_in, matrix.n_in, r.values + i * r.stride);
      std::fill(end, r.values + (i + 1) * r.stride, 0.0f);
    }
    if (integer) kernels_->quantize_row(r, i);
  };
  const int64_t pairs = (matrix.tiles() + 1) / 2;  // kernels process two tiles at a time
  const int64_t items = std::min<int64_t>(pairs, 4 * threads_);
  const auto multiply = [&](int64_t item) {
    const auto part = part_of(pairs, items, item);
    const int64_t begin = 2 * part.first, end = std::min(2 * part.second, matrix.tiles());
    kernels_->linear(matrix, r, begin, end, out + begin * kLanes, matrix.n_out, false);
  };
  phases_.begin(2);
  crew.run([&](int thread) {
    phases_.run(thread, 0, rows, prepare);
    phases_.run(thread, 1, items, multiply);
  });
}

}  // namespace ipex_lookahead
