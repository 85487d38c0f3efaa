#include "model/draft_chain.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "model/decoder.h"
#include "model/head_state.h"

namespace ipex_lookahead {
namespace {

// Number of logits with exponentials that are summed together; the sums of these pieces are added in ascending order.
constexpr int64_t kPiece = 4096;

HeadState& head_of(Cache& target) {
  if (target.head() == nullptr) throw std::invalid_argument("the cache does not follow a drafting head");
  return *target.head();
}

// Calls each(token, logit) for every token with an output of the head; some tokens twice.
template <typename Each>
void each_output(const HeadState& state, const Each& each) {
  const std::vector<float>& logits = state.logits();
  for (size_t i = 0; i < logits.size(); ++i) each(state.head().token_of(state.output(i)), logits[i]);
  const int32_t vocab = int32_t(state.head().shape().vocab);
  for (size_t i = 0; i < state.tile_logits().size(); ++i) {
    const int32_t token = state.tiles()[i / kLanes] * kLanes + int32_t(i % kLanes);
    if (token < vocab && !state.head().drafts(token)) each(token, state.tile_logits()[i]);
  }
}

struct Chosen {
  int32_t token = -1;
  float prob = 0;
};

// Adds e^(logit - highest) of `n` logits to `sum`, except where `counts(i)` is false. The order is fixed and the exponential is
// the kernels', so devices compute the same bits: 16 lanes for each piece, summed as a tree.
template <typename Counts>
void add_exponentials(const KernelTable& kernels, const float* logits, int64_t n, float highest, const Counts& counts, float* sum) {
  alignas(64) float terms[kPiece];
  for (int64_t first = 0; first < n; first += kPiece) {
    const int64_t some = std::min(kPiece, n - first), whole = padded(some, kLanes);
    for (int64_t i = 0; i < some; ++i) terms[i] = logits[first + i] - highest;
    std::fill(terms + some, terms + whole, 0.0f);
    kernels.exponentials(terms, whole);
    float lanes[kLanes] = {};
    for (int64_t i = 0; i < some; ++i)
      if (counts(first + i)) lanes[i % kLanes] += terms[i];
    for (int64_t away = kLanes / 2; away > 0; away /= 2)
      for (int64_t lane = 0; lane < away; ++lane) lanes[lane] += lanes[lane + away];
    *sum += lanes[0];
  }
}

Chosen most_likely(const HeadState& state) {
  const Decoder& head = state.head();
  Chosen best;
  float highest = -INFINITY;
  each_output(state, [&](int32_t token, float logit) {
    if (logit > highest || (logit == highest && token < best.token)) {
      highest = logit;
      best.token = token;
    }
  });
  const int32_t vocab = int32_t(head.shape().vocab);
  const auto in_tile = [&](int64_t i) {
    const int32_t token = state.tiles()[size_t(i / kLanes)] * kLanes + int32_t(i % kLanes);
    return token < vocab && !head.drafts(token);
  };
  float sum = 0;
  const auto every = [](int64_t) { return true; };
  add_exponentials(head.kernels(), state.logits().data(), int64_t(state.logits().size()), highest, every, &sum);
  add_exponentials(head.kernels(), state.tile_logits().data(), int64_t(state.tile_logits().size()), highest, in_tile, &sum);
  best.prob = 1 / sum;
  return best;
}

// Writes the logits of all tokens, -inf for tokens without an output.
void spread(const HeadState& state, std::vector<float>& all) {
  all.assign(size_t(state.head().shape().vocab), -INFINITY);
  each_output(state, [&](int32_t token, float logit) { all[size_t(token)] = logit; });
}

Chosen drawn(const HeadState& state, const Draw& draw, uint32_t position, std::vector<float>& all) {
  static thread_local SamplingWorkspace workspace;
  spread(state, all);
  const int64_t n = int64_t(all.size());
  Chosen chosen;
  chosen.token = sample(all.data(), n, draw.params, draw.seed, draw.sequence, position, workspace);
  if (chosen.token >= 0) chosen.prob = float(lead(all.data(), n, draw.params.temperature, draw.seed, draw.sequence, position, chosen.token));
  return chosen;
}

float rate(const std::vector<float>& rates, float prob) {
  if (rates.empty()) return prob;
  return rates[std::min(rates.size() - 1, size_t(prob * float(rates.size())))];
}

}  // namespace

DraftChain draft_chain(Cache& target, const DraftRequest& request) {
  const Claim claim(target.claimable(), "draft");
  HeadState& state = head_of(target);
  DraftChain chain;
  bool going = request.max_tokens > 0 && state.first(target, request.last);
  for (size_t i = 0; going && i < request.copied.size(); ++i) going = state.next(target, request.copied[i], i + 1 == request.copied.size());
  std::vector<float> all;
  uint32_t position = request.draw ? request.draw->position + uint32_t(request.copied.size()) : 0;
  for (float chance = 1; going;) {
    const Chosen chosen = request.draw ? drawn(state, *request.draw, position++, all) : most_likely(state);
    if (chosen.token < 0) break;
    chain.tokens.push_back(chosen.token);
    chain.probs.push_back(chosen.prob);
    chance *= rate(request.rates, chosen.prob);
    const bool ends = std::find(request.ends.begin(), request.ends.end(), chosen.token) != request.ends.end();
    if (ends || int64_t(chain.tokens.size()) >= request.max_tokens || chance < request.min_chance) break;
    going = state.next(target, chosen.token);
  }
  state.end();
  return chain;
}

std::vector<float> draft_step(Cache& target, int32_t token, bool first) {
  const Claim claim(target.claimable(), "draft_step");
  HeadState& state = head_of(target);
  std::vector<float> all;
  if (first ? state.first(target, token) : state.next(target, token)) spread(state, all);
  return all;
}

void end_draft(Cache& target) {
  const Claim claim(target.claimable(), "end_draft");
  head_of(target).end();
}

}  // namespace ipex_lookahead
