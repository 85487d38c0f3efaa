// Linear layers over prepacked tiles, written once against the names of <isa>/simd.h.
//
// Integer weights: inside a group of 32 inputs the dot product is an integer, exact in any order; the groups are added
// in ascending order, one float accumulator per output. Float weights: four accumulators per output, input k in number
// k % 4, joined as (0 + 1) + (2 + 3). Neither depends on the number of rows.

template <WeightFormat F>
struct TileOf {
  using type = Int4Tile;
};
template <>
struct TileOf<WeightFormat::sym_int8> {
  using type = Int8Tile;
};

// Weights are fetched this far ahead into the second-level cache: further than the hardware does, and not into the first
// level, whose few outstanding misses are what then bounds the stream (4 rows out of DRAM: 18 -> 12 ns a block).
constexpr int64_t kPrefetchBytes = 8192;

SIMD_INLINE void prefetch_ahead(const uint8_t* p, int64_t ahead, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + ahead + i, 0, 2);
}

// acc[m] = the 16 outputs of one tile for row `row + m`, m = 0 .. M-1.
template <WeightFormat F, int M>
static void integer_tile(const Matrix& w, int64_t tile, const Rows& x, int64_t row, float* out) {
  using Tile = typename TileOf<F>::type;
  const int64_t blocks = w.blocks;
  const int64_t groups = (blocks + w.group_blocks - 1) / w.group_blocks;
  const uint8_t* codes = w.codes + tile * blocks * Tile::kBytes;
  const uint16_t* scales = w.scales + tile * groups * kLanes;
  const uint16_t* minimums = F == WeightFormat::asym_int4 ? w.minimums + tile * groups * kLanes : nullptr;
  const int shift = w.group_blocks == 2 ? 1 : 0;
  const int8_t* a = x.codes + row * x.stride;
  const float* a_scale = x.scales + row * x.blocks;
  const float* a_sum = x.sums + row * x.blocks;
  const int32_t* start = (F == WeightFormat::sym_int8 ? x.bias8 : x.bias4) + row * x.blocks;

  f32x16 acc[M];
  for (int m = 0; m < M; ++m) acc[m] = zero();
  for (int64_t b = 0; b < blocks; ++b) {
    prefetch_ahead(codes + b * Tile::kBytes, kPrefetchBytes, Tile::kBytes);
    if (b % 2 == 0) {  // two blocks' scales are a cache line
      constexpr int64_t ahead = kPrefetchBytes / Tile::kBytes * kLanes * 2;
      prefetch_ahead(reinterpret_cast<const uint8_t*>(scales + (b >> shift) * kLanes), ahead, 64);
      if (F == WeightFormat::asym_int4)
        prefetch_ahead(reinterpret_cast<const uint8_t*>(minimums + (b >> shift) * kLanes), ahead, 64);
    }
    const Tile t = unpack(codes + b * Tile::kBytes, static_cast<Tile*>(nullptr));
    const f32x16 scale = load_f16(scales + (b >> shift) * kLanes);
    if (F == WeightFormat::asym_int4) {
      const f32x16 minimum = load_f16(minimums + (b >> shift) * kLanes);
      for (int m = 0; m < M; ++m) {
        const f32x16 sum = to_float(dot(t, a + m * x.stride + b * kGroup, 0));
        acc[m] = fma(minimum, set1(a_sum[m * x.blocks + b]), acc[m]);
        acc[m] = fma(sum, mul(scale, set1(a_scale[m * x.blocks + b])), acc[m]);
      }
    } else {
      for (int m = 0; m < M; ++m) {
        const f32x16 sum = to_float(dot(t, a + m * x.stride + b * kGroup, start[m * x.blocks + b]));
        acc[m] = fma(sum, mul(scale, set1(a_scale[m * x.blocks + b])), acc[m]);
      }
    }
  }
  for (int m = 0; m < M; ++m) store(out + m * kLanes, acc[m]);
}

template <WeightFormat F>
SIMD_INLINE f32x16 load_weight(const uint8_t* p, int64_t index) {
  if (F == WeightFormat::fp32) return load(reinterpret_cast<const float*>(p) + index);
  if (F == WeightFormat::fp16) return load_f16(reinterpret_cast<const uint16_t*>(p) + index);
  return load_bf16(reinterpret_cast<const uint16_t*>(p) + index);
}

template <WeightFormat F, int M>
static void float_tile(const Matrix& w, int64_t tile, const Rows& x, int64_t row, float* out) {
  const int64_t n_in = w.n_in;
  const uint8_t* weights = w.codes + tile * n_in * kLanes * (F == WeightFormat::fp32 ? 4 : 2);
  const float* a = x.values + row * x.stride;
  f32x16 acc[M][4];
  for (int m = 0; m < M; ++m)
    for (int i = 0; i < 4; ++i) acc[m][i] = zero();
  int64_t k = 0;
  for (; k + 4 <= n_in; k += 4) {
    constexpr int64_t bytes = 4 * kLanes * (F == WeightFormat::fp32 ? 4 : 2);
    prefetch_ahead(weights + k / 4 * bytes, kPrefetchBytes, bytes);
    for (int i = 0; i < 4; ++i) {
      const f32x16 weight = load_weight<F>(weights, (k + i) * kLanes);
      for (int m = 0; m < M; ++m) acc[m][i] = fma(weight, set1(a[m * x.stride + k + i]), acc[m][i]);
    }
  }
  for (int i = 0; k + i < n_in; ++i) {
    const f32x16 weight = load_weight<F>(weights, (k + i) * kLanes);
    for (int m = 0; m < M; ++m) acc[m][i] = fma(weight, set1(a[m * x.stride + k + i]), acc[m][i]);
  }
  for (int m = 0; m < M; ++m) store(out + m * kLanes, add(add(acc[m][0], acc[m][1]), add(acc[m][2], acc[m][3])));
}

using TileFunction = void (*)(const Matrix&, int64_t, const Rows&, int64_t, float*);

template <WeightFormat F, int M>
struct TileFor {
  static constexpr TileFunction get() { return integer_tile<F, M>; }
};
template <int M>
struct TileFor<WeightFormat::fp32, M> {
  static constexpr TileFunction get() { return float_tile<WeightFormat::fp32, M>; }
};
template <int M>
struct TileFor<WeightFormat::fp16, M> {
  static constexpr TileFunction get() { return float_tile<WeightFormat::fp16, M>; }
};
template <int M>
struct TileFor<WeightFormat::bf16, M> {
  static constexpr TileFunction get() { return float_tile<WeightFormat::bf16, M>; }
};

// The functions of one format for 1 .. kMax rows, smallest first.
template <WeightFormat F, int M>
struct TileTable {
  static void fill(TileFunction* table) {
    TileTable<F, M - 1>::fill(table);
    table[M - 1] = TileFor<F, M>::get();
  }
};
template <WeightFormat F>
struct TileTable<F, 0> {
  static void fill(TileFunction*) {}
};

static const TileFunction* tile_functions(WeightFormat format) {
  struct All {
    TileFunction of[kFormats][kMaxRows > kMaxFloatRows ? kMaxRows : kMaxFloatRows];
    All() {
      TileTable<WeightFormat::fp32, kMaxFloatRows>::fill(of[0]);
      TileTable<WeightFormat::fp16, kMaxFloatRows>::fill(of[1]);
      TileTable<WeightFormat::bf16, kMaxFloatRows>::fill(of[2]);
      TileTable<WeightFormat::sym_int8, kMaxRows>::fill(of[3]);
      TileTable<WeightFormat::sym_int4, kMaxRows>::fill(of[4]);
      TileTable<WeightFormat::asym_int4, kMaxRows>::fill(of[5]);
    }
  };
  static const All all;
  return all.of[int(format)];
}

// One tile for up to the register block's rows, with the bias added.
SIMD_INLINE void biased_tile(const Matrix& w, TileFunction run, int64_t tile, const Rows& x, int64_t row, int rows,
                             float* out) {
  run(w, tile, x, row, out);
  if (w.bias != nullptr) {
    const f32x16 bias = load(w.bias + tile * kLanes);
    for (int m = 0; m < rows; ++m) store(out + m * kLanes, add(load(out + m * kLanes), bias));
  }
}

SIMD_INLINE void store_outputs(float* out, const float* values, int64_t count, bool add_to) {
  if (count >= kLanes) {
    const f32x16 v = load(values);
    store(out, add_to ? add(load(out), v) : v);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = add_to ? out[i] + values[i] : values[i];
  }
}

static void linear(const Matrix& w, const Rows& x, int64_t begin, int64_t end, float* out, int64_t out_stride,
                   bool add_to) {
  const TileFunction* run = tile_functions(w.format);
  const int64_t block = is_float(w.format) ? kMaxFloatRows : kMaxRows;
  alignas(64) float acc[kMaxRows * kLanes];
  for (int64_t tile = begin; tile < end; ++tile)
    for (int64_t row = 0; row < x.count; row += block) {
      const int rows = int(x.count - row < block ? x.count - row : block);
      biased_tile(w, run[rows - 1], tile, x, row, rows, acc);
      for (int m = 0; m < rows; ++m)
        store_outputs(out + (row + m) * out_stride + tile * kLanes, acc + m * kLanes, w.n_out - tile * kLanes, add_to);
    }
}

static void gate_up(const Matrix& gate, const Matrix& up, const Activation& activation, const Rows& x, int64_t begin,
                    int64_t end, const Rows& out, bool quantize) {
  const TileFunction* run_gate = tile_functions(gate.format);
  const TileFunction* run_up = tile_functions(up.format);
  const int64_t rows_at_once = is_float(gate.format) || is_float(up.format) ? kMaxFloatRows : kMaxRows;
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
        biased_tile(gate, run_gate[rows - 1], tile, x, row, rows, g);
        biased_tile(up, run_up[rows - 1], tile, x, row, rows, u);
        for (int m = 0; m < rows; ++m)
          store(g + m * kLanes, activated(activation, load(g + m * kLanes), load(u + m * kLanes)));
      }
      for (int m = 0; m < rows; ++m) {
        const f32x16 low = load(values[0] + m * kLanes), high = load(values[1] + m * kLanes);
        if (quantize) {
          quantize_group(out, row + m, group, low, high);
        } else {
          float* at = out.values + (row + m) * out.stride + group * kGroup;
          store(at, low);
          store(at + kLanes, high);
        }
      }
    }
}

static void dequantize_row(const Matrix& w, int64_t row, float* out) {
  const int64_t tile = row / kLanes, lane = row % kLanes;
  if (is_float(w.format)) {
    const int size = w.format == WeightFormat::fp32 ? 4 : 2;
    const uint8_t* weights = w.codes + tile * w.n_in * kLanes * size;
    alignas(64) float values[kLanes];
    for (int64_t k = 0; k < w.n_in; ++k) {
      const f32x16 v = w.format == WeightFormat::fp32   ? load_weight<WeightFormat::fp32>(weights, k * kLanes)
                       : w.format == WeightFormat::fp16 ? load_weight<WeightFormat::fp16>(weights, k * kLanes)
                                                        : load_weight<WeightFormat::bf16>(weights, k * kLanes);
      store(values, v);
      out[k] = values[lane];
    }
    return;
  }
  const int64_t groups = (w.blocks + w.group_blocks - 1) / w.group_blocks;
  alignas(64) float scales[kLanes], minimums[kLanes];
  for (int64_t k = 0; k < w.n_in; ++k) {
    const int64_t b = k / kGroup, i = k % kGroup;
    if (i == 0) {
      const int64_t at = (tile * groups + b / w.group_blocks) * kLanes;
      store(scales, load_f16(w.scales + at));
      if (w.minimums != nullptr) store(minimums, load_f16(w.minimums + at));
    }
    if (w.format == WeightFormat::sym_int8) {
      const uint8_t code = w.codes[(tile * w.blocks + b) * 512 + 64 * (i / 4) + 4 * lane + i % 4];
      out[k] = scales[lane] * float(int(code) - 128);
    } else {
      const uint8_t pair = w.codes[(tile * w.blocks + b) * 256 + 64 * (i % 16 / 4) + 4 * lane + i % 4];
      const int code = i < 16 ? pair & 15 : pair >> 4;
      out[k] = w.format == WeightFormat::sym_int4 ? scales[lane] * float(code - 8)
                                                  : scales[lane] * float(code) + minimums[lane];
    }
  }
}
