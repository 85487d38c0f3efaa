#include "sampling.h"

#include <emmintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

namespace ipex_lookahead {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kBlock = 64;

constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2High = 0.6931471803691238;
constexpr double kLn2Low = 1.9082149292705877e-10;
constexpr double kLn2Above = 0.69314718056;  // slightly above ln 2, for bounds
constexpr double kSqrtHalf = 0.7071067811865476;
constexpr double kSteepest = 1e30;

constexpr uint32_t kPhilox0 = 0xD2511F53, kPhilox1 = 0xCD9E8D57;  // Salmon et al., table 2
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;

// exp(x) for x <= 0, and 0 below -708. Branch-free, so that the compiler vectorizes loops over it.
inline double exponential(double x) {
  const double inside = x < -708.0 ? -708.0 : x;
  const double shifter = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer, ties to even,
  const double shifted = inside * kLog2E + shifter;  // which the low bits of the sum then hold
  const double k = shifted - shifter;
  const double r = (inside - k * kLn2High) - k * kLn2Low;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 1.0 / 2.0;
  p = p * r + 1.0;
  p = p * r + 1.0;
  uint64_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 1023) << 52;  // 2^k is normal: k >= -1022
  double scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return x < -708.0 ? 0.0 : p * scale;
}

double logarithm(double x) {  // normal, > 0
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  int64_t exponent = int64_t(bits >> 52) - 1022;
  bits = (bits & 0x000FFFFFFFFFFFFF) | 0x3FE0000000000000;
  double m;
  std::memcpy(&m, &bits, sizeof m);  // in [1/2, 1)
  if (m < kSqrtHalf) {
    m *= 2.0;
    exponent -= 1;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double square = s * s;
  double p = 2.0 / 23.0;
  for (double c : {2.0 / 21.0, 2.0 / 19.0, 2.0 / 17.0, 2.0 / 15.0, 2.0 / 13.0, 2.0 / 11.0, 2.0 / 9.0, 2.0 / 7.0,
                   2.0 / 5.0, 2.0 / 3.0, 2.0})
    p = p * square + c;
  return double(exponent) * kLn2High + (s * p + double(exponent) * kLn2Low);
}

double gumbel(uint64_t bits) {
  const double uniform = (double(bits >> 12) + 0.5) * 0x1p-52;
  return -logarithm(-logarithm(uniform));
}

// A lower bound of gumbel(bits): -log(v) >= 1 - v, and 1 - v is above a power of two given by the leading ones of `bits`.
double gumbel_bound(uint64_t bits) {
  const uint64_t rest = ~bits;
  const int ones = rest >> 12 ? __builtin_clzll(rest) : 52;
  return double(ones + 1) * kLn2Above;
}
constexpr double kLargestGumbel = 53 * kLn2Above;

// The noise of tokens 2 i and 2 i + 1 comes from block i of the generator.
struct Noise {
  uint64_t seed;
  uint32_t sequence, position;

  uint64_t of(int32_t token) const {
    uint32_t words[4] = {uint32_t(token) >> 1, position, sequence, 0};
    philox4x32(words, seed);
    const uint32_t* pair = words + 2 * (token & 1);
    return uint64_t(pair[1]) << 32 | pair[0];
  }

  // Noise of the 2 * kLanes tokens from 2 * block on: even tokens and odd tokens. Runs the rounds of philox4x32 on two blocks
  // per SSE2 vector; words are in 64-bit lanes with undefined upper halves.
  static constexpr int kLanes = 8;
  void of_many(uint32_t block, uint64_t even[kLanes], uint64_t odd[kLanes]) const {
    constexpr int kVectors = kLanes / 2;
    __m128i a[kVectors], b[kVectors], c[kVectors], d[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      a[i] = _mm_set_epi64x(int64_t(block) + 2 * i + 1, int64_t(block) + 2 * i);
      b[i] = _mm_set1_epi64x(position);
      c[i] = _mm_set1_epi64x(sequence);
      d[i] = _mm_setzero_si128();
    }
    const __m128i factor0 = _mm_set1_epi64x(kPhilox0), factor1 = _mm_set1_epi64x(kPhilox1);
    uint32_t key0 = uint32_t(seed), key1 = uint32_t(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const __m128i k0 = _mm_set1_epi64x(key0), k1 = _mm_set1_epi64x(key1);
      for (int i = 0; i < kVectors; ++i) {
        const __m128i left = _mm_mul_epu32(a[i], factor0), right = _mm_mul_epu32(c[i], factor1);
        a[i] = _mm_xor_si128(_mm_xor_si128(_mm_srli_epi64(right, 32), b[i]), k0);
        b[i] = right;
        c[i] = _mm_xor_si128(_mm_xor_si128(_mm_srli_epi64(left, 32), d[i]), k1);
        d[i] = left;
      }
      key0 += kWeyl0;
      key1 += kWeyl1;
    }
    const __m128i low = _mm_set1_epi64x(0xFFFFFFFF);
    for (int i = 0; i < kVectors; ++i) {
      const __m128i first = _mm_or_si128(_mm_slli_epi64(b[i], 32), _mm_and_si128(a[i], low));
      const __m128i second = _mm_or_si128(_mm_slli_epi64(d[i], 32), _mm_and_si128(c[i], low));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(even + 2 * i), first);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(odd + 2 * i), second);
    }
  }
};

// The best token found.
struct Best {
  double score;
  int32_t token;

  bool beyond(double x, uint64_t bits) const { return x + gumbel_bound(bits) < score; }
  void offer(double x, uint64_t bits, int32_t candidate) {
    const double value = x + gumbel(bits);
    if (value > score || (value == score && candidate < token)) *this = {value, candidate};
  }
};

// Maps floats to unsigned integers in descending order; -0 and +0 map to the same value.
uint32_t descending(float value) {
  value += 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits >> 31 ? bits : ~bits & 0x7FFFFFFFu;
}

// The k-th largest logit, 0 < k < n. The threshold rises during the scan, so nearly every block is skipped.
float kth_largest(const float* logits, int64_t n, int64_t k, std::vector<float>& found) {
  const size_t full = size_t(std::max<int64_t>(4 * k, 1024));
  found.clear();
  found.reserve(full + kBlock);
  float threshold = -kInfinity;
  const auto shrink = [&] {
    std::nth_element(found.begin(), found.begin() + (k - 1), found.end(), std::greater<float>());
    threshold = found[size_t(k - 1)];
    found.resize(size_t(k));
  };
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t end = std::min(first + kBlock, n);
    if (threshold != -kInfinity && end - first == kBlock) {
      int any = 0;
      for (int64_t i = 0; i < kBlock; ++i) any |= logits[first + i] > threshold;
      if (!any) continue;
    }
    for (int64_t i = first; i < end; ++i)
      if (logits[i] > threshold) found.push_back(logits[i]);
    if (found.size() >= full) shrink();
  }
  if (found.size() < size_t(k)) return -kInfinity;  // the others are all -inf
  if (found.size() > size_t(k)) shrink();
  else threshold = *std::min_element(found.begin(), found.end());
  return threshold;
}

// Applies top-p to ids and x in place. Sorts only the 64 largest first, then eight times more, and so on until top_p is
// reached.
void keep_top_p(const float* logits, int64_t n, double top_p, SamplingWorkspace& workspace) {
  auto& ids = workspace.ids;
  auto& x = workspace.x;
  auto& weights = workspace.weights;
  auto& order = workspace.order;
  const size_t count = ids.size();
  weights.resize(count);
  for (size_t i = 0; i < count; ++i) weights[i] = exponential(x[i]);
  double whole = 0.0;
  for (size_t i = 0; i < count; ++i) whole += weights[i];
  const double enough = top_p * whole;

  size_t kept = 0;
  double mass = 0.0;
  for (int64_t some = 64;; some *= 8) {
    // Descending logit, then ascending index, as one integer. All ties with the last are included: a round extends the
    // previous one.
    const float lowest = some < int64_t(count) ? kth_largest(logits, n, some, workspace.largest) : -kInfinity;
    order.clear();
    for (size_t i = 0; i < count; ++i)
      if (logits[ids[i]] >= lowest) order.push_back(uint64_t(descending(logits[ids[i]])) << 32 | i);
    std::sort(order.begin(), order.end());
    while (kept < order.size() && (kept == 0 || mass < enough)) mass += weights[uint32_t(order[kept++])];
    if (kept < order.size() || mass >= enough || order.size() == count) break;
  }
  order.resize(kept);
  for (auto& key : order) key = uint32_t(key);
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < kept; ++i) {
    ids[i] = ids[order[i]];
    x[i] = x[order[i]];
  }
  ids.resize(kept);
  x.resize(kept);
}

// The tokens of top-p: those with a logit above `logit`, and those equal to it with an id up to `last`.
struct Nucleus {
  float logit = -kInfinity;
  int32_t last = -1;
  bool holds(float value, int64_t id) const { return value > logit || (value == logit && id <= last); }
};

constexpr int kBins = 1024;
constexpr int kGroup = 16;
constexpr double kRounding = 1e-9;  // far above the relative change from adding up to 2^20 masses in another order
constexpr double kCoarse = 2e-5;    // above the relative error of coarse_mass

// exponential() of two values.
inline __m128d exponentials(__m128d x) {
  const __m128d low = _mm_set1_pd(-708.0), inside = _mm_max_pd(x, low), shifter = _mm_set1_pd(6755399441055744.0);
  const __m128d shifted = _mm_add_pd(_mm_mul_pd(inside, _mm_set1_pd(kLog2E)), shifter);
  const __m128d k = _mm_sub_pd(shifted, shifter);
  const __m128d r = _mm_sub_pd(_mm_sub_pd(inside, _mm_mul_pd(k, _mm_set1_pd(kLn2High))),
                               _mm_mul_pd(k, _mm_set1_pd(kLn2Low)));
  __m128d p = _mm_set1_pd(1.0 / 6227020800.0);
  for (double c : {1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0, 1.0 / 5040.0,
                   1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 1.0 / 2.0, 1.0, 1.0})
    p = _mm_add_pd(_mm_mul_pd(p, r), _mm_set1_pd(c));
  const __m128i scale = _mm_slli_epi64(_mm_add_epi64(_mm_castpd_si128(shifted), _mm_set1_epi64x(1023)), 52);
  return _mm_andnot_pd(_mm_cmplt_pd(x, low), _mm_mul_pd(p, _mm_castsi128_pd(scale)));
}

// The sum of exp((l - largest) * slope) over a group, in float, within a relative error of kCoarse or 1e-36.
inline float coarse_mass(const float* logits, float largest, float slope) {
  __m128 sum = _mm_setzero_ps();
  for (int i = 0; i < kGroup; i += 4) {
    const __m128 x = _mm_mul_ps(_mm_sub_ps(_mm_loadu_ps(logits + i), _mm_set1_ps(largest)), _mm_set1_ps(slope));
    const __m128 inside = _mm_max_ps(x, _mm_set1_ps(-87.0f));
    const __m128i k = _mm_cvtps_epi32(_mm_mul_ps(inside, _mm_set1_ps(float(kLog2E))));
    const __m128 r = _mm_sub_ps(inside, _mm_mul_ps(_mm_cvtepi32_ps(k), _mm_set1_ps(0.693147181f)));
    __m128 p = _mm_set1_ps(1.0f / 120.0f);
    for (float c : {1.0f / 24.0f, 1.0f / 6.0f, 1.0f / 2.0f, 1.0f, 1.0f})
      p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(c));
    const __m128i scale = _mm_slli_epi32(_mm_add_epi32(k, _mm_set1_epi32(127)), 23);
    sum = _mm_add_ps(sum, _mm_mul_ps(p, _mm_castsi128_ps(scale)));
  }
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(sum) + _mm_cvtss_f32(_mm_shuffle_ps(sum, sum, 1));
}

// Finds the nucleus without sorting all tokens. Masses of tokens with x >= -depth are summed in bins of equal width in x, and
// only the bin in which top_p is reached is sorted; masses below -depth are summed approximately. Returns false if rounding
// or the approximation could change the result, or if the nucleus extends beyond depth.
bool find_nucleus(const float* logits, int64_t n, float largest, double slope, double top_p, double depth,
                  SamplingWorkspace& workspace, Nucleus& nucleus) {
  double masses[2][kBins] = {};  // neighbors in different rows, so that their additions do not depend on each other
  constexpr int kLast = kBins - 1;
  const double scale = kLast / depth;
  const float far = float(double(largest) - depth / slope);  // the result does not depend on its rounding
  double others = 0.0;
  auto& bins = workspace.bins;  // the bin of each token; kLast: none
  bins.assign(size_t(n), int16_t(kLast));
  for (int64_t first = 0; first < n; first += kGroup) {
    const float* group = logits + first;
    const int count = int(std::min<int64_t>(kGroup, n - first));
    float top = -kInfinity;
    for (int i = 0; i < count; ++i) top = group[i] > top ? group[i] : top;
    if (top < far && count == kGroup && slope < 1e6) {
      others += double(coarse_mass(group, largest, float(slope)));
      continue;
    }
    double weights[kGroup];
    for (int i = 0; i < kGroup; ++i) weights[i] = (double(i < count ? group[i] : -kInfinity) - double(largest)) * slope;
    for (int i = 0; i < count; ++i) {
      const double place = -weights[i] * scale;
      bins[size_t(first + i)] = int16_t(place < kLast ? place : kLast);
    }
    for (int i = 0; i < kGroup; i += 2) _mm_storeu_pd(weights + i, exponentials(_mm_loadu_pd(weights + i)));
    for (int i = 0; i < count; ++i) masses[i & 1][bins[size_t(first + i)]] += weights[i];
  }
  double whole = others;
  for (int b = 0; b < kBins; ++b) whole += masses[0][b] + masses[1][b];
  const double enough = top_p * whole, doubt = kRounding * whole + kCoarse * others;
  int bin = 0;
  double mass = 0.0;
  for (; bin < kLast; ++bin) {
    const double more = masses[0][bin] + masses[1][bin];
    if (mass + more >= enough) break;
    mass += more;
  }
  if (bin == kLast) return false;

  auto& order = workspace.order;
  order.clear();
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t end = std::min(first + kBlock, n);
    int any = 0;
    for (int64_t i = first; i < end; ++i) any |= bins[size_t(i)] == bin;
    if (!any) continue;
    for (int64_t i = first; i < end; ++i)
      if (bins[size_t(i)] == bin) order.push_back(uint64_t(descending(logits[i])) << 32 | uint64_t(i));
  }
  std::sort(order.begin(), order.end());
  for (size_t at = 0; at < order.size(); ++at) {
    const int64_t id = uint32_t(order[at]);
    if (at > 0 || bin > 0) {  // the most likely token is included whatever its mass
      if (mass >= enough + doubt) return true;
      if (mass > enough - doubt) return false;
    }
    nucleus = {logits[id], int32_t(id)};
    mass += exponential((double(logits[id]) - double(largest)) * slope);
  }
  return mass >= enough + doubt;
}

int32_t best_of_all(const float* logits, int64_t n, double slope, double min_p, int32_t start, const Noise& noise,
                    const Nucleus& nucleus) {
  constexpr int64_t kTokens = 2 * Noise::kLanes;
  const double largest = logits[start];
  Best best{gumbel(noise.of(start)), start};
  uint64_t bits[2][Noise::kLanes];
  for (int64_t first = 0; first < n; first += kTokens) {
    const int64_t end = std::min(first + kTokens, n);
    float top = -kInfinity;
    for (int64_t i = first; i < end; ++i) top = logits[i] > top ? logits[i] : top;
    const double gap = best.score - (double(top) - largest) * slope;
    if (!(gap <= kLargestGumbel) || top < nucleus.logit) continue;  // no token of the group can win, whatever its noise
    noise.of_many(uint32_t(first >> 1), bits[0], bits[1]);

    // Minimum number of leading ones to close the gap, by gumbel_bound; most groups have no such token.
    const int ones = std::min(32, std::max(0, int(gap / kLn2Above) - 1));
    const uint64_t needed = ones ? ~uint64_t(0) << (64 - ones) : 0;
    int any = 0;
    for (const auto& half : bits)
      for (int i = 0; i < Noise::kLanes; ++i) any |= (~half[i] & needed) == 0;
    if (!any) continue;
    for (int64_t i = first; i < end; ++i) {
      const double x = (double(logits[i]) - largest) * slope;
      const uint64_t noise_bits = bits[i & 1][(i - first) >> 1];
      if (best.beyond(x, noise_bits) || !nucleus.holds(logits[i], i)) continue;
      if (min_p > 0.0 && exponential(x) < min_p) continue;
      best.offer(x, noise_bits, int32_t(i));
    }
  }
  return best.token;
}

}  // namespace

void philox4x32(uint32_t w[4], uint64_t key) {
  uint32_t key0 = uint32_t(key), key1 = uint32_t(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t left = uint64_t(w[0]) * kPhilox0, right = uint64_t(w[2]) * kPhilox1;
    const uint32_t w1 = w[1], w3 = w[3];
    w[0] = uint32_t(right >> 32) ^ w1 ^ key0;
    w[1] = uint32_t(right);
    w[2] = uint32_t(left >> 32) ^ w3 ^ key1;
    w[3] = uint32_t(left);
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
}

int32_t sample(const float* logits, int64_t n, const SamplingParams& params, uint64_t seed, uint32_t sequence,
               uint32_t position, SamplingWorkspace& workspace) {
  // `!(l < inf)` is true for NaN and +inf, and keeps the loop branch-free.
  int bad = 0;
  float largest = -kInfinity;
  for (int64_t i = 0; i < n; ++i) {
    bad |= !(logits[i] < kInfinity);
    largest = logits[i] > largest ? logits[i] : largest;
  }
  if (bad) return kBadLogits;
  if (largest == -kInfinity) return kAllForbidden;

  const Noise noise{seed, sequence, position};
  const double inverse = params.temperature > 0.0 ? 1.0 / params.temperature : HUGE_VAL;
  const double slope = std::min(inverse, kSteepest);
  const bool top_k = params.top_k > 0 && params.top_k < n;
  if (!top_k) {
    Nucleus nucleus;
    const auto within = [&](double depth) {
      return find_nucleus(logits, n, largest, slope, params.top_p, depth, workspace, nucleus);
    };
    if (!(params.top_p < 1.0) || within(10.0) || within(40.0)) {
      const int32_t start = int32_t(std::find(logits, logits + n, largest) - logits);
      return best_of_all(logits, n, slope, params.min_p, start, noise, nucleus);
    }
  }

  const float lowest = top_k ? kth_largest(logits, n, params.top_k, workspace.largest) : -kInfinity;
  auto& ids = workspace.ids;
  auto& x = workspace.x;
  ids.clear();
  x.clear();
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t end = std::min(first + kBlock, n);
    int any = 0;
    for (int64_t i = first; i < end; ++i) any |= logits[i] >= lowest;
    if (!any) continue;
    for (int64_t i = first; i < end; ++i)
      if (logits[i] >= lowest && logits[i] > -kInfinity) {
        ids.push_back(int32_t(i));
        x.push_back((double(logits[i]) - double(largest)) * slope);
      }
  }
  if (params.top_p < 1.0) keep_top_p(logits, n, params.top_p, workspace);

  Best best{-HUGE_VAL, std::numeric_limits<int32_t>::max()};
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint64_t bits = noise.of(ids[i]);
    if (best.beyond(x[i], bits) || (params.min_p > 0.0 && exponential(x[i]) < params.min_p)) continue;
    best.offer(x[i], bits, ids[i]);
  }
  return best.token;
}

double lead(const float* logits, int64_t n, double temperature, uint64_t seed, uint32_t sequence, uint32_t position, int32_t token) {
  constexpr double kNear = 6;
  const Noise noise{seed, sequence, position};
  const double slope = std::min(temperature > 0.0 ? 1.0 / temperature : HUGE_VAL, kSteepest);
  const float largest = *std::max_element(logits, logits + n);
  const double own = gumbel(noise.of(token));
  double sum = 1;
  for (int64_t i = 0; i < n; ++i) {
    if (!(logits[i] > largest - float(kNear * temperature)) || i == token) continue;
    const double behind = (double(logits[i]) - double(logits[token])) * slope + gumbel(noise.of(int32_t(i))) - own;
    if (behind <= 0) sum += exponential(behind);
  }
  return 1 / sum;
}

}  // namespace ipex_lookahead
