// AVX2 with FMA and F16C (Haswell, Zen and later): two 256-bit registers stand for one tile row of 16.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define SIMD_INLINE static inline __attribute__((always_inline))
#define SIMD_METHOD inline __attribute__((always_inline))

namespace ipex_lookahead {
namespace avx2 {

constexpr int kMaxRows = 4;
constexpr int kTilesAtOnce = 1;
constexpr int kMaxFloatRows = 1;
constexpr int kQueryTile = 1;

#include "vectors.inl"

// 16 outputs x 32 inputs of codes, unpacked once and then used for every row: [half][row]. Codes beyond 63 are kept signed
// (less 128): two products of 255 * 127 would not fit the 16 bits that maddubs adds in.
template <int Most>
struct CodeTile {
  static constexpr bool kSigned = Most > 63;
  // Sums of pairs that still fit int16: a pair is at most 2 * Most * 127.
  static constexpr int kPairs = Most <= 15 ? 8 : Most <= 31 ? 4 : 2;
  __m256i w[2][8];
  SIMD_METHOD explicit CodeTile(const u8x64 (&rows)[8]) {
    const __m256i bias = _mm256_set1_epi8(-128);
    for (int c = 0; c < 8; ++c) {
      w[0][c] = kSigned ? _mm256_xor_si256(rows[c].lo, bias) : rows[c].lo;
      w[1][c] = kSigned ? _mm256_xor_si256(rows[c].hi, bias) : rows[c].hi;
    }
  }
};
template <int Pairs, int Rows = 8>
SIMD_INLINE __m256i dot_unsigned(const __m256i* w, const int8_t* a, __m256i sum) {
  for (int first = 0; first < Rows; first += Pairs) {
    __m256i pairs = _mm256_maddubs_epi16(w[first], broadcast4(a + 4 * first));
    for (int c = first + 1; c < first + Pairs; ++c)
      pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w[c], broadcast4(a + 4 * c)));
    sum = _mm256_add_epi32(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)), sum);
  }
  return sum;
}
// |w| as the unsigned operand and a with w's sign: a pair is at most 2 * 128 * 127 = 32,512, exact in int16.
SIMD_INLINE __m256i dot_signed(const __m256i* w, const int8_t* a) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sum = _mm256_setzero_si256();
  for (int c = 0; c < 8; ++c) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w[c]), _mm256_sign_epi8(broadcast4(a + 4 * c), w[c]));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
  }
  return sum;
}
// start + sum of codes * a, over 32 inputs. Where codes are signed, that is what `start` undoes.
template <int Most>
SIMD_INLINE i32x16 dot(const CodeTile<Most>& t, const int8_t* a, int32_t start) {
  if (CodeTile<Most>::kSigned) return {dot_signed(t.w[0], a), dot_signed(t.w[1], a)};
  constexpr int pairs = CodeTile<Most>::kPairs;
  const __m256i from = _mm256_set1_epi32(start);
  return {dot_unsigned<pairs>(t.w[0], a, from), dot_unsigned<pairs>(t.w[1], a, from)};
}

// Sum of codes * a over the 16 inputs of one half, from start on.
template <int Half, int Most>
SIMD_INLINE i32x16 dot_half(const CodeTile<Most>& t, const int8_t* a, i32x16 start) {
  static_assert(!CodeTile<Most>::kSigned, "no format has halves of wide codes");
  constexpr int pairs = CodeTile<Most>::kPairs < 4 ? CodeTile<Most>::kPairs : 4;
  return {dot_unsigned<pairs, 4>(t.w[0] + 4 * Half, a, start.lo), dot_unsigned<pairs, 4>(t.w[1] + 4 * Half, a, start.hi)};
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
