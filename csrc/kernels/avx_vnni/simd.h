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
constexpr int kRowsTogether = 4;  // by one tile's 16 outputs: 8 sums in registers next to two registers of weights
constexpr int kMaxFloatRows = 24, kFixedFloatRows = 1, kFloatRowsOfTwoTiles = 0, kFloatRowsTogether = 6, kFloatTilesTogether = 1;
constexpr int kQueryTile = 3;
constexpr int kQueriesOfFour = 1;

#include "../avx2/vectors.inl"

// 16 outputs x 32 inputs of unsigned codes, unpacked once for all rows of activations.
template <int Most>
struct CodeTile {
  static constexpr int kTaken = 0;  // subtracted from each code
  u8x64 rows[8];
  SIMD_METHOD void settle() {}
  SIMD_METHOD void spill_once() { __asm__("" : "+m"(rows)); }  // as in avx2/simd.h
};
// sums[m] += codes * a[m], over `Count` rows of the tile from `First`, row by row, so that each weight is loaded once. The
// weights are the unsigned operand.
template <int First, int Count, int M, int Most>
SIMD_INLINE void add_products(const CodeTile<Most>& t, const int8_t* a, i32x16 (&sums)[M]) {
#pragma GCC unroll 8
  for (int c = First; c < First + Count; ++c)
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const __m256i x = broadcast4(a + m * kGroup + 4 * c);
      sums[m].lo = _mm256_dpbusd_avx_epi32(sums[m].lo, t.rows[c].lo, x);
      sums[m].hi = _mm256_dpbusd_avx_epi32(sums[m].hi, t.rows[c].hi, x);
    }
}

// Stores 14-bit integers in groups of four, 8 bytes each: the upper seven bits of the four, rounded, then the remainders.
SIMD_INLINE void store_fours(uint8_t* out, i32x16 x) {
  const i32x16 up = add(x, set1_i32(64));
  const i32x16 upper = {_mm256_srai_epi32(up.lo, 7), _mm256_srai_epi32(up.hi, 7)}, left = shl<7>(upper);
  alignas(16) int8_t high[16], low[16];
  store_i8(high, upper);
  store_i8(low, {_mm256_sub_epi32(x.lo, left.lo), _mm256_sub_epi32(x.hi, left.hi)});
  const __m128i h = _mm_load_si128(reinterpret_cast<const __m128i*>(high));
  const __m128i l = _mm_load_si128(reinterpret_cast<const __m128i*>(low));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_unpacklo_epi32(h, l));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16), _mm_unpackhi_epi32(h, l));
}
// Keeps sums in registers: GCC 12 otherwise stores every one of them in each iteration.
SIMD_INLINE __m256i now(__m256i x) {
  __asm__("" : "+x"(x));
  return x;
}
// Q x S x 16 sums of products of unsigned bytes with such integers.
template <int Q, int S>
struct Dots {
  i32x16 high[Q][S], low[Q][S];
  SIMD_METHOD Dots() {
#pragma GCC unroll 3
    for (int i = 0; i < Q; ++i)
#pragma GCC unroll 4
      for (int s = 0; s < S; ++s) high[i][s] = low[i][s] = set1_i32(0);
  }
  // of(i, s) += the four integers at numbers(i) * four bytes per 64-byte lane at p + s stride.
  template <class Numbers>
  SIMD_METHOD void add(const uint8_t* p, int64_t stride, const Numbers& numbers) {
#pragma GCC unroll 3
    for (int s = 0; s < S; ++s) {
      const u8x64 x = load64(p + s * stride);
#pragma GCC unroll 3
      for (int i = 0; i < Q; ++i) {
        const int8_t* at = reinterpret_cast<const int8_t*>(numbers(i));
        const __m256i upper = broadcast4(at), lower = broadcast4(at + 4);
        high[i][s].lo = now(_mm256_dpbusd_avx_epi32(high[i][s].lo, x.lo, upper));
        high[i][s].hi = now(_mm256_dpbusd_avx_epi32(high[i][s].hi, x.hi, upper));
        low[i][s].lo = now(_mm256_dpbusd_avx_epi32(low[i][s].lo, x.lo, lower));
        low[i][s].hi = now(_mm256_dpbusd_avx_epi32(low[i][s].hi, x.hi, lower));
      }
    }
  }
  SIMD_METHOD i32x16 of(int i, int s) const { return ipex_lookahead::avx_vnni::add(shl<7>(high[i][s]), low[i][s]); }
};

// Independent integer dot products for measuring the peak: 64 multiply-adds per call.
constexpr int kDotChains = 8;
using DotAccumulator = i32x16;
SIMD_INLINE DotAccumulator start_dots() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
SIMD_INLINE void more_dots(DotAccumulator& a) {
  const __m256i w = _mm256_set1_epi8(3), x = _mm256_set1_epi8(1);
  a = {_mm256_dpbusd_avx_epi32(a.lo, w, x), _mm256_dpbusd_avx_epi32(a.hi, w, x)};
}
SIMD_INLINE void settle_dots(DotAccumulator&) {}
SIMD_INLINE int32_t finish_dots(DotAccumulator a) { return reduce_add(a); }

}  // namespace avx_vnni
}  // namespace ipex_lookahead
