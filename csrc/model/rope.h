// Rotary embedding tables: cosines, sines and query factors. Sine, cosine and logarithm are implemented here, so that results
// do not depend on the C library. Every engine with table-driven kernels uses these tables.
#pragma once

#include <cstdint>
#include <vector>

#include "model/spec.h"
#include "runtime/arena.h"

namespace ipex_lookahead {

// Cosine and sine of any finite x in radians with errors below 2^-51. Rounded to float they are correctly rounded, except where
// the true value is within that error of the midpoint of two floats. NaN if x is not finite.
struct SinCos {
  double cos, sin;
};
SinCos sin_cos(float x);

// Natural logarithm of a finite x >= 1 with a relative error below 2^-50.
double logarithm(double x);

// Cosines and sines of one rope, [positions][half], and query factors [positions]; grows with the positions in use.
struct RopeTable {
  Buffer<float> cos, sin;
  std::vector<float> query;
  void reserve(const Rope& rope, int64_t positions, int64_t max_context);
};

}  // namespace ipex_lookahead
