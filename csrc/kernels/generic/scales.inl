// Scales of a tile. A `Scaling` belongs to one tile; `at` loads what all rows need for block b, as one of three kinds of
// block. `weigh` converts its codes to the operand of the dot products, and `add_dots` returns acc + sum of weights *
// activations of a row from kDots dot products of (code - kZero): of the whole block or of its halves. Dot products are
// integers, exact in any order (`add_rows`); every float operation is defined here, once, in its order.

// One row of activations at one block.
struct RowBlock {
  const int8_t* codes;
  float scale, sum;      // sum = scale * sum of the codes
  int32_t bias4, bias8;  // -8 and -128 times the sum of the codes
  int32_t halves;        // the sums of its halves, as in Rows
};

// Initial values of sums of codes, equivalent to subtracting Zero from each code; and the sums of one half.
template <int Zero>
SIMD_INLINE i32x16 start_of(const RowBlock& x) {
  return set1_i32(Zero == 0 ? 0 : Zero == 8 ? x.bias4 : Zero == 128 ? x.bias8 : (x.bias4 >> 3) * Zero);
}
template <int Zero, int Half>
SIMD_INLINE i32x16 start_of_half(const RowBlock& x) {
  if (Zero == 0) return set1_i32(0);
  return dot_pairs(set_pairs(Half == 0 ? -Zero : 0, Half == 0 ? 0 : -Zero), x.halves);
}

// acc[m] + sum of weights * activations, for M consecutive rows.
template <int Zero, class Block, int M>
SIMD_INLINE void add_rows(const Block& scaled, const typename Block::Tile& codes, const RowBlock (&x)[M], f32x16* acc) {
  constexpr int left = Zero - Block::Tile::kTaken;
  f32x16 dots[M][Block::kDots];
  i32x16 sums[M];
  if constexpr (Block::kDots == 1) {
    for (int m = 0; m < M; ++m) sums[m] = start_of<left>(x[m]);
    add_products<0, 8>(codes, x[0].codes, sums);
    for (int m = 0; m < M; ++m) dots[m][0] = to_float(sums[m]);
  } else {
    for (int m = 0; m < M; ++m) sums[m] = start_of_half<left, 0>(x[m]);
    add_products<0, 4>(codes, x[0].codes, sums);
    for (int m = 0; m < M; ++m) {
      dots[m][0] = to_float(sums[m]);
      sums[m] = start_of_half<left, 1>(x[m]);
    }
    add_products<4, 4>(codes, x[0].codes, sums);
    for (int m = 0; m < M; ++m) dots[m][1] = to_float(sums[m]);
  }
  for (int m = 0; m < M; ++m) acc[m] = scaled.add_dots(acc[m], dots[m], x[m]);
}

// One scale, and optionally a minimum, for the 32 inputs.
template <class Format>
struct WholeBlock {
  static constexpr int kDots = 1;
  using Tile = CodeTile<Format::Codes::kMaxCode>;
  f32x16 scale, minimum;

  SIMD_METHOD void weigh(u8x64 (&)[8]) const {}
  SIMD_METHOD f32x16 add_dots(f32x16 acc, const f32x16 (&dots)[1], const RowBlock& x) const {
    f32x16 sum = dots[0];
    if (kZeroPoint<typename Format::Scales>)
      sum = fma(minimum, set1(float(x.bias8 >> 7)), sum);  // integers below 2^22: exact
    else if (Format::Scales::kMinimum)
      acc = fma(minimum, set1(x.sum), acc);
    return fma(sum, mul(scale, set1(x.scale)), acc);
  }
  SIMD_METHOD f32x16 scale_of(int) const { return scale; }
  SIMD_METHOD f32x16 minimum_of(int) const { return minimum; }
};

// A step for each 16 inputs. step * dot is an integer below 2^24 (at most 2 * 16 * 32 * 127 * 128 for both halves, in q6_k),
// so only the final fma rounds.
template <class Format>
struct HalvedBlock {
  static constexpr int kDots = 2;
  using Tile = CodeTile<Format::Codes::kMaxCode>;
  f32x16 scale;
  f32x16 steps[2];

  SIMD_METHOD void weigh(u8x64 (&)[8]) const {}
  SIMD_METHOD f32x16 add_dots(f32x16 acc, const f32x16 (&dots)[2], const RowBlock& x) const {
    return fma(fma(dots[1], steps[1], mul(dots[0], steps[0])), mul(scale, set1(x.scale)), acc);
  }
  SIMD_METHOD f32x16 scale_of(int half) const { return mul(scale, steps[half]); }
  SIMD_METHOD f32x16 minimum_of(int) const { return zero(); }
};

// A step below 16 for each 16 inputs, and minimums. With SIMD_WEIGHED_CODES, products of 2-bit codes and steps are looked up
// once for all rows; if a tile fills the registers, that costs one row more than it saves for many.
template <class Format>
struct SteppedBlock {
  f32x16 scale, minimum;
  i32x16 steps[2], minimum_steps[2];

#ifdef SIMD_WEIGHED_CODES
  static_assert(Format::kZero == 0 && Format::Codes::kMaxCode == 3, "products are looked up by two bits");
  static constexpr int kDots = 1;
  using Tile = CodeTile<3 * 15>;
  SIMD_METHOD void weigh(u8x64 (&codes)[8]) const {
    const u8x64 first = multiples(steps[0]), second = multiples(steps[1]);
    for (int c = 0; c < 4; ++c) codes[c] = lookup4(first, codes[c]);
    for (int c = 4; c < 8; ++c) codes[c] = lookup4(second, codes[c]);
  }
  SIMD_METHOD f32x16 product(const f32x16 (&dots)[1]) const { return dots[0]; }
#else
  static constexpr int kDots = 2;
  using Tile = CodeTile<Format::Codes::kMaxCode>;
  SIMD_METHOD void weigh(u8x64 (&)[8]) const {}
  SIMD_METHOD f32x16 product(const f32x16 (&dots)[2]) const {
    return fma(dots[1], to_float(steps[1]), mul(dots[0], to_float(steps[0])));
  }
#endif
  SIMD_METHOD f32x16 add_dots(f32x16 acc, const f32x16 (&dots)[kDots], const RowBlock& x) const {
    const f32x16 sum = to_float(dot_pairs(bor(minimum_steps[0], shl<16>(minimum_steps[1])), x.halves));
    acc = fma(sum, mul(minimum, set1(x.scale)), acc);
    return fma(product(dots), mul(scale, set1(x.scale)), acc);
  }
  SIMD_METHOD f32x16 scale_of(int half) const { return mul(scale, to_float(steps[half])); }
  SIMD_METHOD f32x16 minimum_of(int half) const { return mul(minimum, to_float(minimum_steps[half])); }
};

// Prefetches a stream of `Bytes` per block in addition to the codes, a cache line at a time.
template <int Bytes, class T>
SIMD_INLINE void prefetch_stream(const T* at, int64_t block, int64_t blocks_ahead) {
  if (block % (64 / Bytes) == 0) prefetch_ahead(reinterpret_cast<const uint8_t*>(at), blocks_ahead * Bytes, 64);
}

// Common part of the policies: the tile's streams, and the index of a block's scale.
template <class Format>
struct ScaleStreams {
  using Scales = typename Format::Scales;
  const uint16_t *scales, *minimums;
  const uint8_t* steps;
  int shift;

  SIMD_METHOD ScaleStreams(const Matrix& w, int64_t tile) {
    const int groups = __builtin_ctz(uint32_t(w.group_blocks));  // a power of two: a division would be measurable
    const int64_t first = tile * ((w.blocks + w.group_blocks - 1) >> groups) * kLanes;
    scales = w.scales + first;
    minimums = Scales::kMinimum ? w.minimums + first : nullptr;
    steps = Scales::kSteps ? w.steps + tile * step_bytes<Scales>(w.blocks) : nullptr;
    shift = Scales::kBlocks == 8 ? 3 : groups;
  }
  SIMD_METHOD int64_t scale_at(int64_t b) const { return (b >> shift) * kLanes; }
  SIMD_METHOD void prefetch(int64_t b, int64_t blocks_ahead) const {
    constexpr int bytes = Scales::kBlocks == 8 ? 4 : 32;  // as if each block had its own scale: harmless
    constexpr int step = 16 * (Scales::kSteps ? Scales::kSteps : 1);
    if (kHalves<Scales>) prefetch_stream<bytes>(scales + scale_at(b), b, blocks_ahead);
    if (Scales::kMinimum) prefetch_stream<bytes>(minimums + scale_at(b), b, blocks_ahead);
    if (Scales::kSteps) prefetch_stream<step>(steps + step_bytes<Scales>(b), b, blocks_ahead);
  }
  SIMD_METHOD f32x16 scale(int64_t b) const { return load_f16(scales + scale_at(b)); }
  SIMD_METHOD f32x16 minimum(int64_t b) const { return Scales::kMinimum ? load_f16(minimums + scale_at(b)) : zero(); }
  SIMD_METHOD const uint8_t* step(int64_t b) const { return steps + b * 16 * Scales::kSteps; }
};

template <class Format, class Scales = typename Format::Scales>
struct Scaling : ScaleStreams<Format> {  // GroupScale, GroupScaleAndMinimum, GroupScaleAndZero
  using ScaleStreams<Format>::ScaleStreams;
  SIMD_METHOD WholeBlock<Format> at(int64_t b) const {
    f32x16 minimum = this->minimum(b);
    if (kZeroPoint<Scales> && Format::kZero != 0) minimum = sub(minimum, set1(float(Format::kZero)));  // like the codes
    return {this->scale(b), minimum};
  }
};

template <class Format>
struct Scaling<Format, HalvedGroupScale> : ScaleStreams<Format> {
  using ScaleStreams<Format>::ScaleStreams;
  SIMD_METHOD WholeBlock<Format> at(int64_t b) const { return {mul(this->scale(b), set1(0.5f)), zero()}; }
};

template <class Format>
struct Scaling<Format, ExponentScale> : ScaleStreams<Format> {
  using ScaleStreams<Format>::ScaleStreams;
  SIMD_METHOD WholeBlock<Format> at(int64_t b) const { return {load_half_powers(this->step(b)), zero()}; }
};

template <class Format>
struct Scaling<Format, FloatScale> : ScaleStreams<Format> {
  using ScaleStreams<Format>::ScaleStreams;
  SIMD_METHOD WholeBlock<Format> at(int64_t b) const {
    const uint8_t* bytes = this->steps + b / 2 * 64;
    const i32x16 low = bor(widen_u8(bytes), shl<8>(widen_u8(bytes + 16)));
    const i32x16 high = bor(shl<16>(widen_u8(bytes + 32)), shl<24>(widen_u8(bytes + 48)));
    return {as_float(bor(low, high)), zero()};
  }
};

SIMD_INLINE f32x16 less_32(i32x16 step) { return sub(to_float(step), set1(32.0f)); }

template <class Format>
struct Scaling<Format, StepScale> : ScaleStreams<Format> {
  using ScaleStreams<Format>::ScaleStreams;
  SIMD_METHOD WholeBlock<Format> at(int64_t b) const {
    return {mul(this->scale(b), less_32(widen_u8(this->step(b)))), zero()};
  }
};

template <class Format>
struct Scaling<Format, StepScaleAndMinimum> : ScaleStreams<Format> {
  using ScaleStreams<Format>::ScaleStreams;
  SIMD_METHOD WholeBlock<Format> at(int64_t b) const {
    const uint8_t* step = this->step(b);
    return {mul(this->scale(b), to_float(widen_u8(step))), mul(this->minimum(b), to_float(widen_u8(step + 16)))};
  }
};

template <class Format>
struct Scaling<Format, HalfSteps> : ScaleStreams<Format> {
  using ScaleStreams<Format>::ScaleStreams;
  SIMD_METHOD HalvedBlock<Format> at(int64_t b) const {
    const int8_t* step = reinterpret_cast<const int8_t*>(this->step(b));
    return {this->scale(b), {load_i8(step), load_i8(step + 16)}};
  }
};

template <class Format>
struct Scaling<Format, HalfSteps6> : ScaleStreams<Format> {
  using ScaleStreams<Format>::ScaleStreams;
  SIMD_METHOD HalvedBlock<Format> at(int64_t b) const {
    const uint8_t* eight = this->steps + b / 8 * 192;
    const i32x16 low = widen_u8(eight + b % 8 * 16), pair = widen_u8(eight + 128 + b % 8 / 2 * 16);
    const i32x16 high = b % 2 ? shr<4>(pair) : pair;
    const i32x16 first = add(mask32(low, 15), shl<4>(mask32(high, 3)));
    const i32x16 second = add(shr<4>(low), shl<2>(mask32(high, 12)));
    return {this->scale(b), {less_32(first), less_32(second)}};
  }
};

template <class Format>
struct Scaling<Format, HalfStepsAndMinimums> : ScaleStreams<Format> {
  using ScaleStreams<Format>::ScaleStreams;
  SIMD_METHOD SteppedBlock<Format> at(int64_t b) const {
    const i32x16 first = widen_u8(this->step(b)), second = widen_u8(this->step(b) + 16);
    return {this->scale(b), this->minimum(b), {mask32(first, 15), mask32(second, 15)}, {shr<4>(first), shr<4>(second)}};
  }
};
