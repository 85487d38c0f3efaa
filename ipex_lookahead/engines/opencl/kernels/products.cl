// A tile of weights times ROWS rows (tiles.cl).
//
// SPLIT lane groups of a work-group share a tile, because a lane group per tile would leave most of a GPU idle. What each of
// them finds goes through local memory, and is added in the canonical order:
// - products of integers: each lane group takes every SPLIT-th block. A row's terms of all blocks are added by one lane group.
// - products of floats: SPLIT is 4, and each lane group computes one of the four running sums, which are independent.

#if SPLIT > 1
#define TERMS_ARGUMENT , local Terms* terms
#else
#define TERMS_ARGUMENT
#endif

#ifdef INTEGERS
// The dot products of a block's codes with a row's: of its two halves, or, if they share a scale, of both in `x`.
typedef int2 Dots;

// The dot product of a block and a row in units of both scales, given the row's sums.
static inline float dot_of(Dots dots, const Scaled s, int2 sums) {
#ifdef HALVED
  dots -= ZERO * sums;
  return fma(convert_float(dots.y), s.steps.y, convert_float(dots.x) * s.steps.x);
#else
  const float dot = convert_float(dots.x - ZERO * (sums.x + sums.y));
#ifdef ZERO_POINT
  return fma(s.minimum, convert_float(-(sums.x + sums.y)), dot);  // integers
#else
  return dot;
#endif
#endif
}

// acc + a block's weights times a row's activations, given the row's scale and sums.
static inline float add_dot_of(float acc, float dot, const Scaled s, float scale, int2 sums) {
#if defined(MINIMUM) && defined(HALVED)
  const float sum = fma(convert_float(sums.y), s.minimum_steps.y, convert_float(sums.x) * s.minimum_steps.x);
  acc = fma(sum, s.minimum * scale, acc);
#elif defined(MINIMUM)
  acc = fma(s.minimum, scale * convert_float(sums.x + sums.y), acc);
#endif
  return fma(dot, s.scale * scale, acc);
}

#if SPLIT == 1
typedef float* Sums;  // of each row
#define ADD_DOTS(m, dots, s, scale, sums) to[m] = add_dot_of(to[m], dot_of(dots, s, sums), s, scale, sums)
#else
// What a block adds to each of ROWS rows, in local memory.
typedef struct {
  float dots[ROWS][LANES], scales[LANES];
#ifdef MINIMUM
  float minimums[LANES];
#ifdef HALVED
  float2 minimum_steps[LANES];
#endif
  int2 sums[ROWS];
#endif
  float factors[ROWS];  // the rows' scales
} Terms;
typedef local Terms* Sums;
#define ADD_DOTS(m, some, s, scale, sums) to->dots[m][lane_of()] = dot_of(some, s, sums)

static inline void put_scales(const Scaled s, const Rows x, size_t at, local Terms* to) {
  const int lane = lane_of();
  to->scales[lane] = s.scale;
  if (lane < ROWS) to->factors[lane] = x.scales[at + lane];
#ifdef MINIMUM
  to->minimums[lane] = s.minimum;
  if (lane < ROWS) to->sums[lane] = x.sums[at + lane];
#ifdef HALVED
  to->minimum_steps[lane] = s.minimum_steps;
#endif
#endif
}

static inline float add_term(float acc, local const Terms* from, int m) {
  const int lane = lane_of();
  Scaled s;
  int2 sums = (int2)(0);
  s.scale = from->scales[lane];
#ifdef MINIMUM
  s.minimum = from->minimums[lane];
  sums = from->sums[m];
#ifdef HALVED
  s.minimum_steps = from->minimum_steps[lane];
#endif
#endif
  return add_dot_of(acc, from->dots[m][lane], s, from->factors[m], sums);
}
#endif

#ifdef MATRIX_WIDTH
// Matrix units for many rows: MATRIX_WIDTH lanes, which are one subgroup, multiply 8 rows by their outputs. Each lane holds
// 32 / MATRIX_WIDTH consecutive inputs of a row, and the weights of its own output.
#define UNIT_ROWS 8
#if MATRIX_WIDTH == 8
typedef int Part;
typedef int8 Parts;
#define READ_PARTS(at) as_int8(intel_sub_group_block_read8((global const uint*)(at)))
#else
typedef short Part;
typedef short8 Parts;
#define READ_PARTS(at) as_short8(intel_sub_group_block_read_us8((global const ushort*)(at)))
#endif
#ifdef HAS_MATRIX_UNITS
#define MULTIPLY(parts, words) intel_sub_group_i8_u8_matrix_mad_k32(parts, words, (int8)(0))
#else  // the same products in plain code
#define MULTIPLY(parts, words) multiply(parts, words)
static int8 multiply(Parts parts, uint8 words) {
  Part part[UNIT_ROWS];
  uint word[8];
  int dots[UNIT_ROWS];
  vstore8(parts, 0, part);
  vstore8(words, 0, word);
  UNROLLED for (int m = 0; m < UNIT_ROWS; ++m) {
    dots[m] = 0;
    for (int l = 0; l < MATRIX_WIDTH; ++l) {
      const int other = intel_sub_group_shuffle((int)part[m], l);
#if MATRIX_WIDTH == 8
      dots[m] = add_dot(word[l], as_uint(other), dots[m]);
#else
      dots[m] = add_dot(word[l / 2] >> 16 * (l % 2) & 0xffff, as_uint(other) & 0xffff, dots[m]);
#endif
    }
  }
  return vload8(0, dots);
}
#endif

// Adds a block to the sums of each row; the lane's words have been read.
static inline void add_block(const Matrix w, int tile, int b, const uint* read, const Rows x, int row, int rows, Sums to) {
  uint four[8];
  unpack(read, four);
  const Scaled s = scaled_at(w, tile, b, lane_of());
#if SPLIT > 1
  put_scales(s, x, block_at(rows, b, row), to);
#endif
  const uint8 words = vload8(0, four);
  UNROLLED for (int first = 0; first < ROWS; first += UNIT_ROWS) {
    if (row + first >= rows) continue;
    const size_t at = block_at(rows, b, row + first);
    const Parts parts = READ_PARTS(x.codes + at * GROUP);
    float scales[UNIT_ROWS];
    int low[UNIT_ROWS], high[UNIT_ROWS], sums[2 * UNIT_ROWS];
    vstore8(vload8(0, x.scales + at), 0, scales);
    vstore16(vload16(0, (global const int*)(x.sums + at)), 0, sums);
#ifdef HALVED
    vstore8(MULTIPLY(parts, ((uint8)(words.lo, (uint4)(0)))), 0, low);
    vstore8(MULTIPLY(parts, ((uint8)((uint4)(0), words.hi))), 0, high);
#else
    vstore8(MULTIPLY(parts, words), 0, low);
    vstore8((int8)(0), 0, high);
#endif
    UNROLLED for (int m = 0; m < UNIT_ROWS; ++m) {
      const int2 sum = (int2)(sums[2 * m], sums[2 * m + 1]);
      ADD_DOTS(first + m, ((Dots)(low[m], high[m])), s, scales[m], sum);
    }
  }
}
#else

static inline void add_block(const Matrix w, int tile, int b, const uint* read, const Rows x, int row, int rows, Sums to) {
  uint four[8], a[8];
  unpack(read, four);
  const Scaled s = scaled_at(w, tile, b, lane_of());
#if SPLIT > 1
  put_scales(s, x, block_at(rows, b, row), to);
#endif
  UNROLLED for (int first = 0; first < ROWS; first += 8) {
    if (first > 0 && row + first >= rows) continue;
    UNROLLED for (int m = first; m < min(first + 8, ROWS); ++m) {
      const size_t at = block_at(rows, b, row) + m;
      vstore8(vload8(at, (global const uint*)x.codes), 0, a);
      Dots dots = (Dots)(0);
      for (int c = 0; c < 4; ++c) dots.x = add_dot(four[c], a[c], dots.x);
#ifdef HALVED
      for (int c = 4; c < 8; ++c) dots.y = add_dot(four[c], a[c], dots.y);
#else
      for (int c = 4; c < 8; ++c) dots.x = add_dot(four[c], a[c], dots.x);
#endif
      ADD_DOTS(m, dots, s, x.scales[at], x.sums[at]);
    }
  }
}
#endif

// A single row is bound by reads: several blocks are read before the first is multiplied, unless a table must be read as well.
// With SPLIT, they are read before the previous ones are multiplied, and local memory has to hold what they add.
#if SPLIT > 1
#if defined(CODE_TABLE) || ROWS > 4 || (ROWS > 1 && defined(MINIMUM))
#define AHEAD 1
#else
#define AHEAD 2
#endif
#elif ROWS == 1 && !defined(CODE_TABLE)
#define AHEAD (4 * WORDS > READ_AHEAD ? 2 : 4)
#else
#define AHEAD 1
#endif

#if SPLIT == 1
// acc[m]: the lane's output for row `row` + m; undefined for rows beyond the last.
static inline void tile_times_rows(const Matrix w, int tile, const Rows x, int row, int rows, float* acc TERMS_ARGUMENT) {
  const int lane = lane_of();
  global const uchar* codes = w.codes + (size_t)tile * w.blocks * CODE_BYTES;
  UNROLLED for (int m = 0; m < ROWS; ++m) acc[m] = 0.0f;
  int b = 0;
  for (; b + AHEAD <= w.blocks; b += AHEAD) {
    uint read[AHEAD][WORDS];
    UNROLLED for (int i = 0; i < AHEAD; ++i) read_words(codes + (size_t)(b + i) * CODE_BYTES, lane, read[i]);
    UNROLLED for (int i = 0; i < AHEAD; ++i) add_block(w, tile, b + i, read[i], x, row, rows, acc);
  }
#if AHEAD > 1
  for (; b < w.blocks; ++b) {
    uint read[WORDS];
    read_words(codes + (size_t)b * CODE_BYTES, lane, read);
    add_block(w, tile, b, read, x, row, rows, acc);
  }
#endif
}
#else
#define ROUND (SPLIT * AHEAD)         // blocks between two barriers
#define BUFFERS (ROWS > 4 ? 1 : 2)    // with two, terms are added while those of the next round are computed
#define TERMS_MEMORY (BUFFERS * ROUND)
#define ADDED (OWN_ROWS > 1 ? 2 : 8)  // terms that are read at once

// acc[i]: the lane's output for row `row` + OWN_ROW(i); undefined for rows beyond the last. All lane groups of a work-group
// take part; once in a kernel.
static inline void tile_times_rows(const Matrix w, int tile, const Rows x, int row, int rows, float* acc TERMS_ARGUMENT) {
  const int lane = lane_of(), part = part_of();
  global const uchar* codes = w.codes + (size_t)tile * w.blocks * CODE_BYTES;
  uint read[AHEAD][WORDS];
  UNROLLED for (int i = 0; i < OWN_ROWS; ++i) acc[i] = 0.0f;
  UNROLLED for (int i = 0; i < AHEAD; ++i) {
    const int b = min(i * SPLIT + part, w.blocks - 1);  // the last one again, if there are no others
    read_words(codes + (size_t)b * CODE_BYTES, lane, read[i]);
  }
  for (int start = 0; start < w.blocks; start += ROUND) {
    local Terms* round = terms + (BUFFERS > 1 ? start % (2 * ROUND) : 0);
    UNROLLED for (int i = 0; i < AHEAD; ++i) {
      const int b = start + i * SPLIT + part;
      if (b < w.blocks) add_block(w, tile, b, read[i], x, row, rows, round + i * SPLIT + part);
    }
    UNROLLED for (int i = 0; i < AHEAD; ++i) {
      const int b = min(start + ROUND + i * SPLIT + part, w.blocks - 1);
      read_words(codes + (size_t)b * CODE_BYTES, lane, read[i]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int count = min(ROUND, w.blocks - start);
    if (part < ROWS && row + part < rows) {
      int k = 0;
      for (; k + ADDED <= count; k += ADDED)
        UNROLLED for (int j = 0; j < ADDED; ++j)
          UNROLLED for (int i = 0; i < OWN_ROWS; ++i)
            if (OWN_ROW(i) < ROWS) acc[i] = add_term(acc[i], round + k + j, OWN_ROW(i));
      for (; k < count; ++k)
        UNROLLED for (int i = 0; i < OWN_ROWS; ++i)
          if (OWN_ROW(i) < ROWS) acc[i] = add_term(acc[i], round + k, OWN_ROW(i));
    }
    if (BUFFERS == 1) barrier(CLK_LOCAL_MEM_FENCE);
  }
}
#endif
#else

#if CODES == FLOATS
static inline float weight_at(global const uchar* codes, size_t at) {
#if FLOAT_KIND == FP32
  return ((global const float*)codes)[at];
#elif FLOAT_KIND == FP16
  return vload_half(at, (global const half*)codes);
#else
  return as_float((uint)((global const ushort*)codes)[at] << 16);
#endif
}
#elif defined(MAGNITUDE)
static inline float decoded(uint code) {
  const uint magnitude = (code & ((1u << MAGNITUDE) - 1)) << MAGNITUDE_SHIFT, sign = code >> MAGNITUDE << 31;
  return as_float(magnitude | sign) * as_float((uint)(POWER + 127) << 23);
}
#else
constant float value_table[] = {VALUE_TABLE};
static inline float decoded(uint code) { return value_table[code]; }
#endif

#if SPLIT == 1
// sums[m] += the first `count` of 8 inputs from k, each weight times a row's value; input i goes to sum i % 4.
static inline void add_eight(const float* weight, int count, const Rows x, int row, int rows, int k, float sums[ROWS][4]) {
  UNROLLED for (int m = 0; m < ROWS; ++m) {
    float value[8];
    vstore8(vload8(0, x.values + (size_t)min(row + m, rows - 1) * (x.blocks * GROUP) + k), 0, value);
    UNROLLED for (int i = 0; i < 8; ++i)
      if (i < count) sums[m][i % 4] = fma(weight[i], value[i], sums[m][i % 4]);
  }
}

#define TOGETHER (ROWS == 1 ? 32 : READ_AHEAD / 2)  // weights that are read before they are multiplied
static inline void tile_times_rows(const Matrix w, int tile, const Rows x, int row, int rows, float* acc TERMS_ARGUMENT) {
  const int lane = lane_of();
  float sums[ROWS][4];
  UNROLLED for (int m = 0; m < ROWS; ++m)
    for (int i = 0; i < 4; ++i) sums[m][i] = 0.0f;
#if CODES == FLOATS
  const size_t first = (size_t)tile * w.n_in * LANES + lane;
  int k = 0;
  for (; k + TOGETHER <= w.n_in; k += TOGETHER) {
    float weight[TOGETHER];
    UNROLLED for (int i = 0; i < TOGETHER; ++i) weight[i] = weight_at(w.codes, first + (size_t)(k + i) * LANES);
    UNROLLED for (int i = 0; i < TOGETHER; i += 8) add_eight(weight + i, 8, x, row, rows, k + i, sums);
  }
  for (; k < w.n_in; k += 8) {
    float weight[8];
    UNROLLED for (int i = 0; i < 8; ++i) weight[i] = weight_at(w.codes, first + (size_t)min(k + i, w.n_in - 1) * LANES);
    add_eight(weight, w.n_in - k, x, row, rows, k, sums);
  }
#else
  global const uchar* codes = w.codes + (size_t)tile * w.blocks * CODE_BYTES;
  for (int b = 0; b < w.blocks; ++b) {
    uint read[WORDS], four[8];
    read_words(codes + (size_t)b * CODE_BYTES, lane, read);
    unpack(read, four);
    const float scale = scaled_at(w, tile, b, lane).scale;
    UNROLLED for (int k = 0; k < GROUP; k += 8) {
      float weight[8];
      UNROLLED for (int i = 0; i < 8; ++i) weight[i] = decoded(four[(k + i) / 4] >> 8 * (i % 4) & 255) * scale;
      add_eight(weight, 8, x, row, rows, b * GROUP + k, sums);
    }
  }
#endif
  UNROLLED for (int m = 0; m < ROWS; ++m) acc[m] = (sums[m][0] + sums[m][1]) + (sums[m][2] + sums[m][3]);
}
#else
// The four running sums of each row.
typedef struct {
  float sums[4][ROWS][LANES];
} Terms;
#define TERMS_MEMORY 1

static inline void tile_times_rows(const Matrix w, int tile, const Rows x, int row, int rows, float* acc TERMS_ARGUMENT) {
  const int lane = lane_of(), part = part_of();  // inputs `part`, `part` + 4, ...
  float sums[ROWS];
  global const float* values[ROWS];
  UNROLLED for (int m = 0; m < ROWS; ++m) {
    sums[m] = 0.0f;
    values[m] = x.values + (size_t)min(row + m, rows - 1) * (x.blocks * GROUP) + part;
  }
#if CODES == FLOATS
#define TOGETHER (ROWS == 1 ? 16 : 8)  // weights that are read before they are multiplied
  const size_t first = (size_t)tile * w.n_in * LANES + lane;
  int k = part;
  for (; k + 4 * (TOGETHER - 1) < w.n_in; k += 4 * TOGETHER) {
    float weight[TOGETHER];
    UNROLLED for (int i = 0; i < TOGETHER; ++i) weight[i] = weight_at(w.codes, first + (size_t)(k + 4 * i) * LANES);
    UNROLLED for (int m = 0; m < ROWS; ++m)
      UNROLLED for (int i = 0; i < TOGETHER; ++i) sums[m] = fma(weight[i], values[m][k - part + 4 * i], sums[m]);
  }
  for (; k < w.n_in; k += 4) {
    const float weight = weight_at(w.codes, first + (size_t)k * LANES);
    UNROLLED for (int m = 0; m < ROWS; ++m) sums[m] = fma(weight, values[m][k - part], sums[m]);
  }
#else
#define AHEAD (ROWS > 4 ? 1 : 4 * WORDS > READ_AHEAD ? 2 : 4)
  global const uchar* codes = w.codes + (size_t)tile * w.blocks * CODE_BYTES;
  for (int start = 0; start < w.blocks; start += AHEAD) {
    uint read[AHEAD][WORDS], four[8];
    float weight[8];
    UNROLLED for (int i = 0; i < AHEAD; ++i)  // the last one again, if there are no others
      read_words(codes + (size_t)min(start + i, w.blocks - 1) * CODE_BYTES, lane, read[i]);
    UNROLLED for (int i = 0; i < AHEAD; ++i) {
      const int b = start + i;
      if (b >= w.blocks) continue;
      unpack(read[i], four);
      const float scale = scaled_at(w, tile, b, lane).scale;
      UNROLLED for (int c = 0; c < 8; ++c) weight[c] = decoded(four[c] >> 8 * part & 255) * scale;
      UNROLLED for (int m = 0; m < ROWS; ++m)
        UNROLLED for (int c = 0; c < 8; ++c) sums[m] = fma(weight[c], values[m][b * GROUP + 4 * c], sums[m]);
    }
  }
#endif
  UNROLLED for (int m = 0; m < ROWS; ++m) terms->sums[part][m][lane] = sums[m];
  barrier(CLK_LOCAL_MEM_FENCE);
  UNROLLED for (int i = 0; i < OWN_ROWS; ++i)
    if (OWN_ROW(i) < ROWS) {
      const int m = OWN_ROW(i);
      acc[i] = (terms->sums[0][m][lane] + terms->sums[1][m][lane]) + (terms->sums[2][m][lane] + terms->sums[3][m][lane]);
    }
}
#endif
#endif

#if SPLIT > 1
#define TERMS(name, tiles) local Terms name[tiles][TERMS_MEMORY];
#define TERMS_OF(name, tile) , name[tile]
#else
#define TERMS(name, tiles)
#define TERMS_OF(name, tile)
#endif

#define MATRIX_ARGUMENTS(w)                                                                                       \
  global const uchar *w##_codes, global const half *w##_scales, global const half *w##_minimums,                  \
      global const uchar *w##_steps, global const float *w##_bias, int w##_n_out, int w##_n_in, int w##_blocks, \
      int w##_shift
#define MATRIX(w) \
  {w##_codes, w##_scales, w##_minimums, w##_steps, w##_bias, w##_n_out, w##_n_in, w##_blocks, w##_shift}

static inline float biased(const Matrix w, int output, float x) { return w.bias ? x + w.bias[output] : x; }

// Stores a lane's products (`tile_times_rows`) in column `column` of `out`, [rows][stride], for rows from `row`, or adds them.
static inline void put_products(const Matrix w, int output, const float* acc, int row, int rows, global float* out,
                                int stride, int column, int add) {
  if (output >= w.n_out) return;
  UNROLLED for (int i = 0; i < OWN_ROWS; ++i) {
    const int m = OWN_ROW(i);
    if (m < ROWS && row + m < rows) {
      global float* at = out + (size_t)(row + m) * stride + column;
      const float value = biased(w, output, acc[i]);
      *at = add ? *at + value : value;
    }
  }
}
