// Activation functions of gated layers, and quantization of the next layer's rows; written once against <isa>/simd.h.

// Non-finite values must reach the logits, where they are an error: no function here turns a NaN into a number, and a
// function that would turn an infinity into a number returns NaN.

// e^x, clamped to [-87, 88]: 2^n times a degree-6 Taylor polynomial on |r| <= ln(2) / 2 (relative error below 2e-7). NaN for
// NaN. Explicit fma everywhere, so that all instruction sets have the same bits.
SIMD_INLINE f32x16 exponential(f32x16 x) {
  x = min(set1(88.0f), max(set1(-87.0f), x));  // the operand order matters: the second one is returned if one is NaN
  const i32x16 n = round(mul(x, set1(1.44269504f)));
  const f32x16 nf = to_float(n);
  f32x16 r = fma(nf, set1(-0.693359375f), x);  // ln 2 in two parts; products of the first with n are exact
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

// e^x - 1, computed like exponential(); near 0 its relative error is that of x.
SIMD_INLINE f32x16 exponential_less_1(f32x16 x) {
  x = min(set1(88.0f), max(set1(-87.0f), x));
  const i32x16 n = round(mul(x, set1(1.44269504f)));
  const f32x16 nf = to_float(n);
  f32x16 r = fma(nf, set1(-0.693359375f), x);
  r = fma(nf, set1(2.12194440e-4f), r);
  f32x16 p = set1(1.0f / 720);
  p = fma(p, r, set1(1.0f / 120));
  p = fma(p, r, set1(1.0f / 24));
  p = fma(p, r, set1(1.0f / 6));
  p = fma(p, r, set1(0.5f));
  p = fma(mul(p, r), r, r);
  const f32x16 power = scale_by_power(set1(1.0f), n);
  return fma(power, p, sub(power, set1(1.0f)));
}

// erf(x) = x p(x^2) / q(x^2) for x clamped to [-4, 4], where erf is 1 to float precision; the coefficients are a least-squares
// fit of the relative error, which is 2e-9, and 4e-7 with the rounding of this evaluation. NaN for NaN.
SIMD_INLINE f32x16 error_function(f32x16 x) {
  constexpr float p[] = {1.1283792f, 0.18520547f, 0.054317012f, 0.003849679f, 0.000379602f, 4.684536e-06f, -1.3201129e-08f};
  constexpr float q[] = {1.0f, 0.4974675f, 0.11395917f, 0.0154622f, 0.0013075745f, 6.3108324e-05f};
  x = min(set1(4.0f), max(set1(-4.0f), x));  // as in exponential()
  const f32x16 square = mul(x, x);
  f32x16 numerator = set1(p[6]), denominator = set1(q[5]);
  for (int i = 5; i >= 0; --i) numerator = fma(numerator, square, set1(p[i]));
  for (int i = 4; i >= 0; --i) denominator = fma(denominator, square, set1(q[i]));
  return div(mul(x, numerator), denominator);
}

// x / (1 + e^-y), used by silu and similar functions.
SIMD_INLINE f32x16 gated(f32x16 x, f32x16 y) { return div(x, add(set1(1.0f), exponential(sub(zero(), y)))); }

SIMD_INLINE f32x16 activated(const Activation& a, f32x16 gate, f32x16 up) {
  switch (a.kind) {
    case ActivationKind::gelu_tanh: {
      const f32x16 cube = mul(mul(gate, gate), gate);
      return mul(gated(gate, mul(fma(cube, set1(0.044715f), gate), set1(1.5957691216f))), up);
    }
    case ActivationKind::clamped: {
      // The operand that may be NaN comes second, so that NaN propagates.
      const f32x16 g = min(set1(a.limit), gate), u = max(set1(-a.limit), min(set1(a.limit), up));
      return mul(gated(g, mul(g, set1(a.alpha))), add(u, set1(1.0f)));
    }
    case ActivationKind::relu_squared: {
      const f32x16 positive = max(zero(), gate);  // NaN if gate is NaN
      return mul(mul(positive, positive), up);
    }
    case ActivationKind::xielu: {
      const f32x16 above = max(zero(), gate), below = min(zero(), gate);
      const f32x16 is_below = min(set1(1.0f), mul(below, set1(-3e38f)));  // 1 or 0; between them for values next to 0
      const f32x16 bend = sub(exponential_less_1(min(set1(a.epsilon), gate)), below);
      const f32x16 line = fma(gate, set1(a.beta), mul(mul(bend, set1(a.alpha_below)), is_below));
      return mul(fma(mul(above, above), set1(a.alpha), line), up);
    }
    case ActivationKind::scaled_silu: {
      const f32x16 g = mul(gate, set1(a.alpha));
      return mul(gated(g, g), up);
    }
    default:
      return mul(gated(gate, gate), up);
  }
}

// Quantizes one group of 32 values: codes, scale and sums. The scale of a group with NaN or an infinity is NaN.
SIMD_INLINE void quantize_group(const Rows& x, int64_t r, int64_t b, f32x16 low, f32x16 high) {
  const int64_t at = x.at(r, b);
  int8_t* codes = x.codes + at * kGroup;
  const float largest = reduce_max(max(abs(low), abs(high)));
  if (any_nan(low, high) || largest > __FLT_MAX__) {
    __builtin_memset(codes, 0, kGroup);
    x.scales[at] = x.sums[at] = __builtin_nanf("");
    x.bias4[at] = x.bias8[at] = x.halves[at] = 0;
    return;
  }
  const bool tiny = !(largest > 1e-30f);  // also keeps 127 / largest finite
  const float scale = tiny ? 0.0f : largest / 127.0f;
  const f32x16 inverse = set1(tiny ? 0.0f : 127.0f / largest);
  store_i8(codes, round(mul(low, inverse)));
  store_i8(codes + kLanes, round(mul(high, inverse)));
  int32_t first, second;
  half_sums(codes, first, second);
  const int32_t sum = first + second;
  x.scales[at] = scale;
  x.bias4[at] = -8 * sum;
  x.bias8[at] = -128 * sum;
  x.halves[at] = int32_t((uint32_t(first) & 0xffff) | uint32_t(second) << 16);
  x.sums[at] = scale * float(sum);
}
