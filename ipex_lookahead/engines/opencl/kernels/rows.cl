// Operations on rows between linear layers; csrc/kernels/generic/elementwise.inl and csrc/model are the CPU implementation.

// Rows of `x`, all or those with outputs, as linear layers read them, normed if there is a weight. Each lane group writes one
// block; the NORMERS of a work-group compute the row's norm together, each work-group for itself. order: null, or the value of
// x for each input.
#define NORMERS 16
LANE_GROUPS_OF(NORMERS) kernel void norm(global const float* x, int stride, int n, global const float* weight,
                                         float epsilon, global const int* order, ROWS_ARGUMENTS(out),
                                         global const int* step, int counted) {
  EXCHANGE_OF(lanes, NORMERS)
  NORM_MEMORY(memory)
  const Rows out = ROWS_OF(out);
  const int row = get_group_id(1), b = get_group_id(0) * NORMERS + lane_group_within();
  if (row >= step[counted]) return;
  global const float* at = x + (size_t)(counted == STEP_WANTED ? step[step[STEP_WANT] + row] : row) * stride;
  const float inverse = weight ? inverse_root_together(at, n, epsilon, memory EXCHANGED) : 0.0f;
  norm_block(at, n, weight, inverse, order, out, step[counted], row, b EXCHANGED);
}

// e^x - 1 as in csrc/kernels/generic.
static inline float exponential_less_1(float x) {
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
  p = fma(p * r, r, r);
  const float power = as_float(as_uint(1.0f) + ((uint)n << 23));
  return fma(power, p, power - 1.0f);
}

// xIELU with its trained parameters: alpha_p, alpha_n, beta, eps.
static inline float xielu(global const float* parameters, float x) {
  const float alpha = softplus(parameters[0]), alpha_below = parameters[2] + softplus(parameters[1]);
  const float beta = parameters[2], epsilon = parameters[3];
  const float above = 0.0f > x ? 0.0f : x, below = 0.0f < x ? 0.0f : x, slope = below * -3e38f;
  const float is_below = 1.0f < slope ? 1.0f : slope;
  const float bend = exponential_less_1(epsilon < x ? epsilon : x) - below;
  return fma(above * above, alpha, fma(x, beta, bend * alpha_below * is_below));
}

// f(gate) up, if gate and up were not computed in one kernel, or f(up) if `gate` is null: per row, or per (row, expert) pair.
// parameters: null, or those of xIELU, which replaces `kind`.
LANE_GROUPS kernel void activate(global const float* gate, global const float* up, int gate_stride, int up_stride,
                                 int up_column, int n, ROWS_ARGUMENTS(out), global const int* step, int counted,
                                 int pairs, global const float* parameters, int kind, float alpha, float limit) {
  EXCHANGE(lanes)
  const Rows out = ROWS_OF(out);
  const int row = get_group_id(1), b = lane_group_of();
  if (b >= out.blocks || row >= step[counted] * pairs) return;
  float v[2];
  UNROLLED for (int i = 0; i < 2; ++i) {
    const int k = b * GROUP + i * LANES + lane_of();
    v[i] = 0.0f;
    if (k >= n) continue;
    const float second = up[(size_t)row * up_stride + up_column + k];
    const float x = gate ? gate[(size_t)row * gate_stride + k] : second, y = gate ? second : 1.0f;
    v[i] = parameters ? xielu(parameters, x) * y : activated(kind, alpha, limit, x, y);
  }
  store_block(out, step[counted] * pairs, row, b, v[0], v[1] EXCHANGED);
}

// The moments of a norm by all lane groups of a work-group; for a layer norm, each of them computes its own.
static inline Moments moments_together(global const float* at, int n, float epsilon, int centered,
                                       local float* memory EXCHANGE_ARGUMENT) {
  Moments m = {0.0f, 0.0f};
  if (centered)
    m = moments_of(at, n, epsilon, centered EXCHANGED);
  else
    m.inverse = inverse_root_together(at, n, epsilon, memory EXCHANGED);
  barrier(CLK_GLOBAL_MEM_FENCE);  // none of them writes what another one still reads
  return m;
}

// Rows of `x` as linear layers read them after a layer norm; see `norm`.
LANE_GROUPS_OF(NORMERS) kernel void layer_norm(global const float* x, int stride, int n, global const float* weight,
                                               global const float* bias, float epsilon, global const int* order,
                                               ROWS_ARGUMENTS(out), global const int* step, int counted) {
  EXCHANGE_OF(lanes, NORMERS)
  const Rows out = ROWS_OF(out);
  const int row = get_group_id(1), b = get_group_id(0) * NORMERS + lane_group_within();
  if (row >= step[counted]) return;
  global const float* at = x + (size_t)(counted == STEP_WANTED ? step[step[STEP_WANT] + row] : row) * stride;
  const Moments moments = moments_of(at, n, epsilon, 1 EXCHANGED);
  float v[2];
  UNROLLED for (int i = 0; i < 2; ++i) {
    const int own = b * GROUP + i * LANES + lane_of();
    v[i] = own >= n ? 0.0f : normed_by(at, weight, bias, order ? order[own] : own, moments);
  }
  store_block(out, step[counted], row, b, v[0], v[1] EXCHANGED);
}

// hidden = (hidden + factor * branch) * scale, with `branch` normed first if there is a weight: a work-group for 32 inputs of
// each of its lane groups. scale: null, or one factor.
LANE_GROUPS_OF(NORMERS) kernel void add_branch(global const float* branch, int stride, int n, global const float* weight,
                                               global const float* bias, float epsilon, int centered, float factor,
                                               global const float* scale, global float* hidden, global const int* step) {
  EXCHANGE_OF(lanes, NORMERS)
  NORM_MEMORY(memory)
  const int row = get_group_id(1), first = get_group_id(0) * NORMERS * GROUP, end = min(first + NORMERS * GROUP, n);
  if (row >= step[STEP_ROWS]) return;
  global const float* at = branch + (size_t)row * stride;
  Moments moments = {0.0f, 0.0f};
  if (weight) moments = moments_together(at, n, epsilon, centered, memory EXCHANGED);
  for (int k = first + lane_group_within() * LANES + lane_of(); k < end; k += NORMERS * LANES) {
    global float* to = hidden + (size_t)row * stride + k;
    const float sum = fma(weight ? normed_by(at, weight, bias, k, moments) : at[k], factor, *to);
    *to = scale ? sum * *scale : sum;
  }
}

// A norm over the whole width of q or of k, in place: one work-group per row.
LANE_GROUPS_OF(NORMERS) kernel void norm_whole(global float* x, int stride, int first, int n, global const float* weight,
                                               global const float* bias, float epsilon, int centered,
                                               global const int* step) {
  EXCHANGE_OF(lanes, NORMERS)
  NORM_MEMORY(memory)
  const int row = get_group_id(1);
  if (row >= step[STEP_ROWS]) return;
  global float* at = x + (size_t)row * stride + first;
  const Moments moments = moments_together(at, n, epsilon, centered, memory EXCHANGED);
  for (int k = lane_group_within() * LANES + lane_of(); k < n; k += NORMERS * LANES)
    at[k] = normed_by(at, weight, bias, k, moments);
}

// The inputs of each layer, in place of their projections, [rows][layers][width]: one lane group per row and layer. They are
// (norm(projection * projection_multiplier) + table * table_multiplier) * multiplier.
LANE_GROUPS kernel void per_layer_inputs(global float* projections, global const float* table, int width, int layers,
                                         global const float* weight, global const float* bias, float epsilon, int centered,
                                         float projection_multiplier, float table_multiplier, float multiplier,
                                         global const int* step) {
  EXCHANGE(lanes)
  const int row = get_group_id(1), layer = lane_group_of();
  if (layer >= layers || row >= step[STEP_ROWS]) return;
  const size_t first = ((size_t)row * layers + layer) * width;
  global float* at = projections + first;
  for (int k = lane_of(); k < width; k += LANES) at[k] = at[k] * projection_multiplier;
  const Moments moments = moments_of(at, width, epsilon, centered EXCHANGED);
  for (int k = lane_of(); k < width; k += LANES)
    at[k] = fma(table[first + k], table_multiplier, normed_by(at, weight, bias, k, moments)) * multiplier;
}

// to[row][column + k] = the first `n` values of each row of `from`, or of each row with outputs.
kernel void copy_rows(global const float* from, int stride, int n, global float* to, int to_stride, int column,
                      global const int* step, int counted) {
  const int k = get_global_id(0), row = get_group_id(1);
  if (k >= n || row >= step[counted]) return;
  const int source = counted == STEP_WANTED ? step[step[STEP_WANT] + row] : row;
  to[(size_t)row * to_stride + column + k] = from[(size_t)source * stride + k];
}

// x = x * factor, then limit tanh(x / limit) if there is a limit; of all rows, or of those with outputs.
kernel void cap(global float* x, int stride, int n, float factor, float limit, global const int* step, int counted) {
  const int k = get_global_id(0), row = get_group_id(1);
  if (k >= n || row >= step[counted]) return;
  global float* at = x + (size_t)row * stride + k;
  const float scaled = *at * factor;
  *at = limit > 0 ? capped(scaled, limit, 1.0f / limit) : scaled;
}

// The `count` largest of a row's values, largest first (ties: the lowest id), for each piece of `piece` values; -1 if there
// are no more, and for all of them if a value is not finite. ids: null, or the id of each value.
#define SEARCHERS 64
kernel __attribute__((reqd_work_group_size(SEARCHERS, 1, 1)))
void top(global const float* values, global const int* ids, int stride, int n, int piece, int count,
         global float* top_values, global int* top_ids, global const int* step) {
  local float best_values[SEARCHERS];
  local int best_ids[SEARCHERS];
  const int part = get_group_id(0), pieces = get_num_groups(0), row = get_group_id(1), me = get_local_id(0);
  if (row >= step[STEP_WANTED]) return;
  const int begin = part * piece, end = min(begin + piece, n);
  values += (size_t)row * stride;
  if (ids) ids += (size_t)row * stride;
  const size_t to = ((size_t)row * pieces + part) * count;
  float last = INFINITY;
  int last_id = -1;
  bool finite = true;
  for (int i = 0; i < count; ++i) {
    float best = -INFINITY;
    int best_id = INT_MAX;
    for (int k = begin + me; k < end; k += SEARCHERS) {
      const float v = values[k];
      const int id = ids ? ids[k] : k;
      if (ids && id < 0) {
        finite = finite && id == -1;
        continue;
      }
      finite = finite && isfinite(v);
      const bool left = v < last || (v == last && id > last_id);
      if (left && (v > best || (v == best && id < best_id))) {
        best = v;
        best_id = id;
      }
    }
    best_values[me] = finite ? best : INFINITY;
    best_ids[me] = finite ? best_id : -2;
    for (int away = SEARCHERS / 2; away > 0; away /= 2) {
      barrier(CLK_LOCAL_MEM_FENCE);
      if (me >= away) continue;
      const float v = best_values[me + away];
      const int id = best_ids[me + away];
      if (id < -1 || (best_ids[me] >= -1 && (v > best_values[me] || (v == best_values[me] && id < best_ids[me])))) {
        best_values[me] = v;
        best_ids[me] = id;
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    last = best_values[0];
    last_id = best_ids[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (me == 0) {
      top_values[to + i] = last;
      top_ids[to + i] = last_id == INT_MAX ? -1 : last_id;
    }
    if (last_id < -1) {  // -2 marks all of them
      for (int j = i + 1; j < count && me == 0; ++j) top_ids[to + j] = -2;
      break;
    }
  }
}
