// One search for every number of lanes, in vectors of the compiler's: a lane is a part, a column of search.py. search.cc
// compiles it three times, for the baseline, AVX2 and AVX-512; all execute the same IEEE operations in the same order (no
// fma: -ffp-contract=off), hence the same bits. Names and order are those of
// search.py and columns.py; what they explain is not said again. It is over 500 lines because all of it is one template,
// whose steps have to be inlined into each other to stay in registers, and is read beside its definition from top to end.
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

constexpr float kLeastScale = 1e-30f;  // float_scales.py's
constexpr float kTiny = 1e-38f, kSingular = 4e-6f, kClearly = 1 + 0x1p-22f;
constexpr int kNear[] = {0, -1, 1};
constexpr int kChunk = kMostParts;  // parts in hand: whole blocks

template <int L>
struct Lanes {
  typedef float F __attribute__((vector_size(4 * L)));
  typedef int32_t I __attribute__((vector_size(4 * L)));
  typedef uint8_t Bytes __attribute__((vector_size(L)));
};

// Numbers that codes stand for: whole ones; ascending ones with the negative of each; or ascending ones.
enum class Table { whole, mirrored, any };

template <int L>
struct Searcher {
  using F = typename Lanes<L>::F;
  using I = typename Lanes<L>::I;
  using Bytes = typename Lanes<L>::Bytes;
  static constexpr int kVectors = kChunk / L;

  // One number for each part in hand.
  struct PerPart {
    alignas(64) float of[kChunk];
    ALWAYS_INLINE F get(int v) const {
      F found;
      std::memcpy(&found, of + v * L, sizeof found);
      return found;
    }
    ALWAYS_INLINE void set(int v, F value) { std::memcpy(of + v * L, &value, sizeof value); }
  };

  // Blocks in hand with steps; error is that of parts, or in the first lane of each block the block's.
  struct Stepped {
    uint16_t scale[kChunk], minimum[kChunk];
    PerPart steps, minimum_steps, error;
  };

  const Search& search;
  const int least_number, most_number;
  float middles[kMostNumbers];
  size_t first_middle = 0;  // of those that are looked at: where numbers are mirrored about a 0, above that
  alignas(64) F x[kVectors][kMostSearched], w[kVectors][kMostSearched];

  ALWAYS_INLINE explicit Searcher(const Search& s)
      : search(s), least_number(int(s.numbers.front())), most_number(int(s.numbers.back())) {
    for (size_t i = 0; i + 1 < s.numbers.size(); ++i) middles[i] = (s.numbers[i + 1] + s.numbers[i]) / 2;
    const auto opposite = [](float a, float b) { return a == -b; };
    if (std::equal(s.numbers.begin(), s.numbers.end(), s.numbers.rbegin(), opposite) && s.numbers.size() % 2 == 1)
      first_middle = s.numbers.size() / 2;
  }

  static ALWAYS_INLINE F all(float value) { return F{} + value; }
  static ALWAYS_INLINE F nothing_yet() { return all(-0.0f); }  // what a sum begins with: adding to it changes no bit
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

  // The nearest whole number from low to high: the sum's bits are in order as integers are, however large the value, and
  // integers are limited in one instruction where floats, which might be NaN, take two.
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

  // What a negative value is compared as among the positive numbers: just above its magnitude, since of two numbers as near
  // the lower one is meant, which is the one farther from 0 there.
  static ALWAYS_INLINE F on_one_side(F value, I mirrored) {
    return mirrored ? (F)((I)magnitude(value) + 1) : value;
  }

  // The chunk's parts as lanes, and the weights of their squared errors. What there is not is 0.
  ALWAYS_INLINE void load(const float* values, const float* importance, int64_t first, int64_t parts, int64_t repeated) {
    static const float nothing[kMostSearched] = {};
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
      Bytes codes[kMostSearched];
      for (int i = 0; i < search.size; ++i) codes[i] = __builtin_convertvector(code<Of>(x[v][i] * inverse), Bytes);
      put_codes(codes, v, first, parts, out);
    }
    put_blocks(found, first, parts, out);
  }

  template <Table Of>
  ALWAYS_INLINE void float_scales(const PerPart& scales, int64_t first, int64_t parts, const FoundParts& out) const {
    for (int v = 0; v < kVectors; ++v) {
      F scale = scales.get(v);
      scale = magnitude(scale) < all(kLeastScale) ? all(0) : scale;
      const F inverse = inverse_of(scale);
      Bytes codes[kMostSearched];
      for (int i = 0; i < search.size; ++i) codes[i] = __builtin_convertvector(code<Of>(x[v][i] * inverse), Bytes);
      put_codes(codes, v, first, parts, out);
      for (int lane = 0; lane < L && first + v * L + lane < parts; ++lane) out.float_scale[first + v * L + lane] = scale[lane];
    }
  }

  // ---- ZeroSearch ------------------------------------------------------------------------------------------------

  ALWAYS_INLINE void zeros(int64_t first, int64_t parts, const FoundParts& out) const {
    constexpr int kFar = 1 << 20;  // beyond every code, and exact
    for (int v = 0; v < kVectors; ++v) {
      F low = all(0), high = all(0);
      for (int i = 0; i < search.size; ++i) {
        low = x[v][i] < low ? x[v][i] : low;
        high = x[v][i] > high ? x[v][i] : high;
      }
      F best_zero = all(0), least = all(std::numeric_limits<float>::infinity());
      uint16_t best[L], bits[L];
      Bytes codes[kMostSearched];
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
        Bytes tried[kMostSearched];
        for (int i = 0; i < search.size; ++i) {
          const F number = clamped(whole(x[v][i] * inverse, -kFar, kFar) + zero, 0, float(most_number));
          const F rest = x[v][i] - scale * (number - zero);
          error = error + w[v][i] * rest * rest;
          tried[i] = __builtin_convertvector(__builtin_convertvector(number, I), Bytes);
        }
        const I first_try = I{} - int(part == search.tries.front());  // which stays where a scale is beyond binary16
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
      Bytes codes[kMostSearched];
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

  // ---- MinimumSearch ---------------------------------------------------------------------------------------------

  ALWAYS_INLINE F number_of(F value) const { return whole(value, 0, most_number); }

  ALWAYS_INLINE void fitted_minimum(int v, F& scale, F& minimum) const {
    F low = x[v][0], high = low;
    for (int i = 1; i < search.size; ++i) {
      low = x[v][i] < low ? x[v][i] : low;
      high = x[v][i] > high ? x[v][i] : high;
    }
    low = low + 0.0f;
    high = high + 0.0f;
    if (search.step_limit) low = low > all(0) ? all(0) : low;
    const F spread = high - low;
    F weight = w[v][0], sum_y = w[v][0] * (x[v][0] - low);
    for (int i = 1; i < search.size; ++i) {
      weight = weight + w[v][i];
      sum_y = sum_y + w[v][i] * (x[v][i] - low);
    }
    const I weighs = weight > all(0);
    scale = weighs ? spread / float(most_number) : all(0);
    F offset = all(0), score = all(-std::numeric_limits<float>::infinity());
    const F inverse = inverse_of(spread);
    for (const float steps : search.tries) {
      const F to_number = inverse * steps;
      F sum_q = nothing_yet(), sum_qq = nothing_yet(), sum_qy = nothing_yet();
      for (int i = 0; i < search.size; ++i) {
        const F above = x[v][i] - low, number = number_of(above * to_number), weighted = w[v][i] * number;
        sum_q = sum_q + weighted;
        sum_qq = sum_qq + weighted * number;
        sum_qy = sum_qy + weighted * above;
      }
      const F products = weight * sum_qq, determinant = products - sum_q * sum_q;
      const I regular = determinant > kSingular * products;
      const F safe = regular ? determinant : all(1);
      F tried = (weight * sum_qy - sum_y * sum_q) / safe, start = (sum_qq * sum_y - sum_q * sum_qy) / safe;
      if (search.step_limit) {
        const I positive = low + start > all(0);
        start = positive ? -low : start;
        tried = positive ? (sum_qy + low * sum_q) / (sum_qq > all(kTiny) ? sum_qq : all(kTiny)) : tried;
      }
      F gain = tried * (2.0f * sum_qy - tried * sum_qq - 2.0f * start * sum_q);
      gain = gain + start * (2.0f * sum_y - start * weight);
      const I better = regular & (tried > all(0)) & (gain > kClearly * score);
      score = better ? gain : score;
      scale = better ? tried : scale;
      offset = better ? start : offset;
    }
    minimum = weighs ? low + offset : all(0);
  }

  ALWAYS_INLINE void try_minimums(Stepped& best, const PerPart& around, const PerPart& around_minimum) const {
    const float limit = float(search.step_limit);
    for (int v = 0; v < kVectors; ++v) {
      const F scale = of_blocks(best.scale, v), minimum = of_blocks(best.minimum, v);
      F found = around.get(v), found_minimum = around_minimum.get(v);
      F least = all(std::numeric_limits<float>::infinity());
      for (const int near : kNear) {
        const F steps = clamped(around.get(v) + float(near), 0, limit), stored = scale * steps;
        const F inverse = inverse_of(stored);
        for (const int near_minimum : kNear) {
          const F minimum_steps = clamped(around_minimum.get(v) + float(near_minimum), 0, limit);
          const F taken = minimum * minimum_steps;
          F error = nothing_yet();
          for (int i = 0; i < search.size; ++i) {
            const F rest = x[v][i] - (stored * number_of((x[v][i] + taken) * inverse) - taken);
            error = error + w[v][i] * rest * rest;
          }
          const I better = error < least;
          found = better ? steps : found;
          found_minimum = better ? minimum_steps : found_minimum;
          least = better ? error : least;
        }
      }
      best.steps.set(v, found);
      best.minimum_steps.set(v, found_minimum);
      best.error.set(v, least);
    }
    sum_of_blocks(best.error);
  }

  ALWAYS_INLINE void refit_minimums(const Stepped& found, Stepped& again) const {
    PerPart sums[5];  // aa, ab, bb, ax, bx
    for (int v = 0; v < kVectors; ++v) {
      const F steps = found.steps.get(v), b = found.minimum_steps.get(v);
      const F taken = of_blocks(found.minimum, v) * b, inverse = inverse_of(of_blocks(found.scale, v) * steps);
      F weight = nothing_yet(), wx = nothing_yet(), aa = nothing_yet(), wa_sum = nothing_yet(), ax = nothing_yet();
      for (int i = 0; i < search.size; ++i) {
        const F a = steps * number_of((x[v][i] + taken) * inverse), wa = w[v][i] * a;
        weight = weight + w[v][i];
        wx = wx + w[v][i] * x[v][i];
        aa = aa + wa * a;
        wa_sum = wa_sum + wa;
        ax = ax + wa * x[v][i];
      }
      const F parts[] = {aa, wa_sum * b, weight * b * b, ax, wx * b};
      for (int s = 0; s < 5; ++s) sums[s].set(v, parts[s]);
    }
    for (PerPart& sum : sums) sum_of_blocks(sum);
    for (int p = 0; p < kChunk; p += parts_of_block()) {
      const float aa = sums[0].of[p], ab = sums[1].of[p], bb = sums[2].of[p], ax = sums[3].of[p], bx = sums[4].of[p];
      const float products = aa * bb, determinant = products - ab * ab;
      const bool both = determinant > kSingular * products;
      const float safe = both ? determinant : 1.0f;
      const float scale = both ? (ax * bb - bx * ab) / safe : ax / std::max(aa, kTiny);
      const float minimum = both ? (ab * ax - aa * bx) / safe : 0.0f;
      const bool good = (both || bb == 0) && scale > 0 && minimum >= 0;
      again.scale[p] = good ? float_to_half(scale) : found.scale[p];
      again.minimum[p] = good ? float_to_half(minimum) : found.minimum[p];
    }
  }

  // Scales or minimums of parts as binary16 of blocks times whole steps.
  ALWAYS_INLINE void first_steps(const PerPart& of_parts, uint16_t* of_block, PerPart& steps) const {
    const int count = parts_of_block();
    for (int p = 0; p < kChunk; p += count)
      of_block[p] = float_to_half(*std::max_element(of_parts.of + p, of_parts.of + p + count) / float(search.step_limit));
    for (int v = 0; v < kVectors; ++v)
      steps.set(v, whole(of_parts.get(v) * inverse_of(of_blocks(of_block, v)), 0, search.step_limit));
  }

  ALWAYS_INLINE void minimums(int64_t first, int64_t parts, const FoundParts& out) {
    PerPart scale, minimum;
    for (int v = 0; v < kVectors; ++v) {
      F scale_found, minimum_found;
      fitted_minimum(v, scale_found, minimum_found);
      scale.set(v, scale_found);
      minimum.set(v, search.step_limit ? 0.0f - minimum_found : minimum_found);
    }
    Stepped found;
    if (search.step_limit) {
      PerPart around, around_minimum;
      first_steps(scale, found.scale, around);
      first_steps(minimum, found.minimum, around_minimum);
      try_minimums(found, around, around_minimum);
      Stepped again;
      refit_minimums(found, again);
      try_minimums(again, found.steps, found.minimum_steps);
      take_better(found, again);
    } else {
      for (int p = 0; p < kChunk; ++p) {
        found.scale[p] = float_to_half(scale.of[p]);
        found.minimum[p] = float_to_half(minimum.of[p]);
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      F stored = of_blocks(found.scale, v), start = of_blocks(found.minimum, v);
      if (search.step_limit) {
        stored = stored * found.steps.get(v);
        start = -(start * found.minimum_steps.get(v));
      }
      const F inverse = inverse_of(stored);
      Bytes codes[kMostSearched];
      for (int i = 0; i < search.size; ++i) {
        const I numbers = __builtin_convertvector(number_of((x[v][i] - start) * inverse), I);
        codes[i] = __builtin_convertvector(numbers, Bytes);
      }
      put_codes(codes, v, first, parts, out);
    }
    put_blocks(found, first, parts, out);
  }

  // ---- blocks ----------------------------------------------------------------------------------------------------

  ALWAYS_INLINE int parts_of_block() const { return search.inputs / search.size; }
  ALWAYS_INLINE bool of_minimums() const { return search.kind == SearchKind::minimum; }

  // Each part has its block's number, which stands at the block's first part.
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

  ALWAYS_INLINE F limited(F steps) const {
    return clamped(steps, float(search.step_limit), float(-search.step_limit - 1));
  }

  // A vector's codes, code i of each lane in row i.
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

  ALWAYS_INLINE void run(const float* values, const float* importance, int64_t blocks, int64_t repeated,
                         const FoundParts& out) {
    const int64_t parts = blocks * parts_of_block();
    for (int64_t first = 0; first < parts; first += kChunk) {
      load(values, importance, first, parts, repeated * parts_of_block());
      if (of_minimums()) minimums(first, parts, out);
      else if (search.kind == SearchKind::zero) zeros(first, parts, out);
      else if (search.kind == SearchKind::exponent) exponents(first, parts, out);
      else if (search.whole) scales<Table::whole>(first, parts, out);
      else if (first_middle > 0) scales<Table::mirrored>(first, parts, out);
      else scales<Table::any>(first, parts, out);
    }
  }
};

#undef ALWAYS_INLINE

}  // namespace
}  // namespace ipex_lookahead
