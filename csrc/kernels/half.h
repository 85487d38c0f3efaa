// binary16 in software, for code that must run on any x86-64. Round to nearest even, subnormals included.
#pragma once

#include <cstdint>
#include <cstring>

namespace ipex_lookahead {

static inline float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u, mantissa = h & 1023u;
  uint32_t bits;
  if (exponent == 31) {
    bits = sign | 0x7f800000u | (mantissa << 13);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  } else {
    const float value = float(mantissa) * 0x1p-24f;  // exact
    std::memcpy(&bits, &value, 4);
    bits |= sign;
  }
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

static inline uint16_t float_to_half(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000u);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return uint16_t(sign | 0x7e00u | ((bits >> 13) & 0x3ffu));
  if (bits >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // 65,520 and above round to infinity
  if (bits < 0x38800000u) {                                  // below 2^-14: subnormal, in units of 2^-24
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    const float aligned = magnitude + 0.5f;  // the sum's last bit is 2^-24, so the addition rounds
    uint32_t rounded;
    std::memcpy(&rounded, &aligned, 4);
    return uint16_t(sign | (rounded - 0x3f000000u));
  }
  bits += 0x0fffu + ((bits >> 13) & 1u);
  return uint16_t(sign | ((bits - 0x38000000u) >> 13));
}

}  // namespace ipex_lookahead
