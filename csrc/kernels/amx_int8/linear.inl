// Integer linear layers for many rows: one instruction computes the dot products of a band of up to 16 rows with the 16
// outputs of a tile over a block of 32 inputs. The results are integers, exact in any order, and generic/scales.inl applies
// the scales, so the bits equal those of every other instruction set. A dot product cannot span blocks, because each block
// has its own scale.

// Calls with fewer rows are at least as fast without tiles (measured in whole steps: docs/dev/LOG.md).
constexpr int64_t kMinCallRows = 24;
constexpr int kMinBandRows = 11, kMaxBandRows = 16;  // per band
// Blocks, tiles and bands per panel, chosen so that the panel fits the L1 cache: weights are unpacked once for kBands bands.
constexpr int kPanel = 8, kTiles = 2, kBands = 4;
constexpr int kAhead = 3;  // blocks between a dot product and its scaling, so that both overlap
constexpr int kTileValues = kBands * kMaxBandRows * kLanes;

SIMD_INLINE int64_t at_most(int64_t count, int64_t most) { return count < most ? count : most; }

// Splits the rows of a call into bands of equal size: 24 rows are 2 bands of 12, 33 are 3 of 11. The last band may overlap
// the one before it: the rows in both are computed twice, with the same bits.
struct Bands {
  int64_t count, number, rows;
  explicit Bands(int64_t row_count)
      : count(row_count), number((count + kMaxBandRows - 1) / kMaxBandRows), rows((count + number - 1) / number) {}
  int64_t begin(int64_t band) const { return band * rows < count - rows ? band * rows : count - rows; }
  int64_t repeated(int64_t band) const { return band * rows - begin(band); }  // rows shared with the previous band
};

// Tile registers: 0: sums; 1: a band's codes; 2: a block of weights; 3 and 4: the same for half a block; 5 to 7: more sums.
class Tiles {
 public:
  explicit Tiles(int64_t rows) {
    struct alignas(64) Config {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, kGroup, 64, kGroup / 2, 64, 64, 64, 64};
      uint8_t rows[16] = {0, 0, kGroup / 4, 0, kGroup / 8};
    } config;
    for (int t : {0, 1, 3, 5, 6, 7}) config.rows[t] = uint8_t(rows);
    written();
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }  // otherwise every thread switch would save them
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  // A compiler barrier: the compiler does not know that tile loads read memory.
  static void written() { __asm__ volatile("" ::: "memory"); }
};

template <class Format>
using BlockOf = decltype(std::declval<Scaling<Format>>().at(0));

// Weights of blocks as tile registers read them: 8 rows of 64 signed bytes.
template <class Format>
struct Panel {
  alignas(64) uint8_t codes[kPanel][8][64];
  BlockOf<Format> scaled[kPanel];

  void unpack_from(const Matrix& w, int64_t tile, int64_t first, int64_t count) {
    using Codes = typename Format::Codes;
    const uint8_t* from = w.codes + (tile * w.blocks + first) * Codes::kBytes;
    const Scaling<Format> scales(w, tile);
    for (int64_t b = 0; b < count; ++b) {
      // Prefetch within this tile: beyond its end is the next tile, which is read at the same time.
      const int64_t tiles_on = ((first + b) * Codes::kBytes + kPrefetchBytes) / (w.blocks * Codes::kBytes);
      const int64_t ahead = kPrefetchBytes + tiles_on * (kTiles - 1) * w.blocks * Codes::kBytes;
      prefetch_ahead(from + b * Codes::kBytes, ahead, Codes::kBytes);
      scales.prefetch(first + b, ahead / Codes::kBytes);
      u8x64 rows[8];
      unpack(from + b * Codes::kBytes, rows, Codes{});
      scaled[b] = scales.at(first + b);
      scaled[b].weigh(rows);
      for (int c = 0; c < 8; ++c) store64(codes[b][c], sub8(rows[c], Format::kZero));
    }
    Tiles::written();
  }
};

// The integer dot products [dots][row][output] of one block.
template <class Format, int M>
struct Dots {
  static constexpr int kDots = BlockOf<Format>::kDots;
  alignas(64) int32_t of[kDots][M][kLanes];

  SIMD_METHOD void take(const Panel<Format>& p, int64_t b, const int8_t* a) {
    if constexpr (kDots == 2) {
      _tile_zero(0);
      _tile_loadd(3, a, kGroup);
      _tile_loadd(4, p.codes[b][0], 64);
      _tile_dpbssd(0, 3, 4);
      _tile_stored(0, of[0], 64);
      _tile_zero(0);
      _tile_loadd(3, a + kGroup / 2, kGroup);
      _tile_loadd(4, p.codes[b][4], 64);
      _tile_dpbssd(0, 3, 4);
      _tile_stored(0, of[1], 64);
    } else {
      _tile_zero(0);
      _tile_loadd(1, a, kGroup);
      _tile_loadd(2, p.codes[b][0], 64);
      _tile_dpbssd(0, 1, 2);
      _tile_stored(0, of[0], 64);
    }
  }
  SIMD_METHOD f32x16 add(const BlockOf<Format>& scaled, f32x16 acc, int m, const RowBlock& x) const {
    f32x16 sums[kDots];
    for (int i = 0; i < kDots; ++i) sums[i] = to_float(load_i32(of[i][m]));
    return scaled.add_dots(acc, sums, x);
  }
};

// Activations of a band's blocks, copied row by row: in place, rows at distances of a power of two would evict each other
// from the cache.
struct BandPanel {
  alignas(64) int8_t codes[kPanel][kMaxBandRows][kGroup];
  float scales[kMaxBandRows][kPanel], sums[kMaxBandRows][kPanel];
  int32_t halves[kMaxBandRows][kPanel];

  SIMD_METHOD RowBlock at(int m, int64_t b) const {
    const int32_t two = halves[m][b], sum = int16_t(two) + (two >> 16);
    return {nullptr, scales[m][b], sums[m][b], -8 * sum, -128 * sum, two};
  }

  void take(const Rows& x, int64_t row, int64_t rows, int64_t first, int64_t count) {
    count == kPanel ? take_blocks<kPanel>(x, row, rows, first, kPanel) : take_blocks<0>(x, row, rows, first, count);
  }

 private:
  template <int Whole>  // a known size: fixed-size copies are a few instructions
  void take_blocks(const Rows& x, int64_t row, int64_t rows, int64_t first, int64_t some) {
    const int64_t count = Whole != 0 ? Whole : some;
    for (int64_t m = 0; m < rows; ++m) {
      const int64_t at = x.at(row + m, first), step = x.band_rows(row + m);
      for (int64_t b = 0; b < count; ++b) {
        const int64_t i = at + b * step;
        __builtin_memcpy(codes[b][m], x.codes + i * kGroup, kGroup);
        scales[m][b] = x.scales[i];
        sums[m][b] = x.sums[i];
        halves[m][b] = x.halves[i];
      }
    }
  }
};

// Up to kBands bands of a call, copied once for all its tiles: [panel][band].
class BandPanels {
 public:
  const int64_t bands;

  BandPanels(const Rows& x, const Bands& all, int64_t from)
      : bands(at_most(all.number - from, kBands)), panels_(room(x, all)) {
    for (int64_t b = 0; b < x.blocks; b += kPanel)
      for (int64_t i = 0; i < bands; ++i)
        panels_[b / kPanel * bands + i].take(x, all.begin(from + i), all.rows, b, at_most(x.blocks - b, kPanel));
    Tiles::written();
  }
  const BandPanel& at(int64_t panel, int64_t band) const { return panels_[panel * bands + band]; }

  // The thread's own memory, reused by later calls; null if there is none.
  static BandPanel* room(const Rows& x, const Bands& all) {
    static thread_local std::unique_ptr<BandPanel[]> panels;
    static thread_local int64_t size = 0;
    const int64_t count = (x.blocks + kPanel - 1) / kPanel * at_most(all.number, kBands);
    if (size < count) {
      panels.reset(new (std::nothrow) BandPanel[size_t(count)]);
      size = panels != nullptr ? count : 0;
    }
    return panels.get();
  }

 private:
  BandPanel* const panels_;
};

// acc[m] += a panel's product with row m of the band.
template <class Format, int M>
SIMD_INLINE void add_panel(const Panel<Format>& p, const BandPanel& a, int64_t count, float* acc) {
  Dots<Format, M> dots[kAhead + 1];
  f32x16 sum[M];
  for (int m = 0; m < M; ++m) sum[m] = load(acc + m * kLanes);
  for (int64_t b = 0; b < count + kAhead; ++b) {
    if (b < count) dots[b % (kAhead + 1)].take(p, b, a.codes[b][0]);
    const int64_t now = b - kAhead;
    if (now < 0) continue;
    const BlockOf<Format> scaled = p.scaled[now];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
      sum[m] = dots[now % (kAhead + 1)].add(scaled, sum[m], m, a.at(m, now));
  }
  for (int m = 0; m < M; ++m) store(acc + m * kLanes, sum[m]);
}

// acc[t][band][m] = the 16 outputs of tile `tile + t`, t < tiles, for row m of each band.
template <class Format, int M>
static void multiply(const Matrix& w, int64_t tile, int64_t tiles, const BandPanels& a, float (*acc)[kTileValues]) {
  Panel<Format> panels[kTiles];
  for (int64_t t = 0; t < tiles; ++t)
    for (int64_t i = 0; i < a.bands * M; ++i) store(acc[t] + i * kLanes, zero());
  for (int64_t b = 0; b < w.blocks; b += kPanel) {
    const int64_t count = at_most(w.blocks - b, kPanel);
    for (int64_t t = 0; t < tiles; ++t) panels[t].unpack_from(w, tile + t, b, count);
    for (int64_t band = 0; band < a.bands; ++band)
      for (int64_t t = 0; t < tiles; ++t)
        add_panel<Format, M>(panels[t], a.at(b / kPanel, band), count, acc[t] + band * M * kLanes);
  }
}

using Multiply = void (*)(const Matrix&, int64_t, int64_t, const BandPanels&, float (*)[kTileValues]);
struct BandFunctions {
  int64_t fewest;  // minimum rows per call for which tile registers pay
  Multiply of_rows[kMaxBandRows + 1];
};
template <class Format, int M>
struct FillBands {
  static void fill(BandFunctions& f) {
    FillBands<Format, M - 1>::fill(f);
    f.of_rows[M] = multiply<Format, M>;
  }
};
template <class Format>
struct FillBands<Format, kMinBandRows - 1> {
  static void fill(BandFunctions&) {}
};
template <class Format>
struct BandFunctionsOf {
  static BandFunctions value() {
    BandFunctions f{};
    f.fewest = INT64_MAX;
    if constexpr (Format::kArithmetic == Arithmetic::whole) {
      f.fewest = kMinCallRows;
      FillBands<Format, kMaxBandRows>::fill(f);
    }
    return f;
  }
};
static const BandFunctions& functions(WeightFormat format) {
  static const auto all = format_table<BandFunctionsOf>();
  return all.of[int(format)];
}

// Calls f(row, its 16 outputs in `a`) once for each row of the bands from `from` on that are in `a`.
template <class F>
SIMD_INLINE void for_each_row(const Bands& bands, int64_t from, const BandPanels& a, const F& f) {
  for (int64_t i = 0; i < a.bands; ++i)
    for (int64_t m = bands.repeated(from + i); m < bands.rows; ++m)
      f(bands.begin(from + i) + m, (i * bands.rows + m) * kLanes);
}

SIMD_INLINE f32x16 biased(const Matrix& w, int64_t tile, const float* values) {
  return w.bias != nullptr ? add(load(values), load(w.bias + tile * kLanes)) : load(values);
}

static bool pays(const Matrix& w, const Rows& x) {
  return x.count >= functions(w.format).fewest && BandPanels::room(x, Bands(x.count)) != nullptr;
}

static void linear(const Matrix& w, const Rows& x, int64_t begin, int64_t end, float* out, int64_t out_stride,
                   bool add_to) {
  if (!pays(w, x)) return few_rows()->linear(w, x, begin, end, out, out_stride, add_to);
  const Bands bands(x.count);
  const Multiply multiply = functions(w.format).of_rows[bands.rows];
  const Tiles registers(bands.rows);
  alignas(64) float values[kTiles][kTileValues];
  for (int64_t from = 0; from < bands.number; from += kBands) {
    const BandPanels a(x, bands, from);
    for (int64_t first = begin; first < end; first += kTiles) {
      const int64_t tiles = at_most(end - first, kTiles);
      multiply(w, first, tiles, a, values);
      for (int64_t t = 0; t < tiles; ++t)
        for_each_row(bands, from, a, [&](int64_t row, int64_t at) {
          const int64_t tile = first + t;
          store(values[t] + at, biased(w, tile, values[t] + at));
          store_outputs(out + row * out_stride + (tile - begin) * kLanes, values[t] + at, w.n_out - tile * kLanes, add_to);
        });
    }
  }
}

static void gate_up(const Matrix& gate, const Matrix& up, const Activation& activation, const Rows& x, int64_t begin,
                    int64_t end, const Rows& out, bool quantize) {
  static_assert(kTiles == 2, "two tiles are a group of 32");
  if (!pays(gate, x) || !pays(up, x))
    return few_rows()->gate_up(gate, up, activation, x, begin, end, out, quantize);
  const Bands bands(x.count);
  const Multiply multiply_gate = functions(gate.format).of_rows[bands.rows];
  const Multiply multiply_up = functions(up.format).of_rows[bands.rows];
  const Tiles registers(bands.rows);
  alignas(64) float g[kTiles][kTileValues], u[kTiles][kTileValues];
  for (int64_t from = 0; from < bands.number; from += kBands) {
    const BandPanels a(x, bands, from);
    for (int64_t group = begin; group < end; ++group) {
      const int64_t first = 2 * group, tiles = at_most(gate.tiles() - first, kTiles);
      multiply_gate(gate, first, tiles, a, g);
      multiply_up(up, first, tiles, a, u);
      for_each_row(bands, from, a, [&](int64_t row, int64_t at) {
        f32x16 half[2] = {zero(), zero()};
        for (int64_t t = 0; t < tiles; ++t)
          half[t] = activated(activation, biased(gate, first + t, g[t] + at), biased(up, first + t, u[t] + at));
        store_group(out, row, group, half[0], half[1], quantize);
      });
    }
  }
}

// With blocks of 32 inputs, half the throughput of full tiles of 64: no kernel here can use those.
static int32_t integer_peak(int64_t repeats) {
  constexpr int64_t kOthers = 4 * kMaxBandRows * kLanes * kGroup / (8 * 64);  // repeats of KernelTable's in one of these
  alignas(64) int8_t a[kMaxBandRows][kGroup], b[8][64];
  alignas(64) int32_t sums[kMaxBandRows][kLanes];
  __builtin_memset(a, 1, sizeof a);
  __builtin_memset(b, 3, sizeof b);
  const Tiles registers(kMaxBandRows);
  Tiles::written();
  _tile_loadd(1, a, kGroup);
  _tile_loadd(2, b, 64);
  _tile_zero(0);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t i = 0; i < repeats; i += kOthers) {
    _tile_dpbssd(0, 1, 2);
    _tile_dpbssd(5, 1, 2);
    _tile_dpbssd(6, 1, 2);
    _tile_dpbssd(7, 1, 2);
  }
  _tile_stored(0, sums, 64);
  return sums[0][0];
}
