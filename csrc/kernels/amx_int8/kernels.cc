// AMX (Sapphire Rapids and later): avx512_vnni, with tile registers for integer products of many rows.
//
// EMULATED_TILES builds the same code on plain C++, for tests on any machine (emulated.h).
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "kernels/kernels.h"
#ifdef EMULATED_TILES
#include "emulated.h"
#include "kernels/scalar/simd.h"
#else
#include "kernels/avx512_vnni/simd.h"
#endif

namespace ipex_lookahead {
namespace amx_int8 {
#ifdef EMULATED_TILES
using namespace scalar;
static const KernelTable* few_rows() { return scalar_kernels(); }
#else
using namespace avx512_vnni;
static const KernelTable* few_rows() { return avx512_vnni_kernels(); }
#endif
#include "../generic/activation.inl"
#include "../generic/codes.inl"
#include "../generic/scales.inl"
#include "../generic/outputs.inl"
#include "linear.inl"

static KernelTable table() {
  KernelTable kernels = *few_rows();
  kernels.name = "amx_int8";
  kernels.linear = linear;
  kernels.gate_up = gate_up;
  kernels.integer_peak = integer_peak;
  return kernels;
}

// Checks sums of 32 and of 16 products against plain loops.
static bool tiles_multiply() {
  alignas(64) int8_t a[kMaxBandRows][kGroup], b[8][64];
  alignas(64) int32_t of_block[kMaxBandRows][kLanes], of_half[kMaxBandRows][kLanes];
  for (int m = 0; m < kMaxBandRows; ++m)
    for (int k = 0; k < kGroup; ++k) a[m][k] = int8_t(37 * m + 11 * k - 128);
  for (int c = 0; c < 8; ++c)
    for (int i = 0; i < 64; ++i) b[c][i] = int8_t(29 * c - 7 * i);
  const Tiles registers(kMaxBandRows);
  Tiles::written();
  _tile_zero(0);
  _tile_loadd(1, a, kGroup);
  _tile_loadd(2, b, 64);
  _tile_dpbssd(0, 1, 2);
  _tile_stored(0, of_block, 64);
  _tile_zero(0);
  _tile_loadd(3, a, kGroup);
  _tile_loadd(4, b, 64);
  _tile_dpbssd(0, 3, 4);
  _tile_stored(0, of_half, 64);
  bool equal = true;
  for (int m = 0; m < kMaxBandRows; ++m)
    for (int n = 0; n < kLanes; ++n) {
      int32_t sum = 0;
      for (int k = 0; k < kGroup; ++k) {
        sum += a[m][k] * b[k / 4][4 * n + k % 4];
        if (k + 1 == kGroup / 2) equal = equal && of_half[m][n] == sum;
      }
      equal = equal && of_block[m][n] == sum;
    }
  return equal;
}
}  // namespace amx_int8

bool amx_tiles_multiply() { return amx_int8::tiles_multiply(); }

const KernelTable* amx_int8_kernels() {
  static const KernelTable kernels = amx_int8::table();
  return &kernels;
}

}  // namespace ipex_lookahead
