// The kernels compiled for avx2. Only the function below is visible outside this file.
#include <type_traits>
#include <utility>

#include "kernels/kernels.h"
#include "simd.h"

namespace ipex_lookahead {
namespace avx2 {
#include "../generic/kernels.inl"
}  // namespace avx2

const KernelTable* avx2_kernels() { return avx2::table("avx2"); }

}  // namespace ipex_lookahead
