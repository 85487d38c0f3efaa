// Rotary positions: tables of cosines and sines, and what queries are multiplied by. Sine, cosine and logarithm are ours, so
// that machines with different C libraries agree in every bit; all engines whose kernels take tables take these.
#pragma once

#include <cstdint>
#include <vector>

#include "model/spec.h"
#include "runtime/arena.h"

namespace ipex_lookahead {

// Cosine and sine of any finite x in radians: errors below 2^-51, so that as floats they are the nearest ones but where the
// true value lies as near as that to the middle of two. NaN where x is not finite.
struct Turn {
  double cos, sin;
};
Turn turn(float x);

// Natural logarithm of a finite x from 1 on, of an error below 2^-50 of the result.
double logarithm(double x);

// Cosines and sines of one rope, [positions][half], and what queries are multiplied by; grown as positions are reached.
struct RopeTable {
  Buffer<float> cos, sin;
  std::vector<float> query;
  void reserve(const Rope& rope, int64_t positions, int64_t max_context);
};

}  // namespace ipex_lookahead
