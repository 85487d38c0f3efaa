// Kernels of layers with a recurrent state: the convolution over preceding rows, the recurrence of one tile of 16 values, and
// step sizes and gates; written once against <isa>/simd.h.

// The n < 16 values at p, padded with zeros.
SIMD_INLINE f32x16 load_some(const float* p, int64_t n) {
  alignas(64) float some[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) some[i] = p[i];
  return load(some);
}

static void convolve(const float* const* taps, int kernel, const float* weight, int64_t stride, const float* bias, int64_t n,
                     bool silu, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t left = n - i;
    const bool all = left >= kLanes;
    f32x16 sum = bias == nullptr ? zero() : all ? load(bias + i) : load_some(bias + i, left);
    for (int t = 0; t < kernel; ++t) {
      const float *w = weight + t * stride + i, *x = taps[t] + i;
      sum = all ? fma(load(w), load(x), sum) : fma(load_some(w, left), load_some(x, left), sum);
    }
    if (silu) sum = gated(sum, sum);
    store_outputs(out + i, reinterpret_cast<const float*>(&sum), left, false);
  }
}

// ln(1 + y) for y in [0, 1], as 2 artanh(y / (2 + y)): an odd series in an argument of at most 1 / 3.
SIMD_INLINE f32x16 log_of_one_and(f32x16 y) {
  const f32x16 z = div(y, add(y, set1(2.0f))), s = mul(z, z);
  f32x16 p = set1(1.0f / 15);
  p = fma(p, s, set1(1.0f / 13));
  p = fma(p, s, set1(1.0f / 11));
  p = fma(p, s, set1(1.0f / 9));
  p = fma(p, s, set1(1.0f / 7));
  p = fma(p, s, set1(1.0f / 5));
  p = fma(p, s, set1(1.0f / 3));
  p = fma(p, s, set1(1.0f));
  return mul(add(z, z), p);
}

// ln(1 + e^x); the product with zero keeps an infinity from becoming a decay of about 0.
SIMD_INLINE f32x16 softplus(f32x16 x) {
  const f32x16 tail = log_of_one_and(exponential(sub(zero(), abs(x))));
  return fma(x, zero(), add(max(zero(), x), tail));
}

// x f(gate) for vectors of 16.
SIMD_INLINE f32x16 gated_by(GateKind kind, f32x16 gate, f32x16 x) {
  switch (kind) {
    case GateKind::silu:
      return mul(gated(gate, gate), x);
    case GateKind::gelu_tanh:
      return activated({ActivationKind::gelu_tanh}, gate, x);
    case GateKind::sigmoid:
      return gated(x, gate);
    case GateKind::gelu: {
      const f32x16 half = mul(gate, set1(0.5f));
      return mul(fma(half, error_function(mul(gate, set1(0.70710678f))), half), x);
    }
    case GateKind::gelu_quick:
      return mul(gated(gate, mul(gate, set1(1.702f))), x);
    case GateKind::softplus:
      return mul(softplus(gate), x);
    // The products with zero are NaN for an infinity, which these functions would turn into a number.
    case GateKind::tanh: {
      const f32x16 power = exponential_less_1(add(gate, gate));
      return mul(fma(gate, zero(), div(power, add(power, set1(2.0f)))), x);
    }
    case GateKind::relu:
      return mul(fma(gate, zero(), max(zero(), gate)), x);
    default:
      return mul(gate, x);
  }
}

static void gate(const float* by, int64_t n, GateKind kind, float* x) {
  for_each_vector(by, n, x, [&](f32x16 g, f32x16 v) { return gated_by(kind, g, v); });
}

static void recurrence_steps(const float* x, const float* bias, const float* rate, float least, float most, int64_t n,
                             float* steps, float* decays) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t left = n - i;
    const bool all = left >= kLanes;
    const auto at = [&](const float* p) { return all ? load(p + i) : load_some(p + i, left); };
    const f32x16 step = min(set1(most), max(set1(least), softplus(add(at(x), at(bias)))));
    const f32x16 decay = exponential(mul(step, at(rate)));
    store_outputs(steps + i, reinterpret_cast<const float*>(&step), left, false);
    store_outputs(decays + i, reinterpret_cast<const float*>(&decay), left, false);
  }
}

static void bounded_decays(const float* x, const float* bias, const float* rate, float bound, int64_t n, float* decays) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t left = n - i;
    const bool all = left >= kLanes;
    const auto at = [&](const float* p) { return all ? load(p + i) : load_some(p + i, left); };
    const f32x16 y = mul(at(rate), add(at(x), at(bias)));
    const f32x16 decay = exponential(fma(y, zero(), gated(set1(bound), y)));  // the product keeps an infinity an error
    store_outputs(decays + i, reinterpret_cast<const float*>(&decay), left, false);
  }
}

static void exponentials(float* x, int64_t n) {
  for_each_vector(x, n, x, [](f32x16 v, f32x16) { return exponential(v); });
}

// Sums over keys use four accumulators, key k in sum k % 4, joined as (0 + 1) + (2 + 3).
template <typename Term>
SIMD_INLINE f32x16 sum_over_keys(int64_t keys, const Term& term) {
  f32x16 sums[4] = {zero(), zero(), zero(), zero()};
  int64_t k = 0;
  for (; k + 4 <= keys; k += 4)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sums[i] = term(k + i, sums[i]);
  for (int i = 0; k + i < keys; ++i) sums[i] = term(k + i, sums[i]);
  return add(add(sums[0], sums[1]), add(sums[2], sums[3]));
}

// `decay_of(k)` is the decay of row k of the state.
template <typename Decay>
SIMD_INLINE void recur_with(float* state, int64_t keys, const Recurrence& row, const Decay& decay_of) {
  f32x16 d = load(row.v);
  if (row.delta) {
    const f32x16 read = sum_over_keys(keys, [&](int64_t k, f32x16 sum) {
      return fma(mul(load(state + k * kLanes), decay_of(k)), set1(row.k[k]), sum);
    });
    d = sub(d, read);
  }
  d = mul(d, set1(row.beta));
  const auto next = [&](int64_t k) {
    const f32x16 s = fma(set1(row.k[k]), d, mul(load(state + k * kLanes), decay_of(k)));
    store(state + k * kLanes, s);
    return s;
  };
  if (row.out == nullptr) {
    for (int64_t k = 0; k < keys; ++k) next(k);
    return;
  }
  store(row.out, sum_over_keys(keys, [&](int64_t k, f32x16 sum) { return fma(next(k), set1(row.q[k]), sum); }));
}

static void recur(float* state, int64_t keys, const Recurrence& row) {
  if (row.decays != nullptr) return recur_with(state, keys, row, [&](int64_t k) { return set1(row.decays[k]); });
  const f32x16 decay = set1(row.decay);
  recur_with(state, keys, row, [&](int64_t) { return decay; });
}
