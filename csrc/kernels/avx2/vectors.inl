// Sixteen lanes in two 256-bit registers: the common part of AVX2 and AVX-VNNI. Included inside a namespace.

struct f32x16 {
  __m256 lo, hi;
};
struct i32x16 {
  __m256i lo, hi;
};

constexpr bool kFewRegisters = true;  // eight vectors of 16

SIMD_INLINE f32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
SIMD_INLINE f32x16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
SIMD_INLINE f32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
SIMD_INLINE void store(float* p, f32x16 v) {
  _mm256_storeu_ps(p, v.lo);
  _mm256_storeu_ps(p + 8, v.hi);
}
SIMD_INLINE f32x16 add(f32x16 a, f32x16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
SIMD_INLINE f32x16 sub(f32x16 a, f32x16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
SIMD_INLINE f32x16 mul(f32x16 a, f32x16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
SIMD_INLINE f32x16 div(f32x16 a, f32x16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
SIMD_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
SIMD_INLINE f32x16 max(f32x16 a, f32x16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
SIMD_INLINE f32x16 min(f32x16 a, f32x16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
SIMD_INLINE f32x16 abs(f32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
SIMD_INLINE i32x16 round(f32x16 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
SIMD_INLINE f32x16 to_float(i32x16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
SIMD_INLINE __m256 scale_by_power(__m256 a, __m256i n) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(n, 23)));
}
SIMD_INLINE f32x16 scale_by_power(f32x16 a, i32x16 n) {
  return {scale_by_power(a.lo, n.lo), scale_by_power(a.hi, n.hi)};
}
SIMD_INLINE __m128i load8(const uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
SIMD_INLINE f32x16 load_f16(const uint16_t* p) { return {_mm256_cvtph_ps(load8(p)), _mm256_cvtph_ps(load8(p + 8))}; }
SIMD_INLINE __m256 widen_bf16(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load8(p)), 16));
}
SIMD_INLINE f32x16 load_bf16(const uint16_t* p) { return {widen_bf16(p), widen_bf16(p + 8)}; }
SIMD_INLINE f32x16 load_i8(const int8_t* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(x, x)))};
}
SIMD_INLINE void store_f16(uint16_t* p, f32x16 v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT));
}
SIMD_INLINE void store_i8(int8_t* p, i32x16 v) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(v.lo, v.hi), 0xd8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
SIMD_INLINE float reduce_add(f32x16 a) {
  const __m256 h = _mm256_add_ps(a.lo, a.hi);
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  q = _mm_add_ss(q, _mm_movehdup_ps(q));
  return _mm_cvtss_f32(q);
}
SIMD_INLINE bool any_greater(f32x16 a, float b) {
  const __m256 bound = _mm256_set1_ps(b);
  return _mm256_movemask_ps(
             _mm256_or_ps(_mm256_cmp_ps(a.lo, bound, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, bound, _CMP_GT_OQ))) != 0;
}
SIMD_INLINE bool any_nan(f32x16 a, f32x16 b) {
  return _mm256_movemask_ps(
             _mm256_or_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, b.hi, _CMP_UNORD_Q))) != 0;
}
SIMD_INLINE float reduce_max(f32x16 a) {
  const __m256 h = _mm256_max_ps(a.lo, a.hi);
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  q = _mm_max_ss(q, _mm_movehdup_ps(q));
  return _mm_cvtss_f32(q);
}
SIMD_INLINE i32x16 add(i32x16 a, i32x16 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
SIMD_INLINE int32_t reduce_add(i32x16 a) {
  const __m256i h = _mm256_add_epi32(a.lo, a.hi);
  __m128i q = _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
  q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4e));
  q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0xb1));
  return _mm_cvtsi128_si32(q);
}
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

// A tile row: 64 bytes, outputs 0 ... 7 in the first half.
struct u8x64 {
  __m256i lo, hi;
};
SIMD_INLINE __m256i load32(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
SIMD_INLINE u8x64 load64(const uint8_t* p) { return {load32(p), load32(p + 32)}; }
SIMD_INLINE void store64(uint8_t* p, u8x64 v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), v.hi);
}
SIMD_INLINE u8x64 mask8(u8x64 x, uint8_t mask) {
  const __m256i m = _mm256_set1_epi8(char(mask));
  return {_mm256_and_si256(x.lo, m), _mm256_and_si256(x.hi, m)};
}
template <class Two>
SIMD_INLINE Two bor(Two a, Two b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
SIMD_INLINE u8x64 lookup(const uint8_t* table, u8x64 x) {
  const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(t, x.lo), _mm256_shuffle_epi8(t, x.hi)};
}
// Shifts integers or bytes; for bytes, bits shifted in from a neighbor must be masked away afterwards.
template <int N, class Two>
SIMD_INLINE Two shr(Two x) {
  return {_mm256_srli_epi32(x.lo, N), _mm256_srli_epi32(x.hi, N)};
}
template <int N, class Two>
SIMD_INLINE Two shl(Two x) {
  return {_mm256_slli_epi32(x.lo, N), _mm256_slli_epi32(x.hi, N)};
}
SIMD_INLINE i32x16 mask32(i32x16 x, int32_t mask) {
  const __m256i m = _mm256_set1_epi32(mask);
  return {_mm256_and_si256(x.lo, m), _mm256_and_si256(x.hi, m)};
}
SIMD_INLINE u8x64 add8(u8x64 a, u8x64 b) { return {_mm256_add_epi8(a.lo, b.lo), _mm256_add_epi8(a.hi, b.hi)}; }
SIMD_INLINE u8x64 min8(u8x64 x, uint8_t most) {
  const __m256i m = _mm256_set1_epi8(char(most));
  return {_mm256_min_epu8(x.lo, m), _mm256_min_epu8(x.hi, m)};
}
SIMD_INLINE i32x16 lanes(u8x64 x) { return {x.lo, x.hi}; }  // four bytes per lane
// Of each 16 bytes (four lanes): the first two bytes of each lane, then the others.
SIMD_INLINE u8x64 pairs_apart(u8x64 x) {
  const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  return {_mm256_shuffle_epi8(x.lo, order), _mm256_shuffle_epi8(x.hi, order)};
}
// Widens the first or the second eight of each 16 bytes to 16 bits, two per lane.
template <int Half>
SIMD_INLINE __m256i zip(__m256i lower, __m256i upper) {
  return Half == 0 ? _mm256_unpacklo_epi8(lower, upper) : _mm256_unpackhi_epi8(lower, upper);
}
template <int Half>
SIMD_INLINE i32x16 zip(u8x64 lower, u8x64 upper) {
  return {zip<Half>(lower.lo, upper.lo), zip<Half>(lower.hi, upper.hi)};
}
SIMD_INLINE f32x16 as_float(i32x16 bits) { return {_mm256_castsi256_ps(bits.lo), _mm256_castsi256_ps(bits.hi)}; }
// A table of 16 floats is looked up byte by byte, 32 codes at a time: a float lookup covers eight codes and half the table.
#define SIMD_TABLE_BY_BYTES
// Byte `byte` of each of 16 floats, duplicated.
SIMD_INLINE __m256i bytes_of(const float* table, int byte) {
  alignas(16) uint8_t bytes[16];
  for (int i = 0; i < 16; ++i) std::memcpy(bytes + i, reinterpret_cast<const uint8_t*>(table + i) + byte, 1);
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
}
// w[i], of eight outputs, selected by the i-th byte of each 32-bit lane.
SIMD_INLINE void lookup_fours(const __m256i (&table)[4], __m256i codes, __m256 (&w)[4]) {
  const __m256i by_input = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m256i x = _mm256_shuffle_epi8(codes, by_input);
  __m256i bytes[4];
  for (int i = 0; i < 4; ++i) bytes[i] = _mm256_shuffle_epi8(table[i], x);
  for (int half = 0; half < 2; ++half) {
    const __m256i lower = half == 0 ? zip<0>(bytes[0], bytes[1]) : zip<1>(bytes[0], bytes[1]);
    const __m256i upper = half == 0 ? zip<0>(bytes[2], bytes[3]) : zip<1>(bytes[2], bytes[3]);
    w[2 * half] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(lower, upper));
    w[2 * half + 1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(lower, upper));
  }
}
SIMD_INLINE void lookup_fours(const float* table, u8x64 codes, f32x16 (&w)[4]) {
  const __m256i by_byte[4] = {bytes_of(table, 0), bytes_of(table, 1), bytes_of(table, 2), bytes_of(table, 3)};
  __m256 lo[4], hi[4];
  lookup_fours(by_byte, codes.lo, lo);
  lookup_fours(by_byte, codes.hi, hi);
  for (int i = 0; i < 4; ++i) w[i] = {lo[i], hi[i]};
}
SIMD_INLINE i32x16 set1_i32(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
SIMD_INLINE i32x16 widen_u8(const uint8_t* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(x, x))};
}
// 2^(e - 128): the factor of a shared-exponent byte for doubled values; 0 and 1 give subnormals.
SIMD_INLINE __m256 half_powers(__m256i e) {
  const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
  const __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
  return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}
SIMD_INLINE f32x16 load_half_powers(const uint8_t* p) {
  const i32x16 e = widen_u8(p);
  return {half_powers(e.lo), half_powers(e.hi)};
}
// Multiplies two 16-bit integers (the first in the low half) with those of each lane and adds the products.
SIMD_INLINE i32x16 set_pairs(int16_t first, int16_t second) {
  const __m256i pairs = _mm256_set1_epi32(int32_t(uint16_t(first) | uint32_t(uint16_t(second)) << 16));
  return {pairs, pairs};
}
SIMD_INLINE i32x16 dot_pairs(i32x16 pairs, int32_t pair) {
  const __m256i x = _mm256_set1_epi32(pair);
  return {_mm256_madd_epi16(pairs.lo, x), _mm256_madd_epi16(pairs.hi, x)};
}
SIMD_INLINE __m256i broadcast4(const int8_t* a) {
  int32_t x;
  std::memcpy(&x, a, 4);
  return _mm256_set1_epi32(x);
}
