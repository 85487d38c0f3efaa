// Codes of a tile from memory to registers, written once against the byte operations of <isa>/simd.h: u8x64, a row of a
// tile, with load64, band (with one byte everywhere), shr.

SIMD_INLINE void unpack(const uint8_t* p, u8x64 (&w)[8], Bytes) {
  for (int c = 0; c < 8; ++c) w[c] = load64(p + 64 * c);
}
SIMD_INLINE void unpack(const uint8_t* p, u8x64 (&w)[8], Nibbles) {
  for (int c = 0; c < 4; ++c) {
    const u8x64 x = load64(p + 64 * c);
    w[c] = band(x, 15);
    w[c + 4] = band(shr<4>(x), 15);
  }
}

template <class Codes>
SIMD_INLINE CodeTile<Codes::kMost> unpack(const uint8_t* p) {
  u8x64 w[8];
  unpack(p, w, Codes{});
  return CodeTile<Codes::kMost>(w);
}
