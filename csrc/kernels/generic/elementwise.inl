// Norm, rope, activations, quantisation and argmax of one row, in fixed orders.

// What is not a finite number stays so on its way to the logits, where it is an error: no function here makes a number of
// a NaN, and those that would make one of an infinity make a NaN of it.

// e^x, clamped to [-87, 88]: 2^n times a degree-6 Taylor polynomial on |r| <= ln(2) / 2 (relative error below 2e-7); NaN
// for NaN. Explicit fma everywhere, so the bits are the same on every instruction set.
SIMD_INLINE f32x16 exponential(f32x16 x) {
  x = min(set1(88.0f), max(set1(-87.0f), x));  // in this order: the second operand is the result where one is NaN
  const i32x16 n = round(mul(x, set1(1.44269504f)));
  const f32x16 nf = to_float(n);
  f32x16 r = fma(nf, set1(-0.693359375f), x);  // ln 2 in two parts, the first exact in products with n
  r = fma(nf, set1(2.12194440e-4f), r);
  f32x16 p = set1(1.0f / 720);
  p = fma(p, r, set1(1.0f / 120));
  p = fma(p, r, set1(1.0f / 24));
  p = fma(p, r, set1(1.0f / 6));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  return scale_by_power(p, n);
}

// x / (1 + e^-y): silu and its kin.
SIMD_INLINE f32x16 gated(f32x16 x, f32x16 y) { return div(x, add(set1(1.0f), exponential(sub(zero(), y)))); }

SIMD_INLINE f32x16 activated(const Activation& a, f32x16 gate, f32x16 up) {
  switch (a.kind) {
    case ActivationKind::gelu_tanh: {
      const f32x16 cube = mul(mul(gate, gate), gate);
      return mul(gated(gate, mul(fma(cube, set1(0.044715f), gate), set1(1.5957691216f))), up);
    }
    case ActivationKind::clamped: {
      // The operand that is NaN comes second, so that NaN stays NaN.
      const f32x16 g = min(set1(a.limit), gate), u = max(set1(-a.limit), min(set1(a.limit), up));
      return mul(gated(g, mul(g, set1(a.alpha))), add(u, set1(1.0f)));
    }
    default:
      return mul(gated(gate, gate), up);
  }
}

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
  const float inverse_of_infinite = 0.0f * mean;  // NaN where the squares overflow, which would else give zeros
  const f32x16 inverse = add(div(set1(1.0f), set1(__builtin_sqrtf(mean + eps))), set1(inverse_of_infinite));
  for (int64_t k = 0; k < n; k += kLanes) store(out + k, mul(mul(load(x + k), inverse), load(weight + k)));
}

// Codes, scale and sums of one group of 32 values. The scale of a group that holds NaN or an infinity is NaN.
SIMD_INLINE void quantize_group(const Rows& x, int64_t r, int64_t b, f32x16 low, f32x16 high) {
  int8_t* codes = x.codes + r * x.stride + b * kGroup;
  const float largest = reduce_max(max(abs(low), abs(high)));
  if (any_nan(low, high) || largest > __FLT_MAX__) {
    __builtin_memset(codes, 0, kGroup);
    x.scales[r * x.blocks + b] = x.sums[r * x.blocks + b] = __builtin_nanf("");
    x.bias4[r * x.blocks + b] = x.bias8[r * x.blocks + b] = x.halves[r * x.blocks + b] = 0;
    return;
  }
  const bool tiny = !(largest > 1e-30f);  // also keeps 127 / largest finite
  const float scale = tiny ? 0.0f : largest / 127.0f;
  const f32x16 inverse = set1(tiny ? 0.0f : 127.0f / largest);
  const i32x16 a = round(mul(low, inverse)), c = round(mul(high, inverse));
  store_i8(codes, a);
  store_i8(codes + kLanes, c);
  const int32_t first = reduce_add(a), second = reduce_add(c), sum = first + second;
  x.scales[r * x.blocks + b] = scale;
  x.bias4[r * x.blocks + b] = -8 * sum;
  x.bias8[r * x.blocks + b] = -128 * sum;
  x.halves[r * x.blocks + b] = int32_t((uint32_t(first) & 0xffff) | uint32_t(second) << 16);
  x.sums[r * x.blocks + b] = scale * float(sum);
}

static void quantize_row(const Rows& x, int64_t r) {
  const float* values = x.values + r * x.stride;
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

// out[i] = f(x[i], out[i]) for vectors of 16, the last one filled up.
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

static void add_scaled(const float* x, int64_t n, float factor, float* out) {
  for_each_vector(x, n, out, [&](f32x16 v, f32x16 sum) { return fma(v, set1(factor), sum); });
}

// limit * tanh(x * inverse), inverse = 1 / limit. The product with zero is NaN where x is not finite: a limit must not hide
// that something overflowed.
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

// Keeps the k largest so far in order; `count` of them are there.
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
  float least = -__builtin_inff();  // what a value must exceed to enter
  const auto look = [&](int64_t i) {
    if (!(x[i] > least)) return;
    count = insert_top(x[i], int32_t(first + i), k, count, values, indices);
    if (count == k) least = values[k - 1];
  };
  f32x16 zeros[2] = {zero(), zero()};  // sums of 0 * x: NaN once an x is not finite
  int64_t i = 0;
  const auto look_at_vector = [&](f32x16& zeros_of_it) {
    const f32x16 v = load(x + i);
    zeros_of_it = fma(v, zero(), zeros_of_it);
    // A whole vector is looked at lane by lane only if something in it may enter.
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
  DotAccumulator acc[8];
  for (auto& a : acc) a = start_dots();
  for (int64_t i = 0; i < repeats; ++i)
    for (auto& a : acc) a = more_dots(a);
  int32_t sum = 0;
  for (auto& a : acc) sum += finish_dots(a);
  return sum;
}
