// Conversion of Python arguments: arrays are checked before their sizes are used.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cmath>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "weights/packing.h"

namespace ipex_lookahead {

namespace nb = nanobind;

using FloatVector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntVector = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ByteVector = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using HalfVector = nb::ndarray<const uint16_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntMatrix = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using HalfMatrix = nb::ndarray<const uint16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutMatrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using AnyMatrix = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// An array may start at any address of a mapped file.
template <typename Array>
void check_aligned(const Array& array, size_t to) {
  if (array.size() != 0 && reinterpret_cast<uintptr_t>(array.data()) % to != 0)
    throw std::invalid_argument("an array's memory is not aligned to its items (numpy.require(array, requirements='A'))");
}

// Returns the index of the word.
inline int one_of(const char* name, const std::string& got, std::initializer_list<const char*> words) {
  std::string known;
  int i = 0;
  for (const char* word : words) {
    if (got == word) return i;
    known += (i++ > 0 ? ", '" : "'") + std::string(word) + "'";
  }
  throw std::invalid_argument(std::string(name) + " is '" + got + "'; it must be one of " + known);
}

// Arrays returned to Python that own their memory; zeroed unless they will be fully overwritten.
enum class Fill { zero, none };
template <typename T, Fill fill = Fill::zero>
struct Owned {
  std::unique_ptr<T[]> data;
  explicit Owned(size_t n) : data(fill == Fill::zero ? new T[n]() : new T[n]) {}
  template <typename... Shape>
  nb::object array(Shape... shape) {
    T* raw = data.get();
    nb::capsule owner(data.release(), [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T>(raw, {size_t(shape)...}, owner));
  }
};

// Limits for which sums and products of sizes fit into 64 bits, and tiles into a phase (Phases::kMaxItems).
constexpr int64_t kMaxOutputs = int64_t(1) << 27, kMaxInputs = int64_t(1) << 27;

inline void check_size(int64_t n_out, int64_t n_in) {
  if (n_out < 1 || n_in < 1 || n_out > kMaxOutputs || n_in > kMaxInputs)
    throw std::invalid_argument("a weight matrix has from 1 to " + std::to_string(kMaxOutputs) +
                                " outputs and inputs, not [" + std::to_string(n_out) + ", " + std::to_string(n_in) + "]");
}

inline PlainMatrix plain_of(const std::string& format, int64_t n_out, int64_t n_in, int group, const AnyMatrix& codes,
                     const std::optional<HalfMatrix>& scales, const std::optional<HalfMatrix>& minimums) {
  const WeightFormat f = format_of(format);
  const StreamFacts& facts = stream_facts(f);
  check_aligned(codes, facts.inputs == 1 ? size_t(facts.bytes) : 1);
  if (scales) check_aligned(*scales, 2);
  if (minimums) check_aligned(*minimums, 2);
  const auto fail = [](const std::string& what) { throw std::invalid_argument(what); };
  check_size(n_out, n_in);
  if (int64_t(codes.shape(0)) != n_out || int64_t(codes.shape(1) * codes.itemsize()) != code_bytes(f, n_in))
    fail("codes of a " + format + " matrix [" + std::to_string(n_out) + ", " + std::to_string(n_in) +
         "] have the wrong shape");
  if (facts.scales) {
    if (group < kGroup || group > kMaxGroup || (group & (group - 1)) != 0)
      fail("group size is " + std::to_string(group) + "; it must be a power of two from 32 to " + std::to_string(kMaxGroup));
    const int64_t groups = groups_of(f, n_in, group);
    const auto fits = [&](const std::optional<HalfMatrix>& s) {
      return s && int64_t(s->shape(0)) == n_out && int64_t(s->shape(1)) == groups;
    };
    if (!fits(scales) || (facts.minimums && !fits(minimums)))
      fail("scales of a " + format + " matrix must have shape [" + std::to_string(n_out) + ", " +
           std::to_string(groups) + "]");
  }
  return {f, n_out, n_in, group, codes.data(), facts.scales ? scales->data() : nullptr,
          facts.minimums ? minimums->data() : nullptr};
}

inline const float* vector_of(const std::optional<FloatVector>& v, int64_t n, const char* what) {
  if (!v) return nullptr;
  check_aligned(*v, sizeof(float));
  if (int64_t(v->shape(0)) != n)
    throw std::invalid_argument(std::string(what) + " must have " + std::to_string(n) + " values");
  return v->data();
}

inline void check_ids(const int32_t* ids, size_t count) {
  for (size_t i = 0; i < count; ++i)
    if (ids[i] < 0) throw std::invalid_argument("token ids must not be negative, got " + std::to_string(ids[i]));
}

inline void check_ids(const IntVector& ids) {
  check_aligned(ids, sizeof(int32_t));
  check_ids(ids.data(), ids.shape(0));
}

}  // namespace ipex_lookahead
