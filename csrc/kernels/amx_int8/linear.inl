// Linear layers of whole numbers for many rows: the dot products of a band of up to 16 rows with the 16 outputs of a tile
// are one instruction a block of 32 inputs. It gives whole numbers, exact in any order, and what is made of them stands in
// generic/scales.inl, so the bits are those of every other instruction set. No dot product goes beyond a block: a scale
// lies between.

// Fewer rows take the other kernels, whose cost a row is what a band's few rows cost as well.
constexpr int kFewestRows = 5;
constexpr int kPanel = 16;  // blocks unpacked at a time: their codes stay in the first-level cache for all bands
constexpr int kBands = 4;   // bands computed before the panel is left
constexpr int kMostRows = 16;

// The rows of a call as bands of the same number of rows, 8 to 16 of them where there are 16. The last band may begin
// before the one before it ends: the rows between are computed twice, to the same bits.
struct Bands {
  int64_t count, number, rows;
  explicit Bands(int64_t row_count)
      : count(row_count), number((count + kMostRows - 1) / kMostRows), rows((count + number - 1) / number) {}
  int64_t begin(int64_t band) const { return band * rows < count - rows ? band * rows : count - rows; }
  int64_t repeated(int64_t band) const { return band * rows - begin(band); }  // rows that the band before has as well
};

// Tile registers: 0 the sums, 1 a band's codes, 2 a block of weights; 3 and 4 the same for half a block.
class Tiles {
 public:
  explicit Tiles(int64_t rows) {
    struct alignas(64) Config {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, kGroup, 64, kGroup / 2, 64};
      uint8_t rows[16] = {0, 0, kGroup / 4, 0, kGroup / 8};
    } config;
    config.rows[0] = config.rows[1] = config.rows[3] = uint8_t(rows);
    written();
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }  // else every switch of threads would save them
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  // The compiler does not know that tiles are read from memory: what is written stands there from here on.
  static void written() { __asm__ volatile("" ::: "memory"); }
};

template <class Format>
using BlockOf = decltype(std::declval<Scaling<Format>>().at(0));
template <class Format>
constexpr bool kIsHalved = std::is_same_v<BlockOf<Format>, HalvedBlock<Format>>;

// Blocks of a tile as the tile registers read them: 8 rows of 64 bytes, each the value of a code.
template <class Format>
struct Panel {
  static constexpr int kDots = 1 + kIsHalved<Format> + (kIsHalved<Format> && Format::Scales::kMinimum);
  alignas(64) uint8_t codes[kPanel][8][64];
  alignas(64) uint8_t minimum_steps[kDots == 3 ? kPanel : 1][8][64];
  BlockOf<Format> scaled[kPanel];

  void unpack_from(const Matrix& w, int64_t tile, int64_t first, int64_t count) {
    using Codes = typename Format::Codes;
    const uint8_t* from = w.codes + (tile * w.blocks + first) * Codes::kBytes;
    const Scaling<Format> scales(w, tile);
    for (int64_t b = 0; b < count; ++b) {
      prefetch_ahead(from + b * Codes::kBytes, kPrefetchBytes, Codes::kBytes);
      scales.prefetch(first + b);
      u8x64 rows[8];
      unpack(from + b * Codes::kBytes, rows, Codes{});
      for (int c = 0; c < 8; ++c) store64(codes[b][c], sub8(rows[c], Format::kZero));
      scaled[b] = scales.at(first + b);
      if constexpr (kDots == 3) spread_minimum_steps(scales.step(first + b), minimum_steps[b]);
    }
    Tiles::written();
  }

  // Each output's two steps, in the upper four bits, for the 16 inputs of their halves.
  static void spread_minimum_steps(const uint8_t* steps, uint8_t (*rows)[64]) {
    for (int half = 0; half < 2; ++half) {
      alignas(64) uint8_t row[64];
      for (int i = 0; i < 64; ++i) row[i] = steps[16 * half + i / 4] >> 4;
      for (int c = 0; c < 4; ++c) store64(rows[4 * half + c], load64(row));
    }
  }
};

// Whole numbers [dots][row][output] of one block.
template <class Format, int M>
struct Dots {
  static constexpr int kDots = Panel<Format>::kDots;
  alignas(64) int32_t of[kDots][M][kLanes];

  SIMD_METHOD void take(const Panel<Format>& p, int64_t b, const int8_t* a, int64_t stride) {
    if constexpr (kIsHalved<Format>) {
      _tile_zero(0);
      _tile_loadd(3, a, stride);
      _tile_loadd(4, p.codes[b][0], 64);
      _tile_dpbssd(0, 3, 4);
      _tile_stored(0, of[0], 64);
      _tile_zero(0);
      _tile_loadd(3, a + kGroup / 2, stride);
      _tile_loadd(4, p.codes[b][4], 64);
      _tile_dpbssd(0, 3, 4);
      _tile_stored(0, of[1], 64);
    } else {
      _tile_zero(0);
      _tile_loadd(1, a, stride);
      _tile_loadd(2, p.codes[b][0], 64);
      _tile_dpbssd(0, 1, 2);
      _tile_stored(0, of[0], 64);
    }
    if constexpr (kDots == 3) {
      _tile_zero(0);
      _tile_loadd(1, a, stride);
      _tile_loadd(2, p.minimum_steps[b][0], 64);
      _tile_dpbssd(0, 1, 2);
      _tile_stored(0, of[2], 64);
    }
  }
  SIMD_METHOD f32x16 add(const BlockOf<Format>& scaled, f32x16 acc, int m, float x_scale, float x_sum) const {
    if constexpr (!kIsHalved<Format>) {
      return scaled.add_dot(acc, load_i32(of[0][m]), x_scale, x_sum);
    } else {
      const f32x16 minimum_sum = kDots == 3 ? to_float(load_i32(of[kDots - 1][m])) : zero();
      return scaled.add_dots(acc, load_i32(of[0][m]), load_i32(of[1][m]), minimum_sum, x_scale);
    }
  }
};

// acc[m] += the panel's product with row `row + m`. The dot products of a block are begun before those of the block before
// it are scaled: the two take turns on different parts of the core.
template <class Format, int M>
SIMD_INLINE void add_panel(const Panel<Format>& p, int64_t first, int64_t count, const Rows& x, int64_t row, float* acc) {
  const int8_t* a = x.codes + row * x.stride + first * kGroup;
  const float* a_scale = x.scales + row * x.blocks + first;
  const float* a_sum = x.sums + row * x.blocks + first;
  Dots<Format, M> dots[2];
  f32x16 sum[M];
  for (int m = 0; m < M; ++m) sum[m] = load(acc + m * kLanes);
  dots[0].take(p, 0, a, x.stride);
  for (int64_t b = 0; b < count; ++b) {
    if (b + 1 < count) dots[(b + 1) % 2].take(p, b + 1, a + (b + 1) * kGroup, x.stride);
    const BlockOf<Format> scaled = p.scaled[b];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
      sum[m] = dots[b % 2].add(scaled, sum[m], m, a_scale[m * x.blocks + b], a_sum[m * x.blocks + b]);
  }
  for (int m = 0; m < M; ++m) store(acc + m * kLanes, sum[m]);
}

// acc[band - from][m] = the 16 outputs of one tile for the rows of the bands [from, to).
template <class Format, int M>
static void bands_of_tile(const Matrix& w, int64_t tile, const Rows& x, const Bands& bands, int64_t from, int64_t to,
                          float* acc) {
  Panel<Format> panel;
  for (int64_t i = 0; i < (to - from) * M; ++i) store(acc + i * kLanes, zero());
  for (int64_t b = 0; b < w.blocks; b += kPanel) {
    const int64_t count = w.blocks - b < kPanel ? w.blocks - b : kPanel;
    panel.unpack_from(w, tile, b, count);
    for (int64_t band = from; band < to; ++band)
      add_panel<Format, M>(panel, b, count, x, bands.begin(band), acc + (band - from) * M * kLanes);
  }
}

using BandsOfTile = void (*)(const Matrix&, int64_t, const Rows&, const Bands&, int64_t, int64_t, float*);
struct BandFunctions {
  BandsOfTile of_rows[kMostRows + 1];
};
template <class Format, int M>
struct FillBands {
  static void fill(BandFunctions& f) {
    FillBands<Format, M - 1>::fill(f);
    f.of_rows[M] = bands_of_tile<Format, M>;
  }
};
template <class Format>
struct FillBands<Format, kFewestRows - 1> {
  static void fill(BandFunctions&) {}
};
template <class Format>
struct BandFunctionsOf {
  static BandFunctions value() {
    BandFunctions f{};
    if constexpr (Format::kArithmetic == Arithmetic::whole) FillBands<Format, kMostRows>::fill(f);
    return f;
  }
};
static BandsOfTile bands_function(WeightFormat format, int64_t rows) {
  static const auto all = FormatList::table<BandFunctionsOf>();
  return all.of[int(format)].of_rows[rows];
}

constexpr int kMostValues = kBands * kMostRows * kLanes;

// f(row, its 16 outputs in `values`) for each row of the bands [from, to), once.
template <class F>
SIMD_INLINE void for_each_row(const Bands& bands, int64_t from, int64_t to, const F& f) {
  for (int64_t band = from; band < to; ++band)
    for (int64_t m = bands.repeated(band); m < bands.rows; ++m)
      f(bands.begin(band) + m, ((band - from) * bands.rows + m) * kLanes);
}

SIMD_INLINE f32x16 biased(const Matrix& w, int64_t tile, const float* values) {
  return w.bias != nullptr ? add(load(values), load(w.bias + tile * kLanes)) : load(values);
}

static void linear(const Matrix& w, const Rows& x, int64_t begin, int64_t end, float* out, int64_t out_stride,
                   bool add_to) {
  if (is_float(w.format) || x.count < kFewestRows) return few_rows()->linear(w, x, begin, end, out, out_stride, add_to);
  const Bands bands(x.count);
  const BandsOfTile run = bands_function(w.format, bands.rows);
  const Tiles tiles(bands.rows);
  alignas(64) float acc[kMostValues];
  for (int64_t tile = begin; tile < end; ++tile) {
    for (int64_t from = 0; from < bands.number; from += kBands) {
      const int64_t to = from + kBands < bands.number ? from + kBands : bands.number;
      run(w, tile, x, bands, from, to, acc);
      for_each_row(bands, from, to, [&](int64_t row, int64_t at) {
        store(acc + at, biased(w, tile, acc + at));
        store_outputs(out + row * out_stride + tile * kLanes, acc + at, w.n_out - tile * kLanes, add_to);
      });
    }
  }
}

static void gate_up(const Matrix& gate, const Matrix& up, const Activation& activation, const Rows& x, int64_t begin,
                    int64_t end, const Rows& out, bool quantize) {
  if (is_float(gate.format) || is_float(up.format) || x.count < kFewestRows)
    return few_rows()->gate_up(gate, up, activation, x, begin, end, out, quantize);
  const Bands bands(x.count);
  const BandsOfTile run_gate = bands_function(gate.format, bands.rows), run_up = bands_function(up.format, bands.rows);
  const Tiles tiles(bands.rows);
  alignas(64) float values[2][kMostValues];  // two tiles are a group of 32
  alignas(64) float u[kMostValues];
  for (int64_t group = begin; group < end; ++group)
    for (int64_t from = 0; from < bands.number; from += kBands) {
      const int64_t to = from + kBands < bands.number ? from + kBands : bands.number;
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t tile = 2 * group + half;
        float* g = values[half];
        if (tile >= gate.tiles()) {
          for (int i = 0; i < kMostValues; i += kLanes) store(g + i, zero());
          continue;
        }
        run_gate(gate, tile, x, bands, from, to, g);
        run_up(up, tile, x, bands, from, to, u);
        for_each_row(bands, from, to, [&](int64_t, int64_t at) {
          store(g + at, activated(activation, biased(gate, tile, g + at), biased(up, tile, u + at)));
        });
      }
      for_each_row(bands, from, to, [&](int64_t row, int64_t at) {
        store_group(out, row, group, load(values[0] + at), load(values[1] + at), quantize);
      });
    }
}
