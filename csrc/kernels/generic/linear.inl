// Linear layers over prepacked tiles, written once against the names of <isa>/simd.h.
//
// Integer weights: inside a group of 32 inputs the dot product is an integer, exact in any order; groups are added in
// ascending order with one float accumulator per output. Float weights: four accumulators per output, input k in accumulator
// k % 4, joined as (0 + 1) + (2 + 3). Neither depends on the number of rows. All shapes of the product share the tile
// helpers above them, which is why they are in one file.

#include "codes.inl"
#include "scales.inl"
#include "outputs.inl"

// Calls f(Q, i) for the elements [i, count), Q at a time, then fewer. Four are two pairs instead of three and one, because
// widening dominates the work per query.
template <int Q, class F>
SIMD_INLINE void in_parts(int i, int count, const F& f) {
  for (; i + Q <= count && !(Q == 3 && count - i == 4); i += Q) f(std::integral_constant<int, Q>{}, i);
  if constexpr (Q > 1) in_parts<(Q > 8 ? 8 : Q > 4 ? 4 : Q - 1)>(i, count, f);
}

constexpr int kMostRows = kMaxRows > kMaxFloatRows ? kMaxRows : kMaxFloatRows;

// Streams of one tile.
template <class Format>
struct TileStreams {
  const uint8_t* codes;
  Scaling<Format> scales;
  SIMD_METHOD TileStreams(const Matrix& w, int64_t tile)
      : codes(w.codes + tile * w.blocks * Format::Codes::kBytes), scales(w, tile) {}
  SIMD_METHOD void fetch(int64_t b, int64_t blocks_ahead) const {
    prefetch_ahead(codes + b * Format::Codes::kBytes, blocks_ahead * Format::Codes::kBytes, Format::Codes::kBytes);
    scales.prefetch(b, blocks_ahead);
  }
};

// Prefetch distance in blocks for T tiles that are processed together: within these tiles, and beyond their ends into the
// next T tiles rather than the next tile, which is read at the same time.
template <int T>
class BlocksAhead {
 public:
  SIMD_METHOD BlocksAhead(int32_t distance, int32_t blocks)
      : blocks_(blocks), left_(blocks - distance % blocks), ahead_(distance + distance / blocks * (T - 1) * blocks_) {}
  SIMD_METHOD int64_t now() const { return ahead_; }
  SIMD_METHOD void next() {
    if (T == 1 || --left_ > 0) return;
    left_ = blocks_;
    ahead_ += (T - 1) * blocks_;
  }

 private:
  const int64_t blocks_;
  int64_t left_, ahead_;
};

// A block of one tile: its codes in registers, and its scales.
template <class Format>
struct UnpackedBlock {
  using Scaled = decltype(std::declval<const Scaling<Format>>().at(0));
  // Half-block dot products with a zero point need more live sums: one row fewer.
  static constexpr int kTogether = Scaled::kDots > 1 && Format::kZero != 0 ? kRowsTogether - 1 : kRowsTogether;
  Scaled scaled;
  typename Scaled::Tile codes;
  SIMD_METHOD UnpackedBlock(const TileStreams<Format>& tile, int64_t b) : scaled(tile.scales.at(b)) {
    unpack(tile.codes + b * Format::Codes::kBytes, codes.rows, typename Format::Codes{});
    scaled.weigh(codes.rows);
    codes.settle();  // in the form that this instruction set multiplies
  }
};

// acc[t][m] += a block's products with N rows from m; row m is stored at `at + m`.
template <int N, class Format, int M>
SIMD_INLINE void add_block(const UnpackedBlock<Format>* blocks, const Rows& x, int64_t at, int m,
                           f32x16 (&acc)[kTilesAtOnce][M]) {
#pragma GCC unroll 2
  for (int t = 0; t < kTilesAtOnce; ++t) {
    int64_t first = at + m;
    f32x16* sums = acc[t] + m;
    // Makes the addresses opaque per tile: otherwise the compiler keeps loaded rows for the next tile and runs out of
    // registers.
    if (N > 2 || M > kFixedRows) __asm__ volatile("" : "+r"(first), "+r"(sums) : : "memory");
    RowBlock rows[N];
    for (int n = 0; n < N; ++n) {
      const int64_t i = first + n;
      rows[n] = {x.codes + i * kGroup, x.scales[i], x.sums[i], x.bias4[i], x.bias8[i], x.halves[i]};
    }
    add_rows<Format::kZero>(blocks[t].scaled, blocks[t].codes, rows, sums);
  }
}

// out[t][m] = the 16 outputs of kTilesAtOnce tiles, `tile` and `tile + step`, for row `row + m`, m < rows; the rows are in
// one band. Two tiles are two memory streams, which raises bandwidth, and share loaded rows. M is the number of rows if it
// has a specialized function, else the maximum.
template <class Format, int M>
static void integer_tiles(const Matrix& w, int64_t tile, int64_t step, const Rows& x, int64_t row, int rows, float* out) {
  if (M <= kFixedRows) rows = M;
  const int64_t first = x.at(row, 0), band = x.band_rows(row);
  const TileStreams<Format> tiles[2] = {{w, tile}, {w, tile + step}};
  BlocksAhead<kTilesAtOnce> ahead(kPrefetchBytes / kTilesAtOnce / Format::Codes::kBytes, w.blocks);

  f32x16 acc[kTilesAtOnce][M];
  for (int t = 0; t < kTilesAtOnce; ++t)
    for (int m = 0; m < rows; ++m) acc[t][m] = zero();
  int64_t at = first;
  for (int64_t b = 0; b < w.blocks; ++b, at += band, ahead.next()) {
    for (int t = 0; t < kTilesAtOnce; ++t) tiles[t].fetch(b, ahead.now());
    UnpackedBlock<Format> blocks[2] = {{tiles[0], b}, {tiles[kTilesAtOnce - 1], b}};
    if (M > kFixedRows && !std::is_same<typename Format::Codes, Bytes>::value)  // byte codes need no unpacking
      for (int t = 0; t < kTilesAtOnce; ++t) blocks[t].codes.spill_once();
    if constexpr (kRowsTogether == 1) {
#pragma GCC unroll 16  // otherwise the compiler keeps 16 rows' accumulators in memory
      for (int m = 0; m < M; ++m) add_block<1>(blocks, x, at, m, acc);
    } else if constexpr (M <= kFixedRows) {
      add_block<M>(blocks, x, at, 0, acc);
    } else {
      constexpr int together = UnpackedBlock<Format>::kTogether;
      in_parts<together>(0, rows, [&](auto part, int m) { add_block<part()>(blocks, x, at, m, acc); });
    }
  }
  for (int t = 0; t < kTilesAtOnce; ++t)
    for (int m = 0; m < rows; ++m) store(out + (t * rows + m) * kLanes, acc[t][m]);
}

SIMD_INLINE f32x16 load_weights(const uint8_t* p, Fp32) { return load(reinterpret_cast<const float*>(p)); }
SIMD_INLINE f32x16 load_weights(const uint8_t* p, Fp16) { return load_f16(reinterpret_cast<const uint16_t*>(p)); }
SIMD_INLINE f32x16 load_weights(const uint8_t* p, Bf16) { return load_bf16(reinterpret_cast<const uint16_t*>(p)); }

template <class Format, class = void>
struct IsMinifloat : std::false_type {};
template <class Format>
struct IsMinifloat<Format, decltype(void(Format::kMagnitude))> : std::true_type {};

// Values of the codes of inputs 4 c ... 4 c + 3: each 32-bit lane of row c holds four codes of one output.
template <class Format>
SIMD_INLINE void decode(u8x64 row, f32x16 (&w)[4], std::false_type) {
#ifdef SIMD_TABLE_BY_BYTES
  lookup_fours(Format::kTable, row, w);
#else
  const i32x16 codes = lanes(row);
  w[0] = lookup(Format::kTable, codes);
  w[1] = lookup(Format::kTable, shr<8>(codes));
  w[2] = lookup(Format::kTable, shr<16>(codes));
  w[3] = lookup(Format::kTable, shr<24>(codes));
#endif
}
// Works on bytes first, with a table for subnormals: moved into a float32 and multiplied, subnormals would be float32
// subnormals, which take some processors a hundred times as long.
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

// A tile's weights as floats, 32 inputs at a time: f(k, the 16 outputs' weights of input k), ascending.
template <class Format, Arithmetic = Format::kArithmetic>
struct FloatStreams {
  static constexpr int64_t kInput = kLanes * Format::kSize, kBytes = kGroup * kInput;
  const uint8_t* weights;
  const int64_t n_in;

  SIMD_METHOD FloatStreams(const Matrix& w, int64_t tile) : weights(w.codes + tile * w.n_in * kInput), n_in(w.n_in) {}
  SIMD_METHOD void fetch(int64_t b, int64_t blocks_ahead) const {
    prefetch_ahead(weights + b * kBytes, blocks_ahead * kBytes, kBytes);
  }
  template <class F>
  SIMD_METHOD void for_each_input(int64_t b, const F& f) const {
    alignas(64) uint8_t filled[kBytes];
    const uint8_t* from = n_in - b * kGroup < kGroup ? fill(b, filled) : weights + b * kBytes;
#pragma GCC unroll 32  // otherwise the sums go through memory
    for (int k = 0; k < kGroup; ++k) f(k, load_weights(from + k * kInput, Format{}));
  }

 private:
  // Pads the last block of inputs with -0: multiplied and added, it changes no sum, not even -0.
  const uint8_t* fill(int64_t b, uint8_t* to) const {
    for (int64_t i = 0; i < kBytes; ++i) to[i] = i % Format::kSize == Format::kSize - 1 ? 0x80 : 0;
    __builtin_memcpy(to, weights + b * kBytes, size_t((n_in - b * kGroup) * kInput));
    return to;
  }
};
template <class Format>
struct FloatStreams<Format, Arithmetic::codebook> : TileStreams<Format> {
  static constexpr int64_t kBytes = Format::Codes::kBytes;
  using TileStreams<Format>::TileStreams;
  template <class F>
  SIMD_METHOD void for_each_input(int64_t b, const F& f) const {
    u8x64 rows[8];
    unpack(this->codes + b * kBytes, rows, typename Format::Codes{});
    const f32x16 scale = this->scales.at(b).scale;
#pragma GCC unroll 8  // otherwise the rows go through memory
    for (int c = 0; c < 8; ++c) {
      f32x16 weights[4];
      decode<Format>(rows[c], scale, weights);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) f(4 * c + i, weights[i]);
    }
  }
};

SIMD_INLINE f32x16 joined(const f32x16 (&sums)[4]) { return add(add(sums[0], sums[1]), add(sums[2], sums[3])); }

// Few rows: multiplied while weights are loaded, with four sums of each row in registers; T tiles at a time if they fit.
template <class Format, int M, int T>
SIMD_INLINE void few_rows_of(const Matrix& w, int64_t tile, int64_t step, const Rows& x, int64_t row, float* out) {
  const FloatStreams<Format> tiles[2] = {{w, tile}, {w, tile + step}};
  BlocksAhead<T> ahead(kPrefetchBytes / T / FloatStreams<Format>::kBytes, w.blocks);
  f32x16 acc[T][M][4];
  for (int t = 0; t < T; ++t)
    for (int m = 0; m < M; ++m)
      for (int i = 0; i < 4; ++i) acc[t][m][i] = zero();
  for (int64_t b = 0; b < w.blocks; ++b, ahead.next()) {
    const float* values[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      values[m] = x.values_of(row + m) + b * kGroup;
      __asm__("" : "+r"(values[m]));  // an address per row plus displacements, not a register for each value
    }
#pragma GCC unroll 2
    for (int t = 0; t < T; ++t) {
      tiles[t].fetch(b, ahead.now());
      tiles[t].for_each_input(b, [&](int k, f32x16 weights) {
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) acc[t][m][k % 4] = fma(weights, set1(values[m][k]), acc[t][m][k % 4]);
      });
    }
  }
  for (int t = 0; t < T; ++t)
    for (int m = 0; m < M; ++m) store(out + (t * M + m) * kLanes, joined(acc[t][m]));
}

// The same for one tile of float weights without scales: there are no blocks, so sums never leave their registers.
template <class Format, int M>
SIMD_INLINE void few_rows_of_one(const Matrix& w, int64_t tile, const Rows& x, int64_t row, float* out) {
  constexpr int64_t bytes = kLanes * Format::kSize;  // of the weights of one input
  const int64_t n_in = w.n_in;
  const uint8_t* weights = w.codes + tile * n_in * bytes;
  const float* a = x.values_of(row);
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
  for (int m = 0; m < M; ++m) store(out + m * kLanes, joined(acc[m]));
}

// Inputs of a block of many_rows_of: its weights and its rows' values stay in the first-level cache.
constexpr int64_t kInputsTogether = 256;

// acc[t][i][m] += the products of the inputs 4 c + i of a block with M rows and T tiles. One i at a time, because only that
// number of sums fits the registers. The weights are at weights[t], in the layout of float weights.
template <class Format, int M, int T>
static void add_inputs(const uint8_t* const* weights, const float* x, int64_t stride, int64_t inputs, f32x16* acc) {
  constexpr int64_t bytes = kLanes * Format::kSize;
  constexpr int kShared = 3;  // rows that share an address: at 0, 1 and 2 strides
  constexpr int kAddresses = (M + kShared - 1) / kShared;
  for (int64_t i = 0; i < 4; ++i) {
    f32x16 sums[T][M];
#pragma GCC unroll 2
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) sums[t][m] = acc[(t * 4 + i) * kMostRows + m];
    const float* rows[kAddresses];
#pragma GCC unroll 8
    for (int j = 0; j < kAddresses; ++j) rows[j] = x + kShared * j * stride + i;
    const uint8_t* from[T];
#pragma GCC unroll 2
    for (int t = 0; t < T; ++t) from[t] = weights[t] + i * bytes;
    for (int64_t k = i; k < inputs; k += 4) {
      f32x16 of_input[T];
#pragma GCC unroll 2
      for (int t = 0; t < T; ++t) {
        of_input[t] = load_weights(from[t], Format{});
        prefetch_ahead(from[t], kPrefetchBytes, bytes);
        from[t] += 4 * bytes;
      }
#pragma GCC unroll 8
      for (int j = 0; j < kAddresses; ++j) {
        __asm__("" : "+r"(rows[j]));  // an address for each of these rows would not fit the registers
#pragma GCC unroll 3
        for (int r = 0; r < kShared; ++r) {
          const int m = kShared * j + r;
          if (m >= M) continue;
          const f32x16 value = set1(rows[j][r * stride]);
#pragma GCC unroll 2
          for (int t = 0; t < T; ++t) sums[t][m] = fma(of_input[t], value, sums[t][m]);
        }
        rows[j] += 4;
      }
    }
#pragma GCC unroll 2
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) acc[(t * 4 + i) * kMostRows + m] = sums[t][m];
  }
}

// The weights of a block of inputs of a tile in the layout of float weights: in place, or decoded to `memory`.
template <class Format, Arithmetic = Format::kArithmetic>
struct BlockOfInputs {
  using Decoded = Format;
  static constexpr int64_t kValues = 1;
  static int64_t inputs(const Matrix& w) { return w.n_in; }
  static const uint8_t* at(const Matrix& w, int64_t tile, int64_t first, int64_t, float*) {
    return w.codes + (tile * w.n_in + first) * kLanes * Format::kSize;
  }
};
template <class Format>
struct BlockOfInputs<Format, Arithmetic::codebook> {
  using Decoded = Fp32;
  static constexpr int64_t kValues = kInputsTogether * kLanes;
  static int64_t inputs(const Matrix& w) { return w.blocks * kGroup; }
  static const uint8_t* at(const Matrix& w, int64_t tile, int64_t first, int64_t inputs, float* memory) {
    const FloatStreams<Format> stream(w, tile);
    for (int64_t b = 0; b < inputs / kGroup; ++b) {
      stream.fetch(first / kGroup + b, kPrefetchBytes / FloatStreams<Format>::kBytes);
      stream.for_each_input(first / kGroup + b, [&](int k, f32x16 weights) { store(memory + (b * kGroup + k) * kLanes, weights); });
    }
    return reinterpret_cast<const uint8_t*>(memory);
  }
};

// Many rows: a block of inputs at a time, for a tile of sums in registers.
template <class Format>
static void many_rows_of(const Matrix& w, int64_t tile, int64_t step, const Rows& x, int64_t row, int rows, float* out) {
  using Block = BlockOfInputs<Format>;
  f32x16 acc[kTilesAtOnce][4][kMostRows];
  for (int t = 0; t < kTilesAtOnce; ++t)
    for (int i = 0; i < 4; ++i)
      for (int m = 0; m < rows; ++m) acc[t][i][m] = zero();
  alignas(64) float decoded[kTilesAtOnce][Block::kValues];
  const int64_t all = Block::inputs(w);
  for (int64_t first = 0; first < all; first += kInputsTogether) {
    const int64_t inputs = all - first < kInputsTogether ? all - first : kInputsTogether;
    const uint8_t* weights[kTilesAtOnce];
    for (int t = 0; t < kTilesAtOnce; ++t) weights[t] = Block::at(w, tile + t * step, first, inputs, decoded[t]);
    in_parts<kFloatRowsTogether>(0, rows, [&](auto part, int m) {
      const float* const values = x.values_of(row + m) + first;
      const auto add = [&](auto tiles, int t) {
        add_inputs<typename Block::Decoded, part(), tiles()>(weights + t, values, x.stride, inputs, acc[t][0] + m);
      };
      if (kFloatTilesTogether == kTilesAtOnce && step != 0) return add(std::integral_constant<int, kFloatTilesTogether>{}, 0);
      for (int t = 0; t < (step == 0 ? 1 : kTilesAtOnce); ++t) add(std::integral_constant<int, 1>{}, t);
    });
  }
  for (int t = 0; t < kTilesAtOnce; ++t)
    for (int m = 0; m < rows; ++m)
      store(out + (t * rows + m) * kLanes, joined({acc[t][0][m], acc[t][1][m], acc[t][2][m], acc[t][3][m]}));
}

// As integer_tiles, for float weights.
template <class Format, int M>
static void float_tiles(const Matrix& w, int64_t tile, int64_t step, const Rows& x, int64_t row, int rows, float* out) {
  if constexpr (M > kFixedFloatRows) {
    many_rows_of<Format>(w, tile, step, x, row, rows, out);
  } else if constexpr (M <= kFloatRowsOfTwoTiles) {
    few_rows_of<Format, M, 2>(w, tile, step, x, row, out);
  } else {
    for (int t = 0; t < kTilesAtOnce; ++t) {
      if constexpr (Format::kArithmetic == Arithmetic::floats)
        few_rows_of_one<Format, M>(w, tile + t * step, x, row, out + t * M * kLanes);
      else
        few_rows_of<Format, M, 1>(w, tile + t * step, 0, x, row, out + t * M * kLanes);
    }
  }
}

template <class Format, Arithmetic = Format::kArithmetic>
struct Linear {  // of integers
  template <int M>
  static constexpr auto tiles = integer_tiles<Format, M>;
  static constexpr int kFixed = kFixedRows, kRows = kMaxRows;
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
  template <int M>
  static constexpr auto tiles = float_tiles<Format, M>;
  static constexpr int kFixed = kFixedFloatRows, kRows = kMaxFloatRows;
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
  template <int M>
  static constexpr auto tiles = float_tiles<Format, M>;
  static constexpr int kFixed = kFixedFloatRows, kRows = kMaxFloatRows;
  static void row(const Matrix& w, int64_t tile, int lane, float* out) {
    const uint8_t* weights = w.codes + tile * w.n_in * kLanes * Format::kSize;
    alignas(64) float values[kLanes];
    for (int64_t k = 0; k < w.n_in; ++k) {
      store(values, load_weights(weights + k * kLanes * Format::kSize, Format{}));
      out[k] = values[lane];
    }
  }
};

// The functions of one format: kTilesAtOnce tiles by 1 .. rows rows, and one row of the matrix as floats.
struct LinearFunctions {
  int rows;
  bool banded;  // reads rows in bands (kernels.h)
  void (*tiles[kMostRows])(const Matrix&, int64_t tile, int64_t step, const Rows&, int64_t row, int rows, float* out);
  void (*row)(const Matrix&, int64_t tile, int lane, float* out);
};
template <class Format, int M>
struct FillTiles {
  static void fill(LinearFunctions& f) {
    FillTiles<Format, M - 1>::fill(f);
    f.tiles[M - 1] = Linear<Format>::template tiles<(M <= Linear<Format>::kFixed ? M : Linear<Format>::kRows)>;
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
    f.banded = Format::kArithmetic == Arithmetic::whole;
    FillTiles<Format, Linear<Format>::kRows>::fill(f);
    f.row = Linear<Format>::row;
    return f;
  }
};

static const LinearFunctions& functions(WeightFormat format) {
  static const auto all = format_table<FunctionsOf>();
  return all.of[int(format)];
}

SIMD_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Tiles `tile` and, if two are processed at once and `tile + 1` < `end`, `tile + 1`, with the bias added: out[t][m].
SIMD_INLINE void biased_tiles(const Matrix& w, const LinearFunctions& f, int64_t tile, int64_t end, const Rows& x, int64_t row,
                              int rows, float* out) {
  f.tiles[rows - 1](w, tile, tile + 1 < end, x, row, rows, out);
  if (w.bias == nullptr) return;
  for (int64_t t = 0; t < least(end - tile, kTilesAtOnce); ++t) {
    const f32x16 bias = load(w.bias + (tile + t) * kLanes);
    for (int m = 0; m < rows; ++m) {
      float* at = out + (t * rows + m) * kLanes;
      store(at, add(load(at), bias));
    }
  }
}

// Number of rows from `row` that are processed together.
SIMD_INLINE int64_t rows_at_once(const LinearFunctions& f, const Rows& x, int64_t row) {
  const int64_t left = x.count - row;
  return least(f.rows, f.banded ? least(x.together(row), left) : left);
}

constexpr int kTileValues = kTilesAtOnce * kMostRows * kLanes;

static void linear(const Matrix& w, const Rows& x, int64_t begin, int64_t end, float* out, int64_t out_stride,
                   bool add_to) {
  const LinearFunctions& f = functions(w.format);
  alignas(64) float acc[kTileValues];
  for (int64_t tile = begin; tile < end; tile += kTilesAtOnce)
    for (int64_t row = 0, rows; row < x.count; row += rows) {
      rows = rows_at_once(f, x, row);
      biased_tiles(w, f, tile, end, x, row, int(rows), acc);
      for (int64_t t = 0; t < least(end - tile, kTilesAtOnce); ++t)
        for (int64_t m = 0; m < rows; ++m)
          store_outputs(out + (row + m) * out_stride + (tile - begin + t) * kLanes, acc + (t * rows + m) * kLanes,
                        w.n_out - (tile + t) * kLanes, add_to);
    }
}

// Two tiles are one group of 32.
static void gate_up(const Matrix& gate, const Matrix& up, const Activation& activation, const Rows& x, int64_t begin,
                    int64_t end, const Rows& out, bool quantize) {
  const bool gated = gate.codes != nullptr;
  const LinearFunctions &of_up = functions(up.format), &of_gate = gated ? functions(gate.format) : of_up;
  alignas(64) float g[2 * kMostRows * kLanes], u[2 * kMostRows * kLanes];
  for (int64_t group = begin; group < end; ++group)
    for (int64_t row = 0, rows; row < x.count; row += rows) {
      rows = least(rows_at_once(of_gate, x, row), rows_at_once(of_up, x, row));
      const int64_t first = 2 * group, last = least(first + 2, up.tiles());
      for (int64_t tile = first; tile < last; tile += kTilesAtOnce) {
        if (gated) biased_tiles(gate, of_gate, tile, last, x, row, int(rows), g + (tile - first) * rows * kLanes);
        biased_tiles(up, of_up, tile, last, x, row, int(rows), u + (tile - first) * rows * kLanes);
      }
      for (int64_t m = 0; m < rows; ++m) {
        f32x16 half[2] = {zero(), zero()};
        for (int64_t t = 0; t < last - first; ++t) {
          const int64_t at = (t * rows + m) * kLanes;
          const f32x16 of_up_row = load(u + at);
          half[t] = gated ? activated(activation, load(g + at), of_up_row) : activated(activation, of_up_row, set1(1.0f));
        }
        store_group(out, row + m, group, half[0], half[1], quantize);
      }
    }
}

static void activate(const Activation& activation, const float* gate, const float* up, const Rows& out, int64_t group, bool quantize) {
  for (int64_t row = 0; row < out.count; ++row) {
    f32x16 half[2];
    for (int64_t t = 0; t < 2; ++t) {
      const int64_t at = row * kGroup + t * kLanes;
      const f32x16 of_up = load(up + at);
      half[t] = gate != nullptr ? activated(activation, load(gate + at), of_up) : activated(activation, of_up, set1(1.0f));
    }
    store_group(out, row, group, half[0], half[1], false);
    if (quantize) store_group(out, row, group, half[0], half[1], true);
  }
}

static void dequantize_row(const Matrix& w, int64_t row, float* out) {
  functions(w.format).row(w, row / kLanes, int(row % kLanes), out);
}
