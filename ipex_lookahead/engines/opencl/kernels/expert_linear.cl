// out[pair] = bias + x[pair / share] W^T of the pair's expert, n of its outputs; see `expert_gate_up`. ROWS 1.
LANE_GROUPS_OF_TILES kernel void expert_linear(MATRIX_ARGUMENTS(w), ROWS_ARGUMENTS(x), global const int* step,
                                               global const int* experts, int chosen, int used, global const int* places,
                                               int tiles, int share, global float* out, int n) {
  TERMS(terms, TILES)
  experts += chosen;
  const Matrix w = MATRIX(w);
  const Rows x = ROWS_OF(x);
  const int pair = get_group_id(1), pairs = step[STEP_ROWS] * used, column = tile_of() * LANES + lane_of();
  if (tile_of() >= tiles || pair >= pairs) return;
  const int place = places[experts[pair]];
  if (place < 0) return;
  const int tile = place * tiles + tile_of();
  float acc;
  tile_times_rows(w, tile, x, pair / share, pairs / share, &acc TERMS_OF(terms, 0));
  if (column < n && part_of() == 0) out[(size_t)pair * n + column] = biased(w, tile * LANES + lane_of(), acc);
}
