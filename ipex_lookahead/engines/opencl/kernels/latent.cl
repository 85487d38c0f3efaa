// Latent attention around its products: csrc/model/latent_attention.cc is the CPU implementation and defines the bits.

// Rows of the unrotated parts of all heads' queries, each `passed` values of `head_dim`, padded with zeros to whole blocks.
LANE_GROUPS kernel void passed_parts(global const float* queries, int stride, int head_dim, int passed, ROWS_ARGUMENTS(out),
                                     global const int* step) {
  EXCHANGE(lanes)
  const Rows out = ROWS_OF(out);
  const int b = lane_group_of(), row = get_group_id(1), of_head = (passed + GROUP - 1) / GROUP;
  if (b >= out.blocks || row >= step[STEP_ROWS]) return;
  global const float* head = queries + (size_t)row * stride + b / of_head * head_dim;
  float v[2];
  UNROLLED for (int i = 0; i < 2; ++i) {
    const int k = b % of_head * GROUP + i * LANES + lane_of();
    v[i] = k < passed ? head[k] : 0.0f;
  }
  store_block(out, step[STEP_ROWS], row, b, v[0], v[1] EXCHANGED);
}

// Values i and i + half of the rotated part of a head. interleaved: they are values 2 i and 2 i + 1 of `in`.
static float2 turned(global const float* in, int i, int half_dim, int interleaved, global const float* cosines,
                     global const float* sines) {
  const float a = in[interleaved ? 2 * i : i], b = in[interleaved ? 2 * i + 1 : i + half_dim];
  return (float2)(fma(a, cosines[i], -(b * sines[i])), fma(b, cosines[i], a * sines[i]));
}

// The largest absolute value in both spellings of a cache, for one key or value.
#define LARGER_OF(largest, v) (!isfinite(v) ? INFINITY : fabs(v) > (largest) ? fabs(v) : (largest))

#ifdef KV_INT8
#define FACTOR_OF(largest) ((largest) > 1e-30f && (largest) <= FLT_MAX ? 127.0f / (largest) : 0.0f)
#define SCALE_OF(largest) (!((largest) <= FLT_MAX) ? NAN : (largest) > 1e-30f ? (largest) / 127.0f : 0.0f)
#define KEEP_VALUE(v, largest, kept, to) (kept)[to] = (largest) <= FLT_MAX ? (char)convert_int_rte((v) * FACTOR_OF(largest)) : 0
#else  // larger values round to infinity in binary16
#define KEEP_VALUE(v, largest, kept, to) vstore_half_rte((largest) < 65520.0f ? (v) : NAN, to, kept)
#endif

// Finishes the queries, one lane group per head: the rotated part goes before the latents of `absorbed`, [rows][heads][2 half_dim
// + latent], and both are scaled. One more lane group stores the normed latents, as a value and, behind the rotated part, as a
// key.
LANE_GROUPS kernel void finish_latents(global const float* queries, int query_stride, int passed, global float* absorbed,
                                       int heads, global const float* raw, int raw_stride, int raw_column, int latent,
                                       int half_dim, int interleaved, global const float* cosines,
                                       global const float* sines, global const float* query_factors, float query_scale,
                                       global const float* norm, float epsilon, global uchar* pages,
                                       global const int* step) {
  EXCHANGE(lanes)
  const int index = lane_group_of(), row = get_group_id(1), lane = lane_of(), rotated = 2 * half_dim;
  if (index > heads || row >= step[STEP_ROWS]) return;
  global const int* at = ROW(step, row);
  cosines += (size_t)at[POSITION] * half_dim;
  sines += (size_t)at[POSITION] * half_dim;
  if (index < heads) {
    const float scale = query_factors ? query_scale * query_factors[at[POSITION]] : query_scale;
    global const float* in = queries + (size_t)row * query_stride + index * (passed + rotated) + passed;
    global float* out = absorbed + ((size_t)row * heads + index) * (rotated + latent);
    for (int i = lane; i < half_dim; i += LANES) {
      const float2 v = turned(in, i, half_dim, interleaved, cosines, sines);
      out[i] = v.x * scale;
      out[i + half_dim] = v.y * scale;
    }
    for (int i = lane; i < latent; i += LANES) out[rotated + i] = out[rotated + i] * scale;
    return;
  }
  global const float* in = raw + (size_t)row * raw_stride + raw_column;
  const float inverse = inverse_root(in, latent, epsilon EXCHANGED);
  float of_value = 0.0f, of_key = 0.0f;
  for (int i = lane; i < latent; i += LANES) {
    const float v = normed(in, norm, i, inverse);
    of_value = LARGER_OF(of_value, v);
  }
  for (int i = lane; i < half_dim; i += LANES) {
    const float2 v = turned(in + latent, i, half_dim, interleaved, cosines, sines);
    of_key = LARGER_OF(of_key, v.x);
    of_key = LARGER_OF(of_key, v.y);
  }
  of_value = max_lanes(of_value EXCHANGED);
  of_key = max_lanes(of_key EXCHANGED);
  of_key = of_key > of_value ? of_key : of_value;
  const int slot = at[SLOT] % PAGE;
  const Head head = head_in(pages, step[at[PAGES] + at[SLOT] / PAGE], 1, 0, rotated + latent, latent);
#ifdef KV_INT8
  if (lane == 0) {
    head.scales[slot] = SCALE_OF(of_key);
    head.scales[PAGE + slot] = SCALE_OF(of_value);
  }
#endif
  // The same number of iterations in all lanes: pocl 3.1 stores bytes for lanes that left their loop.
  for (int first = 0; first < half_dim; first += LANES) {
    const int i = first + lane;
    if (i < half_dim) {
      const float2 v = turned(in + latent, i, half_dim, interleaved, cosines, sines);
      KEEP_VALUE(v.x, of_key, head.keys, key_at(slot, i, rotated + latent));
      KEEP_VALUE(v.y, of_key, head.keys, key_at(slot, i + half_dim, rotated + latent));
    }
  }
  for (int first = 0; first < latent; first += LANES) {
    const int i = first + lane;
    if (i < latent) {
      const float v = normed(in, norm, i, inverse);
      KEEP_VALUE(v, of_key, head.keys, key_at(slot, rotated + i, rotated + latent));
      KEEP_VALUE(v, of_value, head.values, (size_t)slot * latent + i);
    }
  }
}
