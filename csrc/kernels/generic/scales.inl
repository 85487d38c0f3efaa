// Scales of a tile. `Scaling` is made for one tile; `at` loads what block b needs for all rows, as one of two kinds of block,
// whose `add` adds the block's product with one row to its accumulator: acc + sum of weights * activations. The dot
// products are whole numbers, exact in any order; every float operation stands here, once, in its order.

// One row of activations at one block.
struct RowBlock {
  const int8_t* codes;
  float scale, sum;      // sum = scale * sum of the codes
  int32_t bias4, bias8;  // -8 and -128 times the sum of the codes
};

template <class Format>
SIMD_INLINE int32_t start_of(const RowBlock& x) {  // undoes the codes' zero point
  return Format::kZero == 0 ? 0 : Format::kZero == 8 ? x.bias4 : Format::kZero == 128 ? x.bias8 : (x.bias4 >> 3) * Format::kZero;
}

// One scale, and perhaps a minimum, for the 32 inputs.
template <class Format>
struct WholeBlock {
  f32x16 scale, minimum;

  SIMD_METHOD f32x16 add(f32x16 acc, const CodeTile<Format::Codes::kMost>& t, const RowBlock& x) const {
    return add_dot(acc, to_float(dot(t, x.codes, start_of<Format>(x))), x.scale, x.sum);
  }
  SIMD_METHOD f32x16 add_dot(f32x16 acc, f32x16 sum, float x_scale, float x_sum) const {
    if (Format::Scales::kMinimum) acc = fma(minimum, set1(x_sum), acc);
    return fma(sum, mul(scale, set1(x_scale)), acc);
  }
  SIMD_METHOD f32x16 scale_of(int) const { return scale; }
  SIMD_METHOD f32x16 minimum_of(int) const { return minimum; }
};

// A step for each 16 inputs. step * dot is a whole number below 2^24 (at most 2 * 16 * 32 * 127 * 128 for both halves, in
// q6_k), so that the only rounding is that of the fma at the end.
template <class Format>
struct HalvedBlock {
  f32x16 scale, minimum;
  f32x16 steps[2], minimum_steps[2];

  SIMD_METHOD f32x16 add(f32x16 acc, const CodeTile<Format::Codes::kMost>& t, const RowBlock& x) const {
    const int32_t first = sum16(x.codes), second = -(x.bias8 >> 7) - first;
    const f32x16 a = to_float(dot_half<0>(t, x.codes, -Format::kZero * first));
    const f32x16 b = to_float(dot_half<1>(t, x.codes + 16, -Format::kZero * second));
    f32x16 sum = zero();
    if (Format::Scales::kMinimum)
      sum = fma(set1(float(second)), minimum_steps[1], mul(set1(float(first)), minimum_steps[0]));
    return add_dots(acc, a, b, sum, x.scale);
  }
  // The halves' dot products, and the minimums' steps times the sums of the halves' codes.
  SIMD_METHOD f32x16 add_dots(f32x16 acc, f32x16 a, f32x16 b, f32x16 minimum_sum, float x_scale) const {
    if (Format::Scales::kMinimum) acc = fma(minimum_sum, mul(minimum, set1(x_scale)), acc);
    return fma(fma(b, steps[1], mul(a, steps[0])), mul(scale, set1(x_scale)), acc);
  }
  SIMD_METHOD f32x16 scale_of(int half) const { return mul(scale, steps[half]); }
  SIMD_METHOD f32x16 minimum_of(int half) const { return mul(minimum, minimum_steps[half]); }
};

// `Bytes` a block of a stream beside the codes, fetched a cache line at a time.
template <class Format, int Bytes, class T>
SIMD_INLINE void prefetch_beside(const T* at, int64_t block) {
  constexpr int64_t ahead = kPrefetchBytes / Format::Codes::kBytes * Bytes;
  if (block % (64 / Bytes) == 0) prefetch_ahead(reinterpret_cast<const uint8_t*>(at), ahead, 64);
}

// What the policies have in common: where the tile's streams begin, and which scale a block has.
template <class Format>
struct ScaleStreams {
  using Scales = typename Format::Scales;
  const uint16_t *scales, *minimums;
  const uint8_t* steps;
  int shift;

  SIMD_METHOD ScaleStreams(const Matrix& w, int64_t tile) {
    const int64_t first = tile * ((w.blocks + w.group_blocks - 1) / w.group_blocks) * kLanes;
    scales = w.scales + first;
    minimums = Scales::kMinimum ? w.minimums + first : nullptr;
    steps = Scales::kSteps ? w.steps + tile * step_bytes<Scales>(w.blocks) : nullptr;
    shift = Scales::kBlocks == 8 ? 3 : w.group_blocks == 2 ? 1 : 0;
  }
  SIMD_METHOD int64_t scale_at(int64_t b) const { return (b >> shift) * kLanes; }
  SIMD_METHOD void prefetch(int64_t b) const {
    constexpr int bytes = Scales::kBlocks == 8 ? 4 : 32;  // as if no scale were shared: a line too often does no harm
    if (!std::is_same_v<Scales, ExponentScale>) prefetch_beside<Format, bytes>(scales + scale_at(b), b);
    if (Scales::kMinimum) prefetch_beside<Format, bytes>(minimums + scale_at(b), b);
    if (Scales::kSteps) prefetch_beside<Format, 16 * (Scales::kSteps ? Scales::kSteps : 1)>(steps + step_bytes<Scales>(b), b);
  }
  SIMD_METHOD f32x16 scale(int64_t b) const { return load_f16(scales + scale_at(b)); }
  SIMD_METHOD f32x16 minimum(int64_t b) const { return Scales::kMinimum ? load_f16(minimums + scale_at(b)) : zero(); }
  SIMD_METHOD const uint8_t* step(int64_t b) const { return steps + b * 16 * Scales::kSteps; }
};

template <class Format, class Scales = typename Format::Scales>
struct Scaling : ScaleStreams<Format> {  // GroupScale, GroupScaleAndMinimum
  using ScaleStreams<Format>::ScaleStreams;
  SIMD_METHOD WholeBlock<Format> at(int64_t b) const { return {this->scale(b), this->minimum(b)}; }
};

template <class Format>
struct Scaling<Format, ExponentScale> : ScaleStreams<Format> {
  using ScaleStreams<Format>::ScaleStreams;
  SIMD_METHOD WholeBlock<Format> at(int64_t b) const { return {load_half_powers(this->step(b)), zero()}; }
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
    return {this->scale(b), zero(), {load_i8(step), load_i8(step + 16)}, {zero(), zero()}};
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
    return {this->scale(b), zero(), {less_32(first), less_32(second)}, {zero(), zero()}};
  }
};

template <class Format>
struct Scaling<Format, HalfStepsAndMinimums> : ScaleStreams<Format> {
  using ScaleStreams<Format>::ScaleStreams;
  SIMD_METHOD HalvedBlock<Format> at(int64_t b) const {
    const i32x16 first = widen_u8(this->step(b)), second = widen_u8(this->step(b) + 16);
    return {this->scale(b), this->minimum(b), {to_float(mask32(first, 15)), to_float(mask32(second, 15))},
            {to_float(shr<4>(first)), to_float(shr<4>(second))}};
  }
};
