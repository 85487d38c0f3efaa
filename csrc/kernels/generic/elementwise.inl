// Norm, rope, silu, quantisation and argmax of one row, in fixed orders.

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

SIMD_INLINE f32x16 silu(f32x16 x) { return div(x, add(set1(1.0f), exponential(sub(zero(), x)))); }

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
    x.bias4[r * x.blocks + b] = x.bias8[r * x.blocks + b] = 0;
    return;
  }
  const bool tiny = !(largest > 1e-30f);  // also keeps 127 / largest finite
  const float scale = tiny ? 0.0f : largest / 127.0f;
  const f32x16 inverse = set1(tiny ? 0.0f : 127.0f / largest);
  const i32x16 a = round(mul(low, inverse)), c = round(mul(high, inverse));
  store_i8(codes, a);
  store_i8(codes + kLanes, c);
  const int32_t sum = reduce_add(add(a, c));
  x.scales[r * x.blocks + b] = scale;
  x.bias4[r * x.blocks + b] = -8 * sum;
  x.bias8[r * x.blocks + b] = -128 * sum;
  x.sums[r * x.blocks + b] = scale * float(sum);
}

static void quantize_row(const Rows& x, int64_t r) {
  const float* values = x.values + r * x.stride;
  for (int64_t b = 0; b < x.blocks; ++b)
    quantize_group(x, r, b, load(values + b * kGroup), load(values + b * kGroup + kLanes));
}

static void rope(float* head, const float* cos, const float* sin, int head_dim, float scale) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    head[i] = __builtin_fmaf(a, cos[i], -(b * sin[i])) * scale;
    head[i + half] = __builtin_fmaf(b, cos[i], a * sin[i]) * scale;
  }
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
