// AVX-VNNI (Alder Lake, Zen 5 and later): AVX2 with integer dot products of 256 bits.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define SIMD_INLINE static inline __attribute__((always_inline))
#define SIMD_METHOD inline __attribute__((always_inline))

namespace ipex_lookahead {
namespace avx_vnni {

constexpr int kMaxRows = 16, kFixedRows = 4;
constexpr int kTilesAtOnce = 2;
constexpr int kRowsTogether = 4;  // by one tile's 16 outputs: 8 sums in registers beside two of weights
constexpr int kMaxFloatRows = 16, kFixedFloatRows = 1, kFloatRowsOfTwoTiles = 0, kFloatRowsTogether = 6;
constexpr int kQueryTile = 3;
constexpr int kQueriesOfFour = 1;

#include "../avx2/vectors.inl"

// 16 outputs x 32 inputs of unsigned codes, unpacked once and then used for every row: [half][row].
template <int Most>
struct CodeTile {
  static constexpr int kTaken = 0;  // from each code
  __m256i w[2][8];
  SIMD_METHOD explicit CodeTile(const u8x64 (&rows)[8]) {
    for (int c = 0; c < 8; ++c) {
      w[0][c] = rows[c].lo;
      w[1][c] = rows[c].hi;
    }
  }
};
// sums[m] += codes * a[m], over `Count` rows of the tile from `First` on; row by row, so that a weight is loaded once. The
// weights are the unsigned operand.
template <int First, int Count, int M, int Most>
SIMD_INLINE void add_products(const CodeTile<Most>& t, const int8_t* a, i32x16 (&sums)[M]) {
#pragma GCC unroll 8
  for (int c = First; c < First + Count; ++c)
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const __m256i x = broadcast4(a + m * kGroup + 4 * c);
      sums[m].lo = _mm256_dpbusd_avx_epi32(sums[m].lo, t.w[0][c], x);
      sums[m].hi = _mm256_dpbusd_avx_epi32(sums[m].hi, t.w[1][c], x);
    }
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
