// Chains of a drafting head: each predicted token is fed back with the head's own features in place of the target's.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/cache.h"
#include "sampling.h"

namespace ipex_lookahead {

struct DraftChain {
  std::vector<int32_t> tokens;
  std::vector<float> probs;  // softmax probability of each token, or for sampled tokens lead() (sampling.h)
};

// The target's sampling parameters and noise, for a head that samples with the same noise. `position`: of the first draft
// token.
struct Draw {
  SamplingParams params;
  uint64_t seed = 0;
  uint32_t sequence = 0, position = 0;
};

// Input of draft_chain().
struct DraftRequest {
  int32_t last = 0;             // the last token of the text, which the target has not run
  std::vector<int32_t> copied;  // draft tokens of another proposer that follow `last`; the chain continues after them
  int64_t max_tokens = 0;       // at least 1
  // Calibration: rates[i] is the measured acceptance rate of tokens with a probability in the i-th of n equal intervals of
  // [0, 1]; empty: the probability. The chain ends after the token at which the product of the rates falls below
  // `min_chance`.
  std::vector<float> rates;
  float min_chance = 0;
  std::vector<int32_t> ends;    // no token is drafted after one of these
  std::optional<Draw> draw;     // none: greedy
};

// Drafts for a cache that follows a head (Cache::follow). The head first reads all committed rows and `last`. Returns an
// empty chain if there are no features, or if the head's logits are not finite. Throws BusyError and what Decoder::forward
// throws.
DraftChain draft_chain(Cache& target, const DraftRequest& request);

// The same in single steps, for a caller that chooses from the logits. Returns the logits [vocab] after `token`, with -inf for
// tokens without an output; empty if nothing can be drafted. `first`: `token` is the last token of the text.
std::vector<float> draft_step(Cache& target, int32_t token, bool first);
void end_draft(Cache& target);

}  // namespace ipex_lookahead
