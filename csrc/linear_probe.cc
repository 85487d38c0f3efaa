#include "linear_probe.h"

#include <algorithm>
#include <cstring>

#include "dispatch.h"

namespace ipex_lookahead {

LinearProbe::LinearProbe(const PlainMatrix& plain, const float* bias, int threads, const std::string& isa)
    : kernels_(kernels_for(isa)), pool_(threads), matrix_(prepack(plain, arena_, pool_)) {
  if (bias != nullptr) {
    float* copy = static_cast<float*>(arena_.take(size_t(matrix_.tiles() * kLanes) * sizeof(float)));
    std::memcpy(copy, bias, size_t(plain.n_out) * sizeof(float));
    matrix_.bias = copy;
  }
}

void LinearProbe::run(const float* x, int64_t rows, float* out) {
  Rows r;
  r.blocks = matrix_.blocks;
  r.stride = r.blocks * kGroup;
  r.count = rows;
  values_.assign(size_t(rows * r.stride), 0.0f);
  codes_.resize(size_t(rows * r.stride));
  for (auto* v : {&scales_, &sums_}) v->resize(size_t(rows * r.blocks));
  for (auto* v : {&bias4_, &bias8_}) v->resize(size_t(rows * r.blocks));
  r.values = values_.data();
  r.codes = codes_.data();
  r.scales = scales_.data();
  r.sums = sums_.data();
  r.bias4 = bias4_.data();
  r.bias8 = bias8_.data();
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(r.values + i * r.stride, x + i * matrix_.n_in, size_t(matrix_.n_in) * sizeof(float));
    if (!is_float(matrix_.format)) kernels_->quantize_row(r, i);
  }
  const int64_t items = std::min<int64_t>(matrix_.tiles(), 4 * pool_.size());
  pool_.for_each(items, [&](int64_t item) {
    const auto part = part_of(matrix_.tiles(), items, item);
    kernels_->linear(matrix_, r, part.first, part.second, out, matrix_.n_out, false);
  });
}

}  // namespace ipex_lookahead
