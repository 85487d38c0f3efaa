#include "runtime/cpu_features.h"

#include <cpuid.h>

#include <cstdint>

namespace ipex_lookahead {
namespace {

bool bit(uint32_t word, int n) { return (word >> n) & 1u; }

uint64_t enabled_registers() {  // xgetbv(0), as bytes, so that -mxsave is not needed
  uint32_t low, high;
  __asm__ volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t(high) << 32) | low;
}

CpuFeatures detect() {
  CpuFeatures f;
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !bit(c, 27)) return f;  // osxsave
  const uint64_t registers = enabled_registers();
  const bool fma = bit(c, 12), f16c = bit(c, 29), avx = bit(c, 28);
  const bool ymm = (registers & 0x6) == 0x6, zmm = (registers & 0xe6) == 0xe6;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
  f.avx2 = ymm && avx && fma && f16c && bit(b, 5);
  f.avx512_vnni = f.avx2 && zmm && bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31) && bit(c, 11);
  f.amx_int8 = f.avx512_vnni && bit(d, 24) && bit(d, 25);
  f.tiles_saved = (registers & 0x60000) == 0x60000;
  uint32_t a1, b1, c1, d1;
  f.avx_vnni = f.avx2 && a >= 1 && __get_cpuid_count(7, 1, &a1, &b1, &c1, &d1) && bit(a1, 4);
  return f;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

}  // namespace ipex_lookahead
