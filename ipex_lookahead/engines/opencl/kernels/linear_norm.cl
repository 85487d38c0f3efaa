// `linear` that adds to `out`, followed by the norm of its rows as the next linear layer reads them. The last work-group to
// arrive computes the norm: one lane group per row, or all lane groups for a single row. For few rows.
LANE_GROUPS kernel void linear_norm(MATRIX_ARGUMENTS(w), ROWS_ARGUMENTS(x), global const int* step, global float* out,
                                    int n, global const float* weight, float epsilon, global const int* order,
                                    ROWS_ARGUMENTS(next), global int* counters) {
  local int last;
  const Matrix w = MATRIX(w);
  const Rows x = ROWS_OF(x), next = ROWS_OF(next);
  const int tile = lane_group_of(), row = get_group_id(1) * ROWS, rows = step[STEP_ROWS], output = tile * LANES + lane_of();
  if (row >= rows) return;
  if (tile < tiles_of(w)) {
    float acc[ROWS];
    tile_times_rows(w, tile, x, row, rows, acc);
    put_products(w, output, acc, row, rows, out, n, output, 1);
  }
  if (!is_last(counters + get_group_id(1), get_num_groups(0), &last)) return;
  const int own = lane_group_within(), groups = lane_groups_together(), count = min(ROWS, rows - row);
  const int shared = count == 1 ? groups : 1;  // number of lane groups per row
  for (int m = own / shared; m < count; m += groups / shared) {
    global const float* at = out + (size_t)(row + m) * n;
    const float inverse = weight ? inverse_root(at, n, epsilon) : 0.0f;
    for (int b = own % shared; b < next.blocks; b += shared)
      norm_block(at, n, weight, inverse, order, next, rows, row + m, b);
  }
}
