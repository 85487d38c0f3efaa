// Attention over int8 keys and values, in integers. A query's head, and the weights of a block's positions, are converted to
// integers of at most 14 bits with a scale; sums of integers are exact in any order:
//   score(p)  ((sum over dimensions of query * key) * query's scale) * key's scale
//   value(d)  (sum over the block's positions of weight * value) * weights' scale, weight = e * value's scale
// All sums fit 32 bits: 1,024 dimensions of 8191 * 255, 256 positions of 16319 * 255.
//
// Bytes are stored plus 128, unsigned as dot products of bytes require, in groups of four, as those instructions add: keys
// [4][head_dim / 4][16 positions][4 dimensions], values [16][value_dim16][4 positions].

constexpr float kMaxQuery = 8191, kMaxWeight = 127 * 128 + 63;  // two bytes of seven bits, the lower one rounded to
constexpr int kFour = 4;
constexpr int64_t kFourBytes = 64;  // 16 lanes of four bytes
constexpr int64_t kPackedFour = 8;  // four integers

// value = integer * scale. `excess` is what the 128 added to each byte contributes to a sum over all of them.
struct Scaled {
  float scale = 0;
  int32_t excess = 0;
};

// Converts floats to integers up to `most`, in two passes over multiples of 16: look() at all, then pack() them in groups of
// four of 8 bytes (simd.h), possibly in place. If a float is not finite, the scale is NaN.
class WholeNumbers {
 public:
  SIMD_METHOD explicit WholeNumbers(float most)
      : most_(most), largest_(zero()), zeros_(zero()), inverse_(zero()), sum_(set1_i32(0)) {}

  SIMD_METHOD void look(const float* x, int64_t n) {
    for (int64_t i = 0; i < n; i += kLanes) look(load(x + i));
  }
  SIMD_METHOD void look(f32x16 x) {
    largest_ = max(largest_, abs(x));
    zeros_ = fma(x, zero(), zeros_);  // NaN if an element is not finite
  }
  SIMD_METHOD void decide_scale() {
    const float top = reduce_max(largest_);
    const bool finite = reduce_add(zeros_) == 0.0f, tiny = !(top > 1e-30f);
    scale_ = !finite ? __builtin_nanf("") : tiny ? 0.0f : top / most_;
    inverse_ = set1(tiny || !finite ? 0.0f : most_ / top);
  }
  // The result is within the bounds even if x is not finite.
  SIMD_METHOD i32x16 of(f32x16 x) const { return round(max(min(mul(x, inverse_), set1(most_)), set1(-most_))); }
  SIMD_METHOD void pack(const float* x, int64_t n, uint8_t* out) {
    for (int64_t i = 0; i < n; i += kLanes) {
      const i32x16 whole = of(load(x + i));
      store_fours(out + 2 * i, whole);
      sum_ = add(sum_, whole);
    }
  }
  SIMD_METHOD Scaled scaled() const { return {scale_, 128 * reduce_add(sum_)}; }

 private:
  float most_, scale_ = 0;
  f32x16 largest_, zeros_, inverse_;
  i32x16 sum_;
};

SIMD_INLINE f32x16 scaled(i32x16 sums, const Scaled& by) {
  return mul(to_float(add(sums, set1_i32(-by.excess))), set1(by.scale));
}

// Number of 16-lane vectors that Q queries multiply together, limited by the registers left for sums.
template <int Q>
constexpr int kLanesTogether = kQueryTile / Q < 4 ? kQueryTile / Q : 4;

// Queries at a compile-time distance, because there are no registers for every query's address. The distance is a cache line
// more than a power of two, so that queries do not evict each other from the cache's sets.
struct PackedQuery {
  alignas(64) uint8_t fours[2 * kMaxHead + 64];
};
struct PackedWeights {
  alignas(64) uint8_t fours[2 * kBlock + 64];
};

// Scores of Q queries against S sub-blocks of 16 slots. Prefetches the same number of bytes, `ahead` bytes after the keys.
template <int Q, int S>
SIMD_INLINE void score_slots(const uint8_t* keys, int64_t ahead, const float* scales, const PackedQuery* q,
                             const Scaled* by, int fours, float* const* scores, int64_t at) {
  const int64_t sub_block = fours * kFourBytes;
  Dots<Q, S> sums;
  for (int f = 0; f < fours; ++f) {
    const uint8_t* k = keys + f * kFourBytes;
    for (int s = 0; s < S; ++s) __builtin_prefetch(k + s * sub_block + ahead, 0, 2);
    sums.add(k, sub_block, [&](int i) INLINED { return q[i].fours + f * kPackedFour; });
  }
  for (int i = 0; i < Q; ++i)
    for (int s = 0; s < S; ++s)
      store(scores[i] + at + s * kLanes, mul(scaled(sums.of(i, s), by[i]), load(scales + s * kLanes)));
}

// sums += w * V for the slots [begin, end), multiples of 4, in 16 C dimensions from d; w(i) points to query i's groups of four
// weights, starting at `begin`.
template <int Q, int C, class W>
SIMD_INLINE void weigh_slots(const Keys& keys, int padded, int64_t begin, int64_t end, int d, const W& w,
                             Dots<Q, C>& sums) {
  for_value_pages(keys, begin, end, [&](int64_t slot, int64_t stop, const uint8_t* page, int64_t ahead) INLINED {
    const uint8_t* v = page + keys.v_offset + (slot % kPage / kFour * padded + d) * kFour;
    int64_t at = (slot - begin) / kFour * kPackedFour;
    for (; slot < stop; slot += kFour, at += kPackedFour, v += padded * kFour) {
      prefetch_ahead(v, ahead, C * kFourBytes);
      sums.add(v, kFourBytes, [&](int i) INLINED { return w(i) + at; });
    }
  });
}

struct PaddedHead {
  alignas(64) float values[kMaxHead];
  int size;
  SIMD_METHOD PaddedHead(const float* x, int head_dim) : size(padded_head(head_dim)) {
    for (int d = 0; d < size; d += kLanes) store(values + d, head_chunk(x, d, head_dim));
  }
};

struct Int8 {
  struct Queries {
    PackedQuery q[kQueries];
    Scaled by[kQueries];

    Queries(const QueryTile& t, int head_dim) {
      for (int i = 0; i < t.count; ++i) {
        __builtin_memcpy(q[i].fours, t.queries[i], 2 * size_t(head_dim));
        __builtin_memcpy(by + i, t.queries[i] + head_dim / 2, sizeof(Scaled));
      }
    }
  };

  // Converts a head's floats in place to integers of two bytes each, followed by their Scaled.
  static void prepare_query(float* q, int head_dim) {
    const PaddedHead head(q, head_dim);
    WholeNumbers whole(kMaxQuery);
    whole.look(head.values, head.size);
    whole.decide_scale();
    PackedQuery packed;
    whole.pack(head.values, head.size, packed.fours);
    const Scaled by = whole.scaled();
    __builtin_memcpy(q, packed.fours, 2 * size_t(head_dim));
    __builtin_memcpy(q + head_dim / 2, &by, sizeof(Scaled));
  }

  // Encodes a head as bytes padded to a multiple of 16 and returns their scale: NaN if an element is not finite.
  static float encode(const float* x, int head_dim, uint8_t* out) {
    const PaddedHead head(x, head_dim);
    WholeNumbers whole(127);
    whole.look(head.values, head.size);
    whole.decide_scale();
    for (int d = 0; d < head.size; d += kLanes)
      store_i8(reinterpret_cast<int8_t*>(out) + d, whole.of(load(head.values + d)));
    for (int d = 0; d < head.size; ++d) out[d] ^= 0x80;
    return whole.scaled().scale;
  }

  static void store_key(const float* k, uint8_t* keys, float* scales, int64_t slot, int head_dim) {
    alignas(64) uint8_t head[kMaxHead];
    scales[slot] = encode(k, head_dim, head);
    const int fours = head_dim / kFour;
    uint8_t* at = keys + slot / kLanes * fours * kFourBytes + slot % kLanes * kFour;
    for (int f = 0; f < fours; ++f) __builtin_memcpy(at + f * kFourBytes, head + f * kFour, kFour);
  }

  static void store_value(const float* v, uint8_t* values, float* scales, int64_t slot, int head_dim) {
    alignas(64) uint8_t head[kMaxHead];
    scales[slot] = encode(v, head_dim, head);
    const int padded = padded_head(head_dim);
    uint8_t* at = values + slot / kFour * padded * kFour + slot % kFour;
    for (int d = 0; d < padded; ++d) at[d * kFour] = head[d];
  }

  // scores[i][slot - begin] for the slots from begin, a multiple of 16, to end (rounded up to one).
  static void score_range(const Keys& keys, int head_dim, int64_t begin, int64_t end, const Queries& queries, int count,
                          float* const* scores) {
    const int fours = head_dim / kFour;
    for_key_pages(keys, begin, end, [&](int64_t slot, int64_t sub_blocks, const uint8_t* page, int64_t ahead) {
      const uint8_t* k = page + keys.k_offset + slot % kPage * fours * kFour;
      const float* scales = reinterpret_cast<const float*>(page + keys.scale_offset) + slot % kPage;
      in_parts<kQueryTile>(0, count, [&](auto tile, int i) {
        constexpr int Q = tile(), S = kLanesTogether<Q>;
        const auto slots = [&](auto some, int64_t s) {
          score_slots<Q, some()>(k + s * fours * kFourBytes, ahead, scales + s * kLanes, queries.q + i, queries.by + i,
                                 fours, scores + i, slot - begin + s * kLanes);
        };
        int64_t s = 0;
        for (; s + S <= sub_blocks; s += S) slots(std::integral_constant<int, S>(), s);
        for (; s < sub_blocks; ++s) slots(std::integral_constant<int, 1>(), s);
        ahead = 0;  // already prefetched
      });
    });
  }

  // Slots of a step with rows that are not a chain, so not in position order: from a multiple of 16.
  struct StepSlots {
    int64_t begin, count;
    StepSlots(const Keys& keys, const Attend& a)
        : begin(keys.length / kLanes * kLanes),
          count((keys.length + a.step_rows - begin + kLanes - 1) / kLanes * kLanes) {}
  };

  // A query's weights: for slots that equal positions, packed at `direct` from span.from; for the step's other slots, as
  // floats and then packed at t.exact[i]. Zero for positions that it does not see.
  static Scaled weights(const Keys& keys, const QueryTile& t, const Span& span, int64_t end, const StepSlots* step, int i,
                        uint8_t* direct) {
    float *x = t.scores[i], *by_slot = t.exact[i];
    const auto scales = [&](int64_t slot) {
      return reinterpret_cast<const float*>(keys.pages[slot / kPage] + keys.scale_offset) + kPage + slot % kPage;
    };
    WholeNumbers whole(kMaxWeight);
    if (step != nullptr) {
      for (int64_t s = 0; s < step->count; ++s) by_slot[s] = 0.0f;
      for (int64_t p = span.prefix > t.begins[i] ? span.prefix : t.begins[i]; p < t.ends[i]; ++p) {
        const int64_t slot = span.slot(keys, t.rows[i], p);
        by_slot[slot - step->begin] = x[p] * *scales(slot);
      }
      whole.look(by_slot, step->count);
    }
    const int64_t begin = t.begins[i], stop = t.ends[i] < span.direct ? t.ends[i] : span.direct;
    for (int64_t p = span.from; p < end; p += kLanes) {
      f32x16 weights = mul(load(x + p), load(scales(span.first + p)));
      store(x + p, weights);
      if (p < begin || p + kLanes > stop) {  // outside its visible range, scores and scales are undefined
        for (int64_t i = p; i < begin && i < p + kLanes; ++i) x[i] = 0.0f;
        for (int64_t i = stop > p ? stop : p; i < p + kLanes; ++i) x[i] = 0.0f;
        weights = load(x + p);
      }
      whole.look(weights);
    }
    whole.decide_scale();
    whole.pack(x + span.from, end - span.from, direct);
    if (step != nullptr) whole.pack(by_slot, step->count, reinterpret_cast<uint8_t*>(by_slot));
    return whole.scaled();
  }

  static void add_values(const Keys& keys, const Attend& a, const QueryTile& t, const Span& span) {
    const int padded = padded_head(a.value_dim);
    const int64_t end = (span.direct + kLanes - 1) / kLanes * kLanes;
    const StepSlots of_step(keys, a);
    const StepSlots* step = !span.chain && span.highest > span.prefix ? &of_step : nullptr;
    PackedWeights direct[kQueries];
    Scaled by[kQueries];
    for (int i = 0; i < t.count; ++i) by[i] = weights(keys, t, span, end, step, i, direct[i].fours);
    in_parts<kQueryTile>(0, t.count, [&](auto tile, int i) {
      constexpr int Q = tile(), C = kLanesTogether<Q>;
      const auto dimensions = [&](auto some, int d) {
        Dots<Q, some()> sums;
        if (end > span.from)
          weigh_slots(keys, padded, span.first + span.from, span.first + end, d,
                      [&](int q) INLINED { return direct[i + q].fours; }, sums);
        if (step != nullptr)
          weigh_slots(keys, padded, step->begin, step->begin + step->count, d,
                      [&](int q) INLINED { return reinterpret_cast<const uint8_t*>(t.exact[i + q]); }, sums);
        for (int q = 0; q < Q; ++q)
          for (int c = 0; c < some(); ++c) store(t.values[i + q] + d + c * kLanes, scaled(sums.of(q, c), by[i + q]));
      };
      int d = 0;
      for (; d + C * kLanes <= padded; d += C * kLanes) dimensions(std::integral_constant<int, C>(), d);
      for (; d < padded; d += kLanes) dimensions(std::integral_constant<int, 1>(), d);
    });
  }
};
