// The router of a mixture, and the sum of a row's experts. csrc/model/experts.cc is the CPU implementation and defines the bits.

// All lanes see what the others have stored in global memory.
#ifdef HAS_SUBGROUPS
#define JOIN_LANES sub_group_barrier(CLK_GLOBAL_MEM_FENCE);
#else
#define JOIN_LANES barrier(CLK_GLOBAL_MEM_FENCE);
#endif

// Sets the scores of experts outside the `groups_used` best groups to -inf. A group is as good as its best expert, or as the
// sum of its two best; ties: the lowest index. `worths` is scratch for a number per group.
static void limit_to_groups(global float* wanted, int of, int groups, int groups_used, int group_best, global float* worths) {
  const int size = of / groups;
  JOIN_LANES
  for (int group = lane_of(); group < groups; group += LANES) {
    float first = -INFINITY, second = -INFINITY;
    for (int e = group * size; e < (group + 1) * size; ++e) {
      const float v = wanted[e];
      second = v > first ? first : v > second ? v : second;
      first = v > first ? v : first;
    }
    worths[group] = size == 1 || group_best == 1 ? first : first + second;
  }
  JOIN_LANES
  for (int group = lane_of(); group < groups; group += LANES) {
    const float own = worths[group];
    int better = 0;
    for (int other = 0; other < groups; ++other)
      better += worths[other] > own || (worths[other] == own && other < group) ? 1 : 0;
    if (better < groups_used) continue;
    for (int e = group * size; e < (group + 1) * size; ++e) wanted[e] = -INFINITY;
  }
  JOIN_LANES
}

#define MOST_USED 64
#define OF_ALL 0      // scores of experts: softmax over all of them,
#define OF_CHOSEN 1   // softmax over the chosen ones,
#define OF_EACH 2     // sigmoid
#define TAKEN 0x7fffffff   // bits in place of a chosen expert's score,
#define NO_NUMBER 0x7fc00000  // and of a score that is a NaN

// Chooses the experts of a row, best first (ties: the lowest index), and their weights: one lane group per row.
// `logits` [rows][stride] of `of` experts; `wanted` [rows][of + groups] is scratch. The choice is by the scores (for softmax
// over the chosen, or without a correction: by the logits) plus `correction`, among the experts of the best groups; the weights
// are by the scores alone. A NaN is chosen only if it is the lowest index left. The layer's choices are stored from `first`.
LANE_GROUPS kernel void choose(global const float* logits, int stride, int of, int used, int scores,
                               global const float* correction, int groups, int groups_used, int group_best,
                               int renormalize, float sum_epsilon, float scale, global const float* expert_scales,
                               global float* wanted, global int* experts, int first, global float* weights,
                               global const int* step) {
  EXCHANGE(lanes)
  const int row = get_group_id(1), lane = lane_of();
  if (lane_group_of() > 0 || row >= step[STEP_ROWS]) return;
  experts += first;
  logits += (size_t)row * stride;
  wanted += (size_t)row * (of + groups);
  float most = -INFINITY, sum = 0.0f, all = 0.0f;
#define LOOK(v) most = (v) > most ? (v) : most
  if (scores == OF_ALL) {
    for (int e = lane; e < of; e += LANES) LOOK(logits[e]);
    most = max_lanes(most EXCHANGED);
    for (int e = lane; e < of; e += LANES) sum = ADD(sum, exponential(logits[e] - most));
    sum = sum_lanes(sum EXCHANGED);
  }
#define SCORE(logit) (scores == OF_EACH ? gated(1.0f, logit) : exponential((logit) - most) / sum)
  for (int e = lane; e < of; e += LANES) {
    float v = scores == OF_EACH || (scores == OF_ALL && correction) ? SCORE(logits[e]) : logits[e];
    if (correction) v = v + correction[e];
    ((global int*)wanted)[e] = isnan(v) ? NO_NUMBER : as_int(v);
  }
  if (groups_used < groups) limit_to_groups(wanted, of, groups, groups_used, group_best, wanted + of);
  int chosen[MOST_USED / LANES];  // choice k is stored in lane k % LANES
  UNROLLED for (int i = 0; i < MOST_USED / LANES; ++i) chosen[i] = 0;
#define EACH_CHOICE(k) UNROLLED for (int i = 0, k = lane; i < MOST_USED / LANES; ++i, k += LANES) if (k < used)
  for (int k = 0; k < used; ++k) {
    float best = -INFINITY;
    int best_id = of, lowest = 0;  // lowest: 2 * (of - lowest index left), plus 1 if it is a NaN's
    for (int e = lane; e < of; e += LANES) {
      const int bits = ((global const int*)wanted)[e];
      if (bits == TAKEN) continue;
      const float v = as_float(bits);
      lowest = lowest == 0 ? 2 * (of - e) + (isnan(v) ? 1 : 0) : lowest;
      if (!isnan(v) && (best_id == of || v > best)) {
        best = v;
        best_id = e;
      }
    }
    const float top = max_lanes(best EXCHANGED);
    lowest = max_lanes_int(lowest EXCHANGED);
    const int highest = max_lanes_int(best_id < of && best == top ? of - best_id : 0 EXCHANGED);
    const int id = of - (lowest & 1 ? lowest / 2 : highest);
    if (id % LANES == lane) ((global int*)wanted)[id] = TAKEN;
    EACH_CHOICE(own) chosen[i] = own == k ? id : chosen[i];
  }
  if (scores == OF_CHOSEN) {
    EACH_CHOICE(k) LOOK(logits[chosen[i]]);
    most = max_lanes(most EXCHANGED);
    EACH_CHOICE(k) sum = ADD(sum, exponential(logits[chosen[i]] - most));
    sum = sum_lanes(sum EXCHANGED);
  }
#undef LOOK
  for (int k = 0; renormalize && k < used; ++k) {
    int id = 0;
    EACH_CHOICE(own) id = own == k ? chosen[i] : id;
    all = ADD(all, SCORE(logits[max_lanes_int(id EXCHANGED)]));
  }
  EACH_CHOICE(k) {
    const float logit = logits[chosen[i]], score = SCORE(logit);
    const float weight = (renormalize ? score / (all + sum_epsilon) : score) * scale;
    experts[row * used + k] = chosen[i];
    weights[row * used + k] = !isfinite(logit) ? NAN : expert_scales ? weight * expert_scales[chosen[i]] : weight;
  }
}

// Groups the (row, expert) pairs of a layer by expert, in groups of 16 with one owner each, the last ones of an expert with fewer
// members: one work-group. members, owners: see grouped_linear.cl; there are `groups` groups.
#define GROUPERS 256
#define MOST_EXPERTS 4096
kernel __attribute__((reqd_work_group_size(GROUPERS, 1, 1)))
void group_pairs(global const int* experts, int first, int used, int of, global int* members, global int* owners, int groups,
                 global const int* step) {
  local int begins[MOST_EXPERTS];  // of each expert's groups
  local int end;
  const int me = get_local_id(0), pairs = step[STEP_ROWS] * used;
  experts += first;
  for (int e = me; e < of; e += GROUPERS) {
    int count = 0;
    for (int i = 0; i < pairs; ++i) count += experts[i] == e ? 1 : 0;
    begins[e] = (count + 15) / 16;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (me == 0) {
    int sum = 0;
    for (int e = 0; e < of; ++e) {
      const int count = begins[e];
      begins[e] = sum;
      sum += count;
    }
    end = sum;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int e = me; e < of; e += GROUPERS) {
    const int stop = 16 * (e + 1 < of ? begins[e + 1] : end);
    int at = 16 * begins[e];
    for (int group = begins[e]; 16 * group < stop; ++group) owners[group] = e;
    for (int i = 0; at < stop && i < pairs; ++i)
      if (experts[i] == e) members[at++] = i;
    for (; at < stop; ++at) members[at] = -1;
  }
  for (int group = end + me; group < groups; group += GROUPERS) owners[group] = -1;
}

// Copies the rows of the members of all groups; `share` consecutive pairs have the same row of x, which has step[STEP_ROWS] *
// `factor` rows. A lane group copies a block of a row.
LANE_GROUPS kernel void gather_rows(ROWS_ARGUMENTS(x), int factor, int share, global const int* members,
                                    global const int* owners, ROWS_ARGUMENTS(out), int capacity, global const int* step) {
  const Rows x = ROWS_OF(x), out = ROWS_OF(out);
  const int b = lane_group_of(), row = get_group_id(1), lane = lane_of();
  if (b >= out.blocks || row >= capacity || owners[row / 16] < 0) return;
  const int pair = members[row], source = max(pair, 0) / share;  // what a row without a member holds is not read
  const size_t from = block_at(step[STEP_ROWS] * factor, b, source), to = block_at(capacity, b, row);
  const size_t value = ((size_t)source * x.blocks + b) * GROUP + lane, copy = ((size_t)row * out.blocks + b) * GROUP + lane;
  for (int i = 0; i < GROUP; i += LANES) {
    out.values[copy + i] = x.values[value + i];
    out.codes[to * GROUP + i + lane] = x.codes[from * GROUP + i + lane];
  }
  if (lane == 0) {
    out.scales[to] = x.scales[from];
    out.sums[to] = x.sums[from];
  }
}

// The sum of a row's experts in order, times their weights, plus the shared expert's output, times the sigmoid of its gate;
// added to `out`, or stored there. weights: null, or [rows][used]; shared: null, or [rows][n]; gates: null, or a logit in a
// column of each row.
kernel void add_experts(global const float* made, global const float* weights, int used, int n, global const float* shared,
                        global const float* gates, int gate_stride, int gate_column, global float* out, int add,
                        global const int* step) {
  const int k = get_global_id(0), row = get_group_id(1);
  if (k >= n || row >= step[STEP_ROWS]) return;
  float sum = 0.0f;
  for (int i = row * used; i < (row + 1) * used; ++i) sum = fma(made[(size_t)i * n + k], weights ? weights[i] : 1.0f, sum);
  if (shared) {
    const float factor = gates ? gated(1.0f, gates[(size_t)row * gate_stride + gate_column]) : 1.0f;
    sum = fma(shared[(size_t)row * n + k], factor, sum);
  }
  global float* to = out + (size_t)row * n + k;
  *to = add ? *to + sum : sum;
}

// out = norm(x) + norm(y), each with its weight.
LANE_GROUPS kernel void add_norms(global const float* x, global const float* x_weight, float x_epsilon,
                                  global const float* y, global const float* y_weight, float y_epsilon, int n,
                                  global float* out, global const int* step, int groups) {
  EXCHANGE(lanes)
  const int row = get_group_id(1);
  if (lane_group_of() >= groups || row >= step[STEP_ROWS]) return;
  x += (size_t)row * n;
  y += (size_t)row * n;
  const float of_x = inverse_root(x, n, x_epsilon EXCHANGED), of_y = inverse_root(y, n, y_epsilon EXCHANGED);
  for (int k = lane_group_of() * LANES + lane_of(); k < n; k += groups * LANES)
    out[(size_t)row * n + k] = normed(x, x_weight, k, of_x) + normed(y, y_weight, k, of_y);
}
