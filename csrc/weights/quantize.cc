// One loop nest for every format and float kind, in plain C++ that the compiler vectorises. It is compiled twice: for
// the baseline and, on x86-64, for AVX2. Both execute the same IEEE operations in the same order (no fma: this file is
// built with -ffp-contract=off), hence the same bits.
#include "weights/quantize.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/half.h"
#include "runtime/thread_pool.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define IPEX_LOOKAHEAD_AVX2_TWIN 1
#endif

#if defined(__GNUC__)
#define ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define ALWAYS_INLINE inline
#endif

namespace ipex_lookahead {
namespace {

constexpr int kBlock = 32;     // inputs in a block of codes
constexpr int kMaxGroup = 64;  // most inputs that share a scale
constexpr int kParts = 4;      // pieces for each thread: a late thread does not hold up the others

constexpr uint32_t kMagnitude = 0x7fffffffu;
constexpr uint32_t kInfinity = 0x7f800000u;

ALWAYS_INLINE float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

ALWAYS_INLINE uint32_t to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Binary16 -> float32, exact. Exponent and mantissa move to their places; multiplying by 2^112 corrects the exponent's
// bias and normalises subnormals at once. Infinity and NaN get their exponent back.
ALWAYS_INLINE float widen_binary16(uint16_t half) {
  const uint32_t magnitude = uint32_t(half & 0x7fff) << 13;
  const uint32_t value = to_bits(from_bits(magnitude) * from_bits(0x77800000u));
  const uint32_t special = (half & 0x7c00) == 0x7c00 ? kInfinity : 0u;
  return from_bits(value | special | uint32_t(half & 0x8000) << 16);
}

ALWAYS_INLINE bool finite_binary16(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

ALWAYS_INLINE float inverse_of(float scale) { return scale != 0.0f ? 1.0f / scale : 0.0f; }

// Rounds half to even, for |value| < 2^22: adding 1.5 * 2^23 leaves the whole number in the low bits of the sum.
ALWAYS_INLINE int32_t nearest(float value) { return int32_t(to_bits(value + 12582912.0f) - 0x4b400000u); }

ALWAYS_INLINE int32_t clamp(int32_t value, int32_t low, int32_t high) {
  value = value < low ? low : value;
  return value > high ? high : value;
}

// Floats clamped to [0, high] by their bits: as signed integers positive floats are in order, and negative ones are
// negative. (Comparing floats would keep the compiler from vectorising, because it may raise a flag.)
ALWAYS_INLINE float clamp_positive(float value, float high) {
  return from_bits(uint32_t(clamp(int32_t(to_bits(value)), 0, int32_t(to_bits(high)))));
}

ALWAYS_INLINE float load(const float* src, int i) { return src[i]; }

struct Binary16 { uint16_t bits; };
struct Bfloat16 { uint16_t bits; };

ALWAYS_INLINE float load(const Binary16* src, int i) { return widen_binary16(src[i].bits); }
ALWAYS_INLINE float load(const Bfloat16* src, int i) { return from_bits(uint32_t(src[i].bits) << 16); }

// The formats. Each has quantize(x, size, largest, ...): `size` values are real and the rest repeat the last of them;
// `largest` is the bits of the largest magnitude, which is finite. It fills codes[0..Group), and returns false where the
// scale or the minimum is beyond binary16. The sym formats divide by a scale that is at least two thirds of the exact
// one (binary16's coarsest rounding), so that |x * inverse| stays below 200.

struct ToSymInt4 {
  static constexpr bool nibbles = true;
  static constexpr int32_t padding = 8;

  template <int Group>
  ALWAYS_INLINE static bool quantize(const float* x, int size, uint32_t largest, int32_t* codes, uint16_t* scale,
                                     uint16_t*) {
    int first = 0;
    while (first + 1 < size && (to_bits(x[first]) & kMagnitude) != largest) ++first;
    *scale = float_to_half(x[first] * -0.125f);
    const float inverse = inverse_of(widen_binary16(*scale));
    for (int i = 0; i < Group; ++i) codes[i] = clamp(nearest(x[i] * inverse) + 8, 0, 15);
    return finite_binary16(*scale);
  }
};

struct ToSymInt8 {
  static constexpr bool nibbles = false;
  static constexpr int32_t padding = 0;

  template <int Group>
  ALWAYS_INLINE static bool quantize(const float* x, int, uint32_t largest, int32_t* codes, uint16_t* scale,
                                     uint16_t*) {
    *scale = float_to_half(from_bits(largest) / 127.0f);
    const float inverse = inverse_of(widen_binary16(*scale));
    for (int i = 0; i < Group; ++i) codes[i] = clamp(nearest(x[i] * inverse), -127, 127);
    return finite_binary16(*scale);
  }
};

struct ToAsymInt4 {
  static constexpr bool nibbles = true;
  static constexpr int32_t padding = 0;

  template <int Group>
  ALWAYS_INLINE static bool quantize(const float* x, int, uint32_t, int32_t* codes, uint16_t* scale,
                                     uint16_t* minimum) {
    float lows[8], highs[8];  // eight lanes side by side, so that the search vectorises
    for (int j = 0; j < 8; ++j) lows[j] = highs[j] = x[j];
    for (int i = 8; i < Group; i += 8) {
      for (int j = 0; j < 8; ++j) {
        lows[j] = x[i + j] < lows[j] ? x[i + j] : lows[j];
        highs[j] = x[i + j] > highs[j] ? x[i + j] : highs[j];
      }
    }
    float low = lows[0], high = highs[0];
    for (int j = 1; j < 8; ++j) {
      low = lows[j] < low ? lows[j] : low;
      high = highs[j] > high ? highs[j] : high;
    }
    low += 0.0f;  // -0 becomes +0: which of two equal zeros was found must not matter
    high += 0.0f;
    *minimum = float_to_half(low);
    *scale = float_to_half((high - low) / 15.0f);
    const float origin = widen_binary16(*minimum);
    const float inverse = inverse_of(widen_binary16(*scale));
    // Clamped first: beside a coarse minimum a fine scale may make this too large for nearest().
    for (int i = 0; i < Group; ++i) codes[i] = nearest(clamp_positive((x[i] - origin) * inverse, 15.0f));
    return finite_binary16(*scale) && finite_binary16(*minimum);
  }
};

// Rows [begin, end). Returns -1 or the first row that cannot be represented.
template <class Format, class Source, int Group>
ALWAYS_INLINE int64_t quantize_rows(const Source* src, int64_t n_in, int64_t begin, int64_t end, QuantizedStreams out) {
  const int64_t blocks = (n_in + kBlock - 1) / kBlock;
  const int64_t groups = (n_in + Group - 1) / Group;
  const int64_t block_bytes = Format::nibbles ? kBlock / 2 : kBlock;
  float x[kMaxGroup];
  int32_t codes[kMaxGroup];
  for (int64_t row = begin; row < end; ++row) {
    const Source* values = src + row * n_in;
    for (int64_t g = 0; g < groups; ++g) {
      const int size = int(std::min<int64_t>(Group, n_in - g * Group));
      if (size == Group) {
        for (int i = 0; i < Group; ++i) x[i] = load(values + g * Group, i);
      } else {
        for (int i = 0; i < size; ++i) x[i] = load(values + g * Group, i);
        for (int i = size; i < Group; ++i) x[i] = x[size - 1];
      }
      // Magnitudes of floats are ordered as their bits are, and NaN and infinity come last.
      int32_t largest = 0;
      for (int i = 0; i < Group; ++i) largest = std::max(largest, int32_t(to_bits(x[i]) & kMagnitude));
      if (uint32_t(largest) >= kInfinity) return row;

      const int64_t at = row * groups + g;
      uint16_t* minimum = out.minimums ? out.minimums + at : nullptr;
      if (!Format::template quantize<Group>(x, size, uint32_t(largest), codes, out.scales + at, minimum)) return row;
      for (int i = size; i < Group; ++i) codes[i] = Format::padding;

      uint8_t* bytes = out.codes + (row * blocks + g * (Group / kBlock)) * block_bytes;
      for (int b = 0; b < (size + kBlock - 1) / kBlock; ++b, bytes += block_bytes) {
        const int32_t* code = codes + b * kBlock;
        if (Format::nibbles) {
          for (int i = 0; i < kBlock / 2; ++i) bytes[i] = uint8_t(code[i] | code[i + kBlock / 2] << 4);
        } else {
          for (int i = 0; i < kBlock; ++i) bytes[i] = uint8_t(code[i]);
        }
      }
    }
  }
  return -1;
}

using RowsFunction = int64_t (*)(const void*, int64_t, int64_t, int64_t, QuantizedStreams);

template <class Format, class Source, int Group>
int64_t rows_baseline(const void* src, int64_t n_in, int64_t begin, int64_t end, QuantizedStreams out) {
  return quantize_rows<Format, Source, Group>(static_cast<const Source*>(src), n_in, begin, end, out);
}

#if defined(IPEX_LOOKAHEAD_AVX2_TWIN)
template <class Format, class Source, int Group>
__attribute__((target("avx2"))) int64_t rows_avx2(const void* src, int64_t n_in, int64_t begin, int64_t end,
                                                  QuantizedStreams out) {
  return quantize_rows<Format, Source, Group>(static_cast<const Source*>(src), n_in, begin, end, out);
}
#endif

template <class Format, class Source, int Group>
RowsFunction choose_isa() {
#if defined(IPEX_LOOKAHEAD_AVX2_TWIN)
  if (__builtin_cpu_supports("avx2")) return rows_avx2<Format, Source, Group>;
#endif
  return rows_baseline<Format, Source, Group>;
}

template <class Format, class Source>
RowsFunction choose_group(int group) {
  return group == 64 ? choose_isa<Format, Source, 64>() : choose_isa<Format, Source, 32>();
}

template <class Format>
RowsFunction choose(WeightFormat kind, int group) {
  switch (kind) {
    case WeightFormat::fp16: return choose_group<Format, Binary16>(group);
    case WeightFormat::bf16: return choose_group<Format, Bfloat16>(group);
    default: return choose_group<Format, float>(group);
  }
}

// Every thread of a crew computes in the default floating-point environment (round to nearest, subnormals kept).
int64_t split_rows(RowsFunction rows, const void* src, int64_t n_out, int64_t n_in, int threads, QuantizedStreams out) {
  Crew crew(threads);
  const int64_t parts = std::min<int64_t>(kParts * crew.size(), n_out);
  std::vector<int64_t> bad(size_t(parts), -1);
  crew.for_each(parts, [&](int64_t part) {
    const auto range = part_of(n_out, parts, part);
    bad[size_t(part)] = rows(src, n_in, range.first, range.second, out);
  });
  for (int64_t row : bad)
    if (row >= 0) return row;
  return -1;
}

template <class Format>
int64_t quantize(const void* source, WeightFormat kind, int64_t n_out, int64_t n_in, int group, int threads,
                 QuantizedStreams out) {
  return split_rows(choose<Format>(kind, group), source, n_out, n_in, threads, out);
}

}  // namespace

Quantizer* quantizer_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::sym_int4: return quantize<ToSymInt4>;
    case WeightFormat::asym_int4: return quantize<ToAsymInt4>;
    case WeightFormat::sym_int8: return quantize<ToSymInt8>;
    default: return nullptr;
  }
}

}  // namespace ipex_lookahead
