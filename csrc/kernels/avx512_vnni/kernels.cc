// The kernels compiled for avx512_vnni. Only the function below is visible outside this file.
#include <type_traits>
#include <utility>

#include "kernels/kernels.h"
#include "simd.h"

namespace ipex_lookahead {
namespace avx512_vnni {
#include "../generic/kernels.inl"
}  // namespace avx512_vnni

const KernelTable* avx512_vnni_kernels() { return avx512_vnni::table("avx512_vnni"); }

}  // namespace ipex_lookahead
