// MinimumSearch of search.py, in addition to the searches of searcher.h, and the selection of the search.
#pragma once

#include <algorithm>
#include <limits>

#include "weights/searcher.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace ipex_lookahead {
namespace {

template <int L>
struct MinimumSearcher : Searcher<L> {
  using Base = Searcher<L>;
  using typename Base::Bytes;
  using typename Base::F;
  using typename Base::I;
  using typename Base::PerPart;
  using typename Base::Stepped;
  using Base::all, Base::clamped, Base::first_middle, Base::inverse_of, Base::kVectors, Base::most_number, Base::nothing_yet;
  using Base::number_of, Base::of_blocks, Base::of_minimums, Base::parts_of_block, Base::put_blocks, Base::put_codes;
  using Base::search, Base::sum_of_blocks, Base::take_better, Base::w, Base::whole, Base::x;

  ALWAYS_INLINE explicit MinimumSearcher(const Search& s) : Base(s) {}

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

  // Scales or minimums of parts as a binary16 number per block times integer steps.
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
      Bytes codes[kMaxSearched];
      for (int i = 0; i < search.size; ++i) {
        const I numbers = __builtin_convertvector(number_of((x[v][i] - start) * inverse), I);
        codes[i] = __builtin_convertvector(numbers, Bytes);
      }
      put_codes(codes, v, first, parts, out);
    }
    put_blocks(found, first, parts, out);
  }

  ALWAYS_INLINE void run(const float* values, const float* importance, int64_t blocks, int64_t repeated,
                         const FoundParts& out) {
    const int64_t parts = blocks * parts_of_block();
    for (int64_t first = 0; first < parts; first += kChunk) {
      this->load(values, importance, first, parts, repeated * parts_of_block());
      if (of_minimums()) minimums(first, parts, out);
      else if (search.kind == SearchKind::zero) this->zeros(first, parts, out);
      else if (search.kind == SearchKind::exponent) this->exponents(first, parts, out);
      else if (search.whole) this->template scales<Table::whole>(first, parts, out);
      else if (first_middle > 0) this->template scales<Table::mirrored>(first, parts, out);
      else this->template scales<Table::any>(first, parts, out);
    }
  }
};

#undef ALWAYS_INLINE

}  // namespace
}  // namespace ipex_lookahead
