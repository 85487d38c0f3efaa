// Stores of linear layers' outputs.

SIMD_INLINE void store_outputs(float* out, const float* values, int64_t count, bool add_to) {
  if (count >= kLanes) {
    const f32x16 v = load(values);
    store(out, add_to ? add(load(out), v) : v);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = add_to ? out[i] + values[i] : values[i];
  }
}

// Stores 32 values of row r as the next layer reads them.
SIMD_INLINE void store_group(const Rows& out, int64_t r, int64_t group, f32x16 low, f32x16 high, bool quantize) {
  if (quantize) {
    quantize_group(out, r, group, low, high);
  } else {
    float* at = out.values_of(r) + group * kGroup;
    store(at, low);
    store(at + kLanes, high);
  }
}
