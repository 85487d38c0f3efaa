// Attention of a few rows or many over the KV cache, in blocks of 256 logical positions.
//
// The bits of a (row, head) are defined without regard to where its keys lie or which rows come with it:
//   score(p)   fma over the head's dimensions in ascending order, one accumulator per position
//   block      m = max; e = exp(score - m); sum: lane p % 16 ascending, then the canonical reduction;
//              values: fma over the block's positions in ascending order, one accumulator per dimension
//   blocks     merged in ascending order by merge() (the online softmax of Milakov & Gimelshein, arXiv 1805.02867)
// A row's positions are the committed prefix, its ancestors in the step and itself; other rows are skipped, not masked.

static void store_key(const float* k, uint16_t* page_keys, int64_t slot, int head_dim) {
  uint16_t* at = page_keys + slot / kLanes * head_dim * kLanes + slot % kLanes;
  alignas(64) float in[kLanes];
  alignas(64) uint16_t out[kLanes];
  for (int d = 0; d < head_dim; d += kLanes) {
    const int n = head_dim - d < kLanes ? head_dim - d : kLanes;
    for (int i = 0; i < kLanes; ++i) in[i] = i < n ? k[d + i] : 0.0f;
    store_f16(out, load(in));
    for (int i = 0; i < n; ++i) at[(d + i) * kLanes] = out[i];
  }
}

static void store_value(const float* v, uint16_t* page_values, int64_t slot, int head_dim) {
  const int padded = (head_dim + kLanes - 1) / kLanes * kLanes;
  uint16_t* at = page_values + slot * padded;
  alignas(64) float in[kLanes];
  for (int d = 0; d < padded; d += kLanes) {
    for (int i = 0; i < kLanes; ++i) in[i] = d + i < head_dim ? v[d + i] : 0.0f;
    store_f16(at + d, load(in));
  }
}

// Scores of up to kQueryTile queries against the 16 slots of one sub-block of keys.
template <int Q>
SIMD_INLINE void score_slots(const uint16_t* keys, const float* const* q, int head_dim, float* const* scores) {
  f32x16 acc[Q];
  for (int i = 0; i < Q; ++i) acc[i] = zero();
  for (int d = 0; d < head_dim; ++d) {
    const f32x16 k = load_f16(keys + d * kLanes);
    for (int i = 0; i < Q; ++i) acc[i] = fma(k, set1(q[i][d]), acc[i]);
  }
  for (int i = 0; i < Q; ++i) store(scores[i], acc[i]);
}

// values[i] += e[i][p] * V[p] for the slots [begin, end), 16 C dimensions from d on.
template <int Q, int C>
SIMD_INLINE void add_values(const Keys& keys, int padded, int64_t begin, int64_t end, const float* const* e, int d,
                            float* const* values) {
  f32x16 acc[Q][C];
  for (int i = 0; i < Q; ++i)
    for (int c = 0; c < C; ++c) acc[i][c] = load(values[i] + d + c * kLanes);
  for (int64_t slot = begin; slot < end; ++slot) {
    const uint16_t* v = keys.pages[slot / kPage] + keys.v_offset + slot % kPage * padded + d;
    for (int c = 0; c < C; ++c) {
      const f32x16 value = load_f16(v + c * kLanes);
      for (int i = 0; i < Q; ++i) acc[i][c] = fma(value, set1(e[i][slot - begin]), acc[i][c]);
    }
  }
  for (int i = 0; i < Q; ++i)
    for (int c = 0; c < C; ++c) store(values[i] + d + c * kLanes, acc[i][c]);
}

template <int Q>
SIMD_INLINE void add_values(const Keys& keys, int padded, int64_t begin, int64_t end, const float* const* e,
                            float* const* values) {
  int d = 0;
  for (; d + 4 * kLanes <= padded; d += 4 * kLanes) add_values<Q, 4>(keys, padded, begin, end, e, d, values);
  for (; d < padded; d += kLanes) add_values<Q, 1>(keys, padded, begin, end, e, d, values);
}

static void add_values(const Keys& keys, int padded, int64_t begin, int64_t end, const float* const* e, int count,
                       float* const* values) {
  int i = 0;
  for (; i + kQueryTile <= count; i += kQueryTile)
    add_values<kQueryTile>(keys, padded, begin, end, e + i, values + i);
  for (; i < count; ++i) add_values<1>(keys, padded, begin, end, e + i, values + i);
}

static void score_range(const Keys& keys, int head_dim, int64_t begin, int64_t end, const float* const* q, int count,
                        float* const* scores) {  // begin is a multiple of 16; scores[i][slot - begin]
  for (int64_t slot = begin; slot < end; slot += kLanes) {
    const uint16_t* k = keys.pages[slot / kPage] + keys.k_offset + slot % kPage / kLanes * head_dim * kLanes;
    float* to[kQueries];
    for (int i = 0; i < count; ++i) to[i] = scores[i] + (slot - begin);
    int i = 0;
    for (; i + kQueryTile <= count; i += kQueryTile) score_slots<kQueryTile>(k, q + i, head_dim, to + i);
    for (; i < count; ++i) score_slots<1>(k, q + i, head_dim, to + i);
  }
}

// Turns n scores into exponentials in place (zero up to the next multiple of 16); the block's maximum and sum.
SIMD_INLINE void softmax_block(float* scores, int64_t n, float* maximum, float* sum) {
  const int64_t padded = (n + kLanes - 1) / kLanes * kLanes;
  for (int64_t p = n; p < padded; ++p) scores[p] = scores[0];
  f32x16 top = load(scores);
  for (int64_t p = kLanes; p < padded; p += kLanes) top = max(top, load(scores + p));
  const float m = reduce_max(top);
  f32x16 total = zero();
  for (int64_t p = 0; p < padded; p += kLanes) {
    store(scores + p, exponential(sub(load(scores + p), set1(m))));
    if (p + kLanes > n)
      for (int64_t i = n; i < padded; ++i) scores[i] = 0.0f;
    total = add(total, load(scores + p));
  }
  *maximum = m;
  *sum = reduce_add(total);
}

static void attend(const Keys& keys, const float* q, int64_t q_stride, int heads, int head_dim, int64_t begin,
                   int64_t end, int64_t step_rows, int64_t block, float* partials, int64_t partial_row_stride,
                   int64_t partial_head_stride, float* scratch) {
  const int padded = (head_dim + kLanes - 1) / kLanes * kLanes;
  const int64_t first = block * kBlock, last = first + kBlock;
  const int head_tile = heads < kQueries ? heads : kQueries;
  const bool chain = keys.ancestors == nullptr;
  for (int h0 = 0; h0 < heads; h0 += head_tile) {
    const int tile_heads = heads - h0 < head_tile ? heads - h0 : head_tile;
    const int64_t row_tile = kQueries / tile_heads;
    for (int64_t r0 = begin; r0 < end; r0 += row_tile) {
      const int64_t r1 = end - r0 < row_tile ? end : r0 + row_tile;
      const float* queries[kQueries];
      float* values[kQueries];
      float* heads_of[kQueries];
      float* scores[kQueries];
      float* exact[kQueries];  // scores by slot of the step's own rows, for trees
      int64_t rows_of[kQueries], positions[kQueries];
      int count = 0;
      int64_t longest = 0;
      for (int64_t r = r0; r < r1; ++r) {
        int64_t n = keys.length + keys.depth[r] + 1 - first;
        if (n <= 0) continue;
        if (n > kBlock) n = kBlock;
        if (n > longest) longest = n;
        for (int h = h0; h < h0 + tile_heads; ++h, ++count) {
          queries[count] = q + r * q_stride + h * head_dim;
          heads_of[count] = partials + r * partial_row_stride + h * partial_head_stride;
          values[count] = heads_of[count] + kPartialHead;
          scores[count] = scratch + count * (kBlock + step_rows + 2 * kLanes);
          exact[count] = scores[count] + kBlock;
          rows_of[count] = r;
          positions[count] = n;
          for (int d = 0; d < padded; d += kLanes) store(values[count] + d, zero());
        }
      }
      if (count == 0) continue;

      // Slots equal positions on the committed prefix, and everywhere if the rows are one chain.
      const int64_t direct = chain ? first + longest : (keys.length < last ? keys.length : last);
      if (direct > first) score_range(keys, head_dim, first, direct, queries, count, scores);
      if (!chain && last > keys.length) {
        const int64_t slot0 = keys.length / kLanes * kLanes;
        score_range(keys, head_dim, slot0, keys.length + step_rows, queries, count, exact);
        for (int i = 0; i < count; ++i) {
          const int32_t* path = keys.ancestors + rows_of[i] * keys.ancestor_stride;
          const int64_t from = first > keys.length ? first : keys.length;
          for (int64_t p = from; p < first + positions[i]; ++p)
            scores[i][p - first] = exact[i][keys.length + path[p - keys.length] - slot0];
        }
      }
      for (int i = 0; i < count; ++i) softmax_block(scores[i], positions[i], heads_of[i], heads_of[i] + 1);

      // Positions that every row of the tile sees are added together, so their values are read once.
      int64_t common = chain ? keys.length + keys.depth[r0] + 1 : keys.length;
      common = common < first ? first : common > last ? last : common;
      add_values(keys, padded, first, common, scores, count, values);
      for (int i = 0; i < count; ++i) {
        const float* e[1] = {scores[i] + (common - first)};
        if (chain) {
          add_values(keys, padded, common, first + positions[i], e, 1, values + i);
        } else {
          const int32_t* path = keys.ancestors + rows_of[i] * keys.ancestor_stride;
          for (int64_t p = common; p < first + positions[i]; ++p, ++e[0]) {
            const int64_t slot = keys.length + path[p - keys.length];
            add_values(keys, padded, slot, slot + 1, e, 1, values + i);
          }
        }
      }
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
