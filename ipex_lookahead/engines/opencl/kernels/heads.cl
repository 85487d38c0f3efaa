// The paged KV cache, and the steps on a head of q, k or v before attention. A layer's keys and values are one buffer of
// pages of 64 positions; a page has for each head
//   keys [4][head_dim][16], values [64][head_dim], and with KV_INT8 scales of keys [64] and of values [64]

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

static Head head_in(global uchar* pages, int page, int kv_heads, int head, int head_dim) {
#ifdef KV_INT8
  const size_t bytes = (size_t)2 * PAGE * head_dim + 2 * PAGE * sizeof(float), size = 1;
#else
  const size_t bytes = (size_t)4 * PAGE * head_dim, size = 2;
#endif
  global uchar* at = pages + ((size_t)page * kv_heads + head) * bytes;
  const Head h = {(global Kept*)at, (global Kept*)(at + size * PAGE * head_dim),
                  (global float*)(at + 2 * size * PAGE * head_dim)};
  return h;
}
static size_t key_at(int slot, int d, int head_dim) {
  return (size_t)(slot / LANES) * head_dim * LANES + d * LANES + slot % LANES;
}

#define HEADS_ARGUMENTS                                                                                              \
  global float *qkv, int stride, int k_column, int v_column, int heads, int kv_heads, int head_dim, int half_dim,      \
      global const float *cosines, global const float *sines, global const float *query_factors, float query_scale, \
      global const float *q_norm, global const float *k_norm, float epsilon, global uchar *pages
#define HEADS                                                                                                     \
  qkv, stride, k_column, v_column, heads, kv_heads, head_dim, half_dim, cosines, sines, query_factors, query_scale, \
      q_norm, k_norm, epsilon, pages

// Norms, rotates and scales a query in place, or stores a key or a value: one lane group per head of q, k and v. Values i and
// i + half belong to one lane, so a lane reads only what it wrote.
static void finish_head(HEADS_ARGUMENTS, int index, int row, global const int* step EXCHANGE_ARGUMENT) {
  const int lane = lane_of();
  global const int* at = ROW(step, row);
  const bool is_q = index < heads, is_v = index >= heads + kv_heads;
  const int number = is_q ? index : is_v ? index - heads - kv_heads : index - heads;
  global float* x = qkv + (size_t)row * stride + (is_q ? 0 : is_v ? v_column : k_column) + number * head_dim;
  global const float* weight = is_q ? q_norm : is_v ? 0 : k_norm;
  const float scale = !is_q ? 1.0f : query_factors ? query_scale * query_factors[at[POSITION]] : query_scale;
  const int rotated = is_v ? 0 : half_dim;
  const float inverse = weight ? inverse_root(x, head_dim, epsilon EXCHANGED) : 0.0f;
#ifndef HAS_SUBGROUPS
  barrier(CLK_GLOBAL_MEM_FENCE);  // all lanes read before any lane writes
#else
  sub_group_barrier(CLK_GLOBAL_MEM_FENCE);
#endif
  cosines += (size_t)at[POSITION] * half_dim;
  sines += (size_t)at[POSITION] * half_dim;
  float largest = 0.0f;
#define LOOK(v) largest = !isfinite(v) ? INFINITY : fabs(v) > largest ? fabs(v) : largest
  for (int i = lane; i < rotated; i += LANES) {
    const float a = weight ? normed(x, weight, i, inverse) : x[i];
    const float b = weight ? normed(x, weight, i + rotated, inverse) : x[i + rotated];
    const float first = fma(a, cosines[i], -(b * sines[i])) * scale, second = fma(b, cosines[i], a * sines[i]) * scale;
    x[i] = first;
    x[i + rotated] = second;
    LOOK(first);
    LOOK(second);
  }
  for (int i = 2 * rotated + lane; i < head_dim; i += LANES) {
    const float v = (weight ? normed(x, weight, i, inverse) : x[i]) * scale;
    x[i] = v;
    LOOK(v);
  }
#undef LOOK
  if (is_q) return;
  largest = max_lanes(largest EXCHANGED);
  const int slot = at[SLOT] % PAGE;
  const Head head = head_in(pages, step[at[PAGES] + at[SLOT] / PAGE], kv_heads, number, head_dim);
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
  for (int first = 0; first < rotated; first += LANES) {
    const int i = first + lane;
    if (i < rotated) {
      KEEP(i)
      KEEP(i + rotated)
    }
  }
  for (int first = 2 * rotated; first < head_dim; first += LANES)
    if (first + lane < head_dim) KEEP(first + lane)
}
