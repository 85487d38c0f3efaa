// One implementation of each search for every number of lanes, in compiler vectors: a lane is a part, a column of search.py.
// search.cc compiles it for the baseline, AVX2 and AVX-512. All execute the same IEEE operations in the same order (no fma:
// -ffp-contract=off), so results are bit-equal. Names and order follow search.py and columns.py, which explain the algorithms.
// MinimumSearch is in minimum_searcher.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/half.h"
#include "weights/search.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace ipex_lookahead {
namespace {

constexpr float kMinScale = 1e-30f;  // as in float_scales.py
constexpr float kTiny = 1e-38f, kSingular = 4e-6f, kClearly = 1 + 0x1p-22f;
constexpr int kNear[] = {0, -1, 1};
constexpr int kChunk = kMaxParts;  // parts per chunk: whole blocks

template <int L>
struct Lanes {
  typedef float F __attribute__((vector_size(4 * L)));
  typedef int32_t I __attribute__((vector_size(4 * L)));
  typedef uint8_t Bytes __attribute__((vector_size(L)));
};

// Tables of numbers: integers; ascending numbers with the negative of each; or ascending numbers.
enum class Table { whole, mirrored, any };

template <int L>
struct Searcher {
  using F = typename Lanes<L>::F;
  using I = typename Lanes<L>::I;
  using Bytes = typename Lanes<L>::Bytes;
  static constexpr int kVectors = kChunk / L;

  // One number for each part of the chunk.
  struct PerPart {
    alignas(64) float of[kChunk];
    ALWAYS_INLINE F get(int v) const {
      F found;
      std::memcpy(&found, of + v * L, sizeof found);
      return found;
    }
    ALWAYS_INLINE void set(int v, F value) { std::memcpy(of + v * L, &value, sizeof value); }
  };

  // The chunk's blocks with steps; `error` is per part, or, in the first lane of each block, per block.
  struct Stepped {
    uint16_t scale[kChunk], minimum[kChunk];
    PerPart steps, minimum_steps, error;
  };

  const Search& search;
  const int least_number, most_number;
  float middles[kMaxNumbers];
  size_t first_middle = 0;  // first middle to compare: for mirrored numbers, the first above 0
  alignas(64) F x[kVectors][kMaxSearched], w[kVectors][kMaxSearched];

  ALWAYS_INLINE explicit Searcher(const Search& s)
      : search(s), least_number(int(s.numbers.front())), most_number(int(s.numbers.back())) {
    for (size_t i = 0; i + 1 < s.numbers.size(); ++i) middles[i] = (s.numbers[i + 1] + s.numbers[i]) / 2;
    const auto opposite = [](float a, float b) { return a == -b; };
    if (std::equal(s.numbers.begin(), s.numbers.end(), s.numbers.rbegin(), opposite) && s.numbers.size() % 2 == 1)
      first_middle = s.numbers.size() / 2;
  }

  static ALWAYS_INLINE F all(float value) { return F{} + value; }
  static ALWAYS_INLINE F nothing_yet() { return all(-0.0f); }  // neutral start of a sum: adding to -0 changes no bit
  static ALWAYS_INLINE F magnitude(F value) { return (F)((I)value & 0x7fffffff); }
  static ALWAYS_INLINE F inverse_of(F scale) {
    const F inverse = 1.0f / scale;
    const I finite = ((I)inverse & 0x7f800000) != 0x7f800000;
    return ((scale != all(0)) & finite) ? inverse : all(0);
  }
  static ALWAYS_INLINE F clamped(F value, float low, float high) {
    value = value < all(low) ? all(low) : value;
    return value > all(high) ? all(high) : value;
  }

  // The nearest integer in [low, high]. Clamps the sum's bits as integers, which order like the floats and take one
  // instruction; clamping floats takes two, because they may be NaN.
  static ALWAYS_INLINE F whole(F value, int low, int high) {
    I sum = (I)(value + 12582912.0f);
    const I least = I{} + (0x4b400000 + low), most = I{} + (0x4b400000 + high);
    sum = sum < least ? least : sum;
    sum = sum > most ? most : sum;
    return (F)sum - 12582912.0f;
  }

  template <Table Of>
  ALWAYS_INLINE F nearest(F value) const {
    if (Of == Table::whole) return whole(value, least_number, most_number);
    const I mirrored = Of == Table::mirrored ? value < all(0) : I{};
    const F side = on_one_side(value, mirrored);
    F found = all(search.numbers[first_middle]);
    for (size_t i = first_middle; i + 1 < search.numbers.size(); ++i)
      found = side > all(middles[i]) ? all(search.numbers[i + 1]) : found;
    return mirrored ? -found : found;
  }

  template <Table Of>
  ALWAYS_INLINE I code(F value) const {
    if (Of == Table::whole) return __builtin_convertvector(nearest<Of>(value), I) - least_number;
    const I mirrored = Of == Table::mirrored ? value < all(0) : I{};
    const F side = on_one_side(value, mirrored);
    I count{};
    for (size_t i = first_middle; i + 1 < search.numbers.size(); ++i) count -= (I)(side > all(middles[i]));
    return (mirrored ? -count : count) + int(first_middle);
  }

  // Maps a negative value to the positive numbers for comparison: just above its magnitude, because a tie goes to the lower
  // number, which is the one farther from 0.
  static ALWAYS_INLINE F on_one_side(F value, I mirrored) {
    return mirrored ? (F)((I)magnitude(value) + 1) : value;
  }

  // Loads the chunk's parts as lanes, and the weights of their squared errors. Padding is 0.
  ALWAYS_INLINE void load(const float* values, const float* importance, int64_t first, int64_t parts, int64_t repeated) {
    static const float nothing[kMaxSearched] = {};
    const int size = search.size;
    for (int v = 0; v < kVectors; ++v) {
      const float *from[L], *weighs[L];
      for (int lane = 0; lane < L; ++lane) {
        const int64_t part = first + v * L + lane;
        from[lane] = part < parts ? values + part * size : nothing;
        weighs[lane] = part < parts ? importance + part % repeated * size : nothing;
      }
      F squares = nothing_yet();
      for (int i = 0; i < size; ++i) {
        x[v][i] = row_of(from, i);
        squares = squares + x[v][i] * x[v][i];
      }
      squares = squares / float(size);
      F mean;
      for (int lane = 0; lane < L; ++lane) mean[lane] = std::sqrt(squares[lane]);
      for (int i = 0; i < size; ++i) w[v][i] = row_of(weighs, i) * (mean + magnitude(x[v][i]));
    }
  }

  static ALWAYS_INLINE F row_of(const float* const* columns, int i) {
    F row;
    for (int lane = 0; lane < L; ++lane) row[lane] = columns[lane][i];
    return row;
  }

  // ---- ScaleSearch -----------------------------------------------------------------------------------------------

  template <Table Of>
  ALWAYS_INLINE F fitted_scale(int v) const {
    F largest = x[v][0];
    for (int i = 1; i < search.size; ++i) largest = magnitude(x[v][i]) > magnitude(largest) ? x[v][i] : largest;
    const F inverse = inverse_of(largest);
    F best = all(0), score = all(0);
    for (const float extreme : search.tries) {
      const F to_number = inverse * extreme;
      F product = nothing_yet(), square = nothing_yet();
      for (int i = 0; i < search.size; ++i) {
        const F number = nearest<Of>(x[v][i] * to_number), weighted = w[v][i] * number;
        product = product + weighted * x[v][i];
        square = square + weighted * number;
      }
      const F scale = product / (square > all(kTiny) ? square : all(kTiny)), gain = scale * product;
      const I better = gain > kClearly * score;
      best = better ? scale : best;
      score = better ? gain : score;
    }
    return best;
  }

  template <Table Of>
  ALWAYS_INLINE void try_scales(Stepped& best, const PerPart& around) const {
    for (int v = 0; v < kVectors; ++v) {
      const F scale = of_blocks(best.scale, v);
      F steps_found = around.get(v), least = all(std::numeric_limits<float>::infinity());
      for (const int near : kNear) {
        const F steps = limited(around.get(v) + float(near)), stored = scale * steps, inverse = inverse_of(stored);
        F error = nothing_yet();
        for (int i = 0; i < search.size; ++i) {
          const F rest = x[v][i] - stored * nearest<Of>(x[v][i] * inverse);
          error = error + w[v][i] * rest * rest;
        }
        const I better = error < least;
        steps_found = better ? steps : steps_found;
        least = better ? error : least;
      }
      best.steps.set(v, steps_found);
      best.error.set(v, least);
    }
    sum_of_blocks(best.error);
  }

  template <Table Of>
  ALWAYS_INLINE void refit_scales(const Stepped& found, uint16_t* refitted) const {
    PerPart product, square;
    for (int v = 0; v < kVectors; ++v) {
      const F steps = found.steps.get(v), inverse = inverse_of(of_blocks(found.scale, v) * steps);
      F products = nothing_yet(), squares = nothing_yet();
      for (int i = 0; i < search.size; ++i) {
        const F multiplied = steps * nearest<Of>(x[v][i] * inverse), weighted = w[v][i] * multiplied;
        products = products + weighted * x[v][i];
        squares = squares + weighted * multiplied;
      }
      product.set(v, products);
      square.set(v, squares);
    }
    sum_of_blocks(product);
    sum_of_blocks(square);
    for (int p = 0; p < kChunk; p += parts_of_block())
      refitted[p] = square.of[p] > 0 ? float_to_half(product.of[p] / std::max(square.of[p], kTiny)) : found.scale[p];
  }

  template <Table Of>
  ALWAYS_INLINE void scales(int64_t first, int64_t parts, const FoundParts& out) {
    PerPart scale;
    for (int v = 0; v < kVectors; ++v) scale.set(v, fitted_scale<Of>(v));
    if (search.kind == SearchKind::float_scale) return float_scales<Of>(scale, first, parts, out);
    Stepped found;
    PerPart around;
    const int count = parts_of_block();
    for (int p = 0; p < kChunk; p += count) {
      float largest = scale.of[p];
      for (int i = 1; i < count; ++i)
        if (std::fabs(scale.of[p + i]) > std::fabs(largest)) largest = scale.of[p + i];
      found.scale[p] = float_to_half(search.step_limit ? largest / float(search.step_limit) : largest);
    }
    if (search.step_limit) {
      for (int v = 0; v < kVectors; ++v)
        around.set(v, whole(scale.get(v) * inverse_of(of_blocks(found.scale, v)), search.step_limit, -search.step_limit - 1));
      try_scales<Of>(found, around);
      Stepped again;
      refit_scales<Of>(found, again.scale);
      try_scales<Of>(again, found.steps);
      take_better(found, again);
    }
    for (int v = 0; v < kVectors; ++v) {
      F stored = of_blocks(found.scale, v);
      if (search.step_limit) stored = stored * found.steps.get(v);
      const F inverse = inverse_of(stored);
      Bytes codes[kMaxSearched];
      for (int i = 0; i < search.size; ++i) codes[i] = __builtin_convertvector(code<Of>(x[v][i] * inverse), Bytes);
      put_codes(codes, v, first, parts, out);
    }
    put_blocks(found, first, parts, out);
  }

  template <Table Of>
  ALWAYS_INLINE void float_scales(const PerPart& scales, int64_t first, int64_t parts, const FoundParts& out) const {
    for (int v = 0; v < kVectors; ++v) {
      F scale = scales.get(v);
      scale = magnitude(scale) < all(kMinScale) ? all(0) : scale;
      const F inverse = inverse_of(scale);
      Bytes codes[kMaxSearched];
      for (int i = 0; i < search.size; ++i) codes[i] = __builtin_convertvector(code<Of>(x[v][i] * inverse), Bytes);
      put_codes(codes, v, first, parts, out);
      for (int lane = 0; lane < L && first + v * L + lane < parts; ++lane) out.float_scale[first + v * L + lane] = scale[lane];
    }
  }

  // ---- ZeroSearch ------------------------------------------------------------------------------------------------

  ALWAYS_INLINE void zeros(int64_t first, int64_t parts, const FoundParts& out) const {
    constexpr int kFar = 1 << 20;  // beyond every code, and exact in float
    for (int v = 0; v < kVectors; ++v) {
      F low = all(0), high = all(0);
      for (int i = 0; i < search.size; ++i) {
        low = x[v][i] < low ? x[v][i] : low;
        high = x[v][i] > high ? x[v][i] : high;
      }
      F best_zero = all(0), least = all(std::numeric_limits<float>::infinity());
      uint16_t best[L], bits[L];
      Bytes codes[kMaxSearched];
      for (const float part : search.tries) {
        F scale = (high - low) * (part / float(most_number));
        F inverse = inverse_of(scale);
        const F zero = number_of(-low * part * inverse);
        F products = nothing_yet(), squares = nothing_yet();
        for (int i = 0; i < search.size; ++i) {
          const F steps = clamped(whole(x[v][i] * inverse, -kFar, kFar) + zero, 0, float(most_number)) - zero;
          products = products + w[v][i] * x[v][i] * steps;
          squares = squares + w[v][i] * steps * steps;
        }
        const F fitted = products / (squares > all(kTiny) ? squares : all(kTiny));
        scale = squares > all(0) ? fitted : scale;
        for (int lane = 0; lane < L; ++lane) {
          bits[lane] = float_to_half(scale[lane]);
          scale[lane] = half_to_float(bits[lane]);
        }
        inverse = inverse_of(scale);
        F error = nothing_yet();
        Bytes tried[kMaxSearched];
        for (int i = 0; i < search.size; ++i) {
          const F number = clamped(whole(x[v][i] * inverse, -kFar, kFar) + zero, 0, float(most_number));
          const F rest = x[v][i] - scale * (number - zero);
          error = error + w[v][i] * rest * rest;
          tried[i] = __builtin_convertvector(__builtin_convertvector(number, I), Bytes);
        }
        const I first_try = I{} - int(part == search.tries.front());  // the fallback if a scale is beyond binary16
        const I better = (error < least) | first_try;
        least = better ? error : least;
        best_zero = better ? zero : best_zero;
        const Bytes taken = __builtin_convertvector(better, Bytes);
        for (int i = 0; i < search.size; ++i) codes[i] = taken ? tried[i] : codes[i];
        for (int lane = 0; lane < L; ++lane)
          if (better[lane]) best[lane] = bits[lane];
      }
      put_codes(codes, v, first, parts, out);
      for (int lane = 0; lane < L && first + v * L + lane < parts; ++lane) {
        out.scale[first + v * L + lane] = best[lane];
        out.minimum[first + v * L + lane] = float_to_half(best_zero[lane]);
      }
    }
  }

  // ---- ExponentSearch --------------------------------------------------------------------------------------------

  ALWAYS_INLINE void exponents(int64_t first, int64_t parts, const FoundParts& out) const {
    for (int v = 0; v < kVectors; ++v) {
      F largest = all(0);
      for (int i = 0; i < search.size; ++i) largest = magnitude(x[v][i]) > largest ? magnitude(x[v][i]) : largest;
      I exponent = ((I)largest >> 23) - 2;
      exponent = exponent < 0 ? I{} : exponent;
      const I power = exponent < 2 ? (I{} + 0x00200000) << (exponent & 1) : (exponent - 1) << 23;
      Bytes codes[kMaxSearched];
      for (int i = 0; i < search.size; ++i) {
        const F halves = magnitude(x[v][i]) / (F)power;
        I code{};
        for (const float number : search.numbers) code -= (I)(halves > all(number));
        code = (x[v][i] < all(0)) & (code > 0) ? code + 8 : code;
        codes[i] = __builtin_convertvector(code, Bytes);
      }
      put_codes(codes, v, first, parts, out);
      for (int lane = 0; lane < L && first + v * L + lane < parts; ++lane)
        out.steps[first + v * L + lane] = int16_t(exponent[lane]);
    }
  }

  // ---- blocks ----------------------------------------------------------------------------------------------------

  ALWAYS_INLINE int parts_of_block() const { return search.inputs / search.size; }
  ALWAYS_INLINE bool of_minimums() const { return search.kind == SearchKind::minimum; }

  // Broadcasts each block's number, stored at its first part, to its parts.
  ALWAYS_INLINE F of_blocks(const uint16_t* halves, int v) const {
    F found{};
    for (int lane = 0; lane < L; ++lane) found[lane] = half_to_float(halves[(v * L + lane) & -parts_of_block()]);
    return found;
  }

  ALWAYS_INLINE void sum_of_blocks(PerPart& parts) const {
    const int count = parts_of_block();
    for (int p = 0; p < kChunk; p += count)
      for (int i = 1; i < count; ++i) parts.of[p] = parts.of[p] + parts.of[p + i];
  }

  ALWAYS_INLINE void take_better(Stepped& found, const Stepped& again) const {
    const int count = parts_of_block();
    for (int p = 0; p < kChunk; p += count) {
      if (!(again.error.of[p] < found.error.of[p])) continue;
      found.scale[p] = again.scale[p];
      found.minimum[p] = again.minimum[p];
      for (int i = p; i < p + count; ++i) {
        found.steps.of[i] = again.steps.of[i];
        found.minimum_steps.of[i] = again.minimum_steps.of[i];
      }
    }
  }

  ALWAYS_INLINE F number_of(F value) const { return whole(value, 0, most_number); }
  ALWAYS_INLINE F limited(F steps) const {
    return clamped(steps, float(search.step_limit), float(-search.step_limit - 1));
  }

  // Writes a vector's codes: code i of each lane is in row i.
  ALWAYS_INLINE void put_codes(const Bytes* codes, int v, int64_t first, int64_t parts, const FoundParts& out) const {
    const int64_t from = first + v * L;
    const int there = int(std::max<int64_t>(0, std::min<int64_t>(L, parts - from)));
    const auto* rows = reinterpret_cast<const uint8_t*>(codes);
    for (int lane = 0; lane < there; ++lane)
      for (int i = 0; i < search.size; ++i) out.codes[(from + lane) * search.size + i] = rows[i * L + lane];
  }

  ALWAYS_INLINE void put_blocks(const Stepped& found, int64_t first, int64_t parts, const FoundParts& out) const {
    const int count = parts_of_block();
    for (int p = 0; p < kChunk && first + p < parts; ++p) {
      if (p % count == 0) {
        out.scale[(first + p) / count] = found.scale[p];
        if (of_minimums()) out.minimum[(first + p) / count] = found.minimum[p];
      }
      if (search.step_limit == 0) continue;
      out.steps[first + p] = int16_t(found.steps.of[p]);
      if (of_minimums()) out.minimum_steps[first + p] = int16_t(found.minimum_steps.of[p]);
    }
  }
};

#undef ALWAYS_INLINE

}  // namespace
}  // namespace ipex_lookahead
