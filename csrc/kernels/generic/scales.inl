// Scales of a tile. A policy is made for one tile, `at` loads what block b needs for all rows, `add` adds the block's
// product with one row to its accumulator: acc + sum of codes * activations, scaled. The dot products are whole numbers,
// exact in any order; every float operation stands here, once, in its order.

// One row of activations at one block.
struct RowBlock {
  const int8_t* codes;
  float scale, sum;      // sum = scale * sum of the codes
  int32_t bias4, bias8;  // -8 and -128 times the sum of the codes
};

template <class Format>
SIMD_INLINE int32_t start_of(const RowBlock& x) {  // undoes the codes' zero point
  static_assert(Format::kZero % 8 == 0, "a multiple of bias4");
  return Format::kZero == 0 ? 0 : Format::kZero == 128 ? x.bias8 : x.bias4 * (Format::kZero / 8);
}

// Two blocks' scales, 16 x binary16 each, are a cache line.
template <class Format>
SIMD_INLINE void prefetch_scales(const uint16_t* at, int64_t block) {
  constexpr int64_t ahead = kPrefetchBytes / Format::Codes::kBytes * kLanes * 2;
  if (block % 2 == 0) prefetch_ahead(reinterpret_cast<const uint8_t*>(at), ahead, 64);
}

SIMD_INLINE int shift_of(const Matrix& w) { return w.group_blocks == 2 ? 1 : 0; }
SIMD_INLINE int64_t scales_of(const Matrix& w) { return (w.blocks + w.group_blocks - 1) / w.group_blocks; }

template <class Format, class Kind>
struct ScalesOf;

template <class Format>
struct ScalesOf<Format, GroupScale> {
  const uint16_t* scales;
  int shift;

  SIMD_METHOD ScalesOf(const Matrix& w, int64_t tile)
      : scales(w.scales + tile * scales_of(w) * kLanes), shift(shift_of(w)) {}
  SIMD_METHOD void prefetch(int64_t b) const { prefetch_scales<Format>(scales + (b >> shift) * kLanes, b); }

  struct Block {
    static constexpr bool kMinimum = false;
    f32x16 scale;
    SIMD_METHOD f32x16 add(f32x16 acc, const CodeTile<Format::Codes::kMost>& t, const RowBlock& x) const {
      const f32x16 sum = to_float(dot(t, x.codes, start_of<Format>(x)));
      return fma(sum, mul(scale, set1(x.scale)), acc);
    }
    SIMD_METHOD f32x16 scale_of(int) const { return scale; }
    SIMD_METHOD f32x16 minimum_of(int) const { return zero(); }
  };
  SIMD_METHOD Block at(int64_t b) const { return {load_f16(scales + (b >> shift) * kLanes)}; }
};

template <class Format>
struct ScalesOf<Format, GroupScaleAndMinimum> {
  const uint16_t *scales, *minimums;
  int shift;

  SIMD_METHOD ScalesOf(const Matrix& w, int64_t tile)
      : scales(w.scales + tile * scales_of(w) * kLanes),
        minimums(w.minimums + tile * scales_of(w) * kLanes),
        shift(shift_of(w)) {}
  SIMD_METHOD void prefetch(int64_t b) const {
    prefetch_scales<Format>(scales + (b >> shift) * kLanes, b);
    prefetch_scales<Format>(minimums + (b >> shift) * kLanes, b);
  }

  struct Block {
    static constexpr bool kMinimum = true;
    f32x16 scale, minimum;
    SIMD_METHOD f32x16 add(f32x16 acc, const CodeTile<Format::Codes::kMost>& t, const RowBlock& x) const {
      const f32x16 sum = to_float(dot(t, x.codes, start_of<Format>(x)));
      acc = fma(minimum, set1(x.sum), acc);
      return fma(sum, mul(scale, set1(x.scale)), acc);
    }
    SIMD_METHOD f32x16 scale_of(int) const { return scale; }
    SIMD_METHOD f32x16 minimum_of(int) const { return minimum; }
  };
  SIMD_METHOD Block at(int64_t b) const {
    return {load_f16(scales + (b >> shift) * kLanes), load_f16(minimums + (b >> shift) * kLanes)};
  }
};
