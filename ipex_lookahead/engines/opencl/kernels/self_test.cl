// One output for each assumption of the kernels, to verify that a device computes as IEEE 754 requires.
LANE_GROUPS kernel void self_test(global const float* x, global const float* y, global const float* z,
                                  global const uint* codes, global const half* halves, global float* out,
                                  global int* dots) {
  EXCHANGE(lanes)
  const int i = get_global_id(0), n = get_global_size(0);
  const float a = x[i], b = y[i], c = z[i];
  out[i] = fma(a, b, c);
  out[n + i] = a * b + c;  // not fused
  out[2 * n + i] = a / b;
  out[3 * n + i] = sqrt(a);
  out[4 * n + i] = a * 0x1p-100f * (b * 0x1p-46f);  // subnormal
  out[5 * n + i] = vload_half(i, halves);
  out[6 * n + i] = sum_lanes(c EXCHANGED);
  out[7 * n + i] = max_lanes(c EXCHANGED);
  dots[i] = add_dot(codes[i], codes[n - 1 - i], 7);
  dots[n + i] = convert_int_rte(c * 4.0f);
  dots[2 * n + i] = sum_lanes_int(dots[i] EXCHANGED);
  vstore_half_rte(c * 0x1p-15f, i, (global half*)(dots + 3 * n));
}

// Quotients and roots over the whole range, subnormals among inputs and results.
kernel void range_test(global const float* x, global const float* y, global float* out) {
  const int i = get_global_id(0), n = get_global_size(0);
  out[i] = x[i] / y[i];
  out[n + i] = sqrt(fabs(x[i]));
}

#ifdef HAS_ARRIVALS
// The last of the work-groups adds up the results of all.
kernel void arrivals(global const uint* codes, global uint* made, global int* counter, global uint* out) {
  local int arrived;
  const int i = get_global_id(0), n = get_global_size(0);
  made[i] = codes[i] * 3;
  if (!is_last(counter, get_num_groups(0), &arrived) || get_local_id(0) != 0) return;
  uint sum = 0;
  for (int k = 0; k < n; ++k) sum += made[k];
  *out += sum;
}
#endif
