// Plain (serialisable) weights to prepacked tiles, and back. The layouts are described at Matrix in kernels.h and at
// PackedWeight in the Python package.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"
#include "runtime/arena.h"
#include "runtime/thread_pool.h"

namespace ipex_lookahead {

// A weight in plain order. Integer formats: codes [n_out][blocks * 16] (int4) or [n_out][blocks * 32] (int8),
// scales and minimums [n_out][groups]; float formats: codes [n_out][n_in].
struct PlainMatrix {
  WeightFormat format;
  int64_t n_out, n_in;
  int group;  // 32 or 64; ignored for float formats
  const void* codes;
  const uint16_t* scales;
  const uint16_t* minimums;
};

int64_t code_bytes(WeightFormat format, int64_t n_in);  // of one plain row
int64_t groups_of(WeightFormat format, int64_t n_in, int group);

Matrix prepack(const PlainMatrix& plain, Arena& arena, Crew& crew);

// Fills the plain streams (sizes as above) from a prepacked matrix.
void unpack(const Matrix& matrix, void* codes, uint16_t* scales, uint16_t* minimums, Crew& crew);

}  // namespace ipex_lookahead
