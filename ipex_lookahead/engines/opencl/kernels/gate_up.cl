// f(gate(x)) up(x) as the next layer's rows: a work-group computes a block of 32 outputs. SPLIT of its lane groups share each
// of the two tiles of gate and of up, then all of them the rows. Zero beyond the last output.
//
// For mixtures (ROWS 1): (row, expert) pairs, `used` per row, from `chosen`. places: the part of the matrix of each expert,
// below 0 if absent; parts of `tiles` tiles are consecutive. Without a mixture `experts` is null.
#define JOBS 4
LANE_GROUPS_OF(JOBS * SPLIT) kernel void gate_up(MATRIX_ARGUMENTS(gate), MATRIX_ARGUMENTS(up), ROWS_ARGUMENTS(x),
                                                 ROWS_ARGUMENTS(made), global const int* step,
                                                 global const int* experts, int chosen, int used,
                                                 global const int* places, int tiles, int kind, float alpha, float limit) {
  EXCHANGE_OF(lanes, JOBS * SPLIT)
  TERMS(terms, JOBS)
  local float products[2][2][ROWS][LANES];  // [matrix][tile]
  const Matrix gate = MATRIX(gate), up = MATRIX(up);
  const Rows x = ROWS_OF(x), made = ROWS_OF(made);
  const int block = get_group_id(0), pair = get_group_id(1) * ROWS, lane = lane_of(), job = lane_group_within() / SPLIT;
  const int rows = step[STEP_ROWS], pairs = rows * used;
  if (pair >= pairs) return;
  const int place = experts ? places[experts[chosen + pair]] : 0;
  if (place < 0) return;
  const Matrix w = {job < 2 ? gate.codes : up.codes, job < 2 ? gate.scales : up.scales,
                    job < 2 ? gate.minimums : up.minimums, job < 2 ? gate.steps : up.steps,
                    job < 2 ? gate.bias : up.bias, gate.n_out, gate.n_in, gate.blocks, gate.shift};
  const int tile = place * tiles + min(2 * block + job % 2, tiles - 1);  // the last one again, if there is no other
  float acc[OWN_ROWS];
  tile_times_rows(w, tile, x, pair / used, rows, acc TERMS_OF(terms, job));
  UNROLLED for (int i = 0; i < OWN_ROWS; ++i)
    if (OWN_ROW(i) < ROWS) products[job / 2][job % 2][OWN_ROW(i)][lane] = biased(w, tile * LANES + lane, acc[i]);
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int first = 0; first < ROWS && pair + first < pairs; first += JOBS * SPLIT) {
    const int m = first + lane_group_within(), own = min(m, ROWS - 1);
    float v[2];
    UNROLLED for (int i = 0; i < 2; ++i)
      v[i] = 2 * block + i < tiles
                 ? activated(kind, alpha, limit, products[0][i][own][lane], products[1][i][own][lane])
                 : 0.0f;
    store_block(made, pairs, m < ROWS ? pair + m : pairs, block, v[0], v[1] EXCHANGED);
  }
}
