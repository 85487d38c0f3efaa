// Attention of a few rows or many over the KV cache, in blocks of 256 logical positions.
//
// The bits of a (row, head) are defined without regard to where its keys lie or which rows come with it:
//   score(p)   fma over the head's dimensions in ascending order, one accumulator per position; then the cap
//   block      m = max; e = exp(score - m); sum: lane p % 16 ascending, then the canonical reduction;
//              values: fma over the block's positions in ascending order, one accumulator per dimension
//   blocks     merged in ascending order by merge() (the online softmax of Milakov & Gimelshein, arXiv 1805.02867)
// A row's positions are the committed prefix, its ancestors in the step and itself, of these the last `window`; the others
// are skipped, not masked.

template <KvFormat F>
SIMD_INLINE f32x16 load_kv(const uint8_t* p, int64_t index) {
  if (F == KvFormat::fp16) return load_f16(reinterpret_cast<const uint16_t*>(p) + index);
  return load_i8(reinterpret_cast<const int8_t*>(p) + index);
}

// The head padded to a multiple of 16 as `KvFormat` elements; the scale of int8. A head with an element that is not finite,
// or not as binary16, is NaN throughout: an infinite key may else score -inf, which looks like a key of no weight.
template <KvFormat F>
SIMD_INLINE float encode_head(const float* x, int head_dim, uint8_t* out) {
  alignas(64) float in[kLanes];
  const auto chunk = [&](int d) {
    for (int i = 0; i < kLanes; ++i) in[i] = d + i < head_dim ? x[d + i] : 0.0f;
    return load(in);
  };
  f32x16 zeros = zero();  // sums of 0 * element: NaN once one is not finite
  if (F == KvFormat::fp16) {
    uint16_t* halves = reinterpret_cast<uint16_t*>(out);
    for (int d = 0; d < head_dim; d += kLanes) {
      store_f16(halves + d, chunk(d));
      zeros = fma(load_f16(halves + d), zero(), zeros);
    }
    if (reduce_add(zeros) != 0.0f)
      for (int d = 0; d < head_dim; d += kLanes) store_f16(halves + d, set1(__builtin_nanf("")));
    return 1.0f;
  }
  f32x16 largest = zero();
  for (int d = 0; d < head_dim; d += kLanes) {
    largest = max(largest, abs(chunk(d)));
    zeros = fma(chunk(d), zero(), zeros);
  }
  const float top = reduce_max(largest);
  const bool finite = reduce_add(zeros) == 0.0f, tiny = !(top > 1e-30f);
  const f32x16 inverse = set1(tiny || !finite ? 0.0f : 127.0f / top);
  for (int d = 0; d < head_dim; d += kLanes) store_i8(reinterpret_cast<int8_t*>(out) + d, round(mul(chunk(d), inverse)));
  return !finite ? __builtin_nanf("") : tiny ? 0.0f : top / 127.0f;
}

constexpr int kMaxHead = 1024;

template <KvFormat F>
static void store_key(const float* k, uint8_t* keys, float* scales, int64_t slot, int head_dim) {
  alignas(64) uint8_t head[kMaxHead * 2];
  const float scale = encode_head<F>(k, head_dim, head);
  const int64_t at = slot / kLanes * head_dim * kLanes + slot % kLanes;
  for (int d = 0; d < head_dim; ++d) {
    if (F == KvFormat::fp16)
      reinterpret_cast<uint16_t*>(keys)[at + d * kLanes] = reinterpret_cast<const uint16_t*>(head)[d];
    else
      keys[at + d * kLanes] = head[d];
  }
  if (F == KvFormat::int8) scales[slot] = scale;
}

template <KvFormat F>
static void store_value(const float* v, uint8_t* values, float* scales, int64_t slot, int head_dim) {
  const int padded = (head_dim + kLanes - 1) / kLanes * kLanes;
  const float scale = encode_head<F>(v, head_dim, values + slot * padded * kv_bytes(F));
  if (F == KvFormat::int8) scales[slot] = scale;
}

// Vectors of keys or values that Q queries are multiplied by together: of many queries few, so that what is widened from
// memory is used often.
template <int Q>
constexpr int kWidened = Q > kQueriesOfFour ? 2 : 4;

// Scores of Q queries against S sub-blocks of 16 slots: the keys are widened once for all queries. Meanwhile memory as
// much as the keys take is fetched, `ahead` bytes from them.
template <KvFormat F, int Q, int S>
SIMD_INLINE void score_slots(const uint8_t* keys, int64_t ahead, const float* scales, const float* const* q,
                             int head_dim, float* const* scores, int64_t at) {
  constexpr int kEvery = 64 / (kLanes * int(kv_bytes(F)));  // dimensions in a cache line
  f32x16 acc[Q][S];
  for (int i = 0; i < Q; ++i)
    for (int s = 0; s < S; ++s) acc[i][s] = zero();
  for (int d = 0; d < head_dim; ++d) {
    if (d % kEvery == 0)
      for (int s = 0; s < S; ++s)
        __builtin_prefetch(keys + ahead + (int64_t(s) * head_dim + d) * kLanes * kv_bytes(F), 0, 2);
    f32x16 k[S];
    for (int s = 0; s < S; ++s) k[s] = load_kv<F>(keys, (int64_t(s) * head_dim + d) * kLanes);
    for (int i = 0; i < Q; ++i) {
      const f32x16 x = set1(q[i][d]);
      for (int s = 0; s < S; ++s) acc[i][s] = fma(k[s], x, acc[i][s]);
    }
  }
  for (int i = 0; i < Q; ++i)
    for (int s = 0; s < S; ++s) {
      if (F == KvFormat::int8) acc[i][s] = mul(acc[i][s], load(scales + s * kLanes));
      store(scores[i] + at + s * kLanes, acc[i][s]);
    }
}

template <KvFormat F, int Q>
SIMD_INLINE void score_page(const uint8_t* keys, int64_t ahead, const float* scales, const float* const* q,
                            int head_dim, float* const* scores, int64_t at, int64_t sub_blocks) {
  const int64_t step = int64_t(head_dim) * kLanes * kv_bytes(F);
  int64_t s = 0;
  for (; s + kWidened<Q> <= sub_blocks; s += kWidened<Q>)
    score_slots<F, Q, kWidened<Q>>(keys + s * step, ahead, scales + s * kLanes, q, head_dim, scores, at + s * kLanes);
  for (; s < sub_blocks; ++s)
    score_slots<F, Q, 1>(keys + s * step, ahead, scales + s * kLanes, q, head_dim, scores, at + s * kLanes);
}

// scores[i][slot - begin] for the slots from begin, a multiple of 16, to end (rounded up to one).
// A page's keys or values lie far from the next page's, where no prefetcher of the hardware looks: who reads a page
// fetches what comes after it. Keys are followed by the next page's keys, those of the range's last page by the first
// page's values; values by the next page's values, those of a block's last page by the next block's keys.
SIMD_INLINE const uint8_t* page_or(const Keys& keys, int64_t page, int64_t offset, const uint8_t* otherwise) {
  return page * kPage < keys.length ? keys.pages[page] + offset : otherwise;
}

template <KvFormat F>
static void score_range(const Keys& keys, int head_dim, int64_t begin, int64_t end, const float* const* q, int count,
                        float* const* scores) {
  for (int64_t slot = begin; slot < end;) {
    const int64_t in_page = slot % kPage;
    const int64_t stop = end - slot < kPage - in_page ? end - slot : kPage - in_page;
    const int64_t sub_blocks = (stop + kLanes - 1) / kLanes;
    const uint8_t* page = keys.pages[slot / kPage];
    const uint8_t* k = page + keys.k_offset + in_page * head_dim * kv_bytes(F);
    const float* scales = reinterpret_cast<const float*>(page + keys.scale_offset) + in_page;
    const int64_t next = slot / kPage + 1;
    const uint8_t* then = next * kPage < end ? page_or(keys, next, keys.k_offset, page + keys.k_offset)
                                             : keys.pages[begin / kPage] + keys.v_offset;
    int64_t ahead = then - (page + keys.k_offset);
    in_parts<kQueryTile>(0, count, [&](auto tile, int i) {
      score_page<F, tile()>(k, ahead, scales, q + i, head_dim, scores + i, slot - begin, sub_blocks);
      ahead = 0;  // has been fetched
    });
    slot += sub_blocks * kLanes;
  }
}

// values[i] += e[i][slot - begin] * V[slot] for the slots [begin, end) in ascending order, 16 C dimensions from d on.
template <KvFormat F, int Q, int C>
SIMD_INLINE void add_values(const Keys& keys, int padded, int64_t begin, int64_t end, const float* const* e, int d,
                            float* const* values) {
  f32x16 acc[Q][C];
  for (int i = 0; i < Q; ++i)
    for (int c = 0; c < C; ++c) acc[i][c] = load(values[i] + d + c * kLanes);
  for (int64_t slot = begin; slot < end;) {
    const int64_t in_page = slot % kPage;
    const int64_t stop = slot + kPage - in_page < end ? slot + kPage - in_page : end;
    const uint8_t* page = keys.pages[slot / kPage];
    const uint8_t* v = page + keys.v_offset + (in_page * padded + d) * kv_bytes(F);
    const float* scales = reinterpret_cast<const float*>(page + keys.scale_offset) + kPage + in_page;
    const int64_t next = slot / kPage + 1, offset = next * kPage < end ? keys.v_offset : keys.k_offset;
    const int64_t ahead = page_or(keys, next, offset, page + keys.v_offset) - (page + keys.v_offset);
    for (; slot < stop; ++slot, v += padded * kv_bytes(F), ++scales) {
      prefetch_ahead(v, ahead, C * kLanes * kv_bytes(F));
      f32x16 value[C];
      for (int c = 0; c < C; ++c) value[c] = load_kv<F>(v, c * kLanes);
      for (int i = 0; i < Q; ++i) {
        const float weight = e[i][slot - begin];
        const f32x16 x = set1(F == KvFormat::int8 ? weight * *scales : weight);
        for (int c = 0; c < C; ++c) acc[i][c] = fma(value[c], x, acc[i][c]);
      }
    }
  }
  for (int i = 0; i < Q; ++i)
    for (int c = 0; c < C; ++c) store(values[i] + d + c * kLanes, acc[i][c]);
}

template <KvFormat F, int Q>
SIMD_INLINE void add_values(const Keys& keys, int padded, int64_t begin, int64_t end, const float* const* e,
                            float* const* values) {
  int d = 0;
  constexpr int width = kWidened<Q> * kLanes;
  for (; d + width <= padded; d += width) add_values<F, Q, kWidened<Q>>(keys, padded, begin, end, e, d, values);
  for (; d < padded; d += kLanes) add_values<F, Q, 1>(keys, padded, begin, end, e, d, values);
}

template <KvFormat F>
static void add_values(const Keys& keys, int padded, int64_t begin, int64_t end, const float* const* e, int count,
                       float* const* values) {
  in_parts<kQueryTile>(0, count, [&](auto tile, int i) {
    add_values<F, tile()>(keys, padded, begin, end, e + i, values + i);
  });
}

// Turns the scores [begin, end) into exponentials in place (zero down to the last and up to the next multiple of 16); the
// block's maximum and sum.
SIMD_INLINE void softmax_block(float* scores, int64_t begin, int64_t end, float softcap, float* maximum, float* sum) {
  const int64_t from = begin / kLanes * kLanes, to = (end + kLanes - 1) / kLanes * kLanes;
  for (int64_t p = from; p < begin; ++p) scores[p] = scores[begin];
  for (int64_t p = end; p < to; ++p) scores[p] = scores[begin];
  if (softcap > 0)
    for (int64_t p = from; p < to; p += kLanes) store(scores + p, capped(load(scores + p), softcap, 1.0f / softcap));
  f32x16 top = load(scores + from);
  for (int64_t p = from + kLanes; p < to; p += kLanes) top = max(top, load(scores + p));
  const float m = reduce_max(top);
  f32x16 total = zero();
  for (int64_t p = from; p < to; p += kLanes) {
    store(scores + p, exponential(sub(load(scores + p), set1(m))));
    if (p < begin)
      for (int64_t i = p; i < begin; ++i) scores[i] = 0.0f;
    if (p + kLanes > end)
      for (int64_t i = end; i < to; ++i) scores[i] = 0.0f;
    total = add(total, load(scores + p));
  }
  *maximum = m;
  *sum = reduce_add(total);
}

static void softmax(float* x, int64_t n) {
  float maximum, sum;
  softmax_block(x, 0, n, 0, &maximum, &sum);
  for (int64_t i = 0; i < n; i += kLanes) store(x + i, div(load(x + i), set1(sum)));
}

// The rows and heads attended to together, positions counted from the block's first.
struct QueryTile {
  int count = 0;
  const float* queries[kQueries];
  float* heads[kQueries];   // partials
  float* values[kQueries];
  float* scores[kQueries];
  float* exact[kQueries];   // scores by slot of the step's own rows, for trees
  int64_t rows[kQueries], begins[kQueries], ends[kQueries];
};

SIMD_INLINE QueryTile query_tile(const Keys& keys, const Attend& a, int64_t r0, int64_t r1, int h0, int h1) {
  const int padded = (a.head_dim + kLanes - 1) / kLanes * kLanes;
  const int64_t first = a.block * kBlock;
  QueryTile t;
  for (int64_t r = r0; r < r1; ++r) {
    const int64_t position = keys.length + keys.depth[r] - first;
    const int64_t end = position < kBlock ? position + 1 : int64_t(kBlock);
    const int64_t begin = a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
    if (begin >= end) continue;
    for (int h = h0; h < h1; ++h, ++t.count) {
      const int i = t.count;
      t.queries[i] = a.q + r * a.q_stride + h * a.head_dim;
      t.heads[i] = a.partials + r * a.partial_row_stride + h * a.partial_head_stride;
      t.values[i] = t.heads[i] + kPartialHead;
      t.scores[i] = a.scratch + i * (kBlock + a.step_rows + 2 * kLanes);
      t.exact[i] = t.scores[i] + kBlock;
      t.rows[i] = r;
      t.begins[i] = begin;
      t.ends[i] = end;
      for (int d = 0; d < padded; d += kLanes) store(t.values[i] + d, zero());
    }
  }
  return t;
}

template <KvFormat F>
static void attend_tile(const Keys& keys, const Attend& a, const QueryTile& t) {
  const int padded = (a.head_dim + kLanes - 1) / kLanes * kLanes;
  const int64_t first = a.block * kBlock, prefix = keys.length - first;
  const bool chain = keys.ancestors == nullptr;
  int64_t lowest = kBlock, highest = 0, latest_begin = 0, earliest_end = kBlock;
  for (int i = 0; i < t.count; ++i) {
    lowest = t.begins[i] < lowest ? t.begins[i] : lowest;
    highest = t.ends[i] > highest ? t.ends[i] : highest;
    latest_begin = t.begins[i] > latest_begin ? t.begins[i] : latest_begin;
    earliest_end = t.ends[i] < earliest_end ? t.ends[i] : earliest_end;
  }
  const float* e[kQueries];

  // Slots equal positions on the committed prefix, and everywhere if the rows are one chain.
  const int64_t from = lowest / kLanes * kLanes, direct = chain || prefix > highest ? highest : prefix;
  float* scores[kQueries];
  for (int i = 0; i < t.count; ++i) scores[i] = t.scores[i] + from;
  if (direct > from) score_range<F>(keys, a.head_dim, first + from, first + direct, t.queries, t.count, scores);
  if (!chain && highest > prefix) {
    const int64_t slot0 = keys.length / kLanes * kLanes;
    score_range<F>(keys, a.head_dim, slot0, keys.length + a.step_rows, t.queries, t.count, t.exact);
    for (int i = 0; i < t.count; ++i) {
      const int32_t* path = keys.ancestors + t.rows[i] * keys.ancestor_stride;
      for (int64_t p = prefix > t.begins[i] ? prefix : t.begins[i]; p < t.ends[i]; ++p)
        t.scores[i][p] = t.exact[i][keys.length + path[p - prefix] - slot0];
    }
  }
  for (int i = 0; i < t.count; ++i)
    softmax_block(t.scores[i], t.begins[i], t.ends[i], a.softcap, t.heads[i], t.heads[i] + 1);

  const auto add_alone = [&](int i, int64_t begin, int64_t end) {
    const int64_t slots = chain || prefix > end ? end : prefix > begin ? prefix : begin;
    if (begin < slots) {
      e[0] = t.scores[i] + begin;
      add_values<F>(keys, padded, first + begin, first + slots, e, 1, t.values + i);
    }
    for (int64_t p = slots; p < end; ++p) {
      const int64_t slot = keys.length + keys.ancestors[t.rows[i] * keys.ancestor_stride + p - prefix];
      e[0] = t.scores[i] + p;
      add_values<F>(keys, padded, slot, slot + 1, e, 1, t.values + i);
    }
  };
  // Positions that every row of the tile sees are added together, so their values are read once.
  const int64_t shared = chain || prefix > earliest_end ? earliest_end : prefix;
  if (latest_begin >= shared) {
    for (int i = 0; i < t.count; ++i) add_alone(i, t.begins[i], t.ends[i]);
    return;
  }
  for (int i = 0; i < t.count; ++i) add_alone(i, t.begins[i], latest_begin);
  for (int i = 0; i < t.count; ++i) e[i] = t.scores[i] + latest_begin;
  add_values<F>(keys, padded, first + latest_begin, first + shared, e, t.count, t.values);
  for (int i = 0; i < t.count; ++i) add_alone(i, shared, t.ends[i]);
}

template <KvFormat F>
static void attend(const Keys& keys, const Attend& a) {
  const int head_tile = a.heads < kQueries ? a.heads : kQueries;
  for (int h0 = 0; h0 < a.heads; h0 += head_tile) {
    const int h1 = a.heads - h0 < head_tile ? a.heads : h0 + head_tile;
    const int64_t row_tile = kQueries / (h1 - h0);
    for (int64_t r0 = a.begin; r0 < a.end; r0 += row_tile) {
      const QueryTile t = query_tile(keys, a, r0, a.end - r0 < row_tile ? a.end : r0 + row_tile, h0, h1);
      if (t.count > 0) attend_tile<F>(keys, a, t);
    }
  }
}

static void merge(float* state, const float* next, int head_dim) {
  const float top = state[0] > next[0] ? state[0] : next[0];
  const float keep = exponential(state[0] - top), take = exponential(next[0] - top);
  state[0] = top;
  state[1] = __builtin_fmaf(state[1], keep, next[1] * take);
  for (int d = 0; d < head_dim; d += kLanes) {
    float* at = state + kPartialHead + d;
    store(at, fma(load(at), set1(keep), mul(load(next + kPartialHead + d), set1(take))));
  }
}

static void finish(const float* state, int head_dim, float* out) {
  const f32x16 sum = set1(state[1]);
  alignas(64) float tail[kLanes];
  for (int d = 0; d < head_dim; d += kLanes) {
    const f32x16 v = div(load(state + kPartialHead + d), sum);
    if (head_dim - d >= kLanes) {
      store(out + d, v);
    } else {
      store(tail, v);
      for (int i = 0; i < head_dim - d; ++i) out[d + i] = tail[i];
    }
  }
}
