// Linear layers over prepacked tiles, written once against the names of <isa>/simd.h.
//
// Integer weights: inside a group of 32 inputs the dot product is an integer, exact in any order; the groups are added
// in ascending order, one float accumulator per output. Float weights: four accumulators per output, input k in number
// k % 4, joined as (0 + 1) + (2 + 3). Neither depends on the number of rows.

#include "codes.inl"
#include "scales.inl"
#include "outputs.inl"

// acc[m] = the 16 outputs of one tile for row `row + m`, m = 0 .. M-1.
template <class Format, int M>
static void integer_tile(const Matrix& w, int64_t tile, const Rows& x, int64_t row, float* out) {
  using Codes = typename Format::Codes;
  const int64_t blocks = w.blocks;
  const uint8_t* codes = w.codes + tile * blocks * Codes::kBytes;
  const Scaling<Format> scales(w, tile);
  const int8_t* a = x.codes + row * x.stride;
  const float* a_scale = x.scales + row * x.blocks;
  const float* a_sum = x.sums + row * x.blocks;
  const int32_t* bias4 = x.bias4 + row * x.blocks;
  const int32_t* bias8 = x.bias8 + row * x.blocks;
  const int32_t* halves = x.halves + row * x.blocks;

  f32x16 acc[M];
  for (int m = 0; m < M; ++m) acc[m] = zero();
  for (int64_t b = 0; b < blocks; ++b) {
    prefetch_ahead(codes + b * Codes::kBytes, kPrefetchBytes, Codes::kBytes);
    scales.prefetch(b);
    u8x64 unpacked[8];
    unpack(codes + b * Codes::kBytes, unpacked, Codes{});
    const auto scaled = scales.at(b);
    scaled.weigh(unpacked);
    const typename std::remove_const_t<decltype(scaled)>::Tile t(unpacked);
#pragma GCC unroll 16  // else the compiler keeps 16 rows' accumulators in memory
    for (int m = 0; m < M; ++m) {
      const int64_t at = m * x.blocks + b;
      const int8_t* codes_of_row = a + m * x.stride + b * kGroup;
      acc[m] = scaled.add(acc[m], t, {codes_of_row, a_scale[at], a_sum[at], bias4[at], bias8[at], halves[at]});
    }
  }
  for (int m = 0; m < M; ++m) store(out + m * kLanes, acc[m]);
}

SIMD_INLINE f32x16 load_weights(const uint8_t* p, Fp32) { return load(reinterpret_cast<const float*>(p)); }
SIMD_INLINE f32x16 load_weights(const uint8_t* p, Fp16) { return load_f16(reinterpret_cast<const uint16_t*>(p)); }
SIMD_INLINE f32x16 load_weights(const uint8_t* p, Bf16) { return load_bf16(reinterpret_cast<const uint16_t*>(p)); }

template <class Format, int M>
static void float_tile(const Matrix& w, int64_t tile, const Rows& x, int64_t row, float* out) {
  constexpr int64_t bytes = kLanes * Format::kSize;  // of the weights of one input
  const int64_t n_in = w.n_in;
  const uint8_t* weights = w.codes + tile * n_in * bytes;
  const float* a = x.values + row * x.stride;
  f32x16 acc[M][4];
  for (int m = 0; m < M; ++m)
    for (int i = 0; i < 4; ++i) acc[m][i] = zero();
  int64_t k = 0;
  for (; k + 4 <= n_in; k += 4) {
    prefetch_ahead(weights + k * bytes, kPrefetchBytes, 4 * bytes);
    for (int i = 0; i < 4; ++i) {
      const f32x16 weight = load_weights(weights + (k + i) * bytes, Format{});
      for (int m = 0; m < M; ++m) acc[m][i] = fma(weight, set1(a[m * x.stride + k + i]), acc[m][i]);
    }
  }
  for (int i = 0; k + i < n_in; ++i) {
    const f32x16 weight = load_weights(weights + (k + i) * bytes, Format{});
    for (int m = 0; m < M; ++m) acc[m][i] = fma(weight, set1(a[m * x.stride + k + i]), acc[m][i]);
  }
  for (int m = 0; m < M; ++m) store(out + m * kLanes, add(add(acc[m][0], acc[m][1]), add(acc[m][2], acc[m][3])));
}

template <class Format, class = void>
struct IsMinifloat : std::false_type {};
template <class Format>
struct IsMinifloat<Format, decltype(void(Format::kMagnitude))> : std::true_type {};

// What the codes of inputs 4 c ... 4 c + 3 stand for: each 32-bit lane of row c holds four codes of one output.
template <class Format>
SIMD_INLINE void decode(u8x64 row, f32x16 (&w)[4], std::false_type) {
  const i32x16 codes = lanes(row);
  w[0] = lookup(Format::kTable, codes);
  w[1] = lookup(Format::kTable, shr<8>(codes));
  w[2] = lookup(Format::kTable, shr<16>(codes));
  w[3] = lookup(Format::kTable, shr<24>(codes));
}
// Bytes are worked on first, and with a table for subnormals: moved into a float32's place and multiplied, subnormals would
// be subnormal there too, which takes processors a hundred times as long.
template <class Format>
SIMD_INLINE void decode(u8x64 row, f32x16 (&w)[4], std::true_type) {
  constexpr int magnitude = Format::kMagnitude, down = Format::kMantissa + 1, up = 7 - Format::kMantissa;
  const u8x64 codes = pairs_apart(row);
  const u8x64 which = min8(mask8(codes, (1 << magnitude) - 1), 15);
  const u8x64 sign = mask8(shl<7 - magnitude>(codes), 128);
  const u8x64 exponent = mask8(shr<down>(codes), (1 << (magnitude - down)) - 1);
  const u8x64 upper = bor(add8(exponent, lookup(Format::kUpperBytes.upper, which)), sign);
  const u8x64 lower = add8(mask8(shl<up>(codes), uint8_t(255 << up)), lookup(Format::kUpperBytes.lower, which));
  for (int pair = 0; pair < 2; ++pair) {
    const i32x16 both = pair == 0 ? zip<0>(lower, upper) : zip<1>(lower, upper);
    w[2 * pair] = as_float(shl<16>(both));
    w[2 * pair + 1] = as_float(mask32(both, int32_t(0xffff0000)));
  }
}
template <class Format>
SIMD_INLINE void decode(u8x64 row, f32x16 scale, f32x16 (&w)[4]) {
  decode<Format>(row, w, IsMinifloat<Format>{});
  for (int i = 0; i < 4; ++i) w[i] = mul(w[i], scale);
}

template <class Format, int M>
static void codebook_tile(const Matrix& w, int64_t tile, const Rows& x, int64_t row, float* out) {
  using Codes = typename Format::Codes;
  const uint8_t* codes = w.codes + tile * w.blocks * Codes::kBytes;
  const Scaling<Format> scales(w, tile);
  const float* a = x.values + row * x.stride;
  f32x16 acc[M][4];
  for (int m = 0; m < M; ++m)
    for (int i = 0; i < 4; ++i) acc[m][i] = zero();
  for (int64_t b = 0; b < w.blocks; ++b) {
    prefetch_ahead(codes + b * Codes::kBytes, kPrefetchBytes, Codes::kBytes);
    scales.prefetch(b);
    u8x64 rows[8];
    unpack(codes + b * Codes::kBytes, rows, Codes{});
    const f32x16 scale = scales.at(b).scale;
#pragma GCC unroll 8  // else the rows go through memory
    for (int c = 0; c < 8; ++c) {
      f32x16 weights[4];
      decode<Format>(rows[c], scale, weights);
      const float* at = a + b * kGroup + 4 * c;
      for (int m = 0; m < M; ++m)
        for (int i = 0; i < 4; ++i) acc[m][i] = fma(weights[i], set1(at[m * x.stride + i]), acc[m][i]);
    }
  }
  for (int m = 0; m < M; ++m) store(out + m * kLanes, add(add(acc[m][0], acc[m][1]), add(acc[m][2], acc[m][3])));
}

template <class Format, Arithmetic = Format::kArithmetic>
struct Linear {  // of whole numbers
  static constexpr int kRows = kMaxRows;
  template <int M>
  static void tile(const Matrix& w, int64_t t, const Rows& x, int64_t row, float* out) {
    integer_tile<Format, M>(w, t, x, row, out);
  }
  static void row(const Matrix& w, int64_t tile, int lane, float* out) {
    using Codes = typename Format::Codes;
    const Scaling<Format> scales(w, tile);
    alignas(64) uint8_t codes[8][64];
    alignas(64) float scale[2][kLanes], minimum[2][kLanes];
    for (int64_t b = 0; b < w.blocks; ++b) {
      u8x64 rows[8];
      unpack(w.codes + (tile * w.blocks + b) * Codes::kBytes, rows, Codes{});
      for (int c = 0; c < 8; ++c) store64(codes[c], rows[c]);
      const auto scaled = scales.at(b);
      for (int half = 0; half < 2; ++half) {
        store(scale[half], scaled.scale_of(half));
        store(minimum[half], scaled.minimum_of(half));
      }
      const int count = int(w.n_in - b * kGroup < kGroup ? w.n_in - b * kGroup : kGroup);
      for (int i = 0; i < count; ++i) {
        const float code = float(int(codes[i / 4][4 * lane + i % 4]) - Format::kZero);
        float& value = out[b * kGroup + i];
        if (kZeroPoint<typename Format::Scales>)
          value = scale[i / 16][lane] * (code - minimum[i / 16][lane]);
        else
          value = scale[i / 16][lane] * code;
        if (Format::Scales::kMinimum && !kZeroPoint<typename Format::Scales>) value += minimum[i / 16][lane];
      }
    }
  }
};
template <class Format>
struct Linear<Format, Arithmetic::codebook> {
  static constexpr int kRows = kMaxFloatRows;
  template <int M>
  static void tile(const Matrix& w, int64_t t, const Rows& x, int64_t row, float* out) {
    codebook_tile<Format, M>(w, t, x, row, out);
  }
  static void row(const Matrix& w, int64_t tile, int lane, float* out) {
    const Scaling<Format> scales(w, tile);
    alignas(64) float values[4][kLanes];
    for (int64_t b = 0; b < w.blocks; ++b) {
      u8x64 rows[8];
      unpack(w.codes + (tile * w.blocks + b) * Format::Codes::kBytes, rows, typename Format::Codes{});
      const f32x16 scale = scales.at(b).scale;
      for (int c = 0; c < 8; ++c) {
        f32x16 weights[4];
        decode<Format>(rows[c], scale, weights);
        for (int i = 0; i < 4; ++i) store(values[i], weights[i]);
        for (int i = 0; i < 4 && b * kGroup + 4 * c + i < w.n_in; ++i) out[b * kGroup + 4 * c + i] = values[i][lane];
      }
    }
  }
};
template <class Format>
struct Linear<Format, Arithmetic::floats> {
  static constexpr int kRows = kMaxFloatRows;
  template <int M>
  static void tile(const Matrix& w, int64_t t, const Rows& x, int64_t row, float* out) {
    float_tile<Format, M>(w, t, x, row, out);
  }
  static void row(const Matrix& w, int64_t tile, int lane, float* out) {
    const uint8_t* weights = w.codes + tile * w.n_in * kLanes * Format::kSize;
    alignas(64) float values[kLanes];
    for (int64_t k = 0; k < w.n_in; ++k) {
      store(values, load_weights(weights + k * kLanes * Format::kSize, Format{}));
      out[k] = values[lane];
    }
  }
};

// What there is for one format: a tile by 1 .. rows rows, and one row of the matrix as floats.
struct LinearFunctions {
  int rows;
  void (*tile[kMaxRows > kMaxFloatRows ? kMaxRows : kMaxFloatRows])(const Matrix&, int64_t tile, const Rows&, int64_t row,
                                                                    float* out);
  void (*row)(const Matrix&, int64_t tile, int lane, float* out);
};
template <class Format, int M>
struct FillTiles {
  static void fill(LinearFunctions& f) {
    FillTiles<Format, M - 1>::fill(f);
    f.tile[M - 1] = Linear<Format>::template tile<M>;
  }
};
template <class Format>
struct FillTiles<Format, 0> {
  static void fill(LinearFunctions&) {}
};
template <class Format>
struct FunctionsOf {
  static LinearFunctions value() {
    LinearFunctions f{};
    f.rows = Linear<Format>::kRows;
    FillTiles<Format, Linear<Format>::kRows>::fill(f);
    f.row = Linear<Format>::row;
    return f;
  }
};

static const LinearFunctions& functions(WeightFormat format) {
  static const auto all = FormatList::table<FunctionsOf>();
  return all.of[int(format)];
}

// One tile for up to the register block's rows, with the bias added.
SIMD_INLINE void biased_tile(const Matrix& w, const LinearFunctions& f, int64_t tile, const Rows& x, int64_t row, int rows,
                             float* out) {
  f.tile[rows - 1](w, tile, x, row, out);
  if (w.bias != nullptr) {
    const f32x16 bias = load(w.bias + tile * kLanes);
    for (int m = 0; m < rows; ++m) store(out + m * kLanes, add(load(out + m * kLanes), bias));
  }
}

static void linear(const Matrix& w, const Rows& x, int64_t begin, int64_t end, float* out, int64_t out_stride,
                   bool add_to) {
  const LinearFunctions& f = functions(w.format);
  const int64_t block = f.rows;
  alignas(64) float acc[kMaxRows * kLanes];
  for (int64_t tile = begin; tile < end; ++tile)
    for (int64_t row = 0; row < x.count; row += block) {
      const int rows = int(x.count - row < block ? x.count - row : block);
      biased_tile(w, f, tile, x, row, rows, acc);
      for (int m = 0; m < rows; ++m)
        store_outputs(out + (row + m) * out_stride + tile * kLanes, acc + m * kLanes, w.n_out - tile * kLanes, add_to);
    }
}

static void gate_up(const Matrix& gate, const Matrix& up, const Activation& activation, const Rows& x, int64_t begin,
                    int64_t end, const Rows& out, bool quantize) {
  const LinearFunctions &of_gate = functions(gate.format), &of_up = functions(up.format);
  const int64_t rows_at_once = of_gate.rows < of_up.rows ? of_gate.rows : of_up.rows;
  alignas(64) float values[2][kMaxRows * kLanes];  // two tiles are a group of 32
  alignas(64) float u[kMaxRows * kLanes];
  for (int64_t group = begin; group < end; ++group)
    for (int64_t row = 0; row < x.count; row += rows_at_once) {
      const int rows = int(x.count - row < rows_at_once ? x.count - row : rows_at_once);
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t tile = 2 * group + half;
        float* g = values[half];
        if (tile >= gate.tiles()) {
          for (int m = 0; m < rows; ++m) store(g + m * kLanes, zero());
          continue;
        }
        biased_tile(gate, of_gate, tile, x, row, rows, g);
        biased_tile(up, of_up, tile, x, row, rows, u);
        for (int m = 0; m < rows; ++m)
          store(g + m * kLanes, activated(activation, load(g + m * kLanes), load(u + m * kLanes)));
      }
      for (int m = 0; m < rows; ++m) {
        const f32x16 low = load(values[0] + m * kLanes), high = load(values[1] + m * kLanes);
        store_group(out, row + m, group, low, high, quantize);
      }
    }
}

static void dequantize_row(const Matrix& w, int64_t row, float* out) {
  functions(w.format).row(w, row / kLanes, int(row % kLanes), out);
}
