#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace ipex_lookahead {
namespace {

__extension__ typedef unsigned __int128 uint128;
__extension__ typedef __int128 int128;

// 2 / pi after 32 zero bits: the quarter turns of a float are its 24-bit mantissa times a window of these (Payne and Hanek,
// 1983).
constexpr uint32_t kTwoOverPi[] = {0,          0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0,
                                   0xdb629599, 0x3c439041, 0xfe5163ab, 0xdebbc561};

// 128 of those bits from bit `first`; the bits before them would be whole turns.
uint128 two_over_pi(int first) {
  uint128 bits = 0;
  for (int i = 0; i < 4; ++i) bits = bits << 32 | kTwoOverPi[first / 32 + i];
  const int shift = first % 32;
  return shift == 0 ? bits : bits << shift | kTwoOverPi[first / 32 + 4] >> (32 - shift);
}

// c[0] + c[1] x + c[2] x^2 + ...
template <size_t N>
double polynomial(double x, const double (&c)[N]) {
  double sum = c[N - 1];
  for (size_t i = N - 1; i-- > 0;) sum = sum * x + c[i];
  return sum;
}

// Taylor series; the omitted terms are below 2^-57 for |r| <= pi / 4.
double sine(double r) {
  constexpr double c[] = {-1.0 / 6,           1.0 / 120,           -1.0 / 5040,          1.0 / 362880,
                          -1.0 / 39916800,    1.0 / 6227020800,    -1.0 / 1307674368000, 1.0 / 355687428096000};
  return r + r * (r * r) * polynomial(r * r, c);
}
double cosine(double r) {
  constexpr double c[] = {-1.0 / 2,       1.0 / 24,         -1.0 / 720,          1.0 / 40320,
                          -1.0 / 3628800, 1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000};
  return 1 + r * r * polynomial(r * r, c);
}

}  // namespace

SinCos sin_cos(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const int exponent = int(bits >> 23 & 255);
  if (exponent == 255) return {NAN, NAN};
  double r = x;  // x is r plus `quarters` quarter turns
  unsigned quarters = 0;
  if (!(std::fabs(x) <= 0.785f)) {
    // x = m * 2^(exponent - 150). The first two bits of the 128-bit product are the whole quarters; the rest is the signed
    // distance to the nearest one.
    const uint32_t m = (bits & 0x7fffff) | 0x800000;
    const uint128 product = m * two_over_pi(exponent - 120);
    quarters = unsigned(product >> 126) + unsigned(product >> 125 & 1);
    const double distance = double(int128(product << 2)) * 0x1p-128;
    r = distance * 1.5707963267948966;
    if (x < 0) {
      r = -r;
      quarters = 0u - quarters;
    }
  }
  const double c = cosine(r), s = sine(r);
  switch (quarters & 3) {
    case 0: return {c, s};
    case 1: return {-s, c};
    case 2: return {-c, -s};
    default: return {s, -c};
  }
}

double logarithm(double x) {
  int exponent;
  double m = std::frexp(x, &exponent);  // [0.5, 1)
  if (m < 0.70710678) {
    m *= 2;
    --exponent;
  }
  // log(m) = 2 artanh(s), |s| < 0.172: the omitted terms are below 2^-57 relative to the first.
  constexpr double c[] = {1.0,      1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11,
                          1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
  const double s = (m - 1) / (m + 1);
  return exponent * 0.6931471805599453 + 2 * s * polynomial(s * s, c);
}

void RopeTable::reserve(const Rope& rope, int64_t positions, int64_t max_context) {
  const int64_t half = rope.half(), have = int64_t(query.size());
  if (positions <= have) return;
  const int64_t wanted = std::min(std::max({positions, 2 * have, int64_t(1024)}), max_context);
  cos.resize(size_t(wanted * half));
  sin.resize(size_t(wanted * half));
  query.resize(size_t(wanted), 1.0f);
  for (int64_t p = have; p < wanted; ++p) {
    for (int64_t k = 0; k < half; ++k) {
      // The angle is rounded to float32 first, as in the models' training.
      const SinCos t = sin_cos(float(p) * rope.frequencies[size_t(k)]);
      cos[size_t(p * half + k)] = float(t.cos) * rope.factor;
      sin[size_t(p * half + k)] = float(t.sin) * rope.factor;
    }
    if (rope.query_beta != 0)
      query[size_t(p)] = float(1 + double(rope.query_beta) * logarithm(double(1 + p / rope.query_original)));
  }
}

}  // namespace ipex_lookahead
