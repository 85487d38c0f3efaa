// Bit layouts of codes: in a plain row, as files store it, and in a tile, as the kernels read it (kernels/formats.h).
//
// Both consist of planes. A plane stores some bits of every code; the 32 codes of a block are read from it as eight words of
// four codes, one per byte. Converting a block moves the bits of each word between the planes of the two layouts.
//
// get and put access one word; get4 and put_block access four or more words with SSE2 instructions. Loading is memory bound
// then, so wider registers would gain little.
#pragma once

#include <emmintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/kernels.h"

namespace ipex_lookahead {

// True if words 4 h ... 4 h + 3 of a block are consecutive and have the same bit shift.
template <class Place>
constexpr bool in_runs() {
  for (int j = 0; j < 8; ++j)
    for (int c = 0; c < 8; ++c)
      if (Place::at(j, c) != Place::at(j, c / 4 * 4) + 4 * (c % 4) || Place::shift(j, c) != Place::shift(j, c / 4 * 4))
        return false;
  return true;
}

// True if words 4 h ... 4 h + 3 are two consecutive words, followed by the same two at another bit shift.
template <class Place>
constexpr bool in_pairs() {
  for (int j = 0; j < 8; ++j)
    for (int c = 0; c < 8; ++c)
      if (Place::at(j, c) != Place::at(j, c / 4 * 4) + 4 * (c % 2) || Place::shift(j, c) != Place::shift(j, c / 2 * 2))
        return false;
  return true;
}

inline __m128i load(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline void store(void* p, __m128i v) { _mm_storeu_si128(static_cast<__m128i*>(p), v); }
inline __m128i right(__m128i words, int bits) { return _mm_srl_epi32(words, _mm_cvtsi32_si128(bits)); }
inline __m128i left(__m128i words, int bits) { return _mm_sll_epi32(words, _mm_cvtsi32_si128(bits)); }

// A plane with `Bits` bits of every code, the code's bits from `Up`. The word of codes 4 c ... 4 c + 3 of a record's block j is
// stored at byte Place::at(j, c), shifted by Place::shift(j, c) bits in each byte.
template <int Bits, int Up, class Place>
struct Plane {
  static constexpr uint32_t kMask = 0x01010101u * ((1u << Bits) - 1);
  static uint32_t get(const uint8_t* p, int j, int c) {
    uint32_t word;
    std::memcpy(&word, p + Place::at(j, c), 4);
    return (word >> Place::shift(j, c) & kMask) << Up;
  }
  static void put(uint8_t* p, int j, int c, uint32_t codes) {  // the bits must be zero before
    uint32_t word;
    std::memcpy(&word, p + Place::at(j, c), 4);
    word |= (codes >> Up & kMask) << Place::shift(j, c);
    std::memcpy(p + Place::at(j, c), &word, 4);
  }
  // Returns words 4 h ... 4 h + 3 of block j.
  static __m128i get4(const uint8_t* p, int j, int h) {
    static_assert(in_runs<Place>() || in_pairs<Place>());
    __m128i words;
    if constexpr (in_runs<Place>()) {
      words = right(load(p + Place::at(j, 4 * h)), Place::shift(j, 4 * h));
    } else {
      const __m128i two = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + Place::at(j, 4 * h)));
      words = _mm_unpacklo_epi64(right(two, Place::shift(j, 4 * h)), right(two, Place::shift(j, 4 * h + 2)));
    }
    return left(_mm_and_si128(words, _mm_set1_epi32(int(kMask))), Up);
  }
  // Writes a block of four outputs of a tile: words 0 ... 7.
  static void put_block(uint8_t* p, const __m128i* words) {
#pragma GCC unroll 8
    for (int c = 0; c < 8; ++c) {
      __m128i row = _mm_setzero_si128();
      bool is_first = true;
#pragma GCC unroll 8
      for (int d = 0; d < 8; ++d) {
        if (Place::at(0, d) != Place::at(0, c)) continue;
        is_first = is_first && d >= c;
        row = _mm_or_si128(row, left(_mm_and_si128(right(words[d], Up), _mm_set1_epi32(int(kMask))), Place::shift(0, d)));
      }
      if (is_first) store(p + Place::at(0, c), row);
    }
  }
};

template <class... Each>
struct Planes {
  static uint32_t get(const uint8_t* p, int j, int c) { return (Each::get(p, j, c) | ...); }
  static void put(uint8_t* p, int j, int c, uint32_t codes) { (Each::put(p, j, c, codes), ...); }
  static __m128i get4(const uint8_t* p, int j, int h) {
    __m128i words = _mm_setzero_si128();
    ((words = _mm_or_si128(words, Each::get4(p, j, h))), ...);
    return words;
  }
  static void put_block(uint8_t* p, const __m128i* words) { (Each::put_block(p, words), ...); }
};

// Byte codes, and nibble codes with code i in the low and code i + 16 in the high nibble. `Stride` is the distance between
// words: 4 in a plain row, 64 in a tile, which interleaves 16 outputs.
template <int Stride>
struct BytePlace {
  static constexpr int at(int, int c) { return Stride * c; }
  static constexpr int shift(int, int) { return 0; }
};
template <int Stride>
struct NibblePlace {
  static constexpr int at(int, int c) { return Stride * (c % 4); }
  static constexpr int shift(int, int c) { return 4 * (c / 4); }
};

// One-bit codes, eight sub-blocks' bits of an input per byte; or two-bit codes, four per byte, for 128 inputs.
template <int Base>
struct BitPlace {
  static constexpr int at(int, int c) { return Base + 4 * c; }
  static constexpr int shift(int j, int) { return j; }
};
template <int Base>
struct CrumbPlace {
  static constexpr int at(int j, int c) { return Base + 32 * (j / 4) + 4 * c; }
  static constexpr int shift(int j, int) { return 2 * (j % 4); }
};
// 32 bytes of nibbles hold two consecutive sub-blocks, the first in the low nibbles (q4_k, q5_k); 64 hold four, two low (q6_k).
template <int Base>
struct PairPlace {
  static constexpr int at(int j, int c) { return Base + 32 * (j / 2) + 4 * c; }
  static constexpr int shift(int j, int) { return 4 * (j % 2); }
};
struct QuadPlace {
  static constexpr int at(int j, int c) { return 64 * (j / 4) + 32 * (j % 2) + 4 * c; }
  static constexpr int shift(int j, int) { return 4 * (j % 4 / 2); }
};
// Nibbles as in NibblePlace, from byte Base, in sub-blocks of 16 bytes.
template <int Base>
struct SubNibblePlace {
  static constexpr int at(int j, int c) { return Base + 16 * j + 4 * (c % 4); }
  static constexpr int shift(int, int c) { return 4 * (c / 4); }
};
// In a tile: bit c of 64 bytes belongs to row c; or two bits of 64 bytes belong to each of four rows.
template <int Base>
struct TileBitPlace {
  static constexpr int at(int, int) { return Base; }
  static constexpr int shift(int, int c) { return c; }
};
template <int Base>
struct TileCrumbPlace {
  static constexpr int at(int, int c) { return Base + 64 * (c / 4); }
  static constexpr int shift(int, int c) { return 2 * (c % 4); }
};

// In 32 codes of our own block formats: two bits of codes i, i + 8, i + 16 and i + 24 in byte i; or one byte per code.
template <int Base>
struct OwnCrumbPlace {
  static constexpr int at(int, int c) { return Base + 4 * (c % 2); }
  static constexpr int shift(int, int c) { return 2 * (c / 2); }
};
template <int Base>
struct FromByte {
  static constexpr int at(int j, int c) { return Base + 32 * j + 4 * c; }
  static constexpr int shift(int, int) { return 0; }
};

// One extra bit per code, such as the fifth bit of q5_0 and q5_1: bit i of a word belongs to code i.
template <int Base, int Up>
struct OneBit {
  static uint32_t get(const uint8_t* p, int, int c) {
    const uint32_t four = uint32_t(p[Base + c / 2] >> 4 * (c % 2)) & 15;
    return ((four & 1) | (four & 2) << 7 | (four & 4) << 14 | (four & 8) << 21) << Up;
  }
  static void put(uint8_t* p, int, int c, uint32_t codes) {
    const uint32_t bits = codes >> Up & 0x01010101u;
    p[Base + c / 2] |= uint8_t(((bits | bits >> 7 | bits >> 14 | bits >> 21) & 15) << 4 * (c % 2));
  }
  static __m128i get4(const uint8_t* p, int, int h) {
    const __m128i which = _mm_set1_epi64x(int64_t(0x8040201008040201));
    const __m128i first = _mm_set1_epi8(char(p[Base + 2 * h])), second = _mm_set1_epi8(char(p[Base + 2 * h + 1]));
    const __m128i is_set = _mm_cmpeq_epi8(_mm_and_si128(_mm_unpacklo_epi64(first, second), which), which);
    return _mm_and_si128(is_set, _mm_set1_epi8(1 << Up));
  }
};

// Planes of the codes in a tile; the block number of a record is always 0 there.
template <class Codes>
struct TilePlanes;
template <>
struct TilePlanes<Bytes> : Planes<Plane<8, 0, BytePlace<64>>> {};
template <>
struct TilePlanes<Nibbles> : Planes<Plane<4, 0, NibblePlace<64>>> {};
template <>
struct TilePlanes<Nibbles5> : Planes<Plane<4, 0, NibblePlace<64>>, Plane<1, 4, TileBitPlace<256>>> {};
template <>
struct TilePlanes<Nibbles6> : Planes<Plane<4, 0, NibblePlace<64>>, Plane<2, 4, TileCrumbPlace<256>>> {};
template <>
struct TilePlanes<Crumbs> : Planes<Plane<2, 0, TileCrumbPlace<0>>> {};
template <>
struct TilePlanes<Crumbs3> : Planes<Plane<2, 0, TileCrumbPlace<0>>, Plane<1, 2, TileBitPlace<128>>> {};
template <>
struct TilePlanes<E2m1> : TilePlanes<Nibbles> {};
template <>
struct TilePlanes<Iq4> : TilePlanes<Nibbles> {};

// Record layouts: kInputs values of a row in kBytes bytes. kFlip is XORed to the record's codes, which may be signed, to get
// the tile's codes. kScale and kMinimum are the byte offsets of its binary16 numbers, or kApart if they are separate streams.
// If kSubtracted, the minimum is subtracted, and the tile stores it negated. A record with steps has get_steps and put_steps
// for its block j; one with two steps for each of eight blocks also has all_steps: both of block 0, then of block 1, and so
// on.
constexpr int kApart = -1;
template <int Inputs, int Bytes, int Scale = kApart, int Minimum = kApart, bool Subtracted = false>
struct Record {
  static constexpr int kInputs = Inputs, kBytes = Bytes, kScale = Scale, kMinimum = Minimum;
  static constexpr bool kSubtracted = Subtracted;
  static constexpr uint32_t kFlip = 0;
  static void get_steps(const uint8_t*, int, uint8_t*) {}
  static void put_steps(uint8_t*, int, const uint8_t*) {}
};

template <class Format>
struct RecordOf;

template <>
struct RecordOf<SymInt8> : Record<32, 32>, Planes<Plane<8, 0, BytePlace<4>>> {
  static constexpr uint32_t kFlip = 0x80808080u;
};
template <>
struct RecordOf<SymInt4> : Record<32, 16>, Planes<Plane<4, 0, NibblePlace<4>>> {};
template <>
struct RecordOf<AsymInt4> : Record<32, 16>, Planes<Plane<4, 0, NibblePlace<4>>> {};
template <>
struct RecordOf<ZeroInt4> : RecordOf<AsymInt4> {};
template <>
struct RecordOf<ZeroInt8> : Record<32, 32>, Planes<Plane<8, 0, BytePlace<4>>> {};

// The remaining records are GGUF's blocks.
template <>
struct RecordOf<SymInt5> : Record<32, 22, 0>, Planes<Plane<4, 0, SubNibblePlace<6>>, OneBit<2, 4>> {};
template <>
struct RecordOf<AsymInt5> : Record<32, 24, 0, 2>, Planes<Plane<4, 0, SubNibblePlace<8>>, OneBit<4, 4>> {};
template <>
struct RecordOf<Iq4Nl> : Record<32, 18, 0>, Planes<Plane<4, 0, SubNibblePlace<2>>> {};
// Our own blocks in the style of GGUF's: a scale, then the planes.
template <>
struct RecordOf<SymInt3> : Record<32, 14, 0>, Planes<Plane<2, 0, OwnCrumbPlace<2>>, OneBit<10, 2>> {};
template <>
struct RecordOf<SymInt2> : Record<32, 10, 0>, Planes<Plane<2, 0, OwnCrumbPlace<2>>> {};
template <>
struct RecordOf<Nf3> : RecordOf<SymInt3> {};
template <>
struct RecordOf<Fp4> : RecordOf<Iq4Nl> {};
template <>
struct RecordOf<Nf4> : RecordOf<Iq4Nl> {};
template <>
struct RecordOf<Fp6> : Record<32, 26, 0>, Planes<Plane<4, 0, SubNibblePlace<2>>, Plane<2, 4, OwnCrumbPlace<18>>> {};
template <>
struct RecordOf<Fp8E4m3> : Record<32, 34, 0>, Planes<Plane<8, 0, FromByte<2>>> {};
template <>
struct RecordOf<Fp8E5m2> : RecordOf<Fp8E4m3> {};
// Both blocks of a record share its float32 scale.
struct FloatInFront {
  static void get_steps(const uint8_t* p, int, uint8_t* steps) { std::memcpy(steps, p, 4); }
  static void put_steps(uint8_t* p, int, const uint8_t* steps) { std::memcpy(p, steps, 4); }
};
template <>
struct RecordOf<BnbNf4> : Record<64, 36>, Planes<Plane<4, 0, SubNibblePlace<4>>> {
  static void get_steps(const uint8_t* p, int j, uint8_t* steps) { FloatInFront::get_steps(p, j, steps); }
  static void put_steps(uint8_t* p, int j, const uint8_t* steps) { FloatInFront::put_steps(p, j, steps); }
};
template <>
struct RecordOf<BnbFp4> : RecordOf<BnbNf4> {};
template <>
struct RecordOf<Fp8E4m3Fp32> : Record<64, 68>, Planes<Plane<8, 0, FromByte<4>>> {
  static void get_steps(const uint8_t* p, int j, uint8_t* steps) { FloatInFront::get_steps(p, j, steps); }
  static void put_steps(uint8_t* p, int j, const uint8_t* steps) { FloatInFront::put_steps(p, j, steps); }
};
template <>
struct RecordOf<SymInt8Fp32> : RecordOf<Fp8E4m3Fp32> {
  static constexpr uint32_t kFlip = 0x80808080u;
};
template <>
struct RecordOf<Mxfp4> : Record<32, 17>, Planes<Plane<4, 0, SubNibblePlace<1>>> {
  static void get_steps(const uint8_t* p, int, uint8_t* steps) { steps[0] = p[0]; }
  static void put_steps(uint8_t* p, int, const uint8_t* steps) { p[0] = steps[0]; }
};
template <>
struct RecordOf<Iq4Xs> : Record<256, 136, 0>, Planes<Plane<4, 0, SubNibblePlace<8>>> {
  // Bytes 2 and 3: two high bits of each step; bytes 4 ... 7: the low nibbles.
  static void get_steps(const uint8_t* p, int j, uint8_t* steps) {
    steps[0] = uint8_t((p[4 + j / 2] >> 4 * (j % 2) & 15) | (p[2 + j / 4] >> 2 * (j % 4) & 3) << 4);
  }
  static void put_steps(uint8_t* p, int j, const uint8_t* steps) {
    p[4 + j / 2] |= uint8_t((steps[0] & 15) << 4 * (j % 2));
    p[2 + j / 4] |= uint8_t((steps[0] >> 4) << 2 * (j % 4));
  }
};
// Six-bit steps of scale and minimum in the twelve bytes from byte 4: for the first four sub-blocks in the low bits of bytes
// 0 ... 3 and 4 ... 7, for the others in the nibbles of bytes 8 ... 11 and the top bits of the earlier bytes.
struct SixBitPairs {
  static __m128i all_steps(const uint8_t* p) {
    uint32_t a, b, c;
    std::memcpy(&a, p + 4, 4);
    std::memcpy(&b, p + 8, 4);
    std::memcpy(&c, p + 12, 4);
    constexpr uint32_t six = 0x3f3f3f3f, low = 0x0f0f0f0f, high = 0x30303030;
    const __m128i scales = _mm_setr_epi32(int(a & six), int((c & low) | (a >> 2 & high)), 0, 0);
    const __m128i minimums = _mm_setr_epi32(int(b & six), int((c >> 4 & low) | (b >> 2 & high)), 0, 0);
    return _mm_unpacklo_epi8(scales, minimums);
  }
  static void get_steps(const uint8_t* p, int j, uint8_t* steps) {
    p += 4;
    if (j < 4) {
      steps[0] = p[j] & 63;
      steps[1] = p[j + 4] & 63;
    } else {
      steps[0] = uint8_t((p[j + 4] & 15) | p[j - 4] >> 6 << 4);
      steps[1] = uint8_t(p[j + 4] >> 4 | p[j] >> 6 << 4);
    }
  }
  static void put_steps(uint8_t* p, int j, const uint8_t* steps) {
    p += 4;
    if (j < 4) {
      p[j] |= steps[0];
      p[j + 4] |= steps[1];
    } else {
      p[j + 4] |= uint8_t((steps[0] & 15) | (steps[1] & 15) << 4);
      p[j - 4] |= uint8_t(steps[0] >> 4 << 6);
      p[j] |= uint8_t(steps[1] >> 4 << 6);
    }
  }
};
template <>
struct RecordOf<Q4K> : Record<256, 144, 0, 2, true>, Planes<Plane<4, 0, PairPlace<16>>> {
  static __m128i all_steps(const uint8_t* p) { return SixBitPairs::all_steps(p); }
  static void get_steps(const uint8_t* p, int j, uint8_t* steps) { SixBitPairs::get_steps(p, j, steps); }
  static void put_steps(uint8_t* p, int j, const uint8_t* steps) { SixBitPairs::put_steps(p, j, steps); }
};
template <>
struct RecordOf<Q5K> : Record<256, 176, 0, 2, true>, Planes<Plane<4, 0, PairPlace<48>>, Plane<1, 4, BitPlace<16>>> {
  static __m128i all_steps(const uint8_t* p) { return SixBitPairs::all_steps(p); }
  static void get_steps(const uint8_t* p, int j, uint8_t* steps) { SixBitPairs::get_steps(p, j, steps); }
  static void put_steps(uint8_t* p, int j, const uint8_t* steps) { SixBitPairs::put_steps(p, j, steps); }
};
template <>
struct RecordOf<Q6K> : Record<256, 210, 208>, Planes<Plane<4, 0, QuadPlace>, Plane<2, 4, CrumbPlace<128>>> {
  static __m128i all_steps(const uint8_t* p) { return load(p + 192); }
  static void get_steps(const uint8_t* p, int j, uint8_t* steps) { std::memcpy(steps, p + 192 + 2 * j, 2); }
  static void put_steps(uint8_t* p, int j, const uint8_t* steps) { std::memcpy(p + 192 + 2 * j, steps, 2); }
};
template <>
struct RecordOf<Q3K> : Record<256, 110, 108>, Planes<Plane<2, 0, CrumbPlace<32>>, Plane<1, 2, BitPlace<0>>> {
  // From byte 96: eight bytes with low nibbles of steps i and i + 8; four bytes with two high bits of steps i, i + 4, i + 8,
  // i + 12.
  static __m128i all_steps(const uint8_t* p) {
    uint32_t twos;
    std::memcpy(&twos, p + 104, 4);
    const __m128i nibbles = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 96));
    const __m128i low = _mm_and_si128(_mm_unpacklo_epi64(nibbles, right(nibbles, 4)), _mm_set1_epi8(15));
    const __m128i high = _mm_setr_epi32(int(twos), int(twos >> 2), int(twos >> 4), int(twos >> 6));
    return _mm_or_si128(low, left(_mm_and_si128(high, _mm_set1_epi8(3)), 4));
  }
  static void get_steps(const uint8_t* p, int j, uint8_t* steps) {
    for (int half = 0; half < 2; ++half) {
      const int i = 2 * j + half;
      steps[half] = uint8_t((p[96 + i % 8] >> 4 * (i / 8) & 15) | (p[104 + i % 4] >> 2 * (i / 4) & 3) << 4);
    }
  }
  static void put_steps(uint8_t* p, int j, const uint8_t* steps) {
    for (int half = 0; half < 2; ++half) {
      const int i = 2 * j + half;
      p[96 + i % 8] |= uint8_t((steps[half] & 15) << 4 * (i / 8));
      p[104 + i % 4] |= uint8_t((steps[half] >> 4) << 2 * (i / 4));
    }
  }
};
template <>
struct RecordOf<Q2K> : Record<256, 84, 80, 82, true>, Planes<Plane<2, 0, CrumbPlace<16>>> {
  static __m128i all_steps(const uint8_t* p) { return load(p); }
  static void get_steps(const uint8_t* p, int j, uint8_t* steps) { std::memcpy(steps, p + 2 * j, 2); }
  static void put_steps(uint8_t* p, int j, const uint8_t* steps) { std::memcpy(p + 2 * j, steps, 2); }
};

// Steps of block b in a tile's stream, for the output with its first byte at p.
template <class Scales>
struct TileSteps {
  static void get(const uint8_t* p, int64_t b, uint8_t* steps) {
    for (int i = 0; i < Scales::kSteps; ++i) steps[i] = p[(b * Scales::kSteps + i) * kLanes];
  }
  static void put(uint8_t* p, int64_t b, const uint8_t* steps) {
    for (int i = 0; i < Scales::kSteps; ++i) p[(b * Scales::kSteps + i) * kLanes] = steps[i];
  }
  // Writes steps of 16 outputs and up to eight blocks from b, a multiple of eight: one row per step.
  static void put_rows(uint8_t* p, int64_t b, int blocks, const __m128i* rows) {
    for (int i = 0; i < 2 * blocks; ++i) store(p + (b * 2 + i) * kLanes, rows[i]);
  }
};
template <>
struct TileSteps<HalfSteps6> {
  static void get(const uint8_t* p, int64_t b, uint8_t* steps) {
    const uint8_t low = p[b / 8 * 192 + b % 8 * kLanes];
    const uint8_t high = uint8_t(p[b / 8 * 192 + 128 + b % 8 / 2 * kLanes] >> 4 * (b % 2));
    steps[0] = uint8_t((low & 15) | (high & 3) << 4);
    steps[1] = uint8_t(low >> 4 | (high & 12) << 2);
  }
  static void put(uint8_t* p, int64_t b, const uint8_t* steps) {
    p[b / 8 * 192 + b % 8 * kLanes] = uint8_t((steps[0] & 15) | (steps[1] & 15) << 4);
    p[b / 8 * 192 + 128 + b % 8 / 2 * kLanes] |= uint8_t((steps[0] >> 4 | steps[1] >> 4 << 2) << 4 * (b % 2));
  }
  static void put_rows(uint8_t* p, int64_t b, int blocks, const __m128i* rows) {
    const __m128i low = _mm_set1_epi8(15), high = _mm_set1_epi8(3);
    p += b / 8 * 192;
    __m128i twos[4] = {};
    for (int i = 0; i < blocks; ++i) {
      const __m128i *const s = rows + 2 * i;
      store(p + i * kLanes, _mm_or_si128(_mm_and_si128(s[0], low), left(_mm_and_si128(s[1], low), 4)));
      const __m128i both = _mm_or_si128(_mm_and_si128(right(s[0], 4), high), left(_mm_and_si128(right(s[1], 4), high), 2));
      twos[i / 2] = _mm_or_si128(twos[i / 2], left(both, 4 * (i % 2)));
    }
    for (int i = 0; i < 4; ++i) store(p + 128 + i * kLanes, twos[i]);
  }
};
template <>
struct TileSteps<FloatScale> {
  static void get(const uint8_t* p, int64_t b, uint8_t* steps) {
    for (int i = 0; i < 4; ++i) steps[i] = p[b / 2 * 64 + i * kLanes];
  }
  static void put(uint8_t* p, int64_t b, const uint8_t* steps) {
    for (int i = 0; i < 4; ++i) p[b / 2 * 64 + i * kLanes] = steps[i];
  }
};

}  // namespace ipex_lookahead
