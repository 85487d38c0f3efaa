// Sampling of one token from one row of logits: Gumbel-max with a counter-based generator.
//
// ipex_lookahead/decoding/sampling.py has the definition; its numpy implementation is the test oracle. All results come from
// IEEE double additions, multiplications, divisions and comparisons in a fixed order, with our own exponential and logarithm,
// so they are equal on every machine and bit-equal to the oracle.
//
// Time for 49,152 logits: 60 us with top-k 50 and 230 us with temperature only (one Zen 5 core); on one core of a busy Zen 4
// machine with top-p 0.95 and temperature 0.8, 190 us for a model's logits and 570 us if nearly all tokens remain.
#pragma once

#include <cstdint>
#include <vector>

namespace ipex_lookahead {

struct SamplingParams {
  double temperature = 1.0;  // > 0
  int64_t top_k = 0;         // 0: off
  double top_p = 1.0;        // 1: off
  double min_p = 0.0;        // 0: off
};

// Scratch memory that calls may reuse; its contents have no meaning between calls.
struct SamplingWorkspace {
  std::vector<float> largest;
  std::vector<int32_t> ids;
  std::vector<double> x;  // exponents of the tokens in `ids`
  std::vector<double> weights;
  std::vector<uint64_t> order;
  std::vector<int16_t> bins;
};

constexpr int32_t kBadLogits = -1;     // a logit is NaN or +inf
constexpr int32_t kAllForbidden = -2;  // every logit is -inf, or there are none

// Returns the token for (seed, sequence, position), or one of the codes above. logits: [n], n < 2^31.
int32_t sample(const float* logits, int64_t n, const SamplingParams& params, uint64_t seed, uint32_t sequence,
               uint32_t position, SamplingWorkspace& workspace);

// The margin by which that token won, 0 to 1: its softmax probability over logit / temperature + gumbel among the tokens that
// it beat. Estimate: tokens less likely than e^-6 times the most likely one are skipped.
double lead(const float* logits, int64_t n, double temperature, uint64_t seed, uint32_t sequence, uint32_t position, int32_t token);

// Philox4x32-10 (Salmon et al., SC 2011) in place: four counter words in, four random words out.
void philox4x32(uint32_t words[4], uint64_t key);

}  // namespace ipex_lookahead
