// AVX-512 with VNNI (Ice Lake, Zen 4 and later): one 512-bit register is a whole tile row.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define SIMD_INLINE static inline __attribute__((always_inline))
#define SIMD_METHOD inline __attribute__((always_inline))
#define SIMD_WEIGHED_CODES  // see generic/scales.inl

namespace ipex_lookahead {
namespace avx512_vnni {

using f32x16 = __m512;
using i32x16 = __m512i;

constexpr int kMaxRows = 16;      // rows of a tile at a time, with integer sums in registers
constexpr int kFixedRows = 16;    // row counts up to this have specialized functions
constexpr int kTilesAtOnce = 2;   // integer tiles, for all these rows
constexpr int kRowsTogether = 1;  // rows with interleaved products; here one after the other
constexpr int kMaxFloatRows = 36;  // for float weights
constexpr int kFixedFloatRows = 4, kFloatRowsOfTwoTiles = 1;  // 16 and 8 sums in registers
constexpr int kFloatRowsTogether = 12, kFloatTilesTogether = 2;  // 24 sums
constexpr int kQueryTile = 12;      // queries x 2 vectors of keys or values in registers
constexpr int kQueriesOfFour = 4;   // up to this number of queries use 4
constexpr bool kFewRegisters = false;

SIMD_INLINE f32x16 zero() { return _mm512_setzero_ps(); }
SIMD_INLINE f32x16 set1(float x) { return _mm512_set1_ps(x); }
SIMD_INLINE f32x16 load(const float* p) { return _mm512_loadu_ps(p); }
SIMD_INLINE void store(float* p, f32x16 v) { _mm512_storeu_ps(p, v); }
SIMD_INLINE f32x16 add(f32x16 a, f32x16 b) { return _mm512_add_ps(a, b); }
SIMD_INLINE f32x16 sub(f32x16 a, f32x16 b) { return _mm512_sub_ps(a, b); }
SIMD_INLINE f32x16 mul(f32x16 a, f32x16 b) { return _mm512_mul_ps(a, b); }
SIMD_INLINE f32x16 div(f32x16 a, f32x16 b) { return _mm512_div_ps(a, b); }
SIMD_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return _mm512_fmadd_ps(a, b, c); }
SIMD_INLINE f32x16 max(f32x16 a, f32x16 b) { return _mm512_max_ps(a, b); }
SIMD_INLINE f32x16 min(f32x16 a, f32x16 b) { return _mm512_min_ps(a, b); }
SIMD_INLINE f32x16 abs(f32x16 a) { return _mm512_abs_ps(a); }
SIMD_INLINE i32x16 round(f32x16 a) { return _mm512_cvtps_epi32(a); }  // half to even
SIMD_INLINE f32x16 to_float(i32x16 a) { return _mm512_cvtepi32_ps(a); }
SIMD_INLINE f32x16 scale_by_power(f32x16 a, i32x16 n) {  // a * 2^n, for n with a normal result
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_slli_epi32(n, 23)));
}
SIMD_INLINE f32x16 load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
SIMD_INLINE f32x16 load_bf16(const uint16_t* p) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}
SIMD_INLINE f32x16 load_i8(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
SIMD_INLINE void store_f16(uint16_t* p, f32x16 v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
SIMD_INLINE void store_i8(int8_t* p, i32x16 v) {  // saturating
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(v));
}
SIMD_INLINE int32_t reduce_add(i32x16 a) { return _mm512_reduce_add_epi32(a); }
// Canonical order: lane i + lane i + 8, then 4, 2, 1.
SIMD_INLINE float reduce_add(f32x16 a) {
  __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  q = _mm_add_ss(q, _mm_movehdup_ps(q));
  return _mm_cvtss_f32(q);
}
SIMD_INLINE bool any_greater(f32x16 a, float b) { return _mm512_cmp_ps_mask(a, _mm512_set1_ps(b), _CMP_GT_OQ) != 0; }
SIMD_INLINE bool any_nan(f32x16 a, f32x16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0; }
SIMD_INLINE float reduce_max(f32x16 a) { return _mm512_reduce_max_ps(a); }
SIMD_INLINE i32x16 add(i32x16 a, i32x16 b) { return _mm512_add_epi32(a, b); }
// The sums of the first and the last 16 of 32 signed bytes, computed on bytes plus 128.
SIMD_INLINE void half_sums(const int8_t* codes, int32_t& first, int32_t& second) {
  const __m128i flip = _mm_set1_epi8(-128), none = _mm_setzero_si128();
  const __m128i* p = reinterpret_cast<const __m128i*>(codes);
  const __m128i a = _mm_sad_epu8(_mm_xor_si128(_mm_loadu_si128(p), flip), none);
  const __m128i b = _mm_sad_epu8(_mm_xor_si128(_mm_loadu_si128(p + 1), flip), none);
  const __m128i sums = _mm_add_epi32(_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b));
  first = _mm_cvtsi128_si32(sums) - 16 * 128;
  second = _mm_extract_epi32(sums, 2) - 16 * 128;
}

SIMD_INLINE i32x16 set1_i32(int32_t x) { return _mm512_set1_epi32(x); }
SIMD_INLINE i32x16 load_i32(const int32_t* p) { return _mm512_loadu_si512(p); }
SIMD_INLINE i32x16 widen_u8(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// Shifts integers or the bytes below; for bytes, bits shifted in from a neighbor must be masked away afterwards.
template <int N>
SIMD_INLINE __m512i shr(__m512i x) {
  return _mm512_srli_epi32(x, N);
}
template <int N>
SIMD_INLINE __m512i shl(__m512i x) {
  return _mm512_slli_epi32(x, N);
}
SIMD_INLINE i32x16 mask32(i32x16 x, int32_t mask) { return _mm512_and_si512(x, _mm512_set1_epi32(mask)); }
// 2^(e - 128): the factor of a shared-exponent byte for doubled values; 0 and 1 give subnormals.
SIMD_INLINE f32x16 load_half_powers(const uint8_t* p) {
  const __m512i e = widen_u8(p);
  const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
  const __m512i tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2)), tiny));
}
// Multiplies two 16-bit integers (the first in the low half) with those of each lane and adds the products.
SIMD_INLINE i32x16 set_pairs(int16_t first, int16_t second) {
  return _mm512_set1_epi32(int32_t(uint16_t(first) | uint32_t(uint16_t(second)) << 16));
}
SIMD_INLINE i32x16 dot_pairs(i32x16 pairs, int32_t pair) { return _mm512_madd_epi16(pairs, _mm512_set1_epi32(pair)); }

// A tile row: 64 bytes. (The same register as i32x16: shr and shl apply to both.)
using u8x64 = __m512i;
SIMD_INLINE u8x64 load64(const uint8_t* p) { return _mm512_loadu_si512(p); }
SIMD_INLINE void store64(uint8_t* p, u8x64 v) { _mm512_storeu_si512(p, v); }
SIMD_INLINE u8x64 mask8(u8x64 x, uint8_t mask) { return _mm512_and_si512(x, _mm512_set1_epi8(char(mask))); }
SIMD_INLINE u8x64 sub8(u8x64 x, uint8_t y) { return _mm512_sub_epi8(x, _mm512_set1_epi8(char(y))); }
SIMD_INLINE u8x64 add8(u8x64 a, u8x64 b) { return _mm512_add_epi8(a, b); }
SIMD_INLINE u8x64 min8(u8x64 x, uint8_t most) { return _mm512_min_epu8(x, _mm512_set1_epi8(char(most))); }
SIMD_INLINE u8x64 bor(u8x64 a, u8x64 b) { return _mm512_or_si512(a, b); }
SIMD_INLINE u8x64 lookup(const uint8_t* table, u8x64 x) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))), x);
}

// The bytes of each 32-bit lane: 0, 1, 2 and 3 times the lane's value, which is below 64.
SIMD_INLINE u8x64 multiples(i32x16 x) {
  return _mm512_mullo_epi16(_mm512_or_si512(x, _mm512_slli_epi32(x, 16)), _mm512_set1_epi32(0x03020100));
}
// Replaces each byte of x, from 0 to 3, by that byte of its lane.
SIMD_INLINE u8x64 lookup4(u8x64 lanes, u8x64 x) {
  const __m512i starts = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c));
  return _mm512_shuffle_epi8(lanes, _mm512_or_si512(x, starts));
}

SIMD_INLINE i32x16 lanes(u8x64 x) { return x; }  // four bytes per lane
// Of each 16 bytes (four lanes): the first two bytes of each lane, then the others.
SIMD_INLINE u8x64 pairs_apart(u8x64 x) {
  return _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15)));
}
// Widens the first or the second eight of each 16 bytes to 16 bits, two per lane.
template <int Half>
SIMD_INLINE i32x16 zip(u8x64 lower, u8x64 upper) {
  return Half == 0 ? _mm512_unpacklo_epi8(lower, upper) : _mm512_unpackhi_epi8(lower, upper);
}
SIMD_INLINE f32x16 as_float(i32x16 bits) { return _mm512_castsi512_ps(bits); }
SIMD_INLINE f32x16 lookup(const float* table, i32x16 x) {  // by the lowest four bits
  return _mm512_permutexvar_ps(x, _mm512_loadu_ps(table));
}

// 16 outputs x 32 inputs of unsigned codes, unpacked once for all rows.
template <int Most>
struct CodeTile {
  static constexpr int kTaken = 0;  // subtracted from each code
  u8x64 rows[8];
  SIMD_METHOD void settle() {}
  SIMD_METHOD void spill_once() {}  // already in registers
};
SIMD_INLINE __m512i broadcast4(const int8_t* a) {
  int32_t x;
  std::memcpy(&x, a, 4);
  return _mm512_set1_epi32(x);
}
// sums[m] += codes * a[m], over `Count` rows of the tile from `First`. One chain: two tiles by several rows are enough chains.
template <int First, int Count, int M, int Most>
SIMD_INLINE void add_products(const CodeTile<Most>& t, const int8_t* a, i32x16 (&sums)[M]) {
  for (int m = 0; m < M; ++m)
    for (int c = First; c < First + Count; ++c)
      sums[m] = _mm512_dpbusd_epi32(sums[m], t.rows[c], broadcast4(a + m * kGroup + 4 * c));
}

// Stores 14-bit integers in groups of four, 8 bytes each: the upper seven bits of the four, rounded, then the remainders.
SIMD_INLINE void store_fours(uint8_t* out, i32x16 x) {
  const __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(64)), 7);
  const __m128i high = _mm512_cvtepi32_epi8(upper);
  const __m128i low = _mm512_cvtepi32_epi8(_mm512_sub_epi32(x, _mm512_slli_epi32(upper, 7)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_unpacklo_epi32(high, low));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16), _mm_unpackhi_epi32(high, low));
}
// Keeps sums in registers: GCC 12 otherwise stores every one of them in each iteration.
SIMD_INLINE __m512i now(__m512i x) {
  __asm__("" : "+v"(x));
  return x;
}
// Q x S x 16 sums of products of unsigned bytes with such integers.
template <int Q, int S>
struct Dots {
  __m512i high[Q][S], low[Q][S];
  SIMD_METHOD Dots() {
#pragma GCC unroll 12
    for (int i = 0; i < Q; ++i)
#pragma GCC unroll 4
      for (int s = 0; s < S; ++s) high[i][s] = low[i][s] = _mm512_setzero_si512();
  }
  // of(i, s) += the four integers at numbers(i) * four bytes per 64-byte lane at p + s stride.
  template <class Numbers>
  SIMD_METHOD void add(const uint8_t* p, int64_t stride, const Numbers& numbers) {
    __m512i x[S];
#pragma GCC unroll 4
    for (int s = 0; s < S; ++s) x[s] = load64(p + s * stride);
#pragma GCC unroll 12
    for (int i = 0; i < Q; ++i) {
      const int8_t* at = reinterpret_cast<const int8_t*>(numbers(i));
      const __m512i upper = broadcast4(at), lower = broadcast4(at + 4);
#pragma GCC unroll 4
      for (int s = 0; s < S; ++s) {
        high[i][s] = now(_mm512_dpbusd_epi32(high[i][s], x[s], upper));
        low[i][s] = now(_mm512_dpbusd_epi32(low[i][s], x[s], lower));
      }
    }
  }
  SIMD_METHOD i32x16 of(int i, int s) const { return _mm512_add_epi32(_mm512_slli_epi32(high[i][s], 7), low[i][s]); }
};

// Independent integer dot products for measuring the peak: 64 multiply-adds per call.
constexpr int kDotChains = 8;
using DotAccumulator = __m512i;
SIMD_INLINE DotAccumulator start_dots() { return _mm512_setzero_si512(); }
SIMD_INLINE void more_dots(DotAccumulator& a) {
  a = _mm512_dpbusd_epi32(a, _mm512_set1_epi8(3), _mm512_set1_epi8(1));
}
SIMD_INLINE void settle_dots(DotAccumulator&) {}
SIMD_INLINE int32_t finish_dots(DotAccumulator a) { return reduce_add(a); }

}  // namespace avx512_vnni
}  // namespace ipex_lookahead
