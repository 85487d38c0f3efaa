// Drafting heads: their inputs, and the choice of the next token, so that a chain needs no transfer between its tokens.
// csrc/model/{feature_inputs,candidates,draft_chain}.cc is the CPU implementation.

#define MOST_PARTS 8

// Rows as linear layers read them: `a_n` values of `a`, then `b_parts` parts of `b_n` values of `b`. Weights are null, or those
// of an RMS norm over `a` and over each part of `b`. order: null, or the value for each input. See `norm`.
LANE_GROUPS kernel void join(global const float* a, int a_stride, int a_n, global const float* a_weight, float a_epsilon,
                             global const float* b, int b_stride, int b_n, int b_parts, global const float* b_weight,
                             float b_epsilon, global const int* order, ROWS_ARGUMENTS(out), global const int* step,
                             int groups) {
  EXCHANGE(lanes)
  const Rows out = ROWS_OF(out);
  const int row = get_group_id(1);
  if (lane_group_of() >= groups || row >= step[STEP_ROWS]) return;
  a += (size_t)row * a_stride;
  b += (size_t)row * b_stride;
  const float a_inverse = a_weight ? inverse_root(a, a_n, a_epsilon EXCHANGED) : 0.0f;
  float inverses[MOST_PARTS];
  if (b_weight)
    for (int part = 0; part < b_parts; ++part) inverses[part] = inverse_root(b + part * b_n, b_n, b_epsilon EXCHANGED);
  const int n = a_n + b_parts * b_n;
  for (int block = lane_group_of(); block < out.blocks; block += groups) {
    float v[2];
    UNROLLED for (int i = 0; i < 2; ++i) {
      const int own = block * GROUP + i * LANES + lane_of(), k = order && own < n ? order[own] : own, at = k - a_n;
      if (own >= n) v[i] = 0.0f;
      else if (at < 0) v[i] = a_weight ? normed(a, a_weight, k, a_inverse) : a[k];
      else v[i] = b_weight ? normed(b, b_weight, at, inverses[at / b_n]) : b[at];
    }
    store_block(out, step[STEP_ROWS], row, block, v[0], v[1] EXCHANGED);
  }
}

// The tokens of a row's chosen centroids, each for `each` logits: sorts `chosen`, ascending, into `sorted`. One work-group. An
// id of -2 marks logits that are not finite.
kernel void candidate_tokens(global const int* chosen, int used, int each, global const int* ordering, global int* sorted,
                             global int* ids) {
  const bool finite = chosen[0] >= 0;
  for (int i = 0; i < used; ++i) {
    const int centroid = finite ? chosen[i] : i;
    int rank = 0;
    for (int j = 0; j < used; ++j) rank += finite ? chosen[j] < centroid : j < i;
    if (get_local_id(0) == 0) sorted[rank] = centroid;
    for (int k = get_local_id(0); k < each; k += get_local_size(0))
      ids[rank * each + k] = finite ? ordering[(size_t)centroid * each + k] : -2;
  }
}

// The sum of e^(logit - *highest) over each piece of `piece` logits with an id, in 16 lanes: one lane group per piece.
LANE_GROUPS kernel void exponential_sums(global const float* logits, global const int* ids, int n, int piece,
                                         global const float* highest, global float* sums, int pieces) {
  EXCHANGE(lanes)
  const int part = lane_group_of();
  if (part >= pieces) return;
  const float most = *highest;
  float sum = 0.0f;
  for (int i = part * piece + lane_of(); i < min((part + 1) * piece, n); i += LANES)
    if (ids[i] >= 0) sum = ADD(sum, exponential(logits[i] - most));
  sum = sum_lanes(sum EXCHANGED);
  if (lane_of() == 0) sums[part] = sum;
}

// Chooses the token at the chain's place: a given one, or the id of the largest logit, with its probability. It becomes the
// token of the step's row, which moves on by `moves` positions. chain: the place, then tokens, below 0 where none is given; a
// token below 0 remains where the logits are not finite. One work-item.
kernel void choose_token(global int* step, global const int* ids, global const float* sums, int pieces, global int* chain,
                         global float* probabilities, int moves) {
  const int place = chain[0];
  global int* tokens = chain + 1;
  if (tokens[place] < 0) {
    float sum = 0.0f;
    for (int i = 0; i < pieces; ++i) sum = ADD(sum, sums[i]);
    tokens[place] = ids[0];
    probabilities[place] = 1.0f / sum;
  }
  chain[0] = place + 1;
  global int* row = ROW(step, 0);
  row[TOKEN] = max(tokens[place], 0);
  row[POSITION] += moves;
  row[SLOT] += moves;
  row[LENGTH] += moves;
}
