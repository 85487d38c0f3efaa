// Keys and values, and attention over them; csrc/kernels/generic/attention.inl is the same on CPUs and says what the bits of
// a (row, head) are. A layer's keys and values are one buffer of pages of 64 positions, in a page for each head
//   keys [4][head_dim][16], values [64][head_dim], and with KV_INT8 scales of keys [64], of values [64]

#ifdef KV_INT8
typedef char Kept;
// A query and a block's weights as whole numbers (csrc/kernels/generic/attention_int8.inl).
#define MOST_QUERY 8191.0f
#define MOST_WEIGHT 16319.0f
#else
typedef half Kept;
#define KEPT(p, i) vload_half(i, p)
#endif

typedef struct {
  global Kept* keys;
  global Kept* values;
  global float* scales;
} Head;

static Head head_in(global uchar* pages, int page, int kv_heads, int head, int head_dim) {
#ifdef KV_INT8
  const size_t bytes = (size_t)2 * PAGE * head_dim + 2 * PAGE * sizeof(float), size = 1;
#else
  const size_t bytes = (size_t)4 * PAGE * head_dim, size = 2;
#endif
  global uchar* at = pages + ((size_t)page * kv_heads + head) * bytes;
  const Head h = {(global Kept*)at, (global Kept*)(at + size * PAGE * head_dim),
                  (global float*)(at + 2 * size * PAGE * head_dim)};
  return h;
}
static size_t key_at(int slot, int d, int head_dim) {
  return (size_t)(slot / LANES) * head_dim * LANES + d * LANES + slot % LANES;
}

// Norms, rotates and scales the queries in place, and stores keys and values: a lane group for each head of q, k and v.
// Pairs i and i + half are one lane's, so a lane reads what it wrote itself.
LANE_GROUPS kernel void finish_heads(global float* qkv, int stride, int k_column, int v_column, int heads, int kv_heads,
                                     int head_dim, int half_dim, global const float* cosines,
                                     global const float* sines, global const float* query_factors, float query_scale,
                                     global const float* q_norm, global const float* k_norm, float epsilon,
                                     global uchar* pages, global const int* step) {
  EXCHANGE(lanes)
  const int index = lane_group_of(), row = get_global_id(1), lane = lane_of();
  if (index >= heads + 2 * kv_heads || row >= step[STEP_ROWS]) return;
  global const int* at = ROW(step, row);
  const bool is_q = index < heads, is_v = index >= heads + kv_heads;
  const int number = is_q ? index : is_v ? index - heads - kv_heads : index - heads;
  global float* x = qkv + (size_t)row * stride + (is_q ? 0 : is_v ? v_column : k_column) + number * head_dim;
  global const float* weight = is_q ? q_norm : is_v ? 0 : k_norm;
  const float scale = !is_q ? 1.0f : query_factors ? query_scale * query_factors[at[POSITION]] : query_scale;
  const int rotated = is_v ? 0 : half_dim;
  const float inverse = weight ? inverse_root(x, head_dim, epsilon EXCHANGED) : 0.0f;
#ifndef HAS_SUBGROUPS
  barrier(CLK_GLOBAL_MEM_FENCE);  // all have read before any writes
#else
  sub_group_barrier(CLK_GLOBAL_MEM_FENCE);
#endif
  cosines += (size_t)at[POSITION] * half_dim;
  sines += (size_t)at[POSITION] * half_dim;
  float largest = 0.0f;
#define LOOK(v) largest = !isfinite(v) ? INFINITY : fabs(v) > largest ? fabs(v) : largest
  for (int i = lane; i < rotated; i += LANES) {
    const float a = weight ? normed(x, weight, i, inverse) : x[i];
    const float b = weight ? normed(x, weight, i + rotated, inverse) : x[i + rotated];
    const float first = fma(a, cosines[i], -(b * sines[i])) * scale, second = fma(b, cosines[i], a * sines[i]) * scale;
    x[i] = first;
    x[i + rotated] = second;
    LOOK(first);
    LOOK(second);
  }
  for (int i = 2 * rotated + lane; i < head_dim; i += LANES) {
    const float v = (weight ? normed(x, weight, i, inverse) : x[i]) * scale;
    x[i] = v;
    LOOK(v);
  }
#undef LOOK
  if (is_q) return;
  largest = max_lanes(largest EXCHANGED);
  const int slot = at[SLOT] % PAGE;
  const Head head = head_in(pages, step[at[PAGES] + at[SLOT] / PAGE], kv_heads, number, head_dim);
#ifdef KV_INT8
  const bool finite = largest <= FLT_MAX, tiny = !(largest > 1e-30f);
  const float factor = tiny || !finite ? 0.0f : 127.0f / largest;
  if (lane == 0) head.scales[is_v ? PAGE + slot : slot] = !finite ? NAN : tiny ? 0.0f : largest / 127.0f;
#else
  const bool finite = largest < 65520.0f;  // what is above rounds to an infinity in binary16
#endif
#define KEEP(d)                                                                             \
  {                                                                                         \
    const size_t to = is_v ? (size_t)slot * head_dim + (d) : key_at(slot, d, head_dim);     \
    global Kept* kept = is_v ? head.values : head.keys;                                     \
    STORE(x[d], kept, to);                                                                  \
  }
#ifdef KV_INT8
#define STORE(v, kept, to) kept[to] = finite ? (char)convert_int_rte(v * factor) : 0
#else
#define STORE(v, kept, to) vstore_half_rte(finite ? v : NAN, to, kept)
#endif
  // Rounds of all lanes alike: pocl 3.1 stores bytes for lanes whose own loop is over.
  for (int first = 0; first < rotated; first += LANES) {
    const int i = first + lane;
    if (i < rotated) {
      KEEP(i)
      KEEP(i + rotated)
    }
  }
  for (int first = 2 * rotated; first < head_dim; first += LANES)
    if (first + lane < head_dim) KEEP(first + lane)
}

// A partial softmax over positions: {max, sum, weighted values [head_dim]}, for each (row, head, block or all blocks).
#define PARTIAL(head_dim) (2 + (head_dim))

static int first_block(int window, int position) {
  return window > 0 && position >= window ? (position - window + 1) / BLOCK : 0;
}

// One value of a row's attention: its blocks joined in ascending order, then the sink, divided by the sum.
static float joined(global const float* partials, int row, int column, int heads, int head_dim, int window,
                    global const float* sinks, global const int* step) {
  const int head = column / head_dim, d = column % head_dim, blocks = step[STEP_BLOCKS];
  const int position = ROW(step, row)[POSITION];
  const int from = blocks > 1 ? first_block(window, position) : 0, last = blocks > 1 ? position / BLOCK : 0;
  global const float* next = partials + (((size_t)row * heads + head) * blocks + from) * PARTIAL(head_dim);
  float state_max = next[0], state_sum = next[1], state = next[2 + d];
  for (int b = from + 1; b <= last + (sinks ? 1 : 0); ++b) {
    const bool is_sink = b > last;  // a block whose only score is the sink, and whose value is zero
    next += PARTIAL(head_dim);
    const float top = is_sink ? sinks[head] : next[0], sum = is_sink ? 1.0f : next[1], value = is_sink ? 0.0f : next[2 + d];
    const float highest = state_max > top ? state_max : top;
    const float keep = exponential(state_max - highest), take = exponential(top - highest);
    state = fma(state, keep, value * take);
    state_sum = fma(state_sum, keep, sum * take);
    state_max = highest;
  }
  return state / state_sum;
}

// A block of 32 of what the layer's last matrix reads. order: null, or which value of the row each is.
static void merge_block(const Rows out, int b, int row, global const float* partials, int heads, int head_dim, int window,
                        global const float* sinks, global const int* order, global const int* step EXCHANGE_ARGUMENT) {
  float v[2];
  for (int i = 0; i < 2; ++i) {
    const int own = b * GROUP + i * LANES + lane_of(), width = heads * head_dim;
    const int column = order && own < width ? order[own] : own;
    v[i] = own < width ? joined(partials, row, column, heads, head_dim, window, sinks, step) : 0.0f;
  }
  store_block(out, row, b, v[0], v[1] EXCHANGED);
}

#ifdef KV_INT8
// Sets `largest` to that of n values in local memory, infinity where one is not finite; all work-items come together here.
// Not a function: pocl 3.1 loses what is private over a function's barriers.
#define FIND_LARGEST(largest, x, n)                                                           \
  barrier(CLK_LOCAL_MEM_FENCE);                                                               \
  if (me < LANES) {                                                                           \
    float found = 0.0f;                                                                       \
    for (int i = me; i < (n); i += LANES) {                                                   \
      const float v = fabs((x)[i]);                                                           \
      found = !isfinite(v) ? INFINITY : v > found ? v : found;                                \
    }                                                                                         \
    shared_values[me] = found;                                                                \
  }                                                                                           \
  barrier(CLK_LOCAL_MEM_FENCE);                                                               \
  float largest = shared_values[0];                                                           \
  for (int i = 1; i < LANES; ++i) largest = shared_values[i] > largest ? shared_values[i] : largest; \
  barrier(CLK_LOCAL_MEM_FENCE);
static float whole_factor(float largest, float most) {
  return largest > 1e-30f && largest <= FLT_MAX ? most / largest : 0.0f;
}
static float whole_scale(float largest, float most) {
  return !(largest <= FLT_MAX) ? NAN : largest > 1e-30f ? largest / most : 0.0f;
}
static int whole_number(float x, float factor) { return factor == 0.0f ? 0 : convert_int_rte(x * factor); }
#endif

// One work-group a (row, head), and a block of positions where partials are kept apart; else it walks all of them. A work-item
// is a position of a block, then a dimension of the head. Where arrivals can be counted, the last work-group of as many heads
// as fill blocks of 32 merges these; else `merge_heads` does.
#define ATTENDERS 256
#define MOST_DIMS 4  // dimensions a work-item: heads have up to 1,024
#ifdef HAS_ARRIVALS
#define MERGE_ARGUMENTS , int joint, global const float* sinks, ROWS_ARGUMENTS(out), global int* counters
LANE_GROUPS
#else
#define MERGE_ARGUMENTS
#endif
kernel __attribute__((reqd_work_group_size(ATTENDERS, 1, 1)))
void attend(global const float* qkv, int stride, int heads, int kv_heads, int head_dim, global uchar* pages, int window,
            float softcap, global float* partials, global const int* step MERGE_ARGUMENTS) {
  local float q[ATTENDERS * MOST_DIMS], scores[BLOCK], shared_values[LANES];
  const int me = get_local_id(0), head = get_group_id(0), row = get_group_id(1), blocks = step[STEP_BLOCKS];
  global const int* at = ROW(step, row);
  if (row >= step[STEP_ROWS]) return;
  const int position = at[POSITION], length = at[LENGTH], lowest = first_block(window, position);
  const bool apart = blocks > 1;
  const int first = apart ? (int)get_group_id(2) : lowest, last = apart ? first : position / BLOCK;
  if (first < lowest || first > position / BLOCK) return;
  const int kv_head = head / (heads / kv_heads);
  for (int d = me; d < head_dim; d += ATTENDERS) q[d] = qkv[(size_t)row * stride + head * head_dim + d];
#ifdef KV_INT8
  local int whole_q[ATTENDERS * MOST_DIMS], whole_weights[BLOCK];
  FIND_LARGEST(most_q, q, head_dim)
  const float q_scale = whole_scale(most_q, MOST_QUERY);
  for (int d = me; d < head_dim; d += ATTENDERS) whole_q[d] = whole_number(q[d], whole_factor(most_q, MOST_QUERY));
#endif
  float state_max = 0.0f, state_sum = 0.0f, state[MOST_DIMS];
  for (int b = first; b <= last; ++b) {
    const int within = position - b * BLOCK, end = min(within + 1, BLOCK);
    const int begin = window > 0 && within >= window ? within - window + 1 : 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    float score = -INFINITY;
    const bool seen = me >= begin && me < end;
#ifdef KV_INT8
    float value_scale = 0.0f;
#endif
    if (seen) {
      const int p = b * BLOCK + me;
      const int slot = p < length || at[PATH] < 0 ? p : length + step[at[PATH] + p - length];
      const Head h = head_in(pages, step[at[PAGES] + slot / PAGE], kv_heads, kv_head, head_dim);
      global Kept* k = h.keys + key_at(slot % PAGE, 0, head_dim);
#ifdef KV_INT8
      int sum = 0;
      for (int d = 0; d < head_dim; ++d) sum += k[d * LANES] * whole_q[d];
      score = convert_float(sum) * q_scale * h.scales[slot % PAGE];
      value_scale = h.scales[PAGE + slot % PAGE];
#else
      score = 0.0f;
      for (int d = 0; d < head_dim; ++d) score = fma(KEPT(k, d * LANES), q[d], score);
#endif
      if (softcap > 0) score = capped(score, softcap, 1.0f / softcap);
    }
    scores[me] = score;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (me < LANES) {
      float top = -INFINITY;
      for (int i = me; i < BLOCK; i += LANES) top = scores[i] > top ? scores[i] : top;
      shared_values[me] = top;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float top = shared_values[0];
    for (int i = 1; i < LANES; ++i) top = shared_values[i] > top ? shared_values[i] : top;
    barrier(CLK_LOCAL_MEM_FENCE);
    scores[me] = seen ? exponential(score - top) : 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (me < LANES) {
      float total = 0.0f;
      for (int i = me; i < BLOCK; i += LANES) total = ADD(total, scores[i]);
      shared_values[me] = total;
    }
    for (int away = LANES / 2; away > 0; away /= 2) {
      barrier(CLK_LOCAL_MEM_FENCE);
      const float other = me < away ? shared_values[me + away] : 0.0f;
      if (me < away) shared_values[me] = shared_values[me] + other;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const float sum = shared_values[0];
#ifdef KV_INT8
    scores[me] = scores[me] * value_scale;
    FIND_LARGEST(most, scores, BLOCK)
    whole_weights[me] = whole_number(scores[me], whole_factor(most, MOST_WEIGHT));
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    float values[MOST_DIMS];
    for (int i = 0; i < MOST_DIMS; ++i) {
      const int d = me + i * ATTENDERS;
      if (d >= head_dim) break;
#ifdef KV_INT8
      int value = 0;
#else
      float value = 0.0f;
#endif
      for (int p = begin; p < end; ++p) {
        const int where = b * BLOCK + p;
        const int slot = where < length || at[PATH] < 0 ? where : length + step[at[PATH] + where - length];
        const Head h = head_in(pages, step[at[PAGES] + slot / PAGE], kv_heads, kv_head, head_dim);
        const size_t element = (size_t)(slot % PAGE) * head_dim + d;
#ifdef KV_INT8
        value += h.values[element] * whole_weights[p];
      }
      values[i] = convert_float(value) * whole_scale(most, MOST_WEIGHT);
#else
        value = fma(KEPT(h.values, element), scores[p], value);
      }
      values[i] = value;
#endif
    }
    const float highest = b == first ? top : state_max > top ? state_max : top;
    const float keep = exponential(state_max - highest), take = exponential(top - highest);
    for (int i = 0; i < MOST_DIMS && me + i * ATTENDERS < head_dim; ++i)
      state[i] = b == first ? values[i] : fma(state[i], keep, values[i] * take);
    state_sum = b == first ? sum : fma(state_sum, keep, sum * take);
    state_max = highest;
  }
  global float* own = partials + (((size_t)row * heads + head) * blocks + (apart ? first : 0)) * PARTIAL(head_dim);
  for (int i = 0; i < MOST_DIMS && me + i * ATTENDERS < head_dim; ++i) own[2 + me + i * ATTENDERS] = state[i];
  if (me == 0) {
    own[0] = state_max;
    own[1] = state_sum;
  }
#ifdef HAS_ARRIVALS
  local int arrived;
  if (joint == 0) return;  // the row's values have another order: `merge_heads`
  const int group = head / joint, end_head = min((group + 1) * joint, heads);
  const int parts = (end_head - group * joint) * (apart ? position / BLOCK - lowest + 1 : 1);
  if (!is_last(counters + row * ((heads + joint - 1) / joint) + group, parts, &arrived)) return;
  const Rows rows = ROWS_OF(out);
  const int from = group * joint * head_dim / GROUP, to = (end_head * head_dim + GROUP - 1) / GROUP;
  for (int b = from + me / LANES; b < to; b += ATTENDERS / LANES)
    merge_block(rows, b, row, partials, heads, head_dim, window, sinks, 0, step);
#endif
}

// The rows that the layer's last matrix reads: a lane group a block of 32.
LANE_GROUPS kernel void merge_heads(global const float* partials, int heads, int head_dim, int window,
                                    global const float* sinks, global const int* order, ROWS_ARGUMENTS(out),
                                    global const int* step) {
  EXCHANGE(lanes)
  const Rows out = ROWS_OF(out);
  const int b = lane_group_of(), row = get_global_id(1);
  if (b >= out.blocks || row >= step[STEP_ROWS]) return;
  merge_block(out, b, row, partials, heads, head_dim, window, sinks, order, step EXCHANGED);
}

// Moves slots of a sequence in the order given, {page, slot in it, to page, slot in it} each; a work-item an element.
kernel void move_slots(global uchar* pages, int kv_heads, int head_dim, global const int* moves, int count) {
  const int d = get_global_id(0), head = get_global_id(1);
  if (d >= head_dim) return;
  for (int i = 0; i < count; ++i) {
    const Head from = head_in(pages, moves[4 * i], kv_heads, head, head_dim);
    const Head to = head_in(pages, moves[4 * i + 2], kv_heads, head, head_dim);
    const int s = moves[4 * i + 1], t = moves[4 * i + 3];
    // As bits: half cannot be assigned everywhere.
#ifdef KV_INT8
    to.keys[key_at(t, d, head_dim)] = from.keys[key_at(s, d, head_dim)];
    to.values[(size_t)t * head_dim + d] = from.values[(size_t)s * head_dim + d];
    if (d == 0) {
      to.scales[t] = from.scales[s];
      to.scales[PAGE + t] = from.scales[PAGE + s];
    }
#else
    ((global ushort*)to.keys)[key_at(t, d, head_dim)] = ((global ushort*)from.keys)[key_at(s, d, head_dim)];
    ((global ushort*)to.values)[(size_t)t * head_dim + d] = ((global ushort*)from.values)[(size_t)s * head_dim + d];
#endif
  }
}
