// What the bindings do with weight matrices by themselves: hand them out, prepack them for others, search for scales.
#pragma once

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "arguments.h"
#include "runtime/thread_pool.h"
#include "weights/packing.h"
#include "weights/search.h"

namespace ipex_lookahead {

// A matrix in plain order, as the arguments that make it; `fill` writes the streams.
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

// A matrix's prepacked tiles as other devices' kernels read them: codes, scales, minimums, steps; None for what it has not.
inline nb::tuple prepack_tiles(const std::string& format, int64_t n_out, int64_t n_in, int group, const AnyMatrix& codes,
                               const std::optional<HalfMatrix>& scales, const std::optional<HalfMatrix>& minimums,
                               int threads) {
  const PlainMatrix plain = plain_of(format, n_out, n_in, group, codes, scales, minimums);
  checked_threads(threads);
  Matrix m = unset_matrix(plain.format, n_out, n_in, group);
  const TileBytes bytes = tile_bytes(m);
  Owned<uint8_t> tiles(size_t(bytes.codes)), steps(size_t(bytes.steps));
  Owned<uint16_t> tile_scales(size_t(bytes.scales / 2)), tile_minimums(size_t(bytes.minimums / 2));
  m.codes = tiles.data.get();
  m.scales = tile_scales.data.get();
  m.minimums = tile_minimums.data.get();
  m.steps = steps.data.get();
  {
    nb::gil_scoped_release release;
    Crew crew(threads);
    prepack(plain, m, crew);
  }
  const auto or_none = [](auto& stream, int64_t n) { return n == 0 ? nb::object(nb::none()) : stream.array(n); };
  return nb::make_tuple(tiles.array(bytes.codes), or_none(tile_scales, bytes.scales / 2),
                        or_none(tile_minimums, bytes.minimums / 2), or_none(steps, bytes.steps));
}

// The way back: the matrix in plain order, as the arguments that make it.
inline nb::object unpack_tiles(const std::string& format, int64_t n_out, int64_t n_in, int group, const ByteVector& codes,
                               const std::optional<HalfVector>& scales, const std::optional<HalfVector>& minimums,
                               const std::optional<ByteVector>& steps, int threads) {
  const WeightFormat f = format_of(format);
  check_size(n_out, n_in);
  checked_threads(threads);
  if (stream_facts(f).scales && (group < kGroup || group > kMostGroup || (group & (group - 1)) != 0))
    throw std::invalid_argument("group size must be a power of two from 32 to " + std::to_string(kMostGroup));
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

// What `search_blocks` finds: codes, scales, minimums, steps and minimum steps; None for what there is not.
inline nb::tuple search(const FloatMatrix& values, const FloatMatrix& importance, int size, const FloatVector& numbers,
                        bool whole, const FloatVector& tries, int step_limit, bool minimum, int lanes) {
  const auto fail = [](const std::string& what) { throw std::invalid_argument(what); };
  check_aligned(values, sizeof(float));
  check_aligned(importance, sizeof(float));
  check_aligned(numbers, sizeof(float));
  check_aligned(tries, sizeof(float));
  const int64_t blocks = int64_t(values.shape(0)), inputs = int64_t(values.shape(1));
  const int64_t repeated = int64_t(importance.shape(0));
  const int64_t parts = size > 0 ? inputs / size : 0;
  if (size < 1 || size > kMostSearched || inputs != parts * size || parts < 1 || parts > kMostParts || (parts & (parts - 1)))
    fail("a block has 1, 2, 4, 8 or 16 parts of 1 to " + std::to_string(kMostSearched) + " inputs");
  if (blocks > kMostOutputs || int64_t(importance.shape(1)) != inputs || repeated < 1 || blocks % repeated != 0)
    fail("importance must have the blocks of one or more whole rows");
  if (numbers.size() < 1 || numbers.size() > size_t(kMostNumbers) || tries.size() > size_t(kMostNumbers))
    fail("there are 1 to " + std::to_string(kMostNumbers) + " numbers, and no more tries");
  if (step_limit < (minimum ? 0 : -128) || step_limit > (minimum ? 255 : 0) || (parts > 1 && step_limit == 0))
    fail("parts have steps from -128 on, or with minimums up to 255; and a block of several parts has steps");
  if (minimum && (!whole || numbers.data()[0] != 0)) fail("with minimums, numbers are whole and begin with 0");
  const int most = most_search_lanes();
  if (lanes == 0) lanes = minimum ? std::min(most, 8) : most;  // what is the fastest
  if ((lanes != 4 && lanes != 8 && lanes != 16) || lanes > most)
    fail("lanes is " + std::to_string(lanes) + "; it must be 4, 8 or 16, and here at most " + std::to_string(most));
  const Search wanted{int(inputs), size, minimum, {numbers.data(), numbers.data() + numbers.size()}, whole,
                      {tries.data(), tries.data() + tries.size()}, step_limit};
  const size_t stepped = size_t(step_limit ? blocks * parts : 0);
  Owned<uint8_t> codes{size_t(blocks * inputs)};
  Owned<uint16_t> scales{size_t(blocks)}, minimums{size_t(minimum ? blocks : 0)};
  Owned<int16_t> steps{stepped}, minimum_steps{minimum ? stepped : 0};
  {
    nb::gil_scoped_release release;
    search_blocks(wanted, values.data(), importance.data(), blocks, repeated, lanes,
                  {codes.data.get(), scales.data.get(), minimums.data.get(), steps.data.get(), minimum_steps.data.get()});
  }
  return nb::make_tuple(codes.array(blocks, inputs), scales.array(blocks), minimum ? minimums.array(blocks) : nb::none(),
                        step_limit ? steps.array(blocks, parts) : nb::none(),
                        minimum && step_limit ? minimum_steps.array(blocks, parts) : nb::none());
}

}  // namespace ipex_lookahead
