// `linear` for q, k and v, all heads or those from `first_head`. `unit` work-groups compute whole heads, and the last of them
// to arrive finishes these heads.
LANE_GROUPS_OF_TILES kernel void linear_heads(MATRIX_ARGUMENTS(w), ROWS_ARGUMENTS(x), global const int* step,
                                              int first_column, int first_head, int unit, HEADS_ARGUMENTS,
                                              global int* counters) {
  TERMS(terms, TILES)
  local int last;
  const Matrix w = MATRIX(w);
  const Rows x = ROWS_OF(x);
  const int tile = tile_of(), row = get_group_id(1) * ROWS, rows = step[STEP_ROWS], output = tile * LANES + lane_of();
  if (row >= rows) return;
  if (tile < tiles_of(w)) {
    float acc[OWN_ROWS];
    tile_times_rows(w, tile, x, row, rows, acc TERMS_OF(terms, 0));
    put_products(w, output, acc, row, rows, qkv, stride, first_column + output, 0);
  }
  const int number = get_group_id(0) / unit, units = (get_num_groups(0) + unit - 1) / unit;
  const int arriving = min(unit, (int)get_num_groups(0) - number * unit);
  if (!is_last(counters + get_group_id(1) * units + number, arriving, &last)) return;
  const int together = unit * TILES * LANES / head_dim, begin = number * together;
  const int some = min(together, w.n_out / head_dim - begin), count = min(ROWS, rows - row);
  for (int i = lane_group_within(); i < some * count; i += lane_groups_together())
    finish_head(HEADS, first_head + begin + i / count, row + i % count, step);
}
