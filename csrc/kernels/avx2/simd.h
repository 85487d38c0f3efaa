// AVX2 with FMA and F16C (Haswell, Zen and later): two 256-bit registers stand for one tile row of 16.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define SIMD_INLINE static inline __attribute__((always_inline))

namespace ipex_lookahead {
namespace avx2 {

constexpr int kMaxRows = 4;
constexpr int kMaxFloatRows = 1;
constexpr int kQueryTile = 1;
constexpr int kSubBlocks = 4;

#include "vectors.inl"

SIMD_INLINE Int8Tile unpack(const uint8_t* p, Int8Tile*) {
  Int8Tile t;
  const __m256i bias = _mm256_set1_epi8(-128);
  for (int h = 0; h < 2; ++h)
    for (int c = 0; c < 8; ++c) t.w[h][c] = _mm256_xor_si256(load32(p + 64 * c + 32 * h), bias);  // signed codes
  return t;
}
// maddubs gives pairs of at most 2 * 15 * 127; eight of them still fit int16, so one widening serves 32 inputs.
SIMD_INLINE __m256i dot_half(const __m256i* w, const int8_t* a, int32_t start) {
  __m256i pairs = _mm256_maddubs_epi16(w[0], broadcast4(a));
  for (int c = 1; c < 8; ++c) pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w[c], broadcast4(a + 4 * c)));
  return _mm256_add_epi32(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)), _mm256_set1_epi32(start));
}
SIMD_INLINE i32x16 dot(const Int4Tile& t, const int8_t* a, int32_t start) {
  return {dot_half(t.w[0], a, start), dot_half(t.w[1], a, start)};
}
// |w| as the unsigned operand and a with w's sign: a pair is at most 2 * 128 * 127 = 32,512, exact in int16.
SIMD_INLINE __m256i dot_half_signed(const __m256i* w, const int8_t* a) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sum = _mm256_setzero_si256();
  for (int c = 0; c < 8; ++c) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w[c]), _mm256_sign_epi8(broadcast4(a + 4 * c), w[c]));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
  }
  return sum;
}
SIMD_INLINE i32x16 dot(const Int8Tile& t, const int8_t* a, int32_t) {
  return {dot_half_signed(t.w[0], a), dot_half_signed(t.w[1], a)};
}

// Independent integer dot products for measuring the peak: 64 multiply-adds a call.
using DotAccumulator = i32x16;
SIMD_INLINE DotAccumulator start_dots() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
SIMD_INLINE DotAccumulator more_dots(DotAccumulator a) {
  const __m256i w = _mm256_set1_epi8(3), x = _mm256_set1_epi8(1), ones = _mm256_set1_epi16(1);
  a.lo = _mm256_add_epi32(a.lo, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), ones));
  a.hi = _mm256_add_epi32(a.hi, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), ones));
  return a;
}
SIMD_INLINE int32_t finish_dots(DotAccumulator a) { return reduce_add(a); }

}  // namespace avx2
}  // namespace ipex_lookahead
