// Attention of a few or many rows over the KV cache, in blocks of 256 logical positions.
//
// The bits of a (row, head) do not depend on where its keys are stored or on the other rows of the step:
//   score(p)   binary16: fma over the head's dimensions in ascending order, one accumulator per position; int8: integer sums
//              (attention_int8.inl); then the soft cap
//   block      m = max; e = exp(score - m); sum: lane p % 16 ascending, then the canonical reduction;
//              values: binary16: fma over the block's positions in ascending order, one accumulator per dimension; int8:
//              integer sums
//   blocks     merged in ascending order by merge() (the online softmax of Milakov & Gimelshein, arXiv 1805.02867)
// A row sees the committed prefix, its ancestors in the step and itself, limited to the last `window` positions, and in layers
// with spans the rows after it up to its span's end. Other rows' keys are skipped, not masked.

constexpr int kMaxHead = 1024;

SIMD_INLINE int padded_head(int head_dim) { return (head_dim + kLanes - 1) / kLanes * kLanes; }

// 16 elements of a head from dimension d, zero beyond its end.
SIMD_INLINE f32x16 head_chunk(const float* x, int d, int head_dim) {
  if (head_dim - d >= kLanes) return load(x + d);
  alignas(64) float in[kLanes];
  for (int i = 0; i < kLanes; ++i) in[i] = d + i < head_dim ? x[d + i] : 0.0f;
  return load(in);
}

// Pages are not adjacent in memory, so hardware prefetchers do not cross them: readers of a page prefetch what comes next.
// After keys: the next page's keys, or after the range's last page the first page's values. After values: the next page's
// values, or after a block's last page the next block's keys.
SIMD_INLINE const uint8_t* page_or(const Keys& keys, int64_t page, int64_t offset, const uint8_t* otherwise) {
  return page * kPage < keys.length ? keys.pages[page] + offset : otherwise;
}

// Calls f(first slot, sub-blocks of 16, page, prefetch distance of its keys) for the slots from begin, a multiple of 16, to end
// (rounded up to one).
template <class F>
SIMD_INLINE void for_key_pages(const Keys& keys, int64_t begin, int64_t end, const F& f) {
  for (int64_t slot = begin; slot < end;) {
    const int64_t in_page = slot % kPage;
    const int64_t stop = end - slot < kPage - in_page ? end - slot : kPage - in_page;
    const int64_t sub_blocks = (stop + kLanes - 1) / kLanes, next = slot / kPage + 1;
    const uint8_t* page = keys.pages[slot / kPage];
    const uint8_t* then = next * kPage < end ? page_or(keys, next, keys.k_offset, page + keys.k_offset)
                                             : keys.pages[begin / kPage] + keys.v_offset;
    f(slot, sub_blocks, page, then - (page + keys.k_offset));
    slot += sub_blocks * kLanes;
  }
}

// Calls f(first slot, end of its page, page, prefetch distance of its values) for the slots [begin, end).
template <class F>
SIMD_INLINE void for_value_pages(const Keys& keys, int64_t begin, int64_t end, const F& f) {
  for (int64_t slot = begin; slot < end;) {
    const int64_t next = slot / kPage + 1, stop = next * kPage < end ? next * kPage : end;
    const uint8_t* page = keys.pages[slot / kPage];
    const int64_t offset = next * kPage < end ? keys.v_offset : keys.k_offset;
    f(slot, stop, page, page_or(keys, next, offset, page + keys.v_offset) - (page + keys.v_offset));
    slot = stop;
  }
}

// Replaces the scores [begin, end) by exponentials (zero from the last multiple of 16 below and up to the next one above), and
// returns the block's maximum and sum.
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

// Rows and heads attended to together; positions are relative to the block's first.
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
  const int padded = padded_head(a.value_dim);
  const int64_t first = a.block * kBlock;
  QueryTile t;
  for (int64_t r = r0; r < r1; ++r) {
    const int64_t position = keys.length + keys.depth[r] - first;
    const int64_t last = keys.seen == nullptr ? position : keys.length + keys.seen[r] - first;
    const int64_t end = last < kBlock ? last + 1 : int64_t(kBlock);
    const int64_t begin = a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
    if (begin >= end) continue;
    for (int h = h0; h < h1; ++h, ++t.count) {
      const int i = t.count;
      t.queries[i] = a.q + r * a.q_stride + h * a.head_dim;
      t.heads[i] = a.partials + (r - a.begin) * a.partial_row_stride + h * a.partial_head_stride;
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

// The visible positions of a tile's queries in a block, relative to its first position.
struct Span {
  int64_t first;                       // the block's first position
  int64_t prefix;                      // end of the committed positions
  int64_t lowest, highest;             // over all queries
  int64_t latest_begin, earliest_end;  // positions that every query sees, if not empty
  int64_t from, direct;                // range in which slots equal positions; `from` is a multiple of 16
  bool chain;                          // the step's rows are a chain, so slots equal positions everywhere

  SIMD_METHOD Span(const Keys& keys, const Attend& a, const QueryTile& t)
      : first(a.block * kBlock), prefix(keys.length - first), lowest(kBlock), highest(0), latest_begin(0),
        earliest_end(kBlock), chain(keys.ancestors == nullptr) {
    for (int i = 0; i < t.count; ++i) {
      lowest = t.begins[i] < lowest ? t.begins[i] : lowest;
      highest = t.ends[i] > highest ? t.ends[i] : highest;
      latest_begin = t.begins[i] > latest_begin ? t.begins[i] : latest_begin;
      earliest_end = t.ends[i] < earliest_end ? t.ends[i] : earliest_end;
    }
    from = lowest / kLanes * kLanes;
    direct = chain || prefix > highest ? highest : prefix > from ? prefix : from;
  }
  // The slot of a row's position beyond the prefix, for rows that are not a chain.
  SIMD_METHOD int64_t slot(const Keys& keys, int64_t row, int64_t position) const {
    return keys.length + keys.ancestors[row * keys.ancestor_stride + position - prefix];
  }
};

#define INLINED __attribute__((always_inline))  // for lambdas: otherwise sums go through memory
#include "attention_fp16.inl"
#include "attention_int8.inl"
#undef INLINED

// `Kept`: Fp16 or Int8, the storage of keys and values.
template <class Kept>
static void attend_tile(const Keys& keys, const Attend& a, const QueryTile& t) {
  const Span span(keys, a, t);
  const typename Kept::Queries queries(t, a.head_dim);
  float* scores[kQueries];
  for (int i = 0; i < t.count; ++i) scores[i] = t.scores[i] + span.from;
  if (span.direct > span.from)
    Kept::score_range(keys, a.head_dim, span.first + span.from, span.first + span.direct, queries, t.count, scores);
  if (!span.chain && span.highest > span.prefix) {
    const int64_t slot0 = keys.length / kLanes * kLanes;
    Kept::score_range(keys, a.head_dim, slot0, keys.length + a.step_rows, queries, t.count, t.exact);
    for (int i = 0; i < t.count; ++i)
      for (int64_t p = span.prefix > t.begins[i] ? span.prefix : t.begins[i]; p < t.ends[i]; ++p)
        t.scores[i][p] = t.exact[i][span.slot(keys, t.rows[i], p) - slot0];
  }
  for (int i = 0; i < t.count; ++i)
    softmax_block(t.scores[i], t.begins[i], t.ends[i], a.softcap, t.heads[i], t.heads[i] + 1);
  Kept::add_values(keys, a, t, span);
}

template <class Kept>
static void attend(const Keys& keys, const Attend& a) {
  const int head_tile = a.heads < kQueries ? a.heads : kQueries;
  for (int h0 = 0; h0 < a.heads; h0 += head_tile) {
    const int h1 = a.heads - h0 < head_tile ? a.heads : h0 + head_tile;
    const int64_t row_tile = kQueries / (h1 - h0);
    for (int64_t r0 = a.begin; r0 < a.end; r0 += row_tile) {
      const QueryTile t = query_tile(keys, a, r0, a.end - r0 < row_tile ? a.end : r0 + row_tile, h0, h1);
      if (t.count > 0) attend_tile<Kept>(keys, a, t);
    }
  }
}

static void merge(float* state, const float* next, int value_dim) {
  const float top = state[0] > next[0] ? state[0] : next[0];
  const float keep = exponential(state[0] - top), take = exponential(next[0] - top);
  state[0] = top;
  state[1] = __builtin_fmaf(state[1], keep, next[1] * take);
  for (int d = 0; d < value_dim; d += kLanes) {
    float* at = state + kPartialHead + d;
    store(at, fma(load(at), set1(keep), mul(load(next + kPartialHead + d), set1(take))));
  }
}

static void finish(const float* state, int value_dim, float* out) {
  const f32x16 sum = set1(state[1]);
  alignas(64) float tail[kLanes];
  for (int d = 0; d < value_dim; d += kLanes) {
    const f32x16 v = div(load(state + kPartialHead + d), sum);
    if (value_dim - d >= kLanes) {
      store(out + d, v);
    } else {
      store(tail, v);
      for (int i = 0; i < value_dim - d; ++i) out[d + i] = tail[i];
    }
  }
}
