// Memory behind the rows of activations that linear layers read.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/kernels.h"
#include "runtime/arena.h"

namespace ipex_lookahead {

template <typename Vector>
void ensure(Vector& v, int64_t n) {
  if (int64_t(v.size()) < n) v.resize(size_t(n));
}

// Memory behind Rows, reused for every width.
class RowsMemory {
 public:
  void reserve(int64_t rows, int64_t width) {
    const int64_t blocks = (width + kGroup - 1) / kGroup;
    ensure(values_, rows * blocks * kGroup);
    ensure(codes_, rows * blocks * kGroup);
    ensure(scales_, rows * blocks);
    ensure(sums_, rows * blocks);
    ensure(bias4_, rows * blocks);
    ensure(bias8_, rows * blocks);
    ensure(halves_, rows * blocks);
  }
  Rows view(int64_t rows, int64_t width) {
    Rows r;
    r.values = values_.data();
    r.codes = codes_.data();
    r.scales = scales_.data();
    r.bias4 = bias4_.data();
    r.bias8 = bias8_.data();
    r.halves = halves_.data();
    r.sums = sums_.data();
    r.blocks = (width + kGroup - 1) / kGroup;
    r.stride = r.blocks * kGroup;
    r.count = rows;
    return r;
  }

 private:
  Buffer<float> values_, scales_, sums_;
  Buffer<int8_t> codes_;
  Buffer<int32_t> bias4_, bias8_, halves_;
};

// `count` of the rows, from `first` on.
inline Rows rows_of(Rows r, int64_t first, int64_t count) {
  r.values += first * r.stride;
  r.codes += first * r.stride;
  r.scales += first * r.blocks;
  r.bias4 += first * r.blocks;
  r.bias8 += first * r.blocks;
  r.halves += first * r.blocks;
  r.sums += first * r.blocks;
  r.count = count;
  return r;
}

// Copies n rows, what integer weights read and what float weights read.
inline void gather(const Rows& from, const int32_t* rows, int64_t n, bool integer, bool floats, const Rows& to) {
  for (int64_t i = 0; i < n; ++i) {
    const auto copy = [&](const auto* source, auto* target, int64_t width) {
      std::copy_n(source + rows[i] * width, width, target + i * width);
    };
    if (floats) copy(from.values, to.values, from.stride);
    if (!integer) continue;
    copy(from.codes, to.codes, from.stride);
    copy(from.scales, to.scales, from.blocks);
    copy(from.bias4, to.bias4, from.blocks);
    copy(from.bias8, to.bias8, from.blocks);
    copy(from.halves, to.halves, from.blocks);
    copy(from.sums, to.sums, from.blocks);
  }
}

}  // namespace ipex_lookahead
