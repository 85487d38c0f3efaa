// The kernels compiled for scalar. Only the function below is visible outside this file.
#include <type_traits>
#include <utility>

#include "kernels/kernels.h"
#include "simd.h"

namespace ipex_lookahead {
namespace scalar {
#include "../generic/kernels.inl"
}  // namespace scalar

const KernelTable* scalar_kernels() { return scalar::table("scalar"); }

}  // namespace ipex_lookahead
