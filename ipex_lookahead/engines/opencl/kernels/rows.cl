// Operations on rows between linear layers; csrc/kernels/generic/elementwise.inl and csrc/model are the CPU implementation.

// Rows of `x`, all or those with outputs, as linear layers read them, normed if there is a weight. A lane group writes one
// block in `groups` of a row, and computes the row's norm itself. order: null, or the value of x for each input.
LANE_GROUPS kernel void norm(global const float* x, int stride, int n, global const float* weight, float epsilon,
                             global const int* order, ROWS_ARGUMENTS(out), global const int* step, int counted,
                             int groups) {
  EXCHANGE(lanes)
  const Rows out = ROWS_OF(out);
  const int row = get_group_id(1);
  if (lane_group_of() >= groups || row >= step[counted]) return;
  global const float* at = x + (size_t)(counted == STEP_WANTED ? step[step[STEP_WANT] + row] : row) * stride;
  const float inverse = weight ? inverse_root(at, n, epsilon EXCHANGED) : 0.0f;
  for (int b = lane_group_of(); b < out.blocks; b += groups) {
    norm_block(at, n, weight, inverse, order, out, step[counted], row, b EXCHANGED);
  }
}

// f(gate) up, if gate and up were not computed in one kernel: per row, or per (row, expert) pair.
LANE_GROUPS kernel void activate(global const float* gate, global const float* up, int stride, int n,
                                 ROWS_ARGUMENTS(out), global const int* step, int counted, int pairs, int kind,
                                 float alpha, float limit) {
  EXCHANGE(lanes)
  const Rows out = ROWS_OF(out);
  const int row = get_group_id(1), b = lane_group_of();
  if (b >= out.blocks || row >= step[counted] * pairs) return;
  float v[2];
  UNROLLED for (int i = 0; i < 2; ++i) {
    const int k = b * GROUP + i * LANES + lane_of();
    const size_t at = (size_t)row * stride + k;
    v[i] = k >= n ? 0.0f : activated(kind, alpha, limit, gate[at], up[at]);
  }
  store_block(out, step[counted] * pairs, row, b, v[0], v[1] EXCHANGED);
}

// hidden += factor * branch, normed first if there is a weight.
LANE_GROUPS kernel void add_branch(global const float* branch, int stride, int n, global const float* weight,
                                   float epsilon, float factor, global float* hidden, global const int* step,
                                   int groups) {
  EXCHANGE(lanes)
  const int row = get_group_id(1);
  if (lane_group_of() >= groups || row >= step[STEP_ROWS]) return;
  global const float* at = branch + (size_t)row * stride;
  const float inverse = weight ? inverse_root(at, n, epsilon EXCHANGED) : 0.0f;
  for (int k = lane_group_of() * LANES + lane_of(); k < n; k += groups * LANES) {
    global float* to = hidden + (size_t)row * stride + k;
    *to = fma(weight ? normed(at, weight, k, inverse) : at[k], factor, *to);
  }
}

// Chooses the experts of a row, best first (ties: the lowest index), and their weights: one lane group per row. `logits`
// [rows][of]; softmax over all of them, or over the chosen ones. The layer's choices are stored from `first`.
#define MOST_USED 64
LANE_GROUPS kernel void choose(global const float* logits, int of, int used, int over_all, int renormalise,
                               global int* experts, int first, global float* weights, global const int* step) {
  EXCHANGE(lanes)
  const int row = get_group_id(1), lane = lane_of();
  if (lane_group_of() > 0 || row >= step[STEP_ROWS]) return;
  experts += first;
  logits += (size_t)row * of;
  int chosen[MOST_USED / LANES], best_of_all = 0;  // choice k is stored in lane k % LANES
  UNROLLED for (int i = 0; i < MOST_USED / LANES; ++i) chosen[i] = 0;
#define EACH_CHOICE(k) UNROLLED for (int i = 0, k = lane; i < MOST_USED / LANES; ++i, k += LANES) if (k < used)
  float last = INFINITY;
  int last_id = -1;
  for (int k = 0; k < used; ++k) {
    float best = -INFINITY;
    int best_id = of;
    for (int e = lane; e < of; e += LANES) {
      const float v = logits[e];
      const bool left = v < last || (v == last && e > last_id);
      if (left && (v > best || best_id == of)) {
        best = v;
        best_id = e;
      }
    }
    const float top = max_lanes(best EXCHANGED);
    last_id = max_lanes_int(best == top && best_id < of ? of - best_id : 0 EXCHANGED);
    last_id = last_id > 0 ? of - last_id : k;  // if no value is a number, any index will do: the weights are NaN
    last = top;
    best_of_all = k == 0 ? last_id : best_of_all;
    EACH_CHOICE(own) chosen[i] = own == k ? last_id : chosen[i];
  }
  const float most = logits[best_of_all];
  float sum = 0.0f, all = 0.0f;
  if (over_all)
    for (int i = lane; i < of; i += LANES) sum = ADD(sum, exponential(logits[i] - most));
  else
    EACH_CHOICE(k) sum = ADD(sum, exponential(logits[chosen[i]] - most));
  sum = sum_lanes(sum EXCHANGED);
  for (int k = 0; k < used; ++k) {
    int id = 0;
    EACH_CHOICE(own) id = own == k ? chosen[i] : id;
    all = ADD(all, exponential(logits[max_lanes_int(id EXCHANGED)] - most) / sum);
  }
  EACH_CHOICE(k) {
    const float logit = logits[chosen[i]], weight = exponential(logit - most) / sum;
    experts[row * used + k] = chosen[i];
    weights[row * used + k] = !isfinite(logit) ? NAN : renormalise ? weight / all : weight;
  }
}

// The sum of a row's experts in order, times their weights; added to `out`, or stored there.
kernel void add_experts(global const float* made, global const float* weights, int used, int n, global float* out, int add,
                        global const int* step) {
  const int k = get_global_id(0), row = get_group_id(1);
  if (k >= n || row >= step[STEP_ROWS]) return;
  float sum = 0.0f;
  for (int i = row * used; i < (row + 1) * used; ++i) sum = fma(made[(size_t)i * n + k], weights[i], sum);
  global float* to = out + (size_t)row * n + k;
  *to = add ? *to + sum : sum;
}

// A norm over the whole width of q or of k, in place: one lane group per row.
LANE_GROUPS kernel void norm_whole(global float* x, int stride, int first, int n, global const float* weight,
                                   float epsilon, global const int* step) {
  EXCHANGE(lanes)
  const int row = get_group_id(1);
  if (lane_group_of() > 0 || row >= step[STEP_ROWS]) return;
  global float* at = x + (size_t)row * stride + first;
  const float inverse = inverse_root(at, n, epsilon EXCHANGED);
  for (int k = lane_of(); k < n; k += LANES) at[k] = normed(at, weight, k, inverse);
}

// x = x * factor, then limit tanh(x / limit) if there is a limit.
kernel void cap(global float* x, int stride, int n, float factor, float limit, global const int* step) {
  const int k = get_global_id(0), row = get_group_id(1);
  if (k >= n || row >= step[STEP_WANTED]) return;
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
