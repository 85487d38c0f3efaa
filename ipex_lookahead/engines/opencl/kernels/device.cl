// Primitives of the kernels in two variants: with subgroups of 16 and integer dot products on devices that have them, and in
// plain OpenCL. Every kernel computes the same bits in both, equal to csrc/kernels/scalar.
//
// A "lane group" is 16 consecutive work-items: the lanes of canonical reductions, the outputs of a weight tile. In the plain
// variant lanes exchange values in local memory, so all lane groups of a work-group must take part in each exchange.

#pragma OPENCL FP_CONTRACT OFF

// An accumulation across loop iterations. Intel's CPU compiler splits `x + y` into partial sums.
#define ADD(x, y) fma(y, 1.0f, x)

#define LANES 16
#define GROUP 32       // inputs in a block of codes
#define PAGE 64        // positions in a page of keys and values
#define BLOCK 256      // positions in a block of attention

// Kernels of independent lane groups are LANE_GROUPS: a work-group is one lane group, or with subgroups four in a row. Those
// with `n` lane groups that work together are LANE_GROUPS_OF(n): a work-group is [16][n].
#ifdef HAS_SUBGROUPS
#define ALONE 4
#define LANE_GROUPS __attribute__((intel_reqd_sub_group_size(16)))
#define LANE_GROUPS_OF(n) __attribute__((reqd_work_group_size(16, n, 1))) LANE_GROUPS
#define EXCHANGE_OF(lanes, n)
#define EXCHANGE_ARGUMENT
#define EXCHANGED
#define SWAP_LANES(x, mask) intel_sub_group_shuffle_xor(x, mask)
#else
#define ALONE 1
#if MATRIX_WIDTH == 8  // two subgroups per lane group
#define LANE_GROUPS_OF(n) __attribute__((reqd_work_group_size(16, n, 1))) __attribute__((intel_reqd_sub_group_size(8)))
#else
#define LANE_GROUPS_OF(n) __attribute__((reqd_work_group_size(16, n, 1)))
#endif
#define LANE_GROUPS LANE_GROUPS_OF(1)
#define EXCHANGE_OF(lanes, n) local int lanes[(n) * LANES];
#define EXCHANGE_ARGUMENT , local int* lanes
#define EXCHANGED , lanes
#define SWAP_LANES(x, mask) swap_lanes(x, mask, lanes)
static inline int swap_lanes(int x, int mask, local int* lanes) {
  const int lane = get_local_id(0), first = get_local_id(1) * LANES;
  barrier(CLK_LOCAL_MEM_FENCE);
  lanes[first + lane] = x;
  barrier(CLK_LOCAL_MEM_FENCE);
  return lanes[first + (lane ^ mask)];
}
#endif

#define EXCHANGE(lanes) EXCHANGE_OF(lanes, 1)

#ifdef HAS_ARRIVALS  // OpenCL C 3.0 with device-scope atomics
// Counts an arrival and returns true for the last of `count`, which can read what the others wrote before they arrived, given
// barriers before and after. The last arrival resets the counter to 0.
static bool arrives_last(global int* counter, int count) {
  volatile global atomic_int* at = (volatile global atomic_int*)counter;
  const int before = atomic_fetch_add_explicit(at, 1, memory_order_acq_rel, memory_scope_device);
  if (before == count - 1) atomic_store_explicit(at, 0, memory_order_relaxed, memory_scope_device);
  return before == count - 1;
}

// The same for a work-group: returns the result in all its work-items.
static bool is_last(global int* counter, int count, local int* last) {
  barrier(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE);
  if (get_local_id(0) + get_local_id(1) == 0) *last = arrives_last(counter, count);
  barrier(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE);
  return *last;
}
#endif

// Unrolls a loop fully, so that arrays indexed by its counter stay in a GPU's registers. On CPUs this would only increase
// compile time.
#ifdef ON_GPU
#define UNROLLED __attribute__((opencl_unroll_hint))
#else
#define UNROLLED
#endif

// Numbers of lanes and lane groups, without arithmetic on the work-item's id, which compilers treat as different in each lane.
#ifdef HAS_SUBGROUPS
static inline int lane_of() { return get_sub_group_local_id(); }
static inline int lane_group_within() { return get_sub_group_id(); }
static inline int lane_groups_together() { return get_num_sub_groups(); }
#else
static inline int lane_of() { return get_local_id(0); }
static inline int lane_group_within() { return get_local_id(1); }
static inline int lane_groups_together() { return get_local_size(1); }
#endif
static inline int lane_group_of() { return get_group_id(0) * lane_groups_together() + lane_group_within(); }

// Sums and maxima over the lanes, equal in every lane. Float sums use the canonical tree: lanes i and i + 8, then i and i +
// 4, ... (addition is commutative).
static inline float sum_lanes(float x EXCHANGE_ARGUMENT) {
  for (int away = LANES / 2; away > 0; away /= 2) x = x + as_float(SWAP_LANES(as_int(x), away));
  return x;
}
static inline int sum_lanes_int(int x EXCHANGE_ARGUMENT) {
  for (int away = LANES / 2; away > 0; away /= 2) x = x + SWAP_LANES(x, away);
  return x;
}
static inline int max_lanes_int(int x EXCHANGE_ARGUMENT) {
  for (int away = LANES / 2; away > 0; away /= 2) x = max(x, SWAP_LANES(x, away));
  return x;
}
static inline float max_lanes(float x EXCHANGE_ARGUMENT) {  // undefined for NaN
  for (int away = LANES / 2; away > 0; away /= 2) {
    const float other = as_float(SWAP_LANES(as_int(x), away));
    x = x > other ? x : other;
  }
  return x;
}

// Step data in one buffer of ints: a header, a record per row, then the lists that the records point to.
#define STEP_ROWS 0     // number of rows
#define STEP_WANTED 1   // number of rows with outputs,
#define STEP_WANT 2     // and start of their list
#define STEP_BLOCKS 3   // number of attention partials per row and head
#define STEP_JOINT 4    // rows that a work-group of attention computes together
#define STEP_STATES 5   // start of what recurrent layers read (recurrence.cl); 0: there is none
#define ROW(step, row) ((step) + 6 + (size_t)(row) * 6)
#define TOKEN 0
#define POSITION 1
#define SLOT 2    // slot of the row's key and value; for committed positions slot = position
#define PAGES 3   // start of the list of the sequence's pages
#define LENGTH 4  // number of committed positions
#define PATH 5    // start of the list of the row's ancestors and itself, by depth; below 0: all preceding rows

// sum + four unsigned codes times four signed activations.
static inline int add_dot(uint codes, uint activations, int sum) {
#ifdef HAS_DOT
  return sum + dot_4x8packed_us_int(codes, activations);
#else
  const int4 products = convert_int4(as_uchar4(codes)) * convert_int4(as_char4(activations));
  return sum + products.x + products.y + products.z + products.w;
#endif
}

// e^x as in csrc/kernels/generic/activation.inl, which has the comments.
static inline float exponential(float x) {
  x = -87.0f > x ? -87.0f : x;
  x = 88.0f < x ? 88.0f : x;
  const int n = convert_int_rte(x * 1.44269504f);
  const float nf = convert_float(n);
  float r = fma(nf, -0.693359375f, x);
  r = fma(nf, 2.12194440e-4f, r);
  float p = 1.0f / 720;
  p = fma(p, r, 1.0f / 120);
  p = fma(p, r, 1.0f / 24);
  p = fma(p, r, 1.0f / 6);
  p = fma(p, r, 0.5f);
  p = fma(p, r, 1.0f);
  p = fma(p, r, 1.0f);
  return as_float(as_uint(p) + ((uint)n << 23));
}

// ln(1 + e^x); the product with zero keeps an infinity from becoming a decay of about 0.
static inline float softplus(float x) {
  const float y = exponential(0.0f - fabs(x)), z = y / (y + 2.0f), s = z * z;
  float p = 1.0f / 15;
  p = fma(p, s, 1.0f / 13);
  p = fma(p, s, 1.0f / 11);
  p = fma(p, s, 1.0f / 9);
  p = fma(p, s, 1.0f / 7);
  p = fma(p, s, 1.0f / 5);
  p = fma(p, s, 1.0f / 3);
  p = fma(p, s, 1.0f);
  const float tail = (z + z) * p, positive = 0.0f > x ? 0.0f : x;
  return fma(x, 0.0f, positive + tail);
}

static inline float gated(float x, float y) { return x / (1.0f + exponential(0.0f - y)); }

// limit tanh(x / limit), inverse = 1 / limit; NaN if x is not finite.
static inline float capped(float x, float limit, float inverse) {
  const float tanh = 1.0f - 2.0f / (exponential(x * (2.0f * inverse)) + 1.0f);
  return fma(x, 0.0f, tanh * limit);
}

#define SILU 0
#define GELU_TANH 1
#define CLAMPED 2
#define RELU_SQUARED 3
static inline float activated(int kind, float alpha, float limit, float gate, float up) {
  if (kind == GELU_TANH) {
    const float cube = gate * gate * gate;
    return gated(gate, fma(cube, 0.044715f, gate) * 1.5957691216f) * up;
  }
  if (kind == CLAMPED) {
    const float g = limit < gate ? limit : gate, most = limit < up ? limit : up;
    const float u = -limit > most ? -limit : most;
    return gated(g, g * alpha) * (u + 1.0f);
  }
  if (kind == RELU_SQUARED) {
    const float positive = 0.0f > gate ? 0.0f : gate;
    return positive * positive * up;
  }
  return gated(gate, gate) * up;
}

// Rows as linear layers read them: values [rows][stride] for float weights; for integer weights codes, one scale per block
// and the sum of codes per half block, [blocks][rows], so that several rows of a block are one read. All pointers are always
// valid.
typedef struct {
  global float* values;
  global char* codes;
  global float* scales;
  global int2* sums;
  int blocks;
} Rows;
#define ROWS_ARGUMENTS(x) \
  global float *x##_values, global char *x##_codes, global float *x##_scales, global int2 *x##_sums, int x##_blocks
#define ROWS_OF(x) {x##_values, x##_codes, x##_scales, x##_sums, x##_blocks}

// Index of the codes of block `block` of row `row`; more than 4 rows are padded to multiples of 8.
static inline size_t block_at(int rows, int block, int row) {
  return (size_t)block * (rows > 4 ? rows + 7 & ~7 : rows) + row;
}

// Stores one block of a row: `low` and `high` are the lane's values of its first and last 16. The scale of a block with NaN
// or an infinity is NaN. Stores nothing for a row or a block beyond the last, for lane groups with nothing to do.
static inline void store_block(const Rows x, int rows, int row, int block, float low, float high EXCHANGE_ARGUMENT) {
  const int lane = lane_of();
  const size_t at = block_at(rows, block, row), value = ((size_t)row * x.blocks + block) * GROUP + lane;
  const bool exists = row < rows && block < x.blocks;
  const float a = fabs(low), b = fabs(high);
  const float largest = max_lanes(isnan(low) || isnan(high) ? INFINITY : a > b ? a : b EXCHANGED);
  const bool finite = largest <= FLT_MAX, tiny = !(largest > 1e-30f);
  const float inverse = tiny || !finite ? 0.0f : 127.0f / largest;
  const int first = finite ? convert_int_rte(low * inverse) : 0, second = finite ? convert_int_rte(high * inverse) : 0;
  const int2 sums = (int2)(sum_lanes_int(first EXCHANGED), sum_lanes_int(second EXCHANGED));
  if (!exists) return;
  x.values[value] = low;
  x.values[value + LANES] = high;
  x.codes[at * GROUP + lane] = (char)first;
  x.codes[at * GROUP + LANES + lane] = (char)second;
  if (lane != 0) return;
  x.scales[at] = !finite ? NAN : tiny ? 0.0f : largest / 127.0f;
  x.sums[at] = sums;
}

// 1 / sqrt(mean of squares + epsilon) of n values, NaN if the squares overflow. `at` + i is value i.
static inline float inverse_root(global const float* at, int n, float epsilon EXCHANGE_ARGUMENT) {
  float squares = 0.0f;
  int k = lane_of();
  for (; k - lane_of() + 8 * LANES <= n; k += 8 * LANES) {
    float eight[8];
    UNROLLED for (int i = 0; i < 8; ++i) eight[i] = at[k + i * LANES];
    UNROLLED for (int i = 0; i < 8; ++i) squares = fma(eight[i], eight[i], squares);
  }
  for (; k < n; k += LANES) squares = fma(at[k], at[k], squares);
  const float mean = sum_lanes(squares EXCHANGED) / convert_float(n);
  return 1.0f / sqrt(mean + epsilon) + 0.0f * mean;
}

// The same by all lane groups of a work-group, which get the same value: they copy a part of the row to local memory while the
// first one adds the squares of the previous part.
#define PART 1024
#define NORM_MEMORY(name) local float name[2 * PART + 1];
static inline float inverse_root_together(global const float* at, int n, float epsilon, local float* memory EXCHANGE_ARGUMENT) {
  const int lane = lane_of(), me = lane_group_within() * LANES + lane, items = lane_groups_together() * LANES;
  float squares = 0.0f;
  for (int k = me; k < min(n, PART); k += items) memory[k] = at[k];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int begin = 0; begin < n; begin += PART) {
    local const float* part = memory + begin % (2 * PART);
    const int end = min(begin + 2 * PART, n), count = min(PART, n - begin);
    for (int k = begin + PART + me; k < end; k += items) memory[k % (2 * PART)] = at[k];
    if (lane_group_within() == 0) {
      int k = lane;
      for (; k - lane + 8 * LANES <= count; k += 8 * LANES) {
        float eight[8];
        UNROLLED for (int i = 0; i < 8; ++i) eight[i] = part[k + i * LANES];
        UNROLLED for (int i = 0; i < 8; ++i) squares = fma(eight[i], eight[i], squares);
      }
      for (; k < count; k += LANES) squares = fma(part[k], part[k], squares);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  const float mean = sum_lanes(squares EXCHANGED) / convert_float(n);
  if (me == 0) memory[2 * PART] = 1.0f / sqrt(mean + epsilon) + 0.0f * mean;
  barrier(CLK_LOCAL_MEM_FENCE);
  return memory[2 * PART];
}

static inline float normed(global const float* at, global const float* weight, int k, float inverse) {
  return at[k] * inverse * weight[k];
}

// What a norm takes from a row and multiplies it by: 0 and `inverse_root`, or for a layer norm, the mean and 1 / sqrt(variance +
// epsilon).
typedef struct {
  float mean, inverse;
} Moments;
static inline Moments moments_of(global const float* at, int n, float epsilon, int centered EXCHANGE_ARGUMENT) {
  Moments m = {0.0f, 0.0f};
  if (!centered) {
    m.inverse = inverse_root(at, n, epsilon EXCHANGED);
    return m;
  }
  float sum = 0.0f, squares = 0.0f;
  for (int k = lane_of(); k < n; k += LANES) sum = ADD(sum, at[k]);
  m.mean = sum_lanes(sum EXCHANGED) / convert_float(n);
  for (int k = lane_of(); k < n; k += LANES) {
    const float v = at[k] - m.mean;
    squares = fma(v, v, squares);
  }
  const float variance = sum_lanes(squares EXCHANGED) / convert_float(n);
  m.inverse = 1.0f / sqrt(variance + epsilon) + 0.0f * variance;
  return m;
}

static inline float normed_by(global const float* at, global const float* weight, global const float* bias, int k, Moments m) {
  const float v = (at[k] - m.mean) * m.inverse;
  return bias ? fma(v, weight[k], bias[k]) : v * weight[k];
}

// Writes block `b` of a row of n values, normed if there is a weight. order: null, or the value for each input.
static inline void norm_block(global const float* at, int n, global const float* weight, float inverse,
                              global const int* order, const Rows out, int rows, int row, int b EXCHANGE_ARGUMENT) {
  float v[2];
  UNROLLED for (int i = 0; i < 2; ++i) {
    const int own = b * GROUP + i * LANES + lane_of(), k = order && own < n ? order[own] : own;
    v[i] = own >= n ? 0.0f : weight ? normed(at, weight, k, inverse) : at[k];
  }
  store_block(out, rows, row, b, v[0], v[1] EXCHANGED);
}
