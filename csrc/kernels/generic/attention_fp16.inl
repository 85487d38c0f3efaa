// Attention over binary16 keys and values, in floats; the order of each sum is part of its definition (attention.inl).

// Stores a head padded to a multiple of 16. If an element is not finite in binary16, all elements become NaN: an infinite key
// could otherwise give a score of -inf, which would look like a key of weight 0.
SIMD_INLINE void store_halves(const float* x, int head_dim, uint16_t* out) {
  f32x16 zeros = zero();  // sums of 0 * element: NaN if an element is not finite
  for (int d = 0; d < head_dim; d += kLanes) {
    store_f16(out + d, head_chunk(x, d, head_dim));
    zeros = fma(load_f16(out + d), zero(), zeros);
  }
  if (reduce_add(zeros) != 0.0f)
    for (int d = 0; d < head_dim; d += kLanes) store_f16(out + d, set1(__builtin_nanf("")));
}

// Number of key or value vectors that Q queries multiply together: fewer for more queries, so that each widened vector is
// reused.
template <int Q>
constexpr int kWidened = Q > kQueriesOfFour ? 2 : 4;

// acc[i][s] += vector(s) * number(i). With sixteen registers, vectors are loaded one after the other, and numbers are
// reloaded for each: otherwise one sum is in memory, and its store-load chain takes twice as long as the products.
template <int Q, int S, class Vector, class Number>
SIMD_INLINE void add_products(f32x16 (&acc)[Q][S], const Vector& vector, const Number& number) {
  if constexpr (kFewRegisters) {
    for (int s = 0; s < S; ++s) {
      if (Q > 2) __asm__ volatile("" : : : "memory");
      const f32x16 v = vector(s);
      for (int i = 0; i < Q; ++i) acc[i][s] = fma(v, set1(number(i)), acc[i][s]);
    }
  } else {
    f32x16 v[S];
    for (int s = 0; s < S; ++s) v[s] = vector(s);
    for (int i = 0; i < Q; ++i) {
      const f32x16 x = set1(number(i));
      for (int s = 0; s < S; ++s) acc[i][s] = fma(v[s], x, acc[i][s]);
    }
  }
}

// Scores of Q queries against S sub-blocks of 16 slots: keys are widened once for all queries. Prefetches the same number of
// bytes, `ahead` bytes after the keys.
template <int Q, int S>
SIMD_INLINE void score_slots(const uint16_t* keys, int64_t ahead, const float* const* q, int head_dim,
                             float* const* scores, int64_t at) {
  constexpr int kEvery = 64 / (kLanes * 2);  // dimensions per cache line
  f32x16 acc[Q][S];
  for (int i = 0; i < Q; ++i)
    for (int s = 0; s < S; ++s) acc[i][s] = zero();
  for (int d = 0; d < head_dim; ++d) {
    if (d % kEvery == 0)
      for (int s = 0; s < S; ++s)
        __builtin_prefetch(reinterpret_cast<const uint8_t*>(keys + (int64_t(s) * head_dim + d) * kLanes) + ahead, 0, 2);
    add_products(
        acc, [&](int s) INLINED { return load_f16(keys + (int64_t(s) * head_dim + d) * kLanes); },
        [&](int i) INLINED { return q[i][d]; });
  }
  for (int i = 0; i < Q; ++i)
    for (int s = 0; s < S; ++s) store(scores[i] + at + s * kLanes, acc[i][s]);
}

template <int Q>
SIMD_INLINE void score_page(const uint16_t* keys, int64_t ahead, const float* const* q, int head_dim,
                            float* const* scores, int64_t at, int64_t sub_blocks) {
  const int64_t step = int64_t(head_dim) * kLanes;
  int64_t s = 0;
  for (; s + kWidened<Q> <= sub_blocks; s += kWidened<Q>)
    score_slots<Q, kWidened<Q>>(keys + s * step, ahead, q, head_dim, scores, at + s * kLanes);
  for (; s < sub_blocks; ++s) score_slots<Q, 1>(keys + s * step, ahead, q, head_dim, scores, at + s * kLanes);
}

// values[i] += e[i][slot - begin] * V[slot] for the slots [begin, end) in ascending order, 16 C dimensions from d.
template <int Q, int C>
SIMD_INLINE void add_values(const Keys& keys, int padded, int64_t begin, int64_t end, const float* const* e, int d,
                            float* const* values) {
  f32x16 acc[Q][C];
  for (int i = 0; i < Q; ++i)
    for (int c = 0; c < C; ++c) acc[i][c] = load(values[i] + d + c * kLanes);
  for_value_pages(keys, begin, end, [&](int64_t slot, int64_t stop, const uint8_t* page, int64_t ahead) INLINED {
    const uint16_t* v = reinterpret_cast<const uint16_t*>(page + keys.v_offset) + slot % kPage * padded + d;
    for (; slot < stop; ++slot, v += padded) {
      prefetch_ahead(reinterpret_cast<const uint8_t*>(v), ahead, C * kLanes * 2);
      add_products(
          acc, [&](int c) INLINED { return load_f16(v + c * kLanes); }, [&](int i) INLINED { return e[i][slot - begin]; });
    }
  });
  for (int i = 0; i < Q; ++i)
    for (int c = 0; c < C; ++c) store(values[i] + d + c * kLanes, acc[i][c]);
}

static void add_weighed(const Keys& keys, int padded, int64_t begin, int64_t end, const float* const* e, int count,
                       float* const* values) {
  in_parts<kQueryTile>(0, count, [&](auto tile, int i) {
    constexpr int Q = tile(), width = kWidened<Q> * kLanes;
    int d = 0;
    for (; d + width <= padded; d += width) add_values<Q, kWidened<Q>>(keys, padded, begin, end, e + i, d, values + i);
    for (; d < padded; d += kLanes) add_values<Q, 1>(keys, padded, begin, end, e + i, d, values + i);
  });
}

struct Fp16 {
  struct Queries {
    Queries(const QueryTile& t, int) : q(t.queries) {}
    const float* const* q;
  };

  static void prepare_query(float*, int) {}

  static void store_key(const float* k, uint8_t* keys, float*, int64_t slot, int head_dim) {
    alignas(64) uint16_t head[kMaxHead];
    store_halves(k, head_dim, head);
    uint16_t* at = reinterpret_cast<uint16_t*>(keys) + slot / kLanes * head_dim * kLanes + slot % kLanes;
    for (int d = 0; d < head_dim; ++d) at[d * kLanes] = head[d];
  }

  static void store_value(const float* v, uint8_t* values, float*, int64_t slot, int head_dim) {
    store_halves(v, head_dim, reinterpret_cast<uint16_t*>(values) + slot * padded_head(head_dim));
  }

  // scores[i][slot - begin] for the slots from begin, a multiple of 16, to end (rounded up to one).
  static void score_range(const Keys& keys, int head_dim, int64_t begin, int64_t end, const Queries& queries, int count,
                          float* const* scores) {
    for_key_pages(keys, begin, end, [&](int64_t slot, int64_t sub_blocks, const uint8_t* page, int64_t ahead) {
      const uint16_t* k = reinterpret_cast<const uint16_t*>(page + keys.k_offset) + slot % kPage * head_dim;
      in_parts<kQueryTile>(0, count, [&](auto tile, int i) {
        score_page<tile()>(k, ahead, queries.q + i, head_dim, scores + i, slot - begin, sub_blocks);
        ahead = 0;  // already prefetched
      });
    });
  }

  // Adds the block's values, weighted by its exponentials, to the results of every query.
  static void add_values(const Keys& keys, const Attend& a, const QueryTile& t, const Span& span) {
    const int padded = padded_head(a.value_dim);
    const float* e[kQueries];
    const auto add_alone = [&](int i, int64_t begin, int64_t end) {
      const int64_t slots = span.chain || span.prefix > end ? end : span.prefix > begin ? span.prefix : begin;
      if (begin < slots) {
        e[0] = t.scores[i] + begin;
        add_weighed(keys, padded, span.first + begin, span.first + slots, e, 1, t.values + i);
      }
      for (int64_t p = slots; p < end; ++p) {
        const int64_t slot = span.slot(keys, t.rows[i], p);
        e[0] = t.scores[i] + p;
        add_weighed(keys, padded, slot, slot + 1, e, 1, t.values + i);
      }
    };
    // Positions that every row of the tile sees are added together, so their values are read once.
    const int64_t shared = span.chain || span.prefix > span.earliest_end ? span.earliest_end : span.prefix;
    if (span.latest_begin >= shared) {
      for (int i = 0; i < t.count; ++i) add_alone(i, t.begins[i], t.ends[i]);
      return;
    }
    for (int i = 0; i < t.count; ++i) add_alone(i, t.begins[i], span.latest_begin);
    for (int i = 0; i < t.count; ++i) e[i] = t.scores[i] + span.latest_begin;
    add_weighed(keys, padded, span.first + span.latest_begin, span.first + shared, e, t.count, t.values);
    for (int i = 0; i < t.count; ++i) add_alone(i, shared, t.ends[i]);
  }
};
