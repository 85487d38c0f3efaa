// f(gate(x)) up(x) as the next layer's rows: a lane group makes 32 of them. Zero beyond the last output.
LANE_GROUPS kernel void gate_up(MATRIX_ARGUMENTS(gate), MATRIX_ARGUMENTS(up), ROWS_ARGUMENTS(x), ROWS_ARGUMENTS(made),
                                global const int* step, int counted, int kind, float alpha, float limit) {
  EXCHANGE(lanes)
  const Matrix gate = MATRIX(gate), up = MATRIX(up);
  const Rows x = ROWS_OF(x), made = ROWS_OF(made);
  const int group = lane_group_of(), row = get_global_id(1) * ROWS, rows = step[counted];
  if (group >= made.blocks || row >= rows) return;
  float values[2][ROWS], u[ROWS];
  for (int part = 0; part < 2; ++part) {
    const int tile = 2 * group + part, output = tile * LANES + lane_of();
    for (int m = 0; m < ROWS; ++m) values[part][m] = 0.0f;
    if (tile >= tiles_of(gate)) continue;
    tile_times_rows(gate, tile, x, row, rows, values[part]);
    tile_times_rows(up, tile, x, row, rows, u);
    for (int m = 0; m < ROWS; ++m)
      values[part][m] = activated(kind, alpha, limit, biased(gate, output, values[part][m]), biased(up, output, u[m]));
  }
  for (int m = 0; m < ROWS; ++m) {
    if (row + m >= rows) break;
    store_block(made, row + m, group, values[0][m], values[1][m] EXCHANGED);
  }
}
