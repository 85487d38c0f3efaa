// Layers with a recurrent state. csrc/kernels/generic/recurrence.inl, csrc/model/recurrence.cc, short_conv.cc and lineage.h
// are the CPU implementation.
//
// Within a sequence, rows are numbered after the committed state: first the rows accepted since, then the step's rows.
// Negative numbers are positions inside the state. In buffers, accepted rows follow the rows of the whole step.

// At STEP_STATES: the number of the step's and of accepted rows, the number of sequences, a record per sequence, and the
// index of each row's sequence.
#define STATES(step) ((step) + (step)[STEP_STATES])
#define ALL_ROWS 0
#define SEQUENCES 1
#define SEQUENCE(step, index) (STATES(step) + 2 + (size_t)(index) * 12)
#define FIRST 0        // index of the sequence's first row in the step
#define OWN_ROWS 1     // number of its rows in the step
#define REPLAYED 2     // index of its first accepted row in buffers
#define ACCEPTED 3     // number of accepted rows
#define COMMITTED 4    // number of rows that the step adds to the state
#define MATRIX_IN 5    // place of the matrix before the step (-1: zeros)
#define MATRIX_OUT 6   // and after it
#define HISTORY_IN 7
#define HISTORY_OUT 8
#define DRAFTS_IN 9    // start of the list of places of the accepted rows' raw inputs
#define DRAFTS_OUT 10  // start of the list of places for the raw inputs of rows that are not added to the state
#define CHAIN 11       // whether every row's parent is the previous row

// The raw inputs of a sequence's rows. Those of the convolution are the product of two columns if `times` is above 0.
typedef struct {
  global const int* step;
  global const int* at;  // the sequence's record
  int row;
  global const float* raw;
  int stride, times;
  global float* histories;  // [places][taps - 1][channels]
  global float* drafts;     // [places][channels + gates]
  int taps, channels, gates;
} Lineage;
#define LINEAGE_ARGUMENTS \
  global const float *raw, int stride, global float *histories, global float *drafts, int taps, int channels, int gates

static Lineage lineage_of(LINEAGE_ARGUMENTS, int times, int index, global const int* step) {
  global const int* states = STATES(step);
  global const int* at = SEQUENCE(step, states[2 + states[SEQUENCES] * 12 + index]);
  const int rows = step[STEP_ROWS];
  const int row = index < rows ? at[ACCEPTED] + index - at[FIRST] : index - at[REPLAYED];
  const Lineage line = {step, at, row, raw, stride, times, histories, drafts, taps, channels, gates};
  return line;
}

// The ancestor `back` rows before `row`.
static int row_before(global const int* step, global const int* at, int row, int back) {
  if (row < at[ACCEPTED] || at[CHAIN]) return row - back;
  global const int* own = ROW(step, at[FIRST] + row - at[ACCEPTED]);
  const int depth = own[POSITION] - own[LENGTH] - back;
  return at[ACCEPTED] + (depth < 0 ? depth : step[own[PATH] + depth]);
}

static global const float* raw_row(const Lineage l, int row) {
  return l.raw + (size_t)(l.at[FIRST] + row - l.at[ACCEPTED]) * l.stride;
}
static global float* draft_row(const Lineage l, int list, int row) {
  return l.drafts + (size_t)l.step[l.at[list] + row] * (l.channels + l.gates);
}
static global float* history_row(const Lineage l, int which, int i) {
  return l.histories + ((size_t)l.at[which] * (l.taps - 1) + i) * l.channels;
}

// Input c of the convolution in a row.
static float input_at(const Lineage l, int row, int c) {
  if (row < 0) return history_row(l, HISTORY_IN, l.taps - 1 + row)[c];
  if (row < l.at[ACCEPTED]) return draft_row(l, DRAFTS_IN, row)[c];
  global const float* own = raw_row(l, row) + c;
  return l.times > 0 ? own[0] * own[l.times] : own[0];
}

// The convolution's output for channel c.
static float convolved(const Lineage l, int c, global const float* weight, global const float* bias) {
  float sum = bias ? bias[c] : 0.0f;
  for (int t = 0; t < l.taps; ++t)
    sum = fma(weight[c * l.taps + t], input_at(l, row_before(l.step, l.at, l.row, l.taps - 1 - t), c), sum);
  return sum;
}

// Stores the row's input c for the next step: in the history if it is among the last committed rows, in the drafts if it may
// be accepted. The sequence's first row also moves what stays of the history.
static void leave(const Lineage l, int c) {
  const int committed = l.at[COMMITTED], place = l.row - committed + l.taps - 1;
  const float own = input_at(l, l.row, c);
  if (l.row >= committed) draft_row(l, DRAFTS_OUT, l.row - committed)[c] = own;
  if (place >= 0 && l.row < committed) history_row(l, HISTORY_OUT, place)[c] = own;
  for (int i = 0; l.row == 0 && i < l.taps - 1 - committed; ++i)
    history_row(l, HISTORY_OUT, i)[c] = history_row(l, HISTORY_IN, committed + i)[c];
}

// One head of q, of k or of v per lane group and row: silu of the convolution, q and k of a delta net divided by their
// lengths. A last lane group computes the decays and the factors of values. mixed [rows][channels + 2 heads]; raw has the
// gates' inputs from `steps_column`, and a delta net's betas from `beta_column`.
LANE_GROUPS kernel void convolve(LINEAGE_ARGUMENTS, int steps_column, int beta_column, int groups, int heads, int key_dim,
                                 int value_dim, int delta, global const float* weight, global const float* bias,
                                 float length_epsilon, float length, global const float* rate, global const float* step_bias,
                                 float least, float most, global float* mixed, global const int* step) {
  EXCHANGE(lanes)
  const int unit = lane_group_of(), index = get_group_id(1), lane = lane_of();
  if (unit > 2 * groups + heads || index >= STATES(step)[ALL_ROWS]) return;
  const Lineage l = lineage_of(raw, stride, histories, drafts, taps, channels, gates, 0, index, step);
  global float* out = mixed + (size_t)index * (channels + 2 * heads);
  if (unit == 2 * groups + heads) {
    const int accepted = l.row < l.at[ACCEPTED], committed = l.at[COMMITTED];
    for (int i = lane; i < gates; i += LANES) {
      const int h = i % heads, column = i < heads ? steps_column + h : beta_column + h;
      const float x = accepted ? draft_row(l, DRAFTS_IN, l.row)[channels + i] : raw_row(l, l.row)[column];
      if (l.row >= committed) draft_row(l, DRAFTS_OUT, l.row - committed)[channels + i] = x;
      if (i >= heads) {
        out[channels + heads + h] = gated(1.0f, x);
        continue;
      }
      const float positive = softplus(x + step_bias[h]), at_least = least > positive ? least : positive;
      const float size = most < at_least ? most : at_least;
      out[channels + h] = exponential(size * -exponential(rate[h]));
      if (!delta) out[channels + heads + h] = size;
    }
    return;
  }
  const bool is_q = unit < groups, is_v = unit >= 2 * groups;
  const int number = is_q ? unit : is_v ? unit - 2 * groups : unit - groups, n = is_v ? value_dim : key_dim;
  const int keys = groups * key_dim, values = heads * value_dim;
  const int column = delta ? (is_q ? 0 : is_v ? 2 * keys : keys) : (is_q ? values + keys : is_v ? 0 : values);
  const int first = column + number * n;
  for (int c = first + lane; c < first + n; c += LANES) {
    const float sum = convolved(l, c, weight, bias);
    out[c] = gated(sum, sum);
    leave(l, c);
  }
  if (!delta || is_v) return;
  // A lane reads only what it wrote.
  const float inverse = inverse_root(out + first, n, length_epsilon EXCHANGED), factor = is_q ? length * length : length;
  for (int c = first + lane; c < first + n; c += LANES) out[c] = out[c] * inverse * factor;
}

#ifdef KEYS
// The recurrence of a tile of 16 values over the rows of a sequence: committed rows update the state, and each branch of the
// others restarts from it. One work-group per tile and sequence; each of its four lane groups has every fourth key, which is
// one of the four sums over keys. y [rows][heads value_dim], times silu of the gate if `gate` is not null.
#define SUMS 4
#define OWN_KEYS ((KEYS + SUMS - 1) / SUMS)
#define EACH_KEY(j, k) \
  UNROLLED for (int j = 0, k = part; j < OWN_KEYS; ++j, k += SUMS) if (j < KEYS / SUMS || k < KEYS)
#define JOINED(x) ((x[lane] + x[LANES + lane]) + (x[2 * LANES + lane] + x[3 * LANES + lane]))
// Keys and queries of a row: each lane holds one in 16 of its lane group's in registers, where there are subgroups.
#ifdef HAS_SUBGROUPS
#define LANE_KEYS ((OWN_KEYS + LANES - 1) / LANES)
#define ROW_KEYS float q[LANE_KEYS], k[LANE_KEYS];
#define READ_KEYS(to, from)                                \
  UNROLLED for (int i = 0; i < LANE_KEYS; ++i) {           \
    const int key = (i * LANES + lane) * SUMS + part;      \
    to[i] = key < KEYS ? (from)[key] : 0.0f;               \
  }
#define KEY_OF(x, j, key) intel_sub_group_shuffle(x[(j) / LANES], (j) % LANES)
LANE_GROUPS
#else
#define ROW_KEYS local float q[KEYS], k[KEYS];
#define READ_KEYS(to, from) \
  for (int i = me; i < KEYS; i += SUMS * LANES) to[i] = (from)[i];
#define KEY_OF(x, j, key) x[key]
#endif
kernel __attribute__((reqd_work_group_size(SUMS * LANES, 1, 1)))
void recur(global const float* mixed, int channels, int q_column, int k_column, int v_column, int groups, int heads,
           int value_dim, int tiled, int delta, global const float* skip, global const float* gate, int gate_stride,
           int gate_column, global float* matrices, global float* y, global const int* step) {
  local float reads[SUMS * LANES], sums[SUMS * LANES];
  ROW_KEYS
  const int me = get_local_id(0), lane = me % LANES, part = me / LANES, tiles = (value_dim + LANES - 1) / LANES;
  const int tile = get_group_id(0), head = tile / tiles, value = tile % tiles * LANES + lane;
  if ((int)get_group_id(1) >= STATES(step)[SEQUENCES]) return;
  global const int* at = SEQUENCE(step, get_group_id(1));
  const int accepted = at[ACCEPTED], committed = at[COMMITTED], count = accepted + at[OWN_ROWS];
  const int group = tiled ? head % groups : head / (heads / groups);
  float state[OWN_KEYS];
  int place = at[MATRIX_IN];
#define MATRIX_AT(place) (matrices + ((size_t)(place) * heads * tiles + tile) * KEYS * LANES)
#define RESTART EACH_KEY(j, key) state[j] = place < 0 ? 0.0f : MATRIX_AT(place)[key * LANES + lane];
  RESTART
  for (int row = 0; row < count; ++row) {
    int back = 0;  // number of ancestors to replay
    if (row > committed && row_before(step, at, row, 1) != row - 1) {
      RESTART
      while (row_before(step, at, row, back + 1) >= committed) ++back;
    }
    for (; back >= 0; --back) {
      const int own = back > 0 ? row_before(step, at, row, back) : row;
      const bool wanted = back == 0 && row >= accepted;
      global const float* in = mixed + (size_t)(own < accepted ? at[REPLAYED] + own : at[FIRST] + own - accepted) *
                                           (channels + 2 * heads);
      READ_KEYS(q, in + q_column + group * KEYS)
      READ_KEYS(k, in + k_column + group * KEYS)
      const float decay = in[channels + head], beta = in[channels + heads + head];
      const float v = value < value_dim ? in[v_column + head * value_dim + value] : 0.0f;
      float d = v, sum = 0.0f;
      barrier(CLK_LOCAL_MEM_FENCE);
      if (delta) {
        EACH_KEY(j, key) sum = fma(state[j] * decay, KEY_OF(k, j, key), sum);
        reads[me] = sum;
        barrier(CLK_LOCAL_MEM_FENCE);
        d = d - JOINED(reads);
        sum = 0.0f;
      }
      d = d * beta;
      EACH_KEY(j, key) {
        state[j] = fma(KEY_OF(k, j, key), d, state[j] * decay);
        sum = fma(state[j], KEY_OF(q, j, key), sum);
      }
      sums[me] = sum;
      barrier(CLK_LOCAL_MEM_FENCE);
      if (!wanted || part != 0 || value >= value_dim) continue;
      const size_t to = at[FIRST] + own - accepted;
      float out = JOINED(sums);
      if (skip) out = fma(v, skip[head], out);
      if (gate) {
        const float g = gate[to * gate_stride + gate_column + head * value_dim + value];
        out = gated(g, g) * out;
      }
      y[to * heads * value_dim + head * value_dim + value] = out;
    }
    if (row + 1 == committed) {
      place = at[MATRIX_OUT];
      EACH_KEY(j, key) MATRIX_AT(place)[key * LANES + lane] = state[j];
    }
  }
}
#endif

// Norms each `width` of a row's n values, and multiplies them by silu of the gate if it is not null. The weights are those of
// one group or of all values. A lane group writes `each` blocks.
LANE_GROUPS kernel void norm_groups(global const float* y, int n, int width, global const float* weight, int weights,
                                    float epsilon, global const float* gate, int gate_stride, int gate_column,
                                    ROWS_ARGUMENTS(out), global const int* step, int each) {
  EXCHANGE(lanes)
  const Rows out = ROWS_OF(out);
  const int row = get_group_id(1), begin = lane_group_of() * each, end = min(begin + each, out.blocks);
  if (begin >= end || row >= step[STEP_ROWS]) return;
  global const float* at = y + (size_t)row * n;
  gate = gate ? gate + (size_t)row * gate_stride + gate_column : 0;
  float inverse = 0.0f;
  int known = -1;
  for (int b = begin; b < end; ++b) {
    float v[2] = {0.0f, 0.0f};
    for (int group = b * GROUP / width; group <= (min((b + 1) * GROUP, n) - 1) / width; ++group) {
      if (group != known) inverse = inverse_root(at + group * width, width, epsilon EXCHANGED);
      known = group;
      UNROLLED for (int i = 0; i < 2; ++i) {
        const int k = b * GROUP + i * LANES + lane_of();
        if (k < n && k / width == group) v[i] = at[k] * inverse * weight[k % weights];
      }
    }
    UNROLLED for (int i = 0; i < 2; ++i) {
      const int k = b * GROUP + i * LANES + lane_of();
      if (gate && k < n) v[i] = gated(gate[k], gate[k]) * v[i];
    }
    store_block(out, step[STEP_ROWS], row, b, v[0], v[1] EXCHANGED);
  }
}

// c convolution(b x) of LFM2's rows, as the next linear layer reads them: a block per lane group. raw has b, and x and c from
// their columns.
LANE_GROUPS kernel void short_conv(LINEAGE_ARGUMENTS, int x_column, int c_column, global const float* weight,
                                   global const float* bias, ROWS_ARGUMENTS(out), global const int* step) {
  EXCHANGE(lanes)
  const Rows out = ROWS_OF(out);
  const int b = lane_group_of(), index = get_group_id(1), rows = step[STEP_ROWS];
  if (b >= out.blocks || index >= STATES(step)[ALL_ROWS]) return;
  const Lineage l = lineage_of(raw, stride, histories, drafts, taps, channels, gates, x_column, index, step);
  float v[2] = {0.0f, 0.0f};
  UNROLLED for (int i = 0; i < 2; ++i) {
    const int c = b * GROUP + i * LANES + lane_of();
    if (c >= channels) continue;
    if (index < rows) v[i] = raw_row(l, l.row)[c_column + c] * convolved(l, c, weight, bias);
    leave(l, c);
  }
  if (index < rows) store_block(out, rows, index, b, v[0], v[1] EXCHANGED);
}
