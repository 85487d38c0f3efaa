#include "weights/quantize.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/half.h"
#include "runtime/thread_pool.h"
#include "weights/records.h"

namespace ipex_lookahead {
namespace {

constexpr int64_t kInHand = int64_t(1) << 15;  // values per item: with their results they fit a core's cache
constexpr int64_t kItemsAtOnce = 512;          // items per Crew, so that steps of other threads can run in between

// A finite binary16 number.
bool is_number(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

float bfloat_to_float(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

// half_to_float without a branch, so that the compiler vectorizes it; NaN becomes infinite.
float wide_half(uint16_t half) {
  const uint32_t bits = uint32_t(half & 0x7fff) << 13;
  float value;
  std::memcpy(&value, &bits, 4);
  value = is_number(half) ? value * 0x1p112f : std::numeric_limits<float>::infinity();
  return half & 0x8000 ? -value : value;
}

// Converts a row to float32. Returns false if a value is larger than `largest`.
bool widen(const Quantization& q, int64_t row, float* to) {
  const int64_t n = q.n_in;
  const auto from = [&](auto* values) { return values + row * n; };
  if (q.kind == FloatKind::fp32) {
    std::memcpy(to, from(static_cast<const float*>(q.values)), size_t(n) * sizeof(float));
  } else {
    const uint16_t* halves = from(static_cast<const uint16_t*>(q.values));
    if (q.kind == FloatKind::fp16)
      for (int64_t i = 0; i < n; ++i) to[i] = wide_half(halves[i]);
    else
      for (int64_t i = 0; i < n; ++i) to[i] = bfloat_to_float(halves[i]);
  }
  int beyond = 0;
  for (int64_t i = 0; i < n; ++i) beyond |= !(std::fabs(to[i]) <= q.largest);
  return !beyond;
}

// A thread's rows and the search results for them.
struct Found {
  std::vector<float> values, float_scales;
  std::vector<uint8_t> codes;
  std::vector<uint16_t> scales, minimums;
  std::vector<int16_t> steps, minimum_steps;
  explicit Found(int64_t blocks, const Search& s)
      : values(size_t(blocks * s.inputs)),
        float_scales(size_t(blocks)),
        codes(size_t(blocks * s.inputs)),
        scales(size_t(blocks)),
        minimums(size_t(blocks)),
        steps(size_t(blocks * s.inputs / s.size)),
        minimum_steps(steps.size()) {}
  FoundParts parts() {
    return {codes.data(), scales.data(), minimums.data(), steps.data(), minimum_steps.data(), float_scales.data()};
  }
};

// Writes the record bytes with the steps of its j-th 32 inputs; `part` is the first part of their block.
template <class Scales>
void stored_steps(const Found& f, int64_t block, int64_t part, int j, uint8_t* steps) {
  const int16_t *one = f.steps.data() + part, *two = f.minimum_steps.data() + part;
  if constexpr (std::is_same_v<Scales, FloatScale>) {
    std::memcpy(steps, &f.float_scales[size_t(block)], 4);
  } else if constexpr (std::is_same_v<Scales, ExponentScale>) {
    steps[0] = uint8_t(one[j]);
  } else if constexpr (std::is_same_v<Scales, StepScale>) {
    steps[0] = uint8_t(one[j] + 32);
  } else if constexpr (std::is_same_v<Scales, StepScaleAndMinimum>) {
    steps[0] = uint8_t(one[j]);
    steps[1] = uint8_t(two[j]);
  } else if constexpr (Scales::kSteps == 2) {
    for (int half = 0; half < 2; ++half) {
      const int i = 2 * j + half;
      steps[half] = std::is_same_v<Scales, HalfSteps>    ? uint8_t(one[i])
                    : std::is_same_v<Scales, HalfSteps6> ? uint8_t(one[i] + 32)
                                                         : uint8_t(one[i] | two[i] << 4);
    }
  }
}

// Writes row `row` of the thread's rows to the streams; false if a scale is not finite. Unreached bytes stay 0.
template <class Format>
bool pack_row(const Quantization& q, const Found& f, int64_t row, uint8_t* codes, uint16_t* scales, uint16_t* minimums) {
  using Record = RecordOf<Format>;
  using Scales = typename Format::Scales;
  constexpr int kInRecord = Record::kInputs / kGroup;
  constexpr bool kApartScales = kHalves<Scales> && Record::kScale == kApart;
  const int64_t inputs = q.search.inputs, blocks = (q.n_in + inputs - 1) / inputs, first = row * blocks;
  for (int64_t b = first; kHalves<Scales> && b < first + blocks; ++b)
    if (!is_number(f.scales[size_t(b)]) || (Scales::kMinimum && !is_number(f.minimums[size_t(b)]))) return false;
  // Padding of a group in a separate stream encodes 0; in a record, the scale search includes the padding.
  uint8_t padding = uint8_t(Format::kZero ^ Record::kFlip);
  if (kZeroPoint<Scales>) padding = uint8_t(half_to_float(f.minimums[size_t(first + blocks - 1)]));
  const int64_t parts = inputs / q.search.size;
  for (int64_t b = 0; b < (q.n_in + kGroup - 1) / kGroup; ++b) {
    uint8_t* record = codes + b / kInRecord * Record::kBytes;
    const int j = int(b % kInRecord);
    const uint8_t* found = f.codes.data() + first * inputs + b * kGroup;
    uint8_t in_stream[kGroup];
    for (int i = 0; i < kGroup; ++i)
      in_stream[i] = kApartScales && b * kGroup + i >= q.n_in ? padding : q.code_of[found[i]];
    for (int c = 0; c < kGroup / 4; ++c) {
      uint32_t word;
      std::memcpy(&word, in_stream + 4 * c, 4);
      Record::put(record, j, c, word);
    }
    const int64_t block = first + b / kInRecord;
    uint8_t steps[4];
    stored_steps<Scales>(f, block, block * parts, j, steps);
    if (Scales::kSteps > 0) Record::put_steps(record, j, steps);
    if (kHalves<Scales> && !kApartScales && j == 0) {
      std::memcpy(record + Record::kScale, &f.scales[size_t(block)], 2);
      if (Scales::kMinimum) std::memcpy(record + Record::kMinimum, &f.minimums[size_t(block)], 2);
    }
  }
  if (kApartScales) std::copy_n(f.scales.data() + first, blocks, scales);
  if (kApartScales && Scales::kMinimum) std::copy_n(f.minimums.data() + first, blocks, minimums);
  return true;
}

template <class Format>
struct FitsOf {
  using Fits = bool (*)(SearchKind, int);
  static Fits value() {
    return [](SearchKind kind, int parts) {
      if constexpr (Format::kArithmetic == Arithmetic::floats) {
        return false;
      } else {
        using Scales = typename Format::Scales;
        const SearchKind held = kZeroPoint<Scales>                          ? SearchKind::zero
                                : std::is_same_v<Scales, FloatScale>    ? SearchKind::float_scale
                                : std::is_same_v<Scales, ExponentScale> ? SearchKind::exponent
                                : Scales::kMinimum                          ? SearchKind::minimum
                                                                            : SearchKind::scale;
        const bool halves = std::is_same_v<Scales, HalfSteps> || std::is_same_v<Scales, HalfSteps6> ||
                            std::is_same_v<Scales, HalfStepsAndMinimums>;
        return kind == held && parts == (Scales::kBlocks == 8 ? (halves ? 16 : 8) : 1);
      }
    };
  }
};

using PackRow = bool (*)(const Quantization&, const Found&, int64_t, uint8_t*, uint16_t*, uint16_t*);
template <class Format>
struct PackRowOf {
  static PackRow value() {
    if constexpr (Format::kArithmetic == Arithmetic::floats)
      return nullptr;  // there is no scale to search for
    else
      return pack_row<Format>;
  }
};

}  // namespace

bool fits(WeightFormat format, SearchKind kind, int parts) {
  static const auto all = format_table<FitsOf>();
  return all.of[int(format)](kind, parts);
}

int64_t quantize(const Quantization& q, uint8_t* codes, uint16_t* scales, uint16_t* minimums, int threads) {
  static const auto packers = format_table<PackRowOf>();
  const PackRow pack = packers.of[int(q.format)];
  const int64_t inputs = q.search.inputs, blocks = (q.n_in + inputs - 1) / inputs;
  const int64_t row_bytes = code_bytes(q.format, q.n_in), groups = groups_of(q.format, q.n_in, int(inputs));
  const int64_t rows_in_hand = std::max<int64_t>(1, kInHand / (blocks * inputs));
  const int64_t items = (q.n_out + rows_in_hand - 1) / rows_in_hand;
  std::atomic<int64_t> refused{q.n_out};
  const auto refuse = [&](int64_t row) {
    for (int64_t least = refused.load(); row < least && !refused.compare_exchange_weak(least, row);) {}
  };
  const auto work = [&](Found& found, int64_t item) {
    const int64_t from = item * rows_in_hand;
    int64_t rows = std::min(rows_in_hand, q.n_out - from);
    if (refused.load() < from) return;
    for (int64_t row = 0; row < rows; ++row) {
      float* values = found.values.data() + row * blocks * inputs;
      if (widen(q, from + row, values)) {
        std::fill(values + q.n_in, values + blocks * inputs, values[q.n_in - 1]);
      } else {
        refuse(from + row);
        rows = row;  // an earlier row may fail for its scales
      }
    }
    search_blocks(q.search, found.values.data(), q.importance, rows * blocks, blocks, q.lanes, found.parts());
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = from + row;
      if (!pack(q, found, row, codes + at * row_bytes, scales + at * groups, minimums + at * groups)) return refuse(at);
    }
  };
  threads = int(std::min<int64_t>(threads, items));
  std::vector<Found> in_hand(size_t(threads), Found(rows_in_hand * blocks, q.search));
  Phases phases(threads);
  for (int64_t first = 0; first < items && refused.load() == q.n_out; first += kItemsAtOnce) {
    Crew crew(threads);
    phases.begin(1);
    crew.run([&](int thread) {
      phases.run(thread, 0, std::min(kItemsAtOnce, items - first),
                 [&](int64_t item) { work(in_hand[size_t(thread)], first + item); });
    });
  }
  return refused.load() == q.n_out ? -1 : refused.load();
}

}  // namespace ipex_lookahead
