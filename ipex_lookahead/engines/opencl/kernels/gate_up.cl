// f(gate(x)) up(x) as the next layer's rows: a work-group makes a block of 32 of them, and its lane groups share the two tiles
// of gate and of up, then the rows. Zero beyond the last output.
LANE_GROUPS kernel void gate_up(MATRIX_ARGUMENTS(gate), MATRIX_ARGUMENTS(up), ROWS_ARGUMENTS(x), ROWS_ARGUMENTS(made),
                                global const int* step, int counted, int kind, float alpha, float limit) {
  EXCHANGE(lanes)
  local float products[2][2][ROWS][LANES];  // of which matrix, of which tile
  const Matrix gate = MATRIX(gate), up = MATRIX(up);
  const Rows x = ROWS_OF(x), made = ROWS_OF(made);
  const int block = get_group_id(0), row = get_group_id(1) * ROWS, rows = step[counted], lane = lane_of();
  if (row >= rows) return;
  for (int job = lane_group_within(); job < 4; job += lane_groups_together()) {
    const Matrix w = {job < 2 ? gate.codes : up.codes, job < 2 ? gate.scales : up.scales,
                      job < 2 ? gate.minimums : up.minimums, job < 2 ? gate.steps : up.steps,
                      job < 2 ? gate.bias : up.bias, gate.n_out, gate.n_in, gate.blocks, gate.shift};
    const int tile = 2 * block + job % 2;
    if (tile >= tiles_of(w)) continue;
    float acc[ROWS];
    tile_times_rows(w, tile, x, row, rows, acc);
    UNROLLED for (int m = 0; m < ROWS; ++m)
      products[job / 2][job % 2][m][lane] = biased(w, tile * LANES + lane, acc[m]);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int m = lane_group_within(); m < ROWS && row + m < rows; m += lane_groups_together()) {
    float v[2];
    UNROLLED for (int i = 0; i < 2; ++i)
      v[i] = 2 * block + i < tiles_of(gate)
                 ? activated(kind, alpha, limit, products[0][i][m][lane], products[1][i][m][lane])
                 : 0.0f;
    store_block(made, rows, row + m, block, v[0], v[1] EXCHANGED);
  }
}
