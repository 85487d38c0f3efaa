// The recurrence kernels of instruction set ISA, as a library for Python.
#include <type_traits>
#include <utility>

#include "kernels/kernels.h"
#include "simd.h"  // of csrc/kernels/ISA

namespace ipex_lookahead {
namespace ISA {
#include "kernels/generic/elementwise.inl"
#include "kernels/generic/outputs.inl"
#include "kernels/generic/recurrence.inl"
}  // namespace ISA
}  // namespace ipex_lookahead

using namespace ipex_lookahead;

extern "C" {

void gate(const float* by, int64_t n, int kind, float* x) { ISA::gate(by, n, GateKind(kind), x); }

void clamp(float* x, int64_t n, float low, float high) { ISA::clamp(x, n, low, high); }

void convolve(const float* const* taps, int kernel, const float* weight, int64_t stride, const float* bias, int64_t n,
              bool silu, float* out) {
  ISA::convolve(taps, kernel, weight, stride, bias, n, silu, out);
}

void recurrence_steps(const float* x, const float* bias, const float* rate, float least, float most, int64_t n, float* steps,
                      float* decays) {
  ISA::recurrence_steps(x, bias, rate, least, most, n, steps, decays);
}

void bounded_decays(const float* x, const float* bias, const float* rate, float bound, int64_t n, float* decays) {
  ISA::bounded_decays(x, bias, rate, bound, n, decays);
}

void exponentials(float* x, int64_t n) { ISA::exponentials(x, n); }

void recur(float* state, int64_t keys, const float* q, const float* k, const float* v, float decay, float beta, bool delta,
           float* out, const float* decays) {
  ISA::recur(state, keys, {q, k, v, decay, beta, delta, out, decays});
}
}
