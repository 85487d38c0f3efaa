// `linear` that adds to `out`, followed by the norm of its rows as the next linear layer reads them. The last work-group to
// arrive computes the norms, row by row. For few rows.
LANE_GROUPS_OF_TILES kernel void linear_norm(MATRIX_ARGUMENTS(w), ROWS_ARGUMENTS(x), global const int* step,
                                             global float* out, int n, global const float* weight, float epsilon,
                                             global const int* order, ROWS_ARGUMENTS(next), global int* counters) {
  TERMS(terms, TILES)
  NORM_MEMORY(memory)
  local int last;
  const Matrix w = MATRIX(w);
  const Rows x = ROWS_OF(x), next = ROWS_OF(next);
  const int tile = tile_of(), row = get_group_id(1) * ROWS, rows = step[STEP_ROWS], output = tile * LANES + lane_of();
  if (row >= rows) return;
  if (tile < tiles_of(w)) {
    float acc[OWN_ROWS];
    tile_times_rows(w, tile, x, row, rows, acc TERMS_OF(terms, 0));
    put_products(w, output, acc, row, rows, out, n, output, 1);
  }
  if (!is_last(counters + get_group_id(1), get_num_groups(0), &last)) return;
  for (int m = row; m < min(row + ROWS, rows); ++m) {
    global const float* at = out + (size_t)m * n;
    const float inverse = weight ? inverse_root_together(at, n, epsilon, memory) : 0.0f;
    for (int b = lane_group_within(); b < next.blocks; b += lane_groups_together())
      norm_block(at, n, weight, inverse, order, next, rows, m, b);
  }
}
