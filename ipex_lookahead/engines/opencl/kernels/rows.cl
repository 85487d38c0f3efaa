// What happens to rows between linear layers; csrc/kernels/generic/elementwise.inl and csrc/model are the same on CPUs.

// 1 / sqrt(mean of squares + epsilon) of n values, and NaN where the squares overflow. `at` + i is value i.
static float inverse_root(global const float* at, int n, float epsilon EXCHANGE_ARGUMENT) {
  float squares = 0.0f;
  for (int k = lane_of(); k < n; k += LANES) squares = fma(at[k], at[k], squares);
  const float mean = sum_lanes(squares EXCHANGED) / convert_float(n);
  return 1.0f / sqrt(mean + epsilon) + 0.0f * mean;
}

static float normed(global const float* at, global const float* weight, int k, float inverse) {
  return at[k] * inverse * weight[k];
}

#define ROWS_ARGUMENTS(x) \
  global float *x##_values, global char *x##_codes, global float *x##_scales, global int2 *x##_sums, int x##_blocks
#define ROWS_OF(x) {x##_values, x##_codes, x##_scales, x##_sums, x##_blocks}

// Rows of `x`, all or those wanted, normed where there is a weight, as linear layers read them. A lane group makes one block
// in `groups` of a row, and takes the row's norm for itself.
LANE_GROUPS kernel void norm(global const float* x, int stride, int n, global const float* weight, float epsilon,
                             ROWS_ARGUMENTS(out), global const int* step, int counted, int groups) {
  EXCHANGE(lanes)
  const Rows out = ROWS_OF(out);
  const int row = get_global_id(1), lane = lane_of();
  if (lane_group_of() >= groups || row >= step[counted]) return;
  global const float* at = x + (size_t)(counted == STEP_WANTED ? step[step[STEP_WANT] + row] : row) * stride;
  const float inverse = weight ? inverse_root(at, n, epsilon EXCHANGED) : 0.0f;
  for (int b = lane_group_of(); b < out.blocks; b += groups) {
    float v[2];
    for (int i = 0; i < 2; ++i) {
      const int k = b * GROUP + i * LANES + lane;
      v[i] = k >= n ? 0.0f : weight ? normed(at, weight, k, inverse) : at[k];
    }
    store_block(out, row, b, v[0], v[1] EXCHANGED);
  }
}
