// Norms, rope, activations, quantization and argmax of one row, in fixed orders.

#include "activation.inl"

SIMD_INLINE float exponential(float x) {
  alignas(64) float lanes[kLanes];
  store(lanes, exponential(set1(x)));
  return lanes[0];
}

static void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* out) {
  f32x16 squares = zero();
  for (int64_t k = 0; k < n; k += kLanes) {
    const f32x16 v = load(x + k);
    squares = fma(v, v, squares);
  }
  const float mean = reduce_add(squares) / float(n);
  const float inverse_of_infinite = 0.0f * mean;  // NaN if the squares overflow, which would otherwise give zeros
  const f32x16 inverse = add(div(set1(1.0f), set1(__builtin_sqrtf(mean + eps))), set1(inverse_of_infinite));
  for (int64_t k = 0; k < n; k += kLanes) store(out + k, mul(mul(load(x + k), inverse), load(weight + k)));
}

static void layer_norm(const float* x, const float* weight, const float* bias, int64_t n, float eps, float* out) {
  f32x16 sums = zero();
  for (int64_t k = 0; k < n; k += kLanes) sums = add(sums, load(x + k));
  const f32x16 mean = set1(reduce_add(sums) / float(n));
  f32x16 squares = zero();
  for (int64_t k = 0; k < n; k += kLanes) {
    store(out + k, sub(load(x + k), mean));
    for (int64_t rest = n; rest < k + kLanes; ++rest) out[rest] = 0;  // padding must stay zero
    const f32x16 v = load(out + k);
    squares = fma(v, v, squares);
  }
  const float variance = reduce_add(squares) / float(n);
  const f32x16 inverse = add(div(set1(1.0f), set1(__builtin_sqrtf(variance + eps))), set1(0.0f * variance));  // as above
  for (int64_t k = 0; k < n; k += kLanes) {
    const f32x16 v = mul(load(out + k), inverse), w = load(weight + k);
    store(out + k, bias == nullptr ? mul(v, w) : fma(v, w, load(bias + k)));
  }
}

static void quantize_row(const Rows& x, int64_t r) {
  const float* values = x.values_of(r);
  for (int64_t b = 0; b < x.blocks; ++b)
    quantize_group(x, r, b, load(values + b * kGroup), load(values + b * kGroup + kLanes));
}

static void rope(float* head, const float* cos, const float* sin, int half, int head_dim, float scale) {
  for (int i = 0; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    head[i] = __builtin_fmaf(a, cos[i], -(b * sin[i])) * scale;
    head[i + half] = __builtin_fmaf(b, cos[i], a * sin[i]) * scale;
  }
  for (int i = 2 * half; i < head_dim; ++i) head[i] *= scale;
}

// out[i] = f(x[i], out[i]) for vectors of 16, the last one padded.
template <typename F>
SIMD_INLINE void for_each_vector(const float* x, int64_t n, float* out, const F& f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, f(load(x + i), load(out + i)));
  if (i == n) return;
  alignas(64) float from[kLanes] = {}, to[kLanes] = {};
  for (int64_t k = i; k < n; ++k) {
    from[k - i] = x[k];
    to[k - i] = out[k];
  }
  store(to, f(load(from), load(to)));
  for (int64_t k = i; k < n; ++k) out[k] = to[k - i];
}

static void scale(float* x, int64_t n, float factor) {
  for_each_vector(x, n, x, [&](f32x16 v, f32x16) { return mul(v, set1(factor)); });
}

static void clamp(float* x, int64_t n, float low, float high) {
  // The second operand is returned if one is NaN.
  for_each_vector(x, n, x, [&](f32x16 v, f32x16) { return min(set1(high), max(set1(low), v)); });
}

static void add_scaled(const float* x, int64_t n, float factor, float* out) {
  for_each_vector(x, n, out, [&](f32x16 v, f32x16 sum) { return fma(v, set1(factor), sum); });
}

// limit * tanh(x * inverse), inverse = 1 / limit. The product with zero makes the result NaN if x is not finite, so that the
// limit does not hide an overflow.
SIMD_INLINE f32x16 capped(f32x16 x, float limit, float inverse) {
  const f32x16 y = mul(x, set1(2.0f * inverse));
  const f32x16 tanh = sub(set1(1.0f), div(set1(2.0f), add(exponential(y), set1(1.0f))));
  return fma(x, zero(), mul(tanh, set1(limit)));
}

static void cap(float* x, int64_t n, float factor, float limit) {
  const float inverse = limit > 0 ? 1.0f / limit : 0.0f;
  for_each_vector(x, n, x, [&](f32x16 v, f32x16) {
    const f32x16 scaled = mul(v, set1(factor));
    return limit > 0 ? capped(scaled, limit, inverse) : scaled;
  });
}

// Inserts a value into the sorted k largest, of which `count` exist.
SIMD_INLINE int insert_top(float value, int32_t index, int k, int count, float* values, int32_t* indices) {
  int at = count < k ? count : k - 1;
  for (; at > 0 && values[at - 1] < value; --at) {
    values[at] = values[at - 1];
    indices[at] = indices[at - 1];
  }
  values[at] = value;
  indices[at] = index;
  return count < k ? count + 1 : k;
}

static int top_k(const float* x, int64_t n, int64_t first, int k, float* values, int32_t* indices) {
  int count = 0;
  float least = -__builtin_inff();  // threshold to enter the k largest
  const auto look = [&](int64_t i) {
    if (!(x[i] > least)) return;
    count = insert_top(x[i], int32_t(first + i), k, count, values, indices);
    if (count == k) least = values[k - 1];
  };
  f32x16 zeros[2] = {zero(), zero()};  // sums of 0 * x: NaN if an x is not finite
  int64_t i = 0;
  const auto look_at_vector = [&](f32x16& zeros_of_it) {
    const f32x16 v = load(x + i);
    zeros_of_it = fma(v, zero(), zeros_of_it);
    // A vector is examined lane by lane only if one of its lanes may enter.
    if (any_greater(v, least))
      for (int64_t j = i; j < i + kLanes; ++j) look(j);
    i += kLanes;
  };
  while (i + 2 * kLanes <= n) {
    look_at_vector(zeros[0]);
    look_at_vector(zeros[1]);
  }
  if (i + kLanes <= n) look_at_vector(zeros[0]);
  float rest = reduce_add(add(zeros[0], zeros[1]));
  for (; i < n; ++i) {
    rest += 0.0f * x[i];
    look(i);
  }
  return rest == 0.0f ? count : kNotFinite;
}

static float read(const uint8_t* data, int64_t bytes) {
  f32x16 a = zero(), b = zero(), c = zero(), d = zero();
  for (int64_t i = 0; i < bytes; i += 256) {
    for (int line = 0; line < 256; line += 64) __builtin_prefetch(data + i + 8192 + line, 0, 2);
    const float* p = reinterpret_cast<const float*>(data + i);
    a = max(a, load(p));
    b = max(b, load(p + 16));
    c = max(c, load(p + 32));
    d = max(d, load(p + 48));
  }
  return reduce_max(max(max(a, b), max(c, d)));
}

static int32_t integer_peak(int64_t repeats) {
  constexpr int kSettled = 8;  // steps of each chain per settle_dots()
  DotAccumulator acc[kDotChains];
  for (auto& a : acc) a = start_dots();
  for (int64_t i = 0; i < repeats; i += kDotChains) {
#pragma GCC unroll 8
    for (int k = 0; k < kSettled; ++k)
#pragma GCC unroll 8
      for (auto& a : acc) more_dots(a);
#pragma GCC unroll 8
    for (auto& a : acc) settle_dots(a);
  }
  int32_t sum = 0;
  for (auto& a : acc) sum += finish_dots(a);
  return sum;
}
