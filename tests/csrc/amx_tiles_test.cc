// Compares the amx_int8 kernels with the scalar ones byte for byte. Built with -DEMULATED_TILES it runs on any machine.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/scalar/simd.h"
#include "runtime/rows.h"

using namespace ipex_lookahead;

namespace {

const KernelTable* const oracle = scalar_kernels();
const KernelTable* const tiles = amx_int8_kernels();
std::mt19937 random_bits(1);

uint16_t random_half(float most) { return float_to_half(most * (float(random_bits()) / 2147483648.0f - 1.0f)); }

// Random codes, steps and signs, written directly to the prepacked streams.
template <class Format>
struct Weight {
  std::vector<uint8_t> codes, steps;
  std::vector<uint16_t> scales, minimums;
  std::vector<float> bias;
  Matrix matrix;

  Weight(WeightFormat format, int64_t n_out, int64_t n_in, int group_blocks, bool with_bias) {
    using Scales = typename Format::Scales;
    matrix.format = format;
    matrix.n_out = n_out;
    matrix.n_in = n_in;
    matrix.blocks = int32_t((n_in + kGroup - 1) / kGroup);
    matrix.group_blocks = Scales::kBlocks != 0 ? Scales::kBlocks : group_blocks;
    const int64_t tiles = matrix.tiles(), groups = (matrix.blocks + matrix.group_blocks - 1) / matrix.group_blocks;
    codes.resize(size_t(tiles * matrix.blocks * Format::Codes::kBytes));
    steps.resize(size_t(tiles * step_bytes<Scales>(matrix.blocks)));
    for (auto& v : codes) v = uint8_t(random_bits());
    // Exponents near one; other steps take any byte value.
    for (auto& v : steps) v = std::is_same_v<Scales, ExponentScale> ? uint8_t(120 + random_bits() % 16) : uint8_t(random_bits());
    for (auto* stream : {&scales, &minimums}) {
      stream->resize(size_t(tiles * groups * kLanes));
      for (auto& v : *stream) v = random_half(0.1f);
    }
    bias.resize(size_t(tiles * kLanes));
    for (auto& v : bias) v = half_to_float(random_half(1.0f));
    matrix.codes = codes.data();
    matrix.scales = scales.data();
    matrix.minimums = minimums.data();
    matrix.steps = steps.data();
    matrix.bias = with_bias ? bias.data() : nullptr;
  }
};

struct Activations {
  RowsMemory memory;
  Rows rows;

  Activations(int64_t count, int64_t n_in) {
    memory.reserve(count, n_in);
    rows = memory.view(count, n_in);
    for (int64_t r = 0; r < count; ++r)
      for (int64_t i = 0; i < rows.stride; ++i)
        rows.values[r * rows.stride + i] = i < n_in ? half_to_float(random_half(3.0f)) : 0.0f;
    for (int64_t r = 0; r < count; ++r) oracle->quantize_row(rows, r);
  }
  Rows part(int64_t first, int64_t count) const { return rows_of(rows, first, count); }
};

// The first `count` rows; their codes are stored elsewhere if more rows follow them.
bool equal_rows(const Rows& a, const Rows& b, int64_t count) {
  for (int64_t r = 0; r < count; ++r) {
    if (std::memcmp(a.values_of(r), b.values_of(r), size_t(a.stride) * 4) != 0) return false;
    for (int64_t block = 0; block < a.blocks; ++block) {
      const int64_t i = a.at(r, block), j = b.at(r, block);
      if (std::memcmp(a.codes + i * kGroup, b.codes + j * kGroup, kGroup) != 0 || std::memcmp(a.scales + i, b.scales + j, 4) != 0 ||
          std::memcmp(a.sums + i, b.sums + j, 4) != 0 || a.bias4[i] != b.bias4[j] || a.bias8[i] != b.bias8[j] ||
          a.halves[i] != b.halves[j])
        return false;
    }
  }
  return true;
}

int failures = 0;
void expect(bool equal, const char* what, const char* format, int64_t n_out, int64_t n_in, int64_t rows) {
  if (equal) return;
  ++failures;
  std::fprintf(stderr, "%s of %s, %ld x %ld, %ld rows: other bytes than the scalar kernels'\n", what, format, long(n_out),
               long(n_in), long(rows));
}

// Calls f(begin, end) for a range in three parts, each in its own thread.
template <class F>
void in_threads(int64_t count, const F& f) {
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < 3; ++i) threads.emplace_back([&, i] { f(count * i / 3, count * (i + 1) / 3); });
  for (auto& t : threads) t.join();
}

constexpr int64_t kRows = 133;

template <class Format>
void check(WeightFormat format, int64_t n_out, int64_t n_in, int group_blocks, const std::vector<int64_t>& counts) {
  const Weight<Format> weight(format, n_out, n_in, group_blocks, n_out % 2 == 1), other(format, n_out, n_in, group_blocks, false);
  const Activations x(kRows, n_in);
  const int64_t stride = n_out + 3, groups = (n_out + 31) / 32;
  const std::vector<float> before(size_t(kRows * stride), 0.75f);
  std::vector<float> expected = before, added = before;
  Activations next(kRows, n_out), expected_next(kRows, n_out);
  for (int64_t r = 0; r < kRows; ++r) {
    const Rows row = x.part(r, 1);
    oracle->linear(weight.matrix, row, 0, weight.matrix.tiles(), expected.data() + r * stride, stride, false);
    oracle->linear(weight.matrix, row, 0, weight.matrix.tiles(), added.data() + r * stride, stride, true);
    for (bool quantize : {false, true})
      oracle->gate_up(weight.matrix, other.matrix, Activation{}, row, 0, groups, expected_next.part(r, 1), quantize);
  }
  for (int64_t count : counts) {
    const Rows rows = x.part(0, count);
    const size_t bytes = size_t(count * stride) * sizeof(float);
    for (bool add : {false, true}) {
      std::vector<float> got = before;
      in_threads(weight.matrix.tiles(), [&](int64_t begin, int64_t end) {
        tiles->linear(weight.matrix, rows, begin, end, got.data() + begin * kLanes, stride, add);
      });
      expect(std::memcmp(got.data(), (add ? added : expected).data(), bytes) == 0, "linear", Format::kName, n_out, n_in, count);
      expect(std::memcmp(got.data() + count * stride, before.data(), before.size() * sizeof(float) - bytes) == 0,
             "rows behind those", Format::kName, n_out, n_in, count);
    }
    next = Activations(kRows, n_out);
    const Rows into = count % 2 == 0 ? next.rows : separate_rows(next.rows, 0, count);  // separate, or before other rows
    for (bool quantize : {false, true})
      in_threads(groups, [&](int64_t begin, int64_t end) {
        tiles->gate_up(weight.matrix, other.matrix, Activation{}, rows, begin, end, rows_of(into, 0, count), quantize);
      });
    expect(equal_rows(into, expected_next.rows, count), "gate_up", Format::kName, n_out, n_in, count);
  }
}

template <class Format>
void check_format(WeightFormat format) {
  std::vector<int64_t> all, some{1, 16, 23, 24, 31, 33, 48, 63, 64, 65, 100, kRows};
  for (int64_t n = 1; n <= 65; ++n) all.push_back(n);
  check<Format>(format, 17, 33, 1, all);
  check<Format>(format, 40, 172, 2, some);
  check<Format>(format, 1, 1, 1, some);
  check<Format>(format, 33, 576, 1, some);
}

template <class Format>
struct Check {
  static int value() {
    if constexpr (Format::kArithmetic == Arithmetic::whole) check_format<Format>(Format::kFormat);
    return 0;
  }
};

}  // namespace

int main() {
  format_table<Check>();
  if (failures == 0) std::puts("amx_tiles_test: ok");
  return failures != 0;
}
