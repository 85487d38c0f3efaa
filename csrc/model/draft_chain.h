// A drafting head's chain: what it takes for the next token goes in again, with its own features in place of the target's.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/cache.h"
#include "sampling.h"

namespace ipex_lookahead {

struct DraftChain {
  std::vector<int32_t> tokens;
  std::vector<float> probs;  // of each: the softmax of the logits there, or, of a drawn one, by how much it leads
};

// How the target draws, for a head that draws with the same noise. `position`: of the first drafted token.
struct Draw {
  SamplingParams params;
  uint64_t seed = 0;
  uint32_t sequence = 0, position = 0;
};

// What the chain follows, and until when to draft.
struct DraftRequest {
  int32_t last = 0;             // the text's last token, whose row the target has not run
  std::vector<int32_t> copied;  // tokens that follow it in another's draft; the chain goes on behind them
  int64_t most = 0;             // tokens, from 1 on
  // A token whose probability is in the i-th of n equal parts of 0 to 1 is right this often; empty: as often as it says. The chain
  // ends with the token with which all are right less often than `least`.
  std::vector<float> rates;
  float least = 0;
  std::vector<int32_t> ends;    // tokens after which nothing is drafted
  std::optional<Draw> draw;     // none: the most likely token
};

// Drafts for the sequence of a cache that follows a head (Cache::follow), which then has read all that is committed, and `last`;
// nothing where no features are known, or the head's logits are not finite. Throws BusyError and what Decoder::forward does.
DraftChain draft_chain(Cache& target, const DraftRequest& request);

// The same step by step, for a caller that chooses from the logits: each call gives those of what follows `token`, [vocab], -inf
// for tokens that the head has no output for; empty where nothing can be drafted. The first one's token is the text's last.
std::vector<float> draft_step(Cache& target, int32_t token, bool first);
void end_draft(Cache& target);

}  // namespace ipex_lookahead
