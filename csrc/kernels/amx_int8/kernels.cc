// AMX (Sapphire Rapids and later): avx512_vnni, but many rows of whole numbers go through tile registers.
//
// EMULATED_TILES builds the same on plain C++ throughout, for tests on any machine (emulated.h).
#include <type_traits>
#include <utility>
#include <vector>

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
  return kernels;
}
}  // namespace amx_int8

const KernelTable* amx_int8_kernels() {
  static const KernelTable kernels = amx_int8::table();
  return &kernels;
}

}  // namespace ipex_lookahead
