// The embeddings of a step's tokens, times `factor`: 16 blocks of 32 inputs per lane group, one per lane.
LANE_GROUPS kernel void embed(MATRIX_ARGUMENTS(w), global const int* step, global float* out,
                              int out_stride, float factor) {
  const Matrix w = MATRIX(w);
  const int b = get_global_id(0), row = get_global_id(1);
  if (b >= w.blocks || row >= step[STEP_ROWS]) return;
  const int token = ROW(step, row)[TOKEN], tile = token / LANES, lane = token % LANES;
  const int count = min(GROUP, w.n_in - b * GROUP);
  global float* to = out + (size_t)row * out_stride + b * GROUP;
#if CODES == FLOATS
  const size_t first = ((size_t)tile * w.n_in + b * GROUP) * LANES + lane;
  for (int i = 0; i < count; ++i) to[i] = weight_at(w.codes, first + (size_t)i * LANES) * factor;
#else
  global const uint* from = (global const uint*)(w.codes + ((size_t)tile * w.blocks + b) * CODE_BYTES) + lane;
  uint read[WORDS], four[8];
  for (int i = 0; i < WORDS; ++i) read[i] = from[LANES * i];
  unpack(read, four);
  const Scaled s = scaled_at(w, tile, b, lane);
  for (int i = 0; i < count; ++i) {
    const uint code = four[i / 4] >> 8 * (i % 4) & 255;
#ifndef INTEGERS
    const float value = decoded(code) * s.scale;
#else
#ifdef HALVED
    const float scale = s.scale * (i < LANES ? s.steps.x : s.steps.y);
    const float minimum = s.minimum * (i < LANES ? s.minimum_steps.x : s.minimum_steps.y);
#else
    const float scale = s.scale, minimum = s.minimum;
#endif
#ifdef ZERO_POINT
    float value = scale * (convert_float((int)code - ZERO) - minimum);
#else
    float value = scale * convert_float((int)code - ZERO);
#endif
#ifdef MINIMUM
    value = value + minimum;
#endif
#endif
    to[i] = value * factor;
  }
#endif
}
