// Common code of kernels over prepacked tiles, for one weight format and ROWS rows at a time. csrc/kernels/generic/linear.inl
// is the CPU implementation and defines the order of sums. A lane group computes one tile, and a lane one of its 16 outputs,
// so one word of four codes per lane is a line of 64 bytes per lane group. Each kernel is a separate file and program, so
// that only the kernels a model uses are compiled.
//
// Macros from formats.py: CODES and SCALES select the tile layout, ZERO is the code of the value 0, CODE_TABLE and
// VALUE_TABLE are the values of codes as integers and as floats.

#ifdef WIDE_REGISTERS
#define READ_AHEAD 32  // words of codes per lane that fit the registers
#else
#define READ_AHEAD 16
#endif

typedef struct {
  global const uchar* codes;
  global const half* scales;
  global const half* minimums;
  global const uchar* steps;
  global const float* bias;
  int n_out, n_in, blocks, shift;  // 2^shift blocks share a scale
} Matrix;

static inline int tiles_of(const Matrix w) { return (w.n_out + LANES - 1) / LANES; }

// ---- codes: layout of 16 outputs x 32 inputs in CODE_BYTES ---------------------------------------------------------

#if CODES == FLOATS
#elif CODES == BYTES
#define CODE_BYTES 512
#elif CODES == NIBBLES || CODES == E2M1 || CODES == IQ4
#define CODE_BYTES 256
#elif CODES == NIBBLES5
#define CODE_BYTES 320
#elif CODES == NIBBLES6
#define CODE_BYTES 384
#elif CODES == CRUMBS
#define CODE_BYTES 128
#elif CODES == CRUMBS3
#define CODE_BYTES 192
#else
#error "no such CODES"
#endif

#ifdef CODE_TABLE
constant uchar code_table[] = {CODE_TABLE};
#endif

#define FOUR(byte) (0x01010101u * (byte))  // the byte in all four places

#if CODES != FLOATS
#define WORDS (CODE_BYTES / 4 / LANES)  // per lane and block, 64 bytes apart

// The lane's words; with subgroups, several lines per read.
static inline void read_words(global const uchar* block, int lane, uint* words) {
  global const uint* p = (global const uint*)block;
#ifndef HAS_SUBGROUPS
  for (int i = 0; i < WORDS; ++i) words[i] = p[LANES * i + lane];
#elif WORDS == 8
  vstore8(intel_sub_group_block_read8(p), 0, words);
#else
#if WORDS >= 4
  vstore4(intel_sub_group_block_read4(p), 0, words);
#endif
#if WORDS % 4 >= 2
  vstore2(intel_sub_group_block_read2(p + WORDS / 4 * 4 * LANES), 0, words + WORDS / 4 * 4);
#endif
#if WORDS % 2 == 1
  words[WORDS - 1] = intel_sub_group_block_read(p + (WORDS - 1) * LANES);
#endif
#endif
}

// w[c]: the codes of inputs 4 c ... 4 c + 3 of the lane's output.
static inline void unpack(const uint* words, uint* w) {
#if CODES == BYTES
  for (int c = 0; c < 8; ++c) w[c] = words[c];
#elif CODES == CRUMBS || CODES == CRUMBS3
  for (int h = 0; h < 2; ++h)
    for (int c = 0; c < 4; ++c) w[4 * h + c] = words[h] >> 2 * c & FOUR(3);
#else
  for (int c = 0; c < 4; ++c) {
    w[c] = words[c] & FOUR(15);
    w[c + 4] = words[c] >> 4 & FOUR(15);
  }
#endif
#if CODES == CRUMBS3
  for (int c = 0; c < 8; ++c) w[c] |= (words[2] >> c & FOUR(1)) << 2;
#elif CODES == NIBBLES5
  for (int c = 0; c < 8; ++c) w[c] |= (words[4] >> c & FOUR(1)) << 4;
#elif CODES == NIBBLES6
  for (int h = 0; h < 2; ++h)
    for (int c = 0; c < 4; ++c) w[4 * h + c] |= (words[4 + h] >> 2 * c & FOUR(3)) << 4;
#elif CODES == E2M1 || CODES == IQ4
  for (int c = 0; c < 8; ++c) {
    const uchar4 x = as_uchar4(w[c]);
    w[c] = as_uint((uchar4)(code_table[x.x], code_table[x.y], code_table[x.z], code_table[x.w]));
  }
#endif
}
#endif

// ---- scales: factors of the codes, and addends ---------------------------------------------------------------------

#if SCALES == STEP_SCALE_AND_MINIMUM || SCALES == HALF_STEPS || SCALES == HALF_STEPS_AND_MINIMUMS
#define STEPS 2
#elif SCALES == EXPONENT_SCALE || SCALES == STEP_SCALE
#define STEPS 1
#endif
#if SCALES == HALF_STEPS || SCALES == HALF_STEPS6 || SCALES == HALF_STEPS_AND_MINIMUMS
#define HALVED  // a step for each half of a block
#endif
#if SCALES == GROUP_SCALE_AND_MINIMUM || SCALES == STEP_SCALE_AND_MINIMUM || SCALES == HALF_STEPS_AND_MINIMUMS
#define MINIMUM
#endif
#if SCALES == GROUP_SCALE_AND_ZERO
#define ZERO_POINT  // stored as minimums; minus ZERO, like the codes
#endif

// The lane's scale and minimum in one block; HALVED: to be multiplied by the half's step.
typedef struct {
  float scale, minimum;
  float2 steps, minimum_steps;
} Scaled;

#if CODES != FLOATS
static inline Scaled scaled_at(const Matrix w, int tile, int b, int lane) {
  Scaled s;
  const size_t groups = ((w.blocks - 1) >> w.shift) + 1, at = (tile * groups + (b >> w.shift)) * LANES + lane;
  s.minimum = 0.0f;
#ifdef MINIMUM
  s.minimum = vload_half(at, w.minimums);
#elif defined(ZERO_POINT)
  s.minimum = vload_half(at, w.minimums) - ZERO;
#endif
#if SCALES == FLOAT_SCALE  // for two blocks
  global const uchar* bytes = w.steps + ((size_t)tile * ((w.blocks + 1) / 2) + b / 2) * 64 + lane;
  s.scale = as_float((uchar4)(bytes[0], bytes[LANES], bytes[2 * LANES], bytes[3 * LANES]));
#elif SCALES != EXPONENT_SCALE
  s.scale = vload_half(at, w.scales);
#endif
#if SCALES == HALVED_GROUP_SCALE
  s.scale = s.scale * 0.5f;
#endif
#ifdef STEPS
  global const uchar* step = w.steps + ((size_t)tile * w.blocks + b) * STEPS * LANES + lane;
#endif
#if SCALES == EXPONENT_SCALE
  s.scale = as_float(*step < 2 ? 0x00200000u << *step : (uint)(*step - 1) << 23);
#elif SCALES == STEP_SCALE
  s.scale = s.scale * (convert_float(*step) - 32.0f);
#elif SCALES == STEP_SCALE_AND_MINIMUM
  s.scale = s.scale * convert_float(step[0]);
  s.minimum = s.minimum * convert_float(step[LANES]);
#elif SCALES == HALF_STEPS
  s.steps = (float2)(convert_float((char)step[0]), convert_float((char)step[LANES]));
#elif SCALES == HALF_STEPS6
  global const uchar* eight = w.steps + ((size_t)tile * ((w.blocks + 7) / 8) + b / 8) * 192 + lane;
  const uint low = eight[b % 8 * LANES], high = eight[(8 + b % 8 / 2) * LANES] >> b % 2 * 4;
  const uint first = (low & 15) | (high & 3) << 4, second = low >> 4 | (high & 12) << 2;
  s.steps = (float2)(convert_float(first) - 32.0f, convert_float(second) - 32.0f);
#elif SCALES == HALF_STEPS_AND_MINIMUMS
  s.steps = (float2)(convert_float(step[0] & 15), convert_float(step[LANES] & 15));
  s.minimum_steps = (float2)(convert_float(step[0] >> 4), convert_float(step[LANES] >> 4));
#endif
  return s;
}
#endif

// ---- a tile by ROWS rows ------------------------------------------------------------------------------------------

#ifdef INTEGERS
// The dot products of a block's codes with a row's: of its two halves, or, if they share a scale, of both in `x`.
typedef int2 Dots;

// acc + a block's weights times a row's activations, given the row's scale and sums.
static inline float add_dots(float acc, Dots dots, const Scaled s, float scale, int2 sums) {
#ifdef HALVED
#ifdef MINIMUM
  const float sum = fma(convert_float(sums.y), s.minimum_steps.y, convert_float(sums.x) * s.minimum_steps.x);
  acc = fma(sum, s.minimum * scale, acc);
#endif
  dots -= ZERO * sums;
  const float dot = fma(convert_float(dots.y), s.steps.y, convert_float(dots.x) * s.steps.x);
  return fma(dot, s.scale * scale, acc);
#else
  float sum = convert_float(dots.x - ZERO * (sums.x + sums.y));
#ifdef ZERO_POINT
  sum = fma(s.minimum, convert_float(-(sums.x + sums.y)), sum);  // integers
#elif defined(MINIMUM)
  acc = fma(s.minimum, scale * convert_float(sums.x + sums.y), acc);
#endif
  return fma(sum, s.scale * scale, acc);
#endif
}

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

// Adds a block to acc[m] of each row; the lane's words have been read.
static inline void add_block(const Matrix w, int tile, int b, const uint* read, const Rows x, int row, int rows, float* acc) {
  uint four[8];
  unpack(read, four);
  const Scaled s = scaled_at(w, tile, b, lane_of());
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
      acc[first + m] = add_dots(acc[first + m], (Dots)(low[m], high[m]), s, scales[m], sum);
    }
  }
}
#else

static inline void add_block(const Matrix w, int tile, int b, const uint* read, const Rows x, int row, int rows, float* acc) {
  uint four[8], a[8];
  unpack(read, four);
  const Scaled s = scaled_at(w, tile, b, lane_of());
  UNROLLED for (int m = 0; m < ROWS; ++m) {
    const size_t at = block_at(rows, b, row) + m;
    vstore8(vload8(at, (global const uint*)x.codes), 0, a);
    Dots dots = (Dots)(0);
    for (int c = 0; c < 4; ++c) dots.x = add_dot(four[c], a[c], dots.x);
#ifdef HALVED
    for (int c = 4; c < 8; ++c) dots.y = add_dot(four[c], a[c], dots.y);
#else
    for (int c = 4; c < 8; ++c) dots.x = add_dot(four[c], a[c], dots.x);
#endif
    acc[m] = add_dots(acc[m], dots, s, x.scales[at], x.sums[at]);
  }
}
#endif

// acc[m]: the lane's output for row `row` + m; undefined for rows beyond the last. A single row is bound by reads: several
// blocks are read before the first is multiplied, unless a table must be read as well.
#if ROWS == 1 && !defined(CODE_TABLE)
#define AHEAD (4 * WORDS > READ_AHEAD ? 2 : 4)
#else
#define AHEAD 1
#endif
static inline void tile_times_rows(const Matrix w, int tile, const Rows x, int row, int rows, float* acc) {
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
static inline void tile_times_rows(const Matrix w, int tile, const Rows x, int row, int rows, float* acc) {
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
#endif

#define MATRIX_ARGUMENTS(w)                                                                                       \
  global const uchar *w##_codes, global const half *w##_scales, global const half *w##_minimums,                  \
      global const uchar *w##_steps, global const float *w##_bias, int w##_n_out, int w##_n_in, int w##_blocks, \
      int w##_shift
#define MATRIX(w) \
  {w##_codes, w##_scales, w##_minimums, w##_steps, w##_bias, w##_n_out, w##_n_in, w##_blocks, w##_shift}

static inline float biased(const Matrix w, int output, float x) { return w.bias ? x + w.bias[output] : x; }

// Stores a tile's products in column `column` of `out`, [rows][stride], for rows from `row`, or adds them.
static inline void put_products(const Matrix w, int output, const float* acc, int row, int rows, global float* out,
                                int stride, int column, int add) {
  if (output >= w.n_out) return;
  UNROLLED for (int m = 0; m < ROWS; ++m) {
    if (row + m < rows) {
      global float* at = out + (size_t)(row + m) * stride + column;
      const float value = biased(w, output, acc[m]);
      *at = add ? *at + value : value;
    }
  }
}
