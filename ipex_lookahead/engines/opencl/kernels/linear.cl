// out[row][output] = (add ? out[row][output] : 0) + bias + x W^T; step[counted] is the number of rows.
LANE_GROUPS_OF_TILES kernel void linear(MATRIX_ARGUMENTS(w), ROWS_ARGUMENTS(x), global const int* step, int counted,
                                        global float* out, int out_stride, int first_column, int add) {
  TERMS(terms, TILES)
  const Matrix w = MATRIX(w);
  const Rows x = ROWS_OF(x);
  const int tile = tile_of(), row = get_group_id(1) * ROWS, rows = step[counted], output = tile * LANES + lane_of();
  if (tile >= tiles_of(w) || row >= rows) return;
  float acc[OWN_ROWS];
  tile_times_rows(w, tile, x, row, rows, acc TERMS_OF(terms, 0));
  put_products(w, output, acc, row, rows, out, out_stride, first_column + output, add);
}
