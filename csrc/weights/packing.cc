#include "weights/packing.h"

#include <algorithm>
#include <cstring>

namespace ipex_lookahead {
namespace {

int float_size(WeightFormat f) { return f == WeightFormat::fp32 ? 4 : 2; }
bool is_int8(WeightFormat f) { return f == WeightFormat::sym_int8; }
int64_t tile_bytes(WeightFormat f) { return is_int8(f) ? 512 : 256; }  // 16 outputs x 32 inputs

// Copies between [lane][i] (stride row_bytes) and tile order [i][lane] for elements of T.
template <typename T>
void transpose_floats(T* tile, T* plain, int64_t n_in, int64_t lanes, bool to_tile) {
  for (int64_t k = 0; k < n_in; ++k)
    for (int64_t lane = 0; lane < lanes; ++lane) {
      T& a = tile[k * kLanes + lane];
      T& b = plain[lane * n_in + k];
      to_tile ? void(a = b) : void(b = a);
    }
}

// Both int4's 16-byte and int8's 32-byte plain blocks become tiles by moving 4 bytes at a time: the nibble order of a
// plain block is the tile's own. Int8 codes change their bias on the way.
void transpose_codes(uint8_t* tile, uint8_t* plain, int64_t row_bytes, int64_t blocks, int64_t lanes, bool int8,
                     bool to_tile) {
  const int chunks = int8 ? 8 : 4;
  const uint32_t flip = int8 ? 0x80808080u : 0u;
  for (int64_t b = 0; b < blocks; ++b)
    for (int c = 0; c < chunks; ++c)
      for (int64_t lane = 0; lane < lanes; ++lane) {
        uint8_t* t = tile + (b * chunks + c) * 64 + lane * 4;
        uint8_t* p = plain + lane * row_bytes + (b * chunks + c) * 4;
        uint32_t word;
        std::memcpy(&word, to_tile ? p : t, 4);
        word ^= flip;
        std::memcpy(to_tile ? t : p, &word, 4);
      }
}

// One tile between the two orders.
void convert_tile(const Matrix& m, int64_t tile, uint8_t* plain_codes, uint16_t* plain_scales, uint16_t* plain_minimums,
                  bool to_tile) {
  const int64_t row = tile * kLanes;
  const int64_t lanes = std::min<int64_t>(kLanes, m.n_out - row);
  const int64_t row_bytes = code_bytes(m.format, m.n_in);
  uint8_t* plain = plain_codes + row * row_bytes;
  if (is_float(m.format)) {
    uint8_t* at = const_cast<uint8_t*>(m.codes) + tile * m.n_in * kLanes * float_size(m.format);
    if (m.format == WeightFormat::fp32)
      transpose_floats(reinterpret_cast<uint32_t*>(at), reinterpret_cast<uint32_t*>(plain), m.n_in, lanes, to_tile);
    else
      transpose_floats(reinterpret_cast<uint16_t*>(at), reinterpret_cast<uint16_t*>(plain), m.n_in, lanes, to_tile);
    return;
  }
  uint8_t* at = const_cast<uint8_t*>(m.codes) + tile * m.blocks * tile_bytes(m.format);
  transpose_codes(at, plain, row_bytes, m.blocks, lanes, is_int8(m.format), to_tile);
  const int64_t groups = (m.blocks + m.group_blocks - 1) / m.group_blocks;
  auto transpose = [&](const uint16_t* packed, uint16_t* rows) {
    uint16_t* p = const_cast<uint16_t*>(packed) + tile * groups * kLanes;
    transpose_floats(p, rows + row * groups, groups, lanes, to_tile);
  };
  transpose(m.scales, plain_scales);
  if (m.minimums != nullptr) transpose(m.minimums, plain_minimums);
}

}  // namespace

int64_t code_bytes(WeightFormat format, int64_t n_in) {
  if (is_float(format)) return n_in * float_size(format);
  return (n_in + kGroup - 1) / kGroup * (is_int8(format) ? 32 : 16);
}

int64_t groups_of(WeightFormat format, int64_t n_in, int group) {
  return is_float(format) ? 0 : (n_in + group - 1) / group;
}

Matrix prepack(const PlainMatrix& plain, Arena& arena, Crew& crew) {
  Matrix m;
  m.format = plain.format;
  m.n_out = plain.n_out;
  m.n_in = plain.n_in;
  m.blocks = int32_t((plain.n_in + kGroup - 1) / kGroup);
  if (is_float(plain.format)) {
    m.codes = static_cast<uint8_t*>(arena.take(size_t(m.tiles() * kLanes * code_bytes(m.format, m.n_in))));
  } else {
    m.group_blocks = plain.group / kGroup;
    const size_t scale_bytes = size_t(m.tiles() * kLanes * groups_of(m.format, m.n_in, plain.group)) * 2;
    m.codes = static_cast<uint8_t*>(arena.take(size_t(m.tiles() * m.blocks * tile_bytes(m.format))));
    m.scales = static_cast<uint16_t*>(arena.take(scale_bytes));
    if (plain.minimums != nullptr) m.minimums = static_cast<uint16_t*>(arena.take(scale_bytes));
  }
  crew.for_each(m.tiles(), [&](int64_t tile) {
    convert_tile(m, tile, static_cast<uint8_t*>(const_cast<void*>(plain.codes)), const_cast<uint16_t*>(plain.scales),
                 const_cast<uint16_t*>(plain.minimums), true);
  });
  return m;
}

void unpack(const Matrix& m, void* codes, uint16_t* scales, uint16_t* minimums, Crew& crew) {
  crew.for_each(m.tiles(),
                [&](int64_t tile) { convert_tile(m, tile, static_cast<uint8_t*>(codes), scales, minimums, false); });
}

}  // namespace ipex_lookahead
