// Where a code's bits lie: in a plain row, as files hold it, and in a tile, as the kernels read it (kernels/formats.h).
//
// Both are made of planes. A plane holds some bits of every code; the 32 codes of a block come from it as eight words of
// four, one code a byte. Converting a block moves each word's bits from the planes of one side to those of the other.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/formats.h"

namespace ipex_lookahead {

// `Bits` bits of every code, which are the code's bits from `Up` on. The word of codes 4 c ... 4 c + 3 of a record's
// block j lies at byte Place::at(j, c), Place::shift(j, c) bits up in each byte.
template <int Bits, int Up, class Place>
struct Plane {
  static constexpr uint32_t kMask = 0x01010101u * ((1u << Bits) - 1);
  static uint32_t get(const uint8_t* p, int j, int c) {
    uint32_t word;
    std::memcpy(&word, p + Place::at(j, c), 4);
    return (word >> Place::shift(j, c) & kMask) << Up;
  }
  static void put(uint8_t* p, int j, int c, uint32_t codes) {  // into bits that are zero
    uint32_t word;
    std::memcpy(&word, p + Place::at(j, c), 4);
    word |= (codes >> Up & kMask) << Place::shift(j, c);
    std::memcpy(p + Place::at(j, c), &word, 4);
  }
};

template <class... Each>
struct Planes {
  static uint32_t get(const uint8_t* p, int j, int c) { return (Each::get(p, j, c) | ...); }
  static void put(uint8_t* p, int j, int c, uint32_t codes) { (Each::put(p, j, c, codes), ...); }
};

// Codes 4 c ... of one byte each, and of a nibble: code i low and code i + 16 high. `Stride` is what a step of c moves by:
// 4 in a plain row, 64 in a tile, where 16 outputs lie between.
template <int Stride>
struct BytePlace {
  static int at(int, int c) { return Stride * c; }
  static int shift(int, int) { return 0; }
};
template <int Stride>
struct NibblePlace {
  static int at(int, int c) { return Stride * (c % 4); }
  static int shift(int, int c) { return 4 * (c / 4); }
};

// Planes of the codes in a tile; a record's block number is always 0 there.
template <class Codes>
struct TilePlanes;
template <>
struct TilePlanes<Bytes> : Planes<Plane<8, 0, BytePlace<64>>> {};
template <>
struct TilePlanes<Nibbles> : Planes<Plane<4, 0, NibblePlace<64>>> {};

// Records of plain codes: kInputs of a row in kBytes. kFlip is what a tile's codes differ by from the record's, which may
// be signed.
template <class Format>
struct RecordOf;

struct NibbleRecord : Planes<Plane<4, 0, NibblePlace<4>>> {
  static constexpr int kInputs = 32, kBytes = 16;
  static constexpr uint32_t kFlip = 0;
};
template <>
struct RecordOf<SymInt8> : Planes<Plane<8, 0, BytePlace<4>>> {
  static constexpr int kInputs = 32, kBytes = 32;
  static constexpr uint32_t kFlip = 0x80808080u;
};
template <>
struct RecordOf<SymInt4> : NibbleRecord {};
template <>
struct RecordOf<AsymInt4> : NibbleRecord {};

}  // namespace ipex_lookahead
