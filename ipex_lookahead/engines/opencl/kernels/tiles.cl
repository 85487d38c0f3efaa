// Prepacked tiles of one weight format: common code of the kernels over weights. csrc/kernels/generic/linear.inl
// is the CPU implementation and defines the order of sums. A lane computes one of a tile's 16 outputs, so one word of four
// codes per lane is a line of 64 bytes per lane group. Each kernel is a separate file and program, so that only the kernels a
// model uses are compiled.
//
// Macros from formats.py: CODES and SCALES select the tile layout, ZERO is the code of the value 0, CODE_TABLE and
// VALUE_TABLE are the values of codes as integers and as floats.

#ifdef WIDE_REGISTERS
#define READ_AHEAD 32  // words of codes per lane that fit the registers
#else
#define READ_AHEAD 16
#endif

#ifndef SPLIT
#define SPLIT 1
#endif
#if SPLIT > 1
#define TILES 1  // of a work-group
#define LANE_GROUPS_OF_TILES LANE_GROUPS_OF(SPLIT)
static inline int tile_of() { return get_group_id(0); }
static inline int part_of() { return lane_group_within() % SPLIT; }
#else
#define TILES ALONE
#define LANE_GROUPS_OF_TILES LANE_GROUPS
static inline int tile_of() { return lane_group_of(); }
static inline int part_of() { return 0; }
#endif
// Rows for which a lane group computes the tile's outputs: number i is row OWN_ROW(i) of ROWS, if that is below ROWS.
#define OWN_ROWS ((ROWS + SPLIT - 1) / SPLIT)
#define OWN_ROW(i) (part_of() + (i) * SPLIT)

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
constant uint code_table[] = {CODE_TABLE};
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
    const uint x = w[c];
    w[c] = code_table[x & 15] | code_table[x >> 8 & 15] << 8 | code_table[x >> 16 & 15] << 16 | code_table[x >> 24] << 24;
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
