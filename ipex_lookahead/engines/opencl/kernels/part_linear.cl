// Products of a head's own matrix with its own inputs, all heads at once: out[row][head * width + first_column + output] =
// bias + x[row][head's inputs] W_head^T, with n outputs per head. For each head, a row of x has the blocks of a matrix.
// heads: the head of each part of the matrix; parts have `tiles` tiles.
LANE_GROUPS kernel void part_linear(MATRIX_ARGUMENTS(w), ROWS_ARGUMENTS(x), global const int* step, global const int* heads,
                                    int tiles, int n, global float* out, int out_stride, int width, int first_column) {
  const Matrix w = MATRIX(w);
  const int tile = lane_group_of(), row = get_group_id(1) * ROWS, rows = step[STEP_ROWS];
  if (tile >= tiles_of(w) || row >= rows) return;
  const int head = heads[tile / tiles], output = tile % tiles * LANES + lane_of();
  const size_t first = block_at(rows, head * w.blocks, 0);
  const Rows x = {x_values + (size_t)head * w.blocks * GROUP, x_codes + first * GROUP, x_scales + first, x_sums + first,
                  x_blocks};
  float acc[ROWS];
  tile_times_rows(w, tile, x, row, rows, acc);
  if (output >= n) return;
  UNROLLED for (int m = 0; m < ROWS; ++m)
    if (row + m < rows)
      out[(size_t)(row + m) * out_stride + head * width + first_column + output] = biased(w, tile * LANES + lane_of(), acc[m]);
}
