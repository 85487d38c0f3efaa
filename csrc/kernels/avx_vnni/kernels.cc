// The kernels compiled for avx_vnni. Only the function below is visible outside this file.
#include <type_traits>
#include <utility>

#include "kernels/kernels.h"
#include "simd.h"

namespace ipex_lookahead {
namespace avx_vnni {
#include "../generic/kernels.inl"
}  // namespace avx_vnni

const KernelTable* avx_vnni_kernels() { return avx_vnni::table("avx_vnni"); }

}  // namespace ipex_lookahead
