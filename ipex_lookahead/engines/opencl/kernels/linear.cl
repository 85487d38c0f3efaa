// out[row][output] = (add ? out[row][output] : 0) + bias + x W^T; step[counted] is the number of rows.
LANE_GROUPS kernel void linear(MATRIX_ARGUMENTS(w), ROWS_ARGUMENTS(x), global const int* step, int counted,
                               global float* out, int out_stride, int first_column, int add) {
  const Matrix w = MATRIX(w);
  const Rows x = ROWS_OF(x);
  const int tile = lane_group_of(), row = get_group_id(1) * ROWS, rows = step[counted], output = tile * LANES + lane_of();
  if (tile >= tiles_of(w) || row >= rows) return;
  float acc[ROWS];
  tile_times_rows(w, tile, x, row, rows, acc);
  put_products(w, output, acc, row, rows, out, out_stride, first_column + output, add);
}
