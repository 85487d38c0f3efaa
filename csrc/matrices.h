// Weight matrices in the bindings: export, prepacking for other devices, quantization.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>

#include "arguments.h"
#include "runtime/thread_pool.h"
#include "weights/packing.h"
#include "weights/quantize.h"

namespace ipex_lookahead {

using namespace nb::literals;

// A matrix in plain order, as the constructor arguments that recreate it; `fill` writes the streams.
template <typename Fill>
nb::object export_matrix(const Matrix m, const Fill& fill) {
  const StreamFacts& facts = stream_facts(m.format);
  const int64_t bytes = code_bytes(m.format, m.n_in), group = m.group_blocks * kGroup;
  const int64_t groups = groups_of(m.format, m.n_in, int(group));
  Owned<uint8_t> codes(size_t(m.n_out * bytes));
  Owned<uint16_t> scales(size_t(m.n_out * groups)), minimums(size_t(facts.minimums ? m.n_out * groups : 0));
  {
    nb::gil_scoped_release release;
    fill(codes.data.get(), scales.data.get(), minimums.data.get());
  }
  return nb::make_tuple(facts.name, m.n_out, m.n_in, facts.scales ? group : 0, codes.array(m.n_out, bytes),
                        facts.scales ? scales.array(m.n_out, groups) : nb::none(),
                        facts.minimums ? minimums.array(m.n_out, groups) : nb::none());
}

inline nb::object export_vector(const float* values, int64_t n) {
  if (values == nullptr) return nb::none();
  Owned<float> copy{size_t(n)};
  std::copy(values, values + n, copy.data.get());
  return copy.array(n);
}

// The methods of a class with named weights (model/weights.h) that set and return them.
template <class T>
void def_weights(nb::class_<T>& c) {
  c.def(
       "set_matrix",
       [](T& t, const std::string& name, const std::string& format, int64_t n_out, int64_t n_in, int group, AnyMatrix codes,
          std::optional<HalfMatrix> scales, std::optional<HalfMatrix> minimums) {
         const PlainMatrix plain = plain_of(format, n_out, n_in, group, codes, scales, minimums);
         nb::gil_scoped_release release;
         t.weights().set_matrix(name, plain);
       },
       "name"_a, "format"_a, "n_out"_a, "n_in"_a, "group"_a, "codes"_a, "scales"_a.none().noconvert(),
       "minimums"_a.none().noconvert())
      .def(
          "set_vector",
          [](T& t, const std::string& name, FloatVector values) {
            check_aligned(values, sizeof(float));
            t.weights().set_vector(name, values.data(), int64_t(values.shape(0)));
          },
          "name"_a, "values"_a)
      .def("export_matrix",
           [](T& t, const std::string& name) {
             const Matrix m = t.weights().matrix(name);
             return export_matrix(m, [&](auto... streams) {
               Crew crew(t.threads());
               unpack(m, streams..., crew);
             });
           },
           "name"_a)
      .def("export_vector",
           [](T& t, const std::string& name) {
             int64_t n;
             const float* values = t.weights().vector(name, &n);
             return export_vector(values, n);
           },
           "name"_a)
      .def_prop_ro("isa", [](const T& t) { return std::string(t.isa()); })
      .def_prop_ro("threads", &T::threads)
      .def_prop_ro("weight_bytes", [](const T& t) { return t.weights().bytes(); }, nb::call_guard<nb::gil_scoped_release>());
}

template <class T>
auto table_of(int) -> decltype(T::kTable, nb::object()) {
  nb::list all;
  for (auto value : T::kTable) all.append(value);
  return all;
}
template <class T>
nb::object table_of(...) {
  return nb::none();
}
template <int Magnitude, int Mantissa, int Bias>
nb::object minifloat_of(const Minifloat<Magnitude, Mantissa, Bias>*) {
  return nb::make_tuple(Magnitude, Mantissa, Bias);
}
inline nb::object minifloat_of(const void*) { return nb::none(); }

// A format's properties for Python: its plain record and its tile layout (kernels/formats.h).
template <class Format>
nb::dict facts_of() {
  const StreamFacts& facts = stream_facts(Format::kFormat);
  nb::dict d;
  d["inputs"] = facts.inputs;
  d["bytes"] = facts.bytes;
  d["scales_apart"] = facts.scales;
  d["minimums_apart"] = facts.minimums;
  if constexpr (Format::kArithmetic != Arithmetic::floats) {
    d["codes"] = Format::Codes::kName;
    d["scales"] = Format::Scales::kName;
    d["code_table"] = table_of<typename Format::Codes>(0);
  }
  if constexpr (Format::kArithmetic == Arithmetic::whole) d["zero"] = Format::kZero;
  d["table"] = table_of<Format>(0);
  d["minifloat"] = minifloat_of(static_cast<const Format*>(nullptr));
  return d;
}

inline nb::dict weight_formats() {
  nb::dict all;
#define WEIGHT_FORMAT(name, Format, ...) all[#name] = facts_of<Format>();
  WEIGHT_FORMATS(WEIGHT_FORMAT)
#undef WEIGHT_FORMAT
  return all;
}

// Prepacked tiles of a matrix for other devices' kernels: codes, scales, minimums, steps; None for absent streams.
inline nb::tuple prepack_tiles(const std::string& format, int64_t n_out, int64_t n_in, int group, const AnyMatrix& codes,
                               const std::optional<HalfMatrix>& scales, const std::optional<HalfMatrix>& minimums,
                               int threads) {
  const PlainMatrix plain = plain_of(format, n_out, n_in, group, codes, scales, minimums);
  checked_threads(threads);
  const Matrix m = unset_matrix(plain.format, n_out, n_in, group);
  const TileBytes bytes = tile_bytes(m);
  Owned<uint8_t> tiles(size_t(bytes.codes)), steps(size_t(bytes.steps));
  Owned<uint16_t> tile_scales(size_t(bytes.scales / 2)), tile_minimums(size_t(bytes.minimums / 2));
  {
    nb::gil_scoped_release release;
    Crew crew(threads);
    prepack(plain, m, {tiles.data.get(), tile_scales.data.get(), tile_minimums.data.get(), steps.data.get()}, crew);
  }
  const auto or_none = [](auto& stream, int64_t n) { return n == 0 ? nb::object(nb::none()) : stream.array(n); };
  return nb::make_tuple(tiles.array(bytes.codes), or_none(tile_scales, bytes.scales / 2),
                        or_none(tile_minimums, bytes.minimums / 2), or_none(steps, bytes.steps));
}

// The inverse: the matrix in plain order, as the constructor arguments that recreate it.
inline nb::object unpack_tiles(const std::string& format, int64_t n_out, int64_t n_in, int group, const ByteVector& codes,
                               const std::optional<HalfVector>& scales, const std::optional<HalfVector>& minimums,
                               const std::optional<ByteVector>& steps, int threads) {
  const WeightFormat f = format_of(format);
  check_size(n_out, n_in);
  checked_threads(threads);
  if (stream_facts(f).scales && (group < kGroup || group > kMaxGroup || (group & (group - 1)) != 0))
    throw std::invalid_argument("group size must be a power of two from 32 to " + std::to_string(kMaxGroup));
  Matrix m = unset_matrix(f, n_out, n_in, group);
  const TileBytes bytes = tile_bytes(m);
  check_aligned(codes, stream_facts(f).inputs == 1 ? size_t(stream_facts(f).bytes) : 1);
  if (scales) check_aligned(*scales, 2);
  if (minimums) check_aligned(*minimums, 2);
  const auto length = [](const auto& stream) { return stream ? int64_t(stream->size() * stream->itemsize()) : 0; };
  if (int64_t(codes.size()) != bytes.codes || length(scales) != bytes.scales || length(minimums) != bytes.minimums ||
      length(steps) != bytes.steps)
    throw std::invalid_argument("the tiles of a " + format + " matrix [" + std::to_string(n_out) + ", " +
                                std::to_string(n_in) + "] have the wrong length");
  m.codes = codes.data();
  m.scales = scales ? scales->data() : nullptr;
  m.minimums = minimums ? minimums->data() : nullptr;
  m.steps = steps ? steps->data() : nullptr;
  return export_matrix(m, [&](auto... streams) {
    Crew crew(threads);
    unpack(m, streams..., crew);
  });
}

// Output arrays for codes and scales, so that matrices are not copied.
using OutBytes = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutHalves = nb::ndarray<uint16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Quantizes a float matrix into the given low-bit streams. Returns the first row that cannot be quantized, or -1.
inline int64_t quantize_matrix(const std::string& format, const AnyMatrix& values, const std::string& kind,
                               const FloatVector& importance, const std::string& searched, int size,
                               const FloatVector& numbers, bool whole, const FloatVector& tries, int step_limit,
                               const ByteVector& code_of, float largest, OutBytes codes, std::optional<OutHalves> scales,
                               std::optional<OutHalves> minimums, int threads, int lanes) {
  const auto fail = [](const std::string& what) { throw std::invalid_argument(what); };
  const WeightFormat f = format_of(format);
  const StreamFacts& facts = stream_facts(f);
  Quantization q;
  q.format = f;
  q.n_out = int64_t(values.shape(0));
  q.n_in = int64_t(values.shape(1));
  check_size(q.n_out, q.n_in);
  q.kind = FloatKind(one_of("kind", kind, {"fp32", "fp16", "bf16"}));
  const size_t item = q.kind == FloatKind::fp32 ? 4 : 2;
  if (values.itemsize() != item) fail("values of " + kind + " have " + std::to_string(item) + " bytes");
  check_aligned(values, item);
  check_aligned(importance, sizeof(float));
  check_aligned(numbers, sizeof(float));
  check_aligned(tries, sizeof(float));
  if (facts.inputs == 1) fail(format + " has no scales to search for");
  const SearchKind of = SearchKind(one_of("searched", searched, {"scale", "float_scale", "minimum", "zero", "exponent"}));
  // A group of a separate stream is one part; a record is one block with all its parts.
  const int64_t inputs = facts.scales ? size : facts.inputs, parts = size > 0 ? inputs / size : 0;
  if (size < 1 || size > kMaxSearched || inputs != parts * size || parts < 1 || parts > kMaxParts || (parts & (parts - 1)))
    fail("a block has 1, 2, 4, 8 or 16 parts of 1 to " + std::to_string(kMaxSearched) + " inputs");
  if (facts.scales && (size < kGroup || (size & (size - 1))))
    fail("a group must be a power of two of at least " + std::to_string(kGroup) + " inputs");
  if (int64_t(importance.size()) != (q.n_in + inputs - 1) / inputs * inputs)
    fail("importance must cover the whole blocks of a row");
  if (numbers.size() < 1 || numbers.size() > size_t(kMaxNumbers) || tries.size() > size_t(kMaxNumbers) ||
      code_of.size() != size_t(kMaxNumbers))
    fail("there must be 1 to " + std::to_string(kMaxNumbers) + " numbers, one code for each, and no more tries than numbers");
  const bool from_zero = of == SearchKind::minimum || of == SearchKind::zero;
  if (from_zero && (!whole || numbers.data()[0] != 0 || numbers.data()[numbers.size() - 1] > 255))
    fail("with minimums and zero points, numbers must be the integers from 0 to at most 255");
  if (of == SearchKind::zero && tries.size() == 0) fail("a search for a zero point needs at least one try");
  const bool stepped = of == SearchKind::scale || of == SearchKind::minimum;
  const int least = of == SearchKind::scale ? -128 : 0, most = of == SearchKind::minimum ? 255 : 0;
  if (step_limit < least || step_limit > most || (parts > 1) != (step_limit != 0) || (parts > 1 && !stepped))
    fail("step_limit must be at least -128, or with minimums at most 255; a block of several parts must have steps");
  if (!fits(f, of, int(parts))) fail(format + " cannot store the result of a search for " + searched);
  const int most_lanes = most_search_lanes();
  if (lanes == 0) lanes = of == SearchKind::minimum ? std::min(most_lanes, 8) : most_lanes;  // the fastest
  if ((lanes != 4 && lanes != 8 && lanes != 16) || lanes > most_lanes)
    fail("lanes is " + std::to_string(lanes) + "; it must be 4, 8 or 16, and here at most " + std::to_string(most_lanes));
  checked_threads(threads);
  const auto has = [&](const auto& array, int64_t columns) {
    return int64_t(array.shape(0)) == q.n_out && int64_t(array.shape(1)) == columns;
  };
  const int64_t groups = groups_of(f, q.n_in, int(inputs));
  if (!has(codes, code_bytes(f, q.n_in)) || bool(scales) != facts.scales || bool(minimums) != facts.minimums ||
      (scales && !has(*scales, groups)) || (minimums && !has(*minimums, groups)))
    fail("the streams do not have the shapes of a " + format + " matrix [" + std::to_string(q.n_out) + ", " +
         std::to_string(q.n_in) + "]");
  if (scales) check_aligned(*scales, 2);
  if (minimums) check_aligned(*minimums, 2);
  q.values = values.data();
  q.importance = importance.data();
  q.largest = std::min(largest, std::numeric_limits<float>::max());
  q.search = {of, int(inputs), size, {numbers.data(), numbers.data() + numbers.size()}, whole,
              {tries.data(), tries.data() + tries.size()}, step_limit};
  std::copy_n(code_of.data(), kMaxNumbers, q.code_of);
  q.lanes = lanes;
  nb::gil_scoped_release release;
  return quantize(q, codes.data(), scales ? scales->data() : nullptr, minimums ? minimums->data() : nullptr, threads);
}

}  // namespace ipex_lookahead
