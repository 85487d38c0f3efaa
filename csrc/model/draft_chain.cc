#include "model/draft_chain.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "errors.h"

namespace ipex_lookahead {
namespace {

constexpr int64_t kRowsAtOnce = 512;
constexpr float kNegligible = 30;  // a logit so far below the highest adds nothing to a float32 sum of probabilities

float probability(const std::vector<float>& logits, size_t at) {
  double sum = 0;
  for (const float logit : logits)
    if (logits[at] - logit < kNegligible) sum += std::exp(logit - logits[at]);
  return float(1 / sum);
}

// Rows that follow the cache, which keeps them; of the last one the argmax and what else `out` has room for.
class Feeder {
 public:
  Feeder(Decoder& head, Cache& cache)
      : head_(head), cache_(cache), logits(size_t(head.shape().outputs)), features(size_t(head.shape().hidden)) {}

  int32_t feed(const int32_t* tokens, const float* given, bool own, int64_t rows, bool answer, int64_t settled) {
    std::vector<int32_t> parents(static_cast<size_t>(rows));
    std::iota(parents.begin(), parents.end(), -1);
    const int32_t last = int32_t(rows) - 1, layer = head_.shape().features.feedback;
    int32_t id = -1;
    Step step;
    step.caches = {&cache_};
    step.counts = {rows};
    step.settled = {settled};
    step.tokens = tokens;
    step.parents = parents.data();
    step.features = given;
    step.own_features = own;
    step.rows = rows;
    step.want = &last;
    step.wanted = answer;
    StepOutputs out;
    out.ids = &id;
    out.logits = answer ? logits.data() : nullptr;
    out.hidden_layers = &layer;
    out.layers = answer;
    out.hidden_rows = &last;
    out.hidden_wanted = answer;
    out.hidden = features.data();
    head_.forward(step, out);
    if (answer && id < 0) throw NonFiniteError("the drafting head's logits are not finite");
    std::vector<int64_t> kept(static_cast<size_t>(rows));
    std::iota(kept.begin(), kept.end(), 0);
    cache_.keep(kept.data(), rows);
    return id;
  }

 private:
  Decoder& head_;
  Cache& cache_;

 public:
  std::vector<float> logits, features;  // of the last row that was answered
};

}  // namespace

DraftChain draft_chain(Decoder& head, Cache& cache, const DraftRequest& request) {
  Feeder feeder(head, cache);
  const int64_t width = head.shape().features.width;
  int32_t at = -1;
  for (int64_t first = 0; first < request.rows; first += kRowsAtOnce) {
    const int64_t rows = std::min(kRowsAtOnce, request.rows - first);
    const bool last = first + rows == request.rows;
    at = feeder.feed(request.tokens + first, request.features + first * width, false, rows, last && request.most > 0, rows);
  }
  DraftChain chain;
  if (at < 0) return chain;
  const int64_t length = cache.length();
  for (std::vector<float> features;;) {
    const int32_t token = request.ids.empty() ? at : request.ids[size_t(at)];
    chain.tokens.push_back(token);
    chain.probs.push_back(probability(feeder.logits, size_t(at)));
    const bool ends = std::find(request.ends.begin(), request.ends.end(), token) != request.ends.end();
    if (ends || int64_t(chain.tokens.size()) >= request.most || chain.probs.back() < request.least_prob) break;
    if (cache.length() + 1 >= head.shape().max_context) break;
    features = feeder.features;
    at = feeder.feed(&token, features.data(), true, 1, true, kHold);
  }
  if (cache.length() > length) cache.crop(length);
  return chain;
}

}  // namespace ipex_lookahead
