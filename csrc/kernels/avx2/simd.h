// AVX2 with FMA and F16C (Haswell, Zen and later): two 256-bit registers hold one tile row of 16.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define SIMD_INLINE static inline __attribute__((always_inline))
#define SIMD_METHOD inline __attribute__((always_inline))

namespace ipex_lookahead {
namespace avx2 {

constexpr int kMaxRows = 16;
constexpr int kFixedRows = 4;     // row counts up to this have specialized functions
constexpr int kTilesAtOnce = 2;
constexpr int kRowsTogether = 4;  // by one tile's 16 outputs: 8 sums in registers next to two registers of weights
constexpr int kMaxFloatRows = 24;  // for float weights
constexpr int kFixedFloatRows = 1, kFloatRowsOfTwoTiles = 0;  // 8 sums in registers
constexpr int kFloatRowsTogether = 6, kFloatTilesTogether = 1;  // 12 sums
constexpr int kQueryTile = 3;      // queries x 2 vectors of keys or values in registers
constexpr int kQueriesOfFour = 1;  // up to this number of queries use 4

#include "vectors.inl"

// 16 outputs x 32 inputs of codes, unpacked once for all rows of activations. Codes above 63 are stored signed (minus 128): two
// products of 255 * 127 would overflow the 16 bits in which maddubs adds.
template <int Most>
struct CodeTile {
  static constexpr bool kSigned = Most > 63;
  static constexpr int kTaken = kSigned ? 128 : 0;  // subtracted from each code
  // Number of pair sums that fit int16: a pair is at most 2 * Most * 127.
  static constexpr int kPairs = Most <= 15 ? 8 : Most <= 31 ? 4 : 2;
  u8x64 rows[8];
  SIMD_METHOD void settle() {
    if (!kSigned) return;
    const __m256i bias = _mm256_set1_epi8(-128);
    for (int c = 0; c < 8; ++c) rows[c] = {_mm256_xor_si256(rows[c].lo, bias), _mm256_xor_si256(rows[c].hi, bias)};
  }
  // Forces the codes into memory once, for row groups that read them one after the other; compilers store and reload each code.
  SIMD_METHOD void spill_once() { __asm__("" : "+m"(rows)); }
};
SIMD_INLINE __m256i add_pairs(__m256i sum, __m256i pairs) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
// Forces the sum at this point: compilers move all products to the front and run out of registers.
SIMD_INLINE __m256i now(__m256i x) {
  __asm__("" : "+x"(x));
  return x;
}
// sums[m] += codes * a[m], over `Count` rows of the tile from `First`, row by row, so that each weight is loaded once.
template <int First, int Count, int M, int Most>
SIMD_INLINE void add_unsigned(const CodeTile<Most>& t, const int8_t* a, i32x16 (&sums)[M]) {
  constexpr int kPairs = CodeTile<Most>::kPairs < Count ? CodeTile<Most>::kPairs : Count;
#pragma GCC unroll 4
  for (int first = First; first < First + Count; first += kPairs) {
    __m256i lo[M], hi[M];
#pragma GCC unroll 8
    for (int c = first; c < first + kPairs; ++c)
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        const __m256i x = broadcast4(a + m * kGroup + 4 * c);
        const __m256i low = _mm256_maddubs_epi16(t.rows[c].lo, x), high = _mm256_maddubs_epi16(t.rows[c].hi, x);
        lo[m] = c == first ? low : now(_mm256_add_epi16(lo[m], low));
        hi[m] = c == first ? high : now(_mm256_add_epi16(hi[m], high));
      }
    for (int m = 0; m < M; ++m) sums[m] = {add_pairs(sums[m].lo, lo[m]), add_pairs(sums[m].hi, hi[m])};
  }
}
// |w| is the unsigned operand and a gets w's sign: a pair is at most 2 * 128 * 127 = 32,512, exact in int16.
template <int First, int Count, int M, int Most>
SIMD_INLINE void add_signed(const CodeTile<Most>& t, const int8_t* a, i32x16 (&sums)[M]) {
#pragma GCC unroll 8
  for (int c = First; c < First + Count; ++c) {
    const __m256i low = _mm256_abs_epi8(t.rows[c].lo), high = _mm256_abs_epi8(t.rows[c].hi);
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const __m256i x = broadcast4(a + m * kGroup + 4 * c);
      sums[m].lo = add_pairs(sums[m].lo, _mm256_maddubs_epi16(low, _mm256_sign_epi8(x, t.rows[c].lo)));
      sums[m].hi = add_pairs(sums[m].hi, _mm256_maddubs_epi16(high, _mm256_sign_epi8(x, t.rows[c].hi)));
    }
  }
}
template <int First, int Count, int M, int Most>
SIMD_INLINE void add_products(const CodeTile<Most>& t, const int8_t* a, i32x16 (&sums)[M]) {
  if constexpr (CodeTile<Most>::kSigned)
    add_signed<First, Count>(t, a, sums);
  else
    add_unsigned<First, Count>(t, a, sums);
}

// Stores 14-bit integers in groups of four as int16.
SIMD_INLINE void store_fours(uint8_t* out, i32x16 x) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.lo, x.hi), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), words);
}
SIMD_INLINE __m256i broadcast8(const uint8_t* p) {
  int64_t x;
  std::memcpy(&x, p, 8);
  return _mm256_set1_epi64x(x);
}
// sum + x * four such integers, which are loaded for this product only: compilers would keep those of three queries in
// registers and spill a sum, because no register is left next to twelve sums.
SIMD_INLINE __m256i add_anew(__m256i sum, __m256i x, const uint8_t* numbers) {
  __m256i product;
  __asm__("vpbroadcastq %3, %1\n\tvpmaddwd %2, %1, %1\n\tvpaddd %1, %0, %0"
          : "+x"(sum), "=&x"(product)
          : "x"(x), "m"(*reinterpret_cast<const uint8_t(*)[8]>(numbers)));
  return sum;
}
SIMD_INLINE __m256i joined(__m256i a, __m256i b) { return _mm256_permute4x64_epi64(_mm256_hadd_epi32(a, b), 0xd8); }
// Q x S x 16 sums of products of unsigned bytes with such integers: four per register, in two parts.
template <int Q, int S>
struct Dots {
  __m256i parts[Q][S][4];
  SIMD_METHOD Dots() {
#pragma GCC unroll 3
    for (int i = 0; i < Q; ++i)
#pragma GCC unroll 4
      for (int s = 0; s < S; ++s)
#pragma GCC unroll 4
        for (int part = 0; part < 4; ++part) parts[i][s][part] = _mm256_setzero_si256();
  }
  // of(i, s) += the four integers at numbers(i) * four bytes per 64-byte lane at p + s stride.
  template <class Numbers>
  SIMD_METHOD void add(const uint8_t* p, int64_t stride, const Numbers& numbers) {
#pragma GCC unroll 3
    for (int s = 0; s < S; ++s)
#pragma GCC unroll 4
      for (int part = 0; part < 4; ++part) {
        const __m256i x = _mm256_cvtepu8_epi16(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + s * stride + 16 * part)));
#pragma GCC unroll 3
        for (int i = 0; i < Q; ++i) {
          const __m256i sum = parts[i][s][part];
          if constexpr (Q > 2)
            parts[i][s][part] = add_anew(sum, x, numbers(i));
          else
            parts[i][s][part] = now(_mm256_add_epi32(sum, _mm256_madd_epi16(x, broadcast8(numbers(i)))));
        }
      }
  }
  SIMD_METHOD i32x16 of(int i, int s) const {
    const __m256i* of_four = parts[i][s];
    return {joined(of_four[0], of_four[1]), joined(of_four[2], of_four[3])};
  }
};

// Integer dot products for measuring the peak, limited by the number of registers: 64 multiply-adds per call. The 16-bit sums
// hold eight calls and are then widened.
constexpr int kDotChains = 3;
struct DotAccumulator {
  __m256i lo, hi;
  i32x16 sums;
};
SIMD_INLINE DotAccumulator start_dots() {
  const __m256i none = _mm256_setzero_si256();
  return {none, none, {none, none}};
}
SIMD_INLINE void more_dots(DotAccumulator& a) {
  __m256i x = _mm256_set1_epi8(1);
  __asm__ volatile("" : "+x"(x));  // makes x opaque, so that the compiler does not hoist the product
  a.lo = now(_mm256_add_epi16(a.lo, _mm256_maddubs_epi16(_mm256_set1_epi8(3), x)));
  a.hi = now(_mm256_add_epi16(a.hi, _mm256_maddubs_epi16(_mm256_set1_epi8(5), x)));
}
SIMD_INLINE void settle_dots(DotAccumulator& a) {
  a.sums = {add_pairs(a.sums.lo, a.lo), add_pairs(a.sums.hi, a.hi)};
  a.lo = a.hi = _mm256_setzero_si256();
}
SIMD_INLINE int32_t finish_dots(const DotAccumulator& a) { return reduce_add(a.sums); }

}  // namespace avx2
}  // namespace ipex_lookahead
