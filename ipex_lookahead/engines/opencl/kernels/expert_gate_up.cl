// `gate_up` for a mixture, ROWS 1: rows and their experts in pairs, `used` a row, from `chosen` on. places: which part of the matrix an
// expert is, below 0 where it is none; a part's `tiles` lie after those of the one before.
LANE_GROUPS kernel void expert_gate_up(MATRIX_ARGUMENTS(gate), MATRIX_ARGUMENTS(up), ROWS_ARGUMENTS(x),
                                       ROWS_ARGUMENTS(made), global const int* step, global const int* experts, int chosen,
                                       int used, global const int* places, int tiles, int kind, float alpha,
                                       float limit) {
  EXCHANGE(lanes)
  experts += chosen;
  const Matrix gate = MATRIX(gate), up = MATRIX(up);
  const Rows x = ROWS_OF(x), made = ROWS_OF(made);
  const int group = lane_group_of(), pair = get_group_id(1), rows = step[STEP_ROWS], row = pair / used;
  if (group >= made.blocks || row >= rows) return;
  const int place = places[experts[pair]];
  if (place < 0) return;
  float values[2];
  UNROLLED for (int part = 0; part < 2; ++part) {
    const int tile = place * tiles + 2 * group + part, output = tile * LANES + lane_of();
    values[part] = 0.0f;
    if (2 * group + part >= tiles) continue;
    float g, u;
    tile_times_rows(gate, tile, x, row, rows, &g);
    tile_times_rows(up, tile, x, row, rows, &u);
    values[part] = activated(kind, alpha, limit, biased(gate, output, g), biased(up, output, u));
  }
  store_block(made, rows * used, pair, group, values[0], values[1] EXCHANGED);
}
