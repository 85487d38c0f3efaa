// The paged KV cache, and the steps on a head of q, k or v before attention. A layer's keys and values are one buffer of
// pages of 64 positions; a page has for each head
//   keys [4][head_dim][16], values [64][value_dim], and with KV_INT8 scales of keys [64] and of values [64]

#ifdef KV_INT8
typedef char Kept;
#else
typedef half Kept;
#define KEPT(p, i) vload_half(i, p)
#endif

typedef struct {
  global Kept* keys;
  global Kept* values;
  global float* scales;
} Head;

static Head head_in(global uchar* pages, int page, int kv_heads, int head, int head_dim, int value_dim) {
#ifdef KV_INT8
  const size_t keys = (size_t)PAGE * head_dim, values = (size_t)PAGE * value_dim, scales = 2 * PAGE * sizeof(float);
#else
  const size_t keys = (size_t)2 * PAGE * head_dim, values = (size_t)2 * PAGE * value_dim, scales = 0;
#endif
  global uchar* at = pages + ((size_t)page * kv_heads + head) * (keys + values + scales);
  const Head h = {(global Kept*)at, (global Kept*)(at + keys), (global float*)(at + keys + values)};
  return h;
}
static size_t key_at(int slot, int d, int head_dim) {
  return (size_t)(slot / LANES) * head_dim * LANES + d * LANES + slot % LANES;
}

// A row of q, k, v and gates: `q_column` is 0, or for INTERLEAVED the distance from a head's products to where its rotated
// values go. Values have a norm if `v_epsilon` is above 0.
#define CENTERED 1          // norms are layer norms
#define NORMED_AFTER_ROPE 2
#define INTERLEAVED 4       // value 2 i is rotated with 2 i + 1; the results go to i and i + half_dim
#define VALUES_OF_KEYS 8    // there are no products for values: they are those for keys
#define HEADS_ARGUMENTS                                                                                              \
  global float *qkv, int stride, int q_column, int k_column, int v_column, int heads, int kv_heads, int head_dim,     \
      int half_dim, global const float *cosines, global const float *sines, global const float *query_factors,        \
      float query_scale, global const float *q_norm, global const float *q_bias, float q_epsilon,                     \
      global const float *k_norm, global const float *k_bias, float k_epsilon, float v_epsilon, int style,            \
      global uchar *pages
#define HEADS                                                                                                         \
  qkv, stride, q_column, k_column, v_column, heads, kv_heads, head_dim, half_dim, cosines, sines, query_factors,      \
      query_scale, q_norm, q_bias, q_epsilon, k_norm, k_bias, k_epsilon, v_epsilon, style, pages

#ifdef HAS_SUBGROUPS
#define ALL_LANES_WROTE sub_group_barrier(CLK_GLOBAL_MEM_FENCE);
#else
#define ALL_LANES_WROTE barrier(CLK_GLOBAL_MEM_FENCE);
#endif

// Stores a head of keys or values, each value by the lane that wrote it: i and i + half_dim, then those after both halves.
static void keep_head(global const float* x, const Head head, bool is_v, int slot, int head_dim, int half_dim EXCHANGE_ARGUMENT) {
  const int lane = lane_of();
  float largest = 0.0f;
#define LOOK(v) largest = !isfinite(v) ? INFINITY : fabs(v) > largest ? fabs(v) : largest
  for (int i = lane; i < half_dim; i += LANES) {
    LOOK(x[i]);
    LOOK(x[i + half_dim]);
  }
  for (int i = 2 * half_dim + lane; i < head_dim; i += LANES) LOOK(x[i]);
#undef LOOK
  largest = max_lanes(largest EXCHANGED);
#ifdef KV_INT8
  const bool finite = largest <= FLT_MAX, tiny = !(largest > 1e-30f);
  const float factor = tiny || !finite ? 0.0f : 127.0f / largest;
  if (lane == 0) head.scales[is_v ? PAGE + slot : slot] = !finite ? NAN : tiny ? 0.0f : largest / 127.0f;
#else
  const bool finite = largest < 65520.0f;  // larger values round to infinity in binary16
#endif
#define KEEP(d)                                                                             \
  {                                                                                         \
    const size_t to = is_v ? (size_t)slot * head_dim + (d) : key_at(slot, d, head_dim);     \
    global Kept* kept = is_v ? head.values : head.keys;                                     \
    STORE(x[d], kept, to);                                                                  \
  }
#ifdef KV_INT8
#define STORE(v, kept, to) kept[to] = finite ? (char)convert_int_rte(v * factor) : 0
#else
#define STORE(v, kept, to) vstore_half_rte(finite ? v : NAN, to, kept)
#endif
  // The same number of iterations in all lanes: pocl 3.1 stores bytes for lanes that left their loop.
  for (int first = 0; first < half_dim; first += LANES) {
    const int i = first + lane;
    if (i < half_dim) {
      KEEP(i)
      KEEP(i + half_dim)
    }
  }
  for (int first = 2 * half_dim; first < head_dim; first += LANES)
    if (first + lane < head_dim) KEEP(first + lane)
}

// Norms, rotates and scales a query, or stores a key or a value: one lane group per head of q, k and v. Values i and i + half
// belong to one lane.
static void finish_head(HEADS_ARGUMENTS, int index, int row, global const int* step EXCHANGE_ARGUMENT) {
  const int lane = lane_of(), kept_heads = style & VALUES_OF_KEYS ? kv_heads : 2 * kv_heads;
  if (index >= heads + kept_heads) return;  // a gate
  global const int* at = ROW(step, row);
  const bool is_q = index < heads, is_v = index >= heads + kv_heads;
  const int number = is_q ? index : is_v ? index - heads - kv_heads : index - heads;
  global float* x = qkv + (size_t)row * stride + (is_q ? q_column : is_v ? v_column : k_column) + number * head_dim;
  const int slot = at[SLOT] % PAGE;
  Head head = {0, 0, 0};
  if (!is_q) head = head_in(pages, step[at[PAGES] + at[SLOT] / PAGE], kv_heads, number, head_dim, head_dim);
  if (is_v || (!is_q && style & VALUES_OF_KEYS)) {
    global float* v = is_v ? x : x - k_column + v_column;
    const float inverse = v_epsilon != 0.0f ? inverse_root(x, head_dim, v_epsilon EXCHANGED) : 1.0f;
    for (int i = lane; i < head_dim; i += LANES) v[i] = x[i] * inverse;
    keep_head(v, head, true, slot, head_dim, 0 EXCHANGED);
    if (is_v) return;
  }
  global const float *weight = is_q ? q_norm : k_norm, *bias = is_q ? q_bias : k_bias;
  const float epsilon = is_q ? q_epsilon : k_epsilon;
  const float scale = !is_q ? 1.0f : query_factors ? query_scale * query_factors[at[POSITION]] : query_scale;
  const bool after = weight && style & NORMED_AFTER_ROPE, before = weight && !after, interleaved = style & INTERLEAVED;
  global float* out = x - q_column;
  Moments moments = {0.0f, 0.0f};
  if (before) moments = moments_of(x, head_dim, epsilon, style & CENTERED EXCHANGED);
  ALL_LANES_WROTE  // and read what others write
  cosines += (size_t)at[POSITION] * half_dim;
  sines += (size_t)at[POSITION] * half_dim;
  const float factor = after ? 1.0f : scale;
  for (int i = lane; i < half_dim; i += LANES) {
    const int first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + half_dim;
    const float a = before ? normed_by(x, weight, bias, first, moments) : x[first];
    const float b = before ? normed_by(x, weight, bias, second, moments) : x[second];
    out[i] = fma(a, cosines[i], -(b * sines[i])) * factor;
    out[i + half_dim] = fma(b, cosines[i], a * sines[i]) * factor;
  }
  for (int i = 2 * half_dim + lane; i < head_dim; i += LANES)
    out[i] = (before ? normed_by(x, weight, bias, i, moments) : x[i]) * factor;
  if (after) {
    ALL_LANES_WROTE
    moments = moments_of(out, head_dim, epsilon, style & CENTERED EXCHANGED);
    ALL_LANES_WROTE
    for (int i = lane; i < half_dim; i += LANES) {
      out[i] = normed_by(out, weight, bias, i, moments) * scale;
      out[i + half_dim] = normed_by(out, weight, bias, i + half_dim, moments) * scale;
    }
    for (int i = 2 * half_dim + lane; i < head_dim; i += LANES) out[i] = normed_by(out, weight, bias, i, moments) * scale;
  }
  if (!is_q) keep_head(out, head, false, slot, head_dim, half_dim EXCHANGED);
}
