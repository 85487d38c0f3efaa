// Memory of activation rows that linear layers read.
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

// Memory of Rows, reused for every width.
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
    r.count = r.total = rows;
    return r;
  }

 private:
  Buffer<float> values_, scales_, sums_;
  Buffer<int8_t> codes_;
  Buffer<int32_t> bias4_, bias8_, halves_;
};

// `count` rows of `width` values that float linear layers read: zero from the width to the stride.
inline Rows float_rows(Buffer<float>& memory, int64_t count, int64_t width) {
  Rows r;
  r.blocks = (width + kGroup - 1) / kGroup;
  r.stride = r.blocks * kGroup;
  ensure(memory, count * r.stride);
  r.values = memory.data();
  r.count = r.total = count;
  for (int64_t i = 0; i < count; ++i) std::fill(r.values + i * r.stride + width, r.values + (i + 1) * r.stride, 0.0f);
  return r;
}

// Rows [first, first + count).
inline Rows rows_of(Rows r, int64_t first, int64_t count) {
  r.first += first;
  r.count = count;
  return r;
}

// `count` rows in bands of their own, in the memory of the rows from `first`; writer and reader must both use this layout.
inline Rows separate_rows(Rows r, int64_t first, int64_t count) {
  r.values += first * r.stride;
  r.codes += first * r.stride;
  r.scales += first * r.blocks;
  r.bias4 += first * r.blocks;
  r.bias8 += first * r.blocks;
  r.halves += first * r.blocks;
  r.sums += first * r.blocks;
  r.count = r.total = count;
  return r;
}

// Copies n rows: the quantized data for integer weights, the values for float weights.
inline void gather(const Rows& from, const int32_t* rows, int64_t n, bool integer, bool floats, const Rows& to) {
  for (int64_t i = 0; i < n; ++i) {
    if (floats) std::copy_n(from.values_of(rows[i]), from.stride, to.values_of(i));
    for (int64_t b = 0; integer && b < from.blocks; ++b) {
      const int64_t source = from.at(rows[i], b), target = to.at(i, b);
      std::copy_n(from.codes + source * kGroup, kGroup, to.codes + target * kGroup);
      to.scales[target] = from.scales[source];
      to.bias4[target] = from.bias4[source];
      to.bias8[target] = from.bias8[source];
      to.halves[target] = from.halves[source];
      to.sums[target] = from.sums[source];
    }
  }
}

}  // namespace ipex_lookahead
