// `expert_linear` for rows that are grouped by expert: out[pair] = bias + x[row] W^T of the group's expert, n of its outputs.
// x has `capacity` rows in groups of 16; members: the pair of each of them, below 0 if there is none; owners: the expert of each
// group, below 0 if there is none.
LANE_GROUPS kernel void grouped_linear(MATRIX_ARGUMENTS(w), ROWS_ARGUMENTS(x), global const int* members,
                                       global const int* owners, int capacity, global const int* places, int tiles,
                                       global float* out, int n) {
  const Matrix w = MATRIX(w);
  const Rows x = ROWS_OF(x);
  const int row = get_group_id(1) * ROWS, column = lane_group_of() * LANES + lane_of();
  if (lane_group_of() >= tiles || row >= capacity) return;
  const int owner = owners[row / 16], place = places[max(owner, 0)];  // Intel's CPU compiler reads it in any case
  if (owner < 0 || place < 0) return;
  const int tile = place * tiles + lane_group_of();
  float acc[ROWS];
  tile_times_rows(w, tile, x, row, capacity, acc);
  if (column >= n) return;
  UNROLLED for (int m = 0; m < ROWS; ++m) {
    const int pair = members[row + m];
    const float value = biased(w, tile * LANES + lane_of(), acc[m]);
    if (pair >= 0) out[(size_t)pair * n + column] = value;
  }
}
