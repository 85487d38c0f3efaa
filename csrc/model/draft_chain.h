// A drafting head's chain: what it takes for the next token goes in again, with its own features in place of the target's.
#pragma once

#include <cstdint>
#include <vector>

#include "model/decoder.h"

namespace ipex_lookahead {

struct DraftChain {
  std::vector<int32_t> tokens;
  std::vector<float> probs;  // of each: the softmax of the logits there
};

// What is known: rows that follow the cache, of which the last one's token is the last of the text; and until when to draft.
struct DraftRequest {
  const int32_t* tokens = nullptr;
  const float* features = nullptr;  // [rows][width]: of the row before each
  int64_t rows = 0;
  int64_t most = 0;                 // tokens, from 1 on
  float least_prob = 0;             // a token less likely than this is the last one
  std::vector<int32_t> ids;         // the token that each of the head's outputs stands for; empty: its number
  std::vector<int32_t> ends;        // tokens after which nothing is drafted
};

// Commits the rows, drafts, and leaves the cache with the rows. Throws as
// Decoder::forward does, NonFiniteError for logits that are not finite.
DraftChain draft_chain(Decoder& head, Cache& cache, const DraftRequest& request);

}  // namespace ipex_lookahead
