// Attention over the keys and values of heads.cl. csrc/kernels/generic/attention.inl is the CPU implementation and defines the
// bits of a (row, head).

#ifdef KV_INT8
// Ranges of the integers for a query and for a block's weights (csrc/kernels/generic/attention_int8.inl).
#define MOST_QUERY 8191.0f
#define MOST_WEIGHT 16319.0f
#endif

// One lane group per head of q, k and v, if linear_heads.cl does not finish them.
LANE_GROUPS kernel void finish_heads(HEADS_ARGUMENTS, global const int* step) {
  EXCHANGE(lanes)
  const int index = lane_group_of(), row = get_group_id(1);
  if (row < step[STEP_ROWS]) finish_head(HEADS, index, row, step EXCHANGED);
}

// A partial softmax over positions: {max, sum, weighted values [value_dim]}, per (row, head, block or all blocks).
#define PARTIAL(value_dim) (2 + (value_dim))

static int first_block(int window, int position) {
  return window > 0 && position >= window ? (position - window + 1) / BLOCK : 0;
}

// Value `d` of a row's head: merges its blocks in ascending order, then the sink, and divides by the sum.
static float joined(global const float* partials, int row, int head, int d, int heads, int value_dim, int window,
                    global const float* sinks, global const int* step) {
  const int blocks = step[STEP_BLOCKS], position = ROW(step, row)[POSITION];
  const int from = blocks > 1 ? first_block(window, position) : 0, last = blocks > 1 ? position / BLOCK : 0;
  global const float* next = partials + (((size_t)row * heads + head) * blocks + from) * PARTIAL(value_dim);
  float state_max = next[0], state_sum = next[1], state = next[2 + d];
  for (int b = from + 1; b <= last + (sinks ? 1 : 0); ++b) {
    const bool is_sink = b > last;  // merged as a block with the sink as its only score and a value of zero
    next += PARTIAL(value_dim);
    const float top = is_sink ? sinks[head] : next[0], sum = is_sink ? 1.0f : next[1], value = is_sink ? 0.0f : next[2 + d];
    const float highest = state_max > top ? state_max : top;
    const float keep = exponential(state_max - highest), take = exponential(top - highest);
    state = fma(state, keep, value * take);
    state_sum = fma(state_sum, keep, sum * take);
    state_max = highest;
  }
  return state / state_sum;
}

// Kinds of gates: softplus instead of sigmoid, and one gate per head instead of one per value.
#define SOFTPLUS 1
#define GATES_OF_HEADS 2

// Writes a block of 32 inputs of the layer that reads the heads, each padded with zeros to `width` inputs. order: null, or the
// row's value for each input. gates: null, or the row's gates: of each value, or of each head.
static void merge_block(const Rows out, int b, int row, global const float* partials, int heads, int value_dim, int width,
                        int window, global const float* gates, int gating, global const float* sinks, global const int* order,
                        global const int* step EXCHANGE_ARGUMENT) {
  float v[2];
  UNROLLED for (int i = 0; i < 2; ++i) {
    const int own = b * GROUP + i * LANES + lane_of(), inside = own < heads * width;
    const int column = order && inside ? order[own] : own, d = column % width;
    v[i] = inside && d < value_dim ? joined(partials, row, column / width, d, heads, value_dim, window, sinks, step) : 0.0f;
    if (!gates || !inside) continue;
    const float g = gates[gating & GATES_OF_HEADS ? column / width : column];
    if (gating == 0)
      v[i] = gated(v[i], g);
    else
      v[i] = v[i] * (gating & SOFTPLUS ? softplus(g) : gated(1.0f, g));
  }
  store_block(out, step[STEP_ROWS], row, b, v[0], v[1] EXCHANGED);
}

#ifdef KV_INT8
static float whole_factor(float largest, float most) {
  return largest > 1e-30f && largest <= FLT_MAX ? most / largest : 0.0f;
}
static float whole_scale(float largest, float most) {
  return !(largest <= FLT_MAX) ? NAN : largest > 1e-30f ? largest / most : 0.0f;
}
static int whole_number(float x, float factor) { return factor == 0.0f ? 0 : convert_int_rte(x * factor); }
#endif

#define ATTENDERS 256
#define PAIRS 8        // maximum (row, head) pairs of a work-group
#ifndef QUERIES
#define QUERIES 1024   // maximum number of values of all their queries
#endif

// Reduces `n` values in local memory per pair, one lane group per pair: REDUCED(pair, lane) = f over every 16th value. All
// work-items join after it. A macro, because pocl 3.1 loses private variables across a function's barriers.
#define EACH_PAIR(x, n, start, f)                                                   \
  if (me / LANES < pairs) {                                                         \
    float found = start;                                                            \
    for (int i = me % LANES; i < (n); i += LANES) found = f(found, (x)[me / LANES * (n) + i]); \
    reduced[me] = found;                                                            \
  }                                                                                 \
  barrier(CLK_LOCAL_MEM_FENCE);
#define LARGER(x, y) ((y) > (x) ? (y) : (x))
#define LARGER_OR_INFINITE(x, y) (!isfinite(y) ? INFINITY : fabs(y) > (x) ? fabs(y) : (x))
// The maximum over a pair's lanes, for each pair.
#define LARGEST_OF_LANES(to)                                                            \
  if (me < pairs) {                                                                     \
    float found = reduced[me * LANES];                                                  \
    for (int i = 1; i < LANES; ++i) found = LARGER(found, reduced[me * LANES + i]);     \
    to[me] = found;                                                                     \
  }                                                                                     \
  barrier(CLK_LOCAL_MEM_FENCE);

// A work-group computes `joint` heads that share a key head, for STEP_JOINT rows, over one block of positions if partials are
// stored per block, else over all positions. A key or value is read once for all pairs with the same slots: the committed
// positions of a sequence. Rows of a tree are processed one by one in blocks beyond those. A work-item computes one position
// of a block, then one dimension of the values for a subset of the pairs. With HAS_ARRIVALS, the last of the work-groups for
// the heads of a 32-input block merges them; else `merge_heads` does.
#ifdef HAS_ARRIVALS
#define MERGE_ARGUMENTS \
  , int merged, int width, int gate_column, int gating, global const float *sinks, ROWS_ARGUMENTS(out), global int *counters
LANE_GROUPS
#else
#define MERGE_ARGUMENTS
#endif
kernel __attribute__((reqd_work_group_size(ATTENDERS, 1, 1)))
void attend(global const float* qkv, int stride, int heads, int kv_heads, int head_dim, int value_dim, int joint,
            global uchar* pages, int window, float softcap, global float* partials,
            global const int* step MERGE_ARGUMENTS) {
  local float q[QUERIES], scores[PAIRS * BLOCK], reduced[ATTENDERS], tops[PAIRS], maxima[PAIRS], sums[PAIRS];
  local float keeps[PAIRS], takes[PAIRS];  // factors of the previous blocks and of the current block
  local int begins[PAIRS], ends[PAIRS];    // range of positions in the block that a pair sees
  const int me = get_local_id(0), group = heads / kv_heads, parts = (group + joint - 1) / joint;
  const int kv_head = get_group_id(0) / parts, first_head = kv_head * group + get_group_id(0) % parts * joint;
  const int pair_heads = min(joint, (kv_head + 1) * group - first_head), row = get_group_id(1) * step[STEP_JOINT];
  if (row >= step[STEP_ROWS]) return;
  const int pair_rows = min(step[STEP_JOINT], step[STEP_ROWS] - row), pairs = pair_rows * pair_heads;
  const int blocks = step[STEP_BLOCKS], length = ROW(step, row)[LENGTH];
  const bool apart = blocks > 1;
  int lowest = INT_MAX, highest_block = 0;
  bool alike = true, tree = false;
  for (int r = row; r < row + pair_rows; ++r) {
    global const int* at = ROW(step, r);
    lowest = min(lowest, first_block(window, at[POSITION]));
    highest_block = max(highest_block, at[POSITION] / BLOCK);
    alike = alike && at[PAGES] == ROW(step, row)[PAGES];
    tree = tree || at[PATH] >= 0;
  }
  const int first = apart ? (int)get_group_id(2) : lowest, last = apart ? first : highest_block;
  if (first < lowest || first > highest_block) return;
#define ROW_OF(pair) (row + (pair) / pair_heads)
#define HEAD_OF(pair) (first_head + (pair) % pair_heads)
  for (int i = me; i < pairs * head_dim; i += ATTENDERS)
    q[i] = qkv[(size_t)ROW_OF(i / head_dim) * stride + HEAD_OF(i / head_dim) * head_dim + i % head_dim];
  barrier(CLK_LOCAL_MEM_FENCE);
#ifdef KV_INT8
  local int whole_q[QUERIES], whole_weights[PAIRS * BLOCK];
  local float most_q[PAIRS], most[PAIRS];
  EACH_PAIR(q, head_dim, 0.0f, LARGER_OR_INFINITE)
  LARGEST_OF_LANES(most_q)
  for (int i = me; i < pairs * head_dim; i += ATTENDERS)
    whole_q[i] = whole_number(q[i], whole_factor(most_q[i / head_dim], MOST_QUERY));
#endif
  for (int chunk = 0; chunk < value_dim; chunk += ATTENDERS) {  // over dimensions; usually one iteration
    const int dims = (min(value_dim - chunk, ATTENDERS) + LANES - 1) / LANES * LANES, teams = ATTENDERS / dims;
    const int team = me / dims, d = chunk + me % dims;
    const bool at_work = team < teams && d < value_dim;  // works on pairs `team`, `team` + `teams`, ...
    float state[PAIRS];
    UNROLLED for (int k = 0; k < PAIRS; ++k) state[k] = 0.0f;
    for (int b = first; b <= last; ++b) {
      barrier(CLK_LOCAL_MEM_FENCE);
      if (me < pairs) {
        const int within = ROW(step, ROW_OF(me))[POSITION] - b * BLOCK, end = clamp(within + 1, 0, BLOCK);
        const int begin = window > 0 && within >= window ? within - window + 1 : 0;
        begins[me] = min(begin, end);
        ends[me] = end;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      // Pairs [from, upto) have the same slots in this block.
      const int together = alike && !(tree && (b + 1) * BLOCK > length) ? pairs : pair_heads;
      float score[PAIRS];
#ifdef KV_INT8
      float value_scale[PAIRS];
#endif
      UNROLLED for (int i = 0; i < PAIRS; ++i) score[i] = -INFINITY;
      for (int from = 0; from < pairs; from += together) {
        const int upto = from + together;
        bool seen = false;
        for (int i = from; i < upto; i += pair_heads) seen = seen || (me >= begins[i] && me < ends[i]);
        if (!seen) continue;
        global const int* at = ROW(step, ROW_OF(from));
        const int p = b * BLOCK + me, slot = p < at[LENGTH] || at[PATH] < 0 ? p : at[LENGTH] + step[at[PATH] + p - at[LENGTH]];
        const Head h = head_in(pages, step[at[PAGES] + slot / PAGE], kv_heads, kv_head, head_dim, value_dim);
        global Kept* k = h.keys + key_at(slot % PAGE, 0, head_dim);
#ifdef KV_INT8
        int whole[PAIRS];
        UNROLLED for (int i = 0; i < PAIRS; ++i) whole[i] = 0;
#else
        UNROLLED for (int i = 0; i < PAIRS; ++i) score[i] = i >= from && i < upto ? 0.0f : score[i];
#endif
#ifndef KV_INT8
        float next[8];
        UNROLLED for (int j = 0; j < 8; ++j) next[j] = KEPT(k, j * LANES);
#endif
        for (int c = 0; c < head_dim; c += 8) {
#ifdef KV_INT8
          int key[8];
          UNROLLED for (int j = 0; j < 8; ++j) key[j] = k[(c + j) * LANES];
          UNROLLED for (int i = 0; i < PAIRS; ++i)
            if (i >= from && i < upto)
              UNROLLED for (int j = 0; j < 8; ++j) whole[i] += key[j] * whole_q[i * head_dim + c + j];
#else  // the next ones are read before these are multiplied
          const int following = min(c + 8, head_dim - 8);
          float key[8];
          UNROLLED for (int j = 0; j < 8; ++j) key[j] = next[j];
          UNROLLED for (int j = 0; j < 8; ++j) next[j] = KEPT(k, (following + j) * LANES);
          UNROLLED for (int i = 0; i < PAIRS; ++i)
            if (i >= from && i < upto)
              UNROLLED for (int j = 0; j < 8; ++j) score[i] = fma(key[j], q[i * head_dim + c + j], score[i]);
#endif
        }
        UNROLLED for (int i = 0; i < PAIRS; ++i)
          if (i >= from && i < upto) {
#ifdef KV_INT8
            score[i] = convert_float(whole[i]) * whole_scale(most_q[i], MOST_QUERY) * h.scales[slot % PAGE];
            value_scale[i] = h.scales[PAGE + slot % PAGE];
#endif
            if (softcap > 0) score[i] = capped(score[i], softcap, 1.0f / softcap);
          }
      }
#define SEES(i) (me >= begins[i] && me < ends[i])
      UNROLLED for (int i = 0; i < PAIRS; ++i)
        if (i < pairs) scores[i * BLOCK + me] = SEES(i) ? score[i] : -INFINITY;
      barrier(CLK_LOCAL_MEM_FENCE);
      EACH_PAIR(scores, BLOCK, -INFINITY, LARGER)
      LARGEST_OF_LANES(tops)
      UNROLLED for (int i = 0; i < PAIRS; ++i)
        if (i < pairs) scores[i * BLOCK + me] = SEES(i) ? exponential(score[i] - tops[i]) : 0.0f;
      barrier(CLK_LOCAL_MEM_FENCE);
      EACH_PAIR(scores, BLOCK, 0.0f, ADD)
      for (int away = LANES / 2; away > 0; away /= 2) {
        const bool adds = me / LANES < pairs && me % LANES < away;
        const float other = adds ? reduced[me + away] : 0.0f;
        if (adds) reduced[me] = reduced[me] + other;
        barrier(CLK_LOCAL_MEM_FENCE);
      }
#ifdef KV_INT8
      UNROLLED for (int i = 0; i < PAIRS; ++i)
        if (i < pairs && SEES(i)) scores[i * BLOCK + me] = scores[i * BLOCK + me] * value_scale[i];
      const float sum = me < pairs ? reduced[me * LANES] : 0.0f;
      barrier(CLK_LOCAL_MEM_FENCE);
      EACH_PAIR(scores, BLOCK, 0.0f, LARGER_OR_INFINITE)
      LARGEST_OF_LANES(most)
      UNROLLED for (int i = 0; i < PAIRS; ++i)
        if (i < pairs)
          whole_weights[i * BLOCK + me] = whole_number(scores[i * BLOCK + me], whole_factor(most[i], MOST_WEIGHT));
      barrier(CLK_LOCAL_MEM_FENCE);
#define WEIGHTS whole_weights
#define TIMES(value, weight, sum) ((sum) + (value) * (weight))
#define VALUE(from, i) (from)[i]
#define AT_ONCE 8  // values that are read before they are multiplied, if there are 8
      typedef int Whole;
#else
      const float sum = me < pairs ? reduced[me * LANES] : 0.0f;
#define WEIGHTS scores
#define TIMES(value, weight, sum) fma(value, weight, sum)
#define VALUE(from, i) KEPT(from, i)
#define AT_ONCE 16
      typedef float Whole;
#endif
      Whole value[PAIRS];
      UNROLLED for (int k = 0; k < PAIRS; ++k) value[k] = 0;
      for (int from = 0; at_work && from < pairs; from += together) {
        const int upto = from + together;
        global const int* at = ROW(step, ROW_OF(from));
        int p = BLOCK, end = 0, all = 0, until = BLOCK;  // [all, until): positions that all pairs see
        for (int i = from; i < upto; i += pair_heads) {
          if (begins[i] == ends[i]) continue;
          p = min(p, begins[i]);
          end = max(end, ends[i]);
          all = max(all, begins[i]);
          until = min(until, ends[i]);
        }
        while (p < end) {  // consecutive slots of a page
          const int where = b * BLOCK + p;
          const bool plain = where < at[LENGTH] || at[PATH] < 0;
          const int slot = plain ? where : at[LENGTH] + step[at[PATH] + where - at[LENGTH]];
          int stop = plain ? min(p + PAGE - slot % PAGE, end) : p + 1;
          if (plain && at[PATH] >= 0) stop = min(stop, at[LENGTH] - b * BLOCK);
          const Head h = head_in(pages, step[at[PAGES] + slot / PAGE], kv_heads, kv_head, head_dim, value_dim);
          global Kept* v = h.values + (size_t)(slot % PAGE) * value_dim + d;
#define OWN(k) (team + (k) * teams)
          while (p < stop) {
            if (p >= all && p + 8 <= min(stop, until)) {
              Whole eight[8], next[8], weight[8];
              const int some = AT_ONCE > 8 && p + AT_ONCE <= min(stop, until) ? AT_ONCE : 8;
              UNROLLED for (int j = 0; j < 8; ++j) eight[j] = VALUE(v, j * value_dim);
              if (some > 8) UNROLLED for (int j = 0; j < 8; ++j) next[j] = VALUE(v, (8 + j) * value_dim);
              UNROLLED for (int k = 0; k < PAIRS; ++k)
                if (OWN(k) >= from && OWN(k) < upto && begins[OWN(k)] < ends[OWN(k)]) {
                  vstore8(vload8(0, WEIGHTS + OWN(k) * BLOCK + p), 0, weight);
                  UNROLLED for (int j = 0; j < 8; ++j) value[k] = TIMES(eight[j], weight[j], value[k]);
                  if (some > 8) {
                    vstore8(vload8(0, WEIGHTS + OWN(k) * BLOCK + p + 8), 0, weight);
                    UNROLLED for (int j = 0; j < 8; ++j) value[k] = TIMES(next[j], weight[j], value[k]);
                  }
                }
              p += some;
              v += some * value_dim;
            } else {
              UNROLLED for (int k = 0; k < PAIRS; ++k)
                if (OWN(k) >= from && OWN(k) < upto && p >= begins[OWN(k)] && p < ends[OWN(k)])
                  value[k] = TIMES(VALUE(v, 0), WEIGHTS[OWN(k) * BLOCK + p], value[k]);
              ++p;
              v += value_dim;
            }
          }
        }
      }
      // Merge with the previous blocks; a pair's first block has none.
#define IS_FIRST(pair) (apart || b == first_block(window, ROW(step, ROW_OF(pair))[POSITION]))
      if (me < pairs && begins[me] < ends[me]) {
        const float highest = IS_FIRST(me) ? tops[me] : LARGER(tops[me], maxima[me]);
        keeps[me] = exponential(maxima[me] - highest);
        takes[me] = exponential(tops[me] - highest);
        sums[me] = IS_FIRST(me) ? sum : fma(sums[me], keeps[me], sum * takes[me]);
        maxima[me] = highest;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      UNROLLED for (int k = 0; k < PAIRS; ++k)
        if (at_work && OWN(k) < pairs && begins[OWN(k)] < ends[OWN(k)]) {
#ifdef KV_INT8
          const float found = convert_float(value[k]) * whole_scale(most[OWN(k)], MOST_WEIGHT);
#else
          const float found = value[k];
#endif
          state[k] = IS_FIRST(OWN(k)) ? found : fma(state[k], keeps[OWN(k)], found * takes[OWN(k)]);
        }
    }
#define SEEN(pair) (!apart || begins[pair] < ends[pair])
#define PARTIAL_OF(pair) \
  (partials + (((size_t)ROW_OF(pair) * heads + HEAD_OF(pair)) * blocks + (apart ? first : 0)) * PARTIAL(value_dim))
    UNROLLED for (int k = 0; k < PAIRS; ++k)
      if (at_work && OWN(k) < pairs && SEEN(OWN(k))) PARTIAL_OF(OWN(k))[2 + d] = state[k];
    if (me < pairs && SEEN(me)) {
      PARTIAL_OF(me)[0] = maxima[me];
      PARTIAL_OF(me)[1] = sums[me];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#ifdef HAS_ARRIVALS
  local int arrived[PAIRS];
  if (merged == 0) return;  // the row's values have an order: `merge_heads` does it
  const int gathered = (heads + merged - 1) / merged;
  barrier(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE);
  if (me < pairs) {
    const int position = ROW(step, ROW_OF(me))[POSITION], index = HEAD_OF(me) / merged;
    const int count = min(merged, heads - index * merged) * (apart ? position / BLOCK - first_block(window, position) + 1 : 1);
    arrived[me] = SEEN(me) && arrives_last(counters + ROW_OF(me) * gathered + index, count);
  }
  barrier(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE);
  const Rows rows = ROWS_OF(out);
  for (int pair = 0; pair < pairs; ++pair) {
    if (!arrived[pair]) continue;
    const int begin_head = HEAD_OF(pair) / merged * merged, end_head = min(begin_head + merged, heads);
    const int from = begin_head * width / GROUP, to = (end_head * width + GROUP - 1) / GROUP;
    for (int b = from + me / LANES; b < to; b += ATTENDERS / LANES)
      merge_block(rows, b, ROW_OF(pair), partials, heads, value_dim, width, window,
                  gate_column > 0 ? qkv + (size_t)ROW_OF(pair) * stride + gate_column : 0, gating, sinks, 0, step);
  }
#endif
}

// Writes the inputs of the layer's output projection: one lane group per block of 32.
LANE_GROUPS kernel void merge_heads(global const float* partials, int heads, int value_dim, int width, int window,
                                    global const float* qkv, int stride, int gate_column, int gating,
                                    global const float* sinks,
                                    global const int* order, ROWS_ARGUMENTS(out),
                                    global const int* step) {
  EXCHANGE(lanes)
  const Rows out = ROWS_OF(out);
  const int b = lane_group_of(), row = get_group_id(1);
  if (b >= out.blocks || row >= step[STEP_ROWS]) return;
  global const float* gates = gate_column > 0 ? qkv + (size_t)row * stride + gate_column : 0;
  merge_block(out, b, row, partials, heads, value_dim, width, window, gates, gating, sinks, order, step
              EXCHANGED);
}

// Moves slots of a sequence in the given order, each {page, slot, to page, to slot}; one work-item per element.
kernel void move_slots(global uchar* pages, int kv_heads, int head_dim, int value_dim, global const int* moves, int count) {
  const int d = get_global_id(0), head = get_global_id(1);  // the driver chooses the work-group sizes
  for (int i = 0; i < count; ++i) {
    const Head from = head_in(pages, moves[4 * i], kv_heads, head, head_dim, value_dim);
    const Head to = head_in(pages, moves[4 * i + 2], kv_heads, head, head_dim, value_dim);
    const int s = moves[4 * i + 1], t = moves[4 * i + 3];
    const size_t key = key_at(t, d, head_dim), from_key = key_at(s, d, head_dim);
    const size_t value = (size_t)t * value_dim + d, from_value = (size_t)s * value_dim + d;
    // As bits: not every device can assign half.
#ifdef KV_INT8
    if (d < head_dim) to.keys[key] = from.keys[from_key];
    if (d < value_dim) to.values[value] = from.values[from_value];
    if (d == 0) {
      to.scales[t] = from.scales[s];
      to.scales[PAGE + t] = from.scales[PAGE + s];
    }
#else
    if (d < head_dim) ((global ushort*)to.keys)[key] = ((global ushort*)from.keys)[from_key];
    if (d < value_dim) ((global ushort*)to.values)[value] = ((global ushort*)from.values)[from_value];
#endif
  }
}
