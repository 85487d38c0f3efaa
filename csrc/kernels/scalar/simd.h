// Plain C++: the oracle that every other instruction set must match bit for bit. Runs on any x86-64.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/half.h"

#define SIMD_INLINE static inline
#define SIMD_METHOD inline

namespace ipex_lookahead {
namespace scalar {

struct f32x16 {
  float v[16];
};
struct i32x16 {
  int32_t v[16];
};

constexpr int kMaxRows = 2, kFixedRows = 2;
constexpr int kTilesAtOnce = 1;
constexpr int kRowsTogether = 1;
constexpr int kMaxFloatRows = 1, kFixedFloatRows = 1, kFloatRowsOfTwoTiles = 0, kFloatRowsTogether = 1;
constexpr int kFloatTilesTogether = 1;
constexpr int kQueryTile = 1, kQueriesOfFour = 1;
constexpr bool kFewRegisters = false;

#define LANES(result, expression) \
  do {                            \
    for (int i = 0; i < 16; ++i) result.v[i] = expression; \
  } while (0)

SIMD_INLINE f32x16 set1(float x) { f32x16 r; LANES(r, x); return r; }
SIMD_INLINE f32x16 zero() { return set1(0.0f); }
SIMD_INLINE f32x16 load(const float* p) { f32x16 r; LANES(r, p[i]); return r; }
SIMD_INLINE void store(float* p, f32x16 a) { std::memcpy(p, a.v, sizeof a.v); }
SIMD_INLINE f32x16 add(f32x16 a, f32x16 b) { f32x16 r; LANES(r, a.v[i] + b.v[i]); return r; }
SIMD_INLINE f32x16 sub(f32x16 a, f32x16 b) { f32x16 r; LANES(r, a.v[i] - b.v[i]); return r; }
SIMD_INLINE f32x16 mul(f32x16 a, f32x16 b) { f32x16 r; LANES(r, a.v[i] * b.v[i]); return r; }
SIMD_INLINE f32x16 div(f32x16 a, f32x16 b) { f32x16 r; LANES(r, a.v[i] / b.v[i]); return r; }
SIMD_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { f32x16 r; LANES(r, std::fmaf(a.v[i], b.v[i], c.v[i])); return r; }
SIMD_INLINE f32x16 max(f32x16 a, f32x16 b) { f32x16 r; LANES(r, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); return r; }
SIMD_INLINE f32x16 min(f32x16 a, f32x16 b) { f32x16 r; LANES(r, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); return r; }
SIMD_INLINE f32x16 abs(f32x16 a) { f32x16 r; LANES(r, std::fabs(a.v[i])); return r; }
SIMD_INLINE int32_t round_one(float x) {  // like the vector conversion: half to even, INT_MIN if out of range
  return x >= -0x1p31f && x < 0x1p31f ? int32_t(std::lrintf(x)) : INT32_MIN;
}
SIMD_INLINE i32x16 round(f32x16 a) { i32x16 r; LANES(r, round_one(a.v[i])); return r; }
SIMD_INLINE f32x16 to_float(i32x16 a) { f32x16 r; LANES(r, float(a.v[i])); return r; }
SIMD_INLINE f32x16 scale_by_power(f32x16 a, i32x16 n) {
  uint32_t bits[16];
  std::memcpy(bits, a.v, sizeof bits);
  for (int i = 0; i < 16; ++i) bits[i] += uint32_t(n.v[i]) << 23;
  std::memcpy(a.v, bits, sizeof bits);
  return a;
}
SIMD_INLINE f32x16 load_f16(const uint16_t* p) { f32x16 r; LANES(r, half_to_float(p[i])); return r; }
SIMD_INLINE f32x16 load_bf16(const uint16_t* p) {
  f32x16 r;
  uint32_t bits[16];
  for (int i = 0; i < 16; ++i) bits[i] = uint32_t(p[i]) << 16;
  std::memcpy(r.v, bits, sizeof bits);
  return r;
}
SIMD_INLINE f32x16 load_i8(const int8_t* p) { f32x16 r; LANES(r, float(p[i])); return r; }
SIMD_INLINE void store_f16(uint16_t* p, f32x16 a) {
  for (int i = 0; i < 16; ++i) p[i] = float_to_half(a.v[i]);
}
SIMD_INLINE void store_i8(int8_t* p, i32x16 a) {
  for (int i = 0; i < 16; ++i) p[i] = int8_t(a.v[i] < -128 ? -128 : a.v[i] > 127 ? 127 : a.v[i]);
}
SIMD_INLINE float reduce_add(f32x16 a) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) a.v[i] = a.v[i] + a.v[i + half];
  return a.v[0];
}
SIMD_INLINE bool any_greater(f32x16 a, float b) {
  bool any = false;
  for (int i = 0; i < 16; ++i) any |= a.v[i] > b;
  return any;
}
SIMD_INLINE bool any_nan(f32x16 a, f32x16 b) {
  bool any = false;
  for (int i = 0; i < 16; ++i) any |= std::isunordered(a.v[i], b.v[i]);
  return any;
}
SIMD_INLINE float reduce_max(f32x16 a) {
  float m = a.v[0];
  for (int i = 1; i < 16; ++i) m = a.v[i] > m ? a.v[i] : m;
  return m;
}
SIMD_INLINE i32x16 add(i32x16 a, i32x16 b) {
  for (int i = 0; i < 16; ++i) a.v[i] += b.v[i];
  return a;
}
SIMD_INLINE int32_t reduce_add(i32x16 a) {
  int32_t s = 0;
  for (int i = 0; i < 16; ++i) s += a.v[i];
  return s;
}
SIMD_INLINE void half_sums(const int8_t* codes, int32_t& first, int32_t& second) {  // of 16 codes each
  first = second = 0;
  for (int i = 0; i < 16; ++i) {
    first += codes[i];
    second += codes[16 + i];
  }
}

// A tile row: 64 bytes.
struct u8x64 {
  uint8_t v[64];
};
SIMD_INLINE u8x64 load64(const uint8_t* p) {
  u8x64 r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
SIMD_INLINE void store64(uint8_t* p, const u8x64& x) { std::memcpy(p, x.v, sizeof x.v); }
SIMD_INLINE u8x64 mask8(u8x64 x, uint8_t mask) {
  for (auto& v : x.v) v &= mask;
  return x;
}
SIMD_INLINE u8x64 sub8(u8x64 x, uint8_t y) {
  for (auto& v : x.v) v = uint8_t(v - y);
  return x;
}
SIMD_INLINE u8x64 add8(u8x64 a, const u8x64& b) {
  for (int i = 0; i < 64; ++i) a.v[i] = uint8_t(a.v[i] + b.v[i]);
  return a;
}
SIMD_INLINE u8x64 min8(u8x64 x, uint8_t most) {
  for (auto& v : x.v) v = v < most ? v : most;
  return x;
}
SIMD_INLINE u8x64 bor(u8x64 a, const u8x64& b) {
  for (int i = 0; i < 64; ++i) a.v[i] |= b.v[i];
  return a;
}
SIMD_INLINE u8x64 lookup(const uint8_t* table, u8x64 x) {
  for (auto& v : x.v) v = table[v];
  return x;
}
template <int N>
SIMD_INLINE u8x64 shr(u8x64 x) {
  for (auto& v : x.v) v >>= N;
  return x;
}
template <int N>
SIMD_INLINE i32x16 shr(i32x16 x) {
  for (auto& v : x.v) v = int32_t(uint32_t(v) >> N);
  return x;
}
template <int N>
SIMD_INLINE u8x64 shl(u8x64 x) {
  for (auto& v : x.v) v = uint8_t(v << N);
  return x;
}
template <int N>
SIMD_INLINE i32x16 shl(i32x16 x) {
  for (auto& v : x.v) v = int32_t(uint32_t(v) << N);
  return x;
}
SIMD_INLINE i32x16 mask32(i32x16 x, int32_t mask) {
  for (auto& v : x.v) v &= mask;
  return x;
}
SIMD_INLINE i32x16 bor(i32x16 a, const i32x16& b) {
  for (int i = 0; i < 16; ++i) a.v[i] |= b.v[i];
  return a;
}
SIMD_INLINE i32x16 lanes(const u8x64& x) {  // four bytes per lane
  i32x16 r;
  std::memcpy(r.v, x.v, sizeof r.v);
  return r;
}
// Of each 16 bytes (four lanes): the first two bytes of each lane, then the others.
SIMD_INLINE u8x64 pairs_apart(const u8x64& x) {
  u8x64 r;
  for (int i = 0; i < 64; ++i) r.v[i] = x.v[i / 16 * 16 + i % 8 / 2 * 4 + i % 16 / 8 * 2 + i % 2];
  return r;
}
// Widens the first or the second eight of each 16 bytes to 16 bits, two per lane.
template <int Half>
SIMD_INLINE i32x16 zip(const u8x64& lower, const u8x64& upper) {
  u8x64 r;
  for (int i = 0; i < 64; ++i) r.v[i] = (i % 2 ? upper : lower).v[i / 16 * 16 + 8 * Half + i % 16 / 2];
  return lanes(r);
}
SIMD_INLINE f32x16 as_float(const i32x16& bits) {
  f32x16 r;
  std::memcpy(r.v, bits.v, sizeof r.v);
  return r;
}
SIMD_INLINE f32x16 lookup(const float* table, const i32x16& x) {  // by the lowest four bits
  f32x16 r;
  LANES(r, table[x.v[i] & 15]);
  return r;
}
SIMD_INLINE i32x16 set1_i32(int32_t x) { i32x16 r; LANES(r, x); return r; }
SIMD_INLINE i32x16 load_i32(const int32_t* p) { i32x16 r; LANES(r, p[i]); return r; }
SIMD_INLINE i32x16 widen_u8(const uint8_t* p) { i32x16 r; LANES(r, p[i]); return r; }
// 2^(e - 128): the factor of a shared-exponent byte for doubled values; 0 and 1 give subnormals.
SIMD_INLINE f32x16 load_half_powers(const uint8_t* p) {
  f32x16 r;
  uint32_t bits[16];
  for (int i = 0; i < 16; ++i) bits[i] = p[i] < 2 ? 0x00200000u << p[i] : uint32_t(p[i] - 1) << 23;
  std::memcpy(r.v, bits, sizeof bits);
  return r;
}
// Multiplies two 16-bit integers (the first in the low half) with those of each lane and adds the products.
SIMD_INLINE i32x16 set_pairs(int16_t first, int16_t second) {
  i32x16 r;
  LANES(r, int32_t(uint16_t(first) | uint32_t(uint16_t(second)) << 16));
  return r;
}
SIMD_INLINE i32x16 dot_pairs(i32x16 pairs, int32_t pair) {
  for (auto& v : pairs.v) v = int16_t(v & 0xffff) * int16_t(pair & 0xffff) + (v >> 16) * (pair >> 16);
  return pairs;
}

// 16 outputs x 32 inputs of unsigned codes: [input][output].
template <int Most>
struct CodeTile {
  static constexpr int kTaken = 0;  // subtracted from each code
  u8x64 rows[8];
  int16_t w[32][16];
  SIMD_METHOD void settle() {
    for (int k = 0; k < 32; ++k)
      for (int n = 0; n < 16; ++n) w[k][n] = rows[k / 4].v[4 * n + k % 4];
  }
  SIMD_METHOD void spill_once() {}
};
// sums[m] += codes * a[m], over 4 Count inputs from 4 First.
template <int First, int Count, int M, int Most>
SIMD_INLINE void add_products(const CodeTile<Most>& t, const int8_t* a, i32x16 (&sums)[M]) {
  for (int m = 0; m < M; ++m)
    for (int k = 4 * First; k < 4 * (First + Count); ++k)
      for (int i = 0; i < 16; ++i) sums[m].v[i] += int32_t(t.w[k][i]) * a[m * kGroup + k];
}

// Stores 14-bit integers in groups of four as int16.
SIMD_INLINE void store_fours(uint8_t* out, const i32x16& x) {
  int16_t words[16];
  for (int i = 0; i < 16; ++i) words[i] = int16_t(x.v[i]);
  std::memcpy(out, words, sizeof words);
}
// Q x S x 16 sums of products of unsigned bytes with such integers.
template <int Q, int S>
struct Dots {
  i32x16 sums[Q][S] = {};
  // of(i, s) += the four integers at numbers(i) * four bytes per 64-byte lane at p + s stride.
  template <class Numbers>
  void add(const uint8_t* p, int64_t stride, const Numbers& numbers) {
    for (int i = 0; i < Q; ++i) {
      int16_t words[4];
      std::memcpy(words, numbers(i), sizeof words);
      for (int s = 0; s < S; ++s)
        for (int lane = 0; lane < 16; ++lane)
          for (int k = 0; k < 4; ++k) sums[i][s].v[lane] += p[s * stride + 4 * lane + k] * words[k];
    }
  }
  const i32x16& of(int i, int s) const { return sums[i][s]; }
};

// Independent integer dot products for measuring the peak: 64 multiply-adds per call.
constexpr int kDotChains = 8;
using DotAccumulator = i32x16;
SIMD_INLINE DotAccumulator start_dots() { i32x16 r; LANES(r, 0); return r; }
SIMD_INLINE void more_dots(DotAccumulator& a) {
  int32_t x = 1;
  __asm__ volatile("" : "+r"(x));  // makes x opaque
  for (int k = 0; k < 4; ++k)
    for (int i = 0; i < 16; ++i) a.v[i] += 3 * (x + i + k);
}
SIMD_INLINE void settle_dots(DotAccumulator&) {}
SIMD_INLINE int32_t finish_dots(DotAccumulator a) { return reduce_add(a); }

#undef LANES

}  // namespace scalar
}  // namespace ipex_lookahead
