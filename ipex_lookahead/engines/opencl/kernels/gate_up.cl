// f(gate(x)) up(x) as the next layer's rows: a work-group computes a block of 32 outputs; its lane groups split the two tiles
// of gate and of up, then the rows. Zero beyond the last output.
//
// For mixtures (ROWS 1): (row, expert) pairs, `used` per row, from `chosen`. places: the part of the matrix of each expert,
// below 0 if absent; parts of `tiles` tiles are consecutive. Without a mixture `experts` is null.
#ifdef HAS_SUBGROUPS
#define ITS_JOB(job) const int job = lane_group_within();  // four lane groups per work-group: no loop, which would spill
#else
#define ITS_JOB(job) for (int job = 0; job < 4; ++job)
#endif

LANE_GROUPS kernel void gate_up(MATRIX_ARGUMENTS(gate), MATRIX_ARGUMENTS(up), ROWS_ARGUMENTS(x), ROWS_ARGUMENTS(made),
                                global const int* step, global const int* experts, int chosen, int used,
                                global const int* places, int tiles, int kind, float alpha, float limit) {
  EXCHANGE(lanes)
  local float products[2][2][ROWS][LANES];  // [matrix][tile]
  const Matrix gate = MATRIX(gate), up = MATRIX(up);
  const Rows x = ROWS_OF(x), made = ROWS_OF(made);
  const int block = get_group_id(0), pair = get_group_id(1) * ROWS, lane = lane_of();
  const int rows = step[STEP_ROWS], pairs = rows * used;
  if (pair >= pairs) return;
  const int place = experts ? places[experts[chosen + pair]] : 0;
  if (place < 0) return;
  ITS_JOB(job) {
    const Matrix w = {job < 2 ? gate.codes : up.codes, job < 2 ? gate.scales : up.scales,
                      job < 2 ? gate.minimums : up.minimums, job < 2 ? gate.steps : up.steps,
                      job < 2 ? gate.bias : up.bias, gate.n_out, gate.n_in, gate.blocks, gate.shift};
    if (2 * block + job % 2 < tiles) {
      const int tile = place * tiles + 2 * block + job % 2;
      float acc[ROWS];
      tile_times_rows(w, tile, x, pair / used, rows, acc);
      UNROLLED for (int m = 0; m < ROWS; ++m)
        products[job / 2][job % 2][m][lane] = biased(w, tile * LANES + lane, acc[m]);
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int m = lane_group_within(); m < ROWS && pair + m < pairs; m += lane_groups_together()) {
    float v[2];
    UNROLLED for (int i = 0; i < 2; ++i)
      v[i] = 2 * block + i < tiles
                 ? activated(kind, alpha, limit, products[0][i][m][lane], products[1][i][m][lane])
                 : 0.0f;
    store_block(made, pairs, pair + m, block, v[0], v[1] EXCHANGED);
  }
}
