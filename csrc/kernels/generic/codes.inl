// Unpacking of a tile's codes from memory to registers, written once against the byte operations of <isa>/simd.h: u8x64 (a tile
// row), load64, mask8 (one byte everywhere), bor, shr, shl, lookup (in a table of 16).

// Prefetch distance of weights into L2: longer than the hardware's, and not into L1, where the few outstanding misses limit the
// stream (4 rows out of DRAM: 18 -> 12 ns per block).
constexpr int64_t kPrefetchBytes = 8192;

SIMD_INLINE void prefetch_ahead(const uint8_t* p, int64_t ahead, int64_t bytes) {
  const uint8_t* at = p + ahead;
  __asm__("" : "+r"(at));  // one address plus displacements, not a register for each line
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, 2);
}

SIMD_INLINE void unpack(const uint8_t* p, u8x64 (&w)[8], Bytes) {
  for (int c = 0; c < 8; ++c) w[c] = load64(p + 64 * c);
}
SIMD_INLINE void unpack(const uint8_t* p, u8x64 (&w)[8], Nibbles) {
  for (int c = 0; c < 4; ++c) {
    const u8x64 x = load64(p + 64 * c);
    w[c] = mask8(x, 15);
    w[c + 4] = mask8(shr<4>(x), 15);
  }
}

// (x >> From << To) & mask: moves a bit from position From to To.
template <int From, int To>
SIMD_INLINE u8x64 moved(u8x64 x, uint8_t mask) {
  return mask8(shl<(To > From ? To - From : 0)>(shr<(From > To ? From - To : 0)>(x)), mask);
}
SIMD_INLINE void unpack(const uint8_t* p, u8x64 (&w)[8], Nibbles5) {
  unpack(p, w, Nibbles{});
  const u8x64 x = load64(p + 256);
  w[0] = bor(w[0], moved<0, 4>(x, 16));
  w[1] = bor(w[1], moved<1, 4>(x, 16));
  w[2] = bor(w[2], moved<2, 4>(x, 16));
  w[3] = bor(w[3], moved<3, 4>(x, 16));
  w[4] = bor(w[4], mask8(x, 16));
  w[5] = bor(w[5], moved<5, 4>(x, 16));
  w[6] = bor(w[6], moved<6, 4>(x, 16));
  w[7] = bor(w[7], moved<7, 4>(x, 16));
}
SIMD_INLINE void unpack(const uint8_t* p, u8x64 (&w)[8], Nibbles6) {
  unpack(p, w, Nibbles{});
  for (int h = 0; h < 2; ++h) {
    const u8x64 x = load64(p + 256 + 64 * h);
    w[4 * h] = bor(w[4 * h], moved<0, 4>(x, 48));
    w[4 * h + 1] = bor(w[4 * h + 1], moved<2, 4>(x, 48));
    w[4 * h + 2] = bor(w[4 * h + 2], mask8(x, 48));
    w[4 * h + 3] = bor(w[4 * h + 3], moved<6, 4>(x, 48));
  }
}
SIMD_INLINE void unpack(const uint8_t* p, u8x64 (&w)[8], Crumbs) {
  for (int h = 0; h < 2; ++h) {
    const u8x64 x = load64(p + 64 * h);
    w[4 * h] = mask8(x, 3);
    w[4 * h + 1] = moved<2, 0>(x, 3);
    w[4 * h + 2] = moved<4, 0>(x, 3);
    w[4 * h + 3] = moved<6, 0>(x, 3);
  }
}
SIMD_INLINE void unpack(const uint8_t* p, u8x64 (&w)[8], Crumbs3) {
  unpack(p, w, Crumbs{});
  const u8x64 x = load64(p + 128);
  w[0] = bor(w[0], moved<0, 2>(x, 4));
  w[1] = bor(w[1], moved<1, 2>(x, 4));
  w[2] = bor(w[2], mask8(x, 4));
  w[3] = bor(w[3], moved<3, 2>(x, 4));
  w[4] = bor(w[4], moved<4, 2>(x, 4));
  w[5] = bor(w[5], moved<5, 2>(x, 4));
  w[6] = bor(w[6], moved<6, 2>(x, 4));
  w[7] = bor(w[7], moved<7, 2>(x, 4));
}
template <class Table>
SIMD_INLINE void unpack_table(const uint8_t* p, u8x64 (&w)[8]) {
  unpack(p, w, Nibbles{});
  for (int c = 0; c < 8; ++c) w[c] = lookup(Table::kTable, w[c]);
}
SIMD_INLINE void unpack(const uint8_t* p, u8x64 (&w)[8], E2m1) { unpack_table<E2m1>(p, w); }
SIMD_INLINE void unpack(const uint8_t* p, u8x64 (&w)[8], Iq4) { unpack_table<Iq4>(p, w); }
