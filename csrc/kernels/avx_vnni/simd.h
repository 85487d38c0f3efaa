// AVX-VNNI (Alder Lake, Zen 5 and later): AVX2 with integer dot products of 256 bits.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define SIMD_INLINE static inline __attribute__((always_inline))
#define SIMD_METHOD inline __attribute__((always_inline))

namespace ipex_lookahead {
namespace avx_vnni {

constexpr int kMaxRows = 4;
constexpr int kTilesAtOnce = 1;
constexpr int kMaxFloatRows = 1;
constexpr int kQueryTile = 1;

#include "../avx2/vectors.inl"

// 16 outputs x 32 inputs of unsigned codes, unpacked once and then used for every row: [half][row].
template <int Most>
struct CodeTile {
  __m256i w[2][8];
  SIMD_METHOD explicit CodeTile(const u8x64 (&rows)[8]) {
    for (int c = 0; c < 8; ++c) {
      w[0][c] = rows[c].lo;
      w[1][c] = rows[c].hi;
    }
  }
};
// The weights are the unsigned operand. Two chains a half, so that latency does not bind at one row.
template <int Rows>
SIMD_INLINE __m256i dot_rows(const __m256i* w, const int8_t* a, __m256i even) {
  __m256i odd = _mm256_setzero_si256();
  for (int c = 0; c < Rows; c += 2) {
    even = _mm256_dpbusd_avx_epi32(even, w[c], broadcast4(a + 4 * c));
    odd = _mm256_dpbusd_avx_epi32(odd, w[c + 1], broadcast4(a + 4 * c + 4));
  }
  return _mm256_add_epi32(even, odd);
}
// start + sum of codes * a, over 32 inputs.
template <int Most>
SIMD_INLINE i32x16 dot(const CodeTile<Most>& t, const int8_t* a, int32_t start) {
  const __m256i from = _mm256_set1_epi32(start);
  return {dot_rows<8>(t.w[0], a, from), dot_rows<8>(t.w[1], a, from)};
}

// Sum of codes * a over the 16 inputs of one half, from start on.
template <int Half, int Most>
SIMD_INLINE i32x16 dot_half(const CodeTile<Most>& t, const int8_t* a, i32x16 start) {
  return {dot_rows<4>(t.w[0] + 4 * Half, a, start.lo), dot_rows<4>(t.w[1] + 4 * Half, a, start.hi)};
}

// Independent integer dot products for measuring the peak: 64 multiply-adds a call.
using DotAccumulator = i32x16;
SIMD_INLINE DotAccumulator start_dots() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
SIMD_INLINE DotAccumulator more_dots(DotAccumulator a) {
  const __m256i w = _mm256_set1_epi8(3), x = _mm256_set1_epi8(1);
  return {_mm256_dpbusd_avx_epi32(a.lo, w, x), _mm256_dpbusd_avx_epi32(a.hi, w, x)};
}
SIMD_INLINE int32_t finish_dots(DotAccumulator a) { return reduce_add(a); }

}  // namespace avx_vnni
}  // namespace ipex_lookahead
