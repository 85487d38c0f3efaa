#include "drafting/predictor.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ipex_lookahead {
namespace {

constexpr size_t kConsidered = 6;     // most recent children considered; each may be a cache miss
constexpr double kMemory = 64;       // trials after which old evidence counts half
constexpr double kPrior = 8;         // weight of a prior, in trials,
constexpr double kRankPrior = 16;    // and of the prior of lists
constexpr double kRecent = 0.3;      // added to the count of the most recent follower
constexpr double kBelow = 2;         // weight of the shorter contexts' distribution, in counts

// Priors: rates measured over answers of SmolLM2-135M-Instruct to about 250 prompts of chat, mathematics and code;
// scripts/predictor_prior.py recomputes them from recordings of bench replay. Columns: seen once; twice with the same follower;
// twice with different followers; 3 to 5 times with one follower; ditto with several; more often with one; with several.
constexpr int kLengths = 6, kColumns = 7;
constexpr double kEscapes[2][kLengths][kColumns] = {
    {{0.72, 0.43, 0.70, 0.43, 0.64, 0.13, 0.33},  // store: contexts of 1, 2, 3, 4, 5 and 6, 7 and more tokens
     {0.58, 0.45, 0.66, 0.28, 0.50, 0.10, 0.32},
     {0.52, 0.38, 0.56, 0.24, 0.49, 0.10, 0.32},
     {0.48, 0.38, 0.56, 0.17, 0.48, 0.10, 0.32},
     {0.41, 0.26, 0.55, 0.13, 0.41, 0.06, 0.18},
     {0.33, 0.24, 0.55, 0.06, 0.38, 0.02, 0.12}},
    {{0.38, 0.28, 0.44, 0.11, 0.36, 0.02, 0.17},  // the text itself
     {0.25, 0.17, 0.33, 0.06, 0.26, 0.01, 0.09},
     {0.19, 0.11, 0.35, 0.04, 0.22, 0.01, 0.09},
     {0.16, 0.09, 0.35, 0.03, 0.19, 0.01, 0.09},
     {0.12, 0.07, 0.34, 0.02, 0.18, 0.01, 0.09},
     {0.10, 0.04, 0.36, 0.01, 0.20, 0.01, 0.08}}};
constexpr double kRanks[2][8] = {{0.48, 0.103, 0.049, 0.034, 0.023, 0.018, 0.014, 0.011},  // after a token
                                 {0.70, 0.086, 0.039, 0.024, 0.014, 0.012, 0.009, 0.005}};  // after a pair

int length_row(int length) { return length < 5 ? length - 1 : length < 7 ? 4 : 5; }

int count_column(const SuffixTrie::Node& node) {
  const int several = node.distinct > 1;
  return node.total == 1 ? 0 : (node.total == 2 ? 1 : node.total < 6 ? 3 : 5) + several;
}

}  // namespace

void Predictor::Escape::learn(bool miss) {
  if (trials >= kMemory) {
    missed *= 0.5;
    trials *= 0.5;
  }
  trials += 1;
  if (miss) missed += 1;
}

void Predictor::Ranks::learn(int rank) {
  if (trials >= 4 * kMemory) {
    for (double& h : hits) h *= 0.5;
    trials *= 0.5;
  }
  trials += 1;
  if (rank >= 0) hits[rank] += 1;
}

Predictor::Predictor(int depth, int width, const SuffixTrie* store)
    : depth_(depth), width_(width), store_(store), own_(std::clamp(depth, 1, kMaxSuffix)) {
  if (depth < 0 || depth > kMaxSuffix || width < 0 || width > kMaxWidth)
    throw std::invalid_argument("depth must be from 0 to 16, width from 0 to 8");
  forget();
}

void Predictor::forget() {
  own_.clear();
  here_ = State();
  successors_.clear();
  for (IntegerMap& rows : rows_) rows.clear();
  for (int order = 0; order < kOrders; ++order) {
    ranks_[order].trials = kRankPrior;
    for (int r = 0; r < kMaxWidth; ++r) ranks_[order].hits[r] = r < 8 ? kRankPrior * kRanks[order][r] : 0;
  }
  escapes_.clear();
  for (const auto& lengths : kEscapes)
    for (const auto& columns : lengths)
      for (double share : columns) escapes_.push_back({kPrior * share, kPrior});
}

Predictor::Escape& Predictor::escape(const SuffixTrie::Node& node, int length, Source source) {
  const int s = source == Source::store ? 0 : 1;
  return escapes_[size_t((s * kLengths + length_row(length)) * kColumns + count_column(node))];
}

const int32_t* Predictor::successors(const State& state, int order) const {
  if (state.last < 0 || (order && state.before < 0)) return nullptr;
  const uint64_t key = uint64_t(order ? uint32_t(state.before) : 0) << 32 | uint32_t(state.last);
  const int32_t row = rows_[order].find(key);
  return row < 0 ? nullptr : successors_.data() + int64_t(row) * width_;
}

void Predictor::see_successors(int32_t before, int32_t token, const int32_t* ids, int64_t count) {
  if (width_ == 0 || token < 0 || count == 0 || ids[0] < 0) return;
  for (int order = 0; order < (before < 0 ? 1 : kOrders); ++order) {
    const uint64_t key = uint64_t(order ? uint32_t(before) : 0) << 32 | uint32_t(token);
    const int32_t fresh = int32_t(successors_.size() / size_t(width_));
    const int32_t row = rows_[order].at(key, fresh);
    if (row == fresh) successors_.resize(successors_.size() + size_t(width_));
    int32_t* to = successors_.data() + int64_t(row) * width_;
    int32_t* end = to;
    for (int64_t i = 0; i < count && ids[i] >= 0 && end < to + width_; ++i)
      if (std::find(to, end, ids[i]) == end) *end++ = ids[i];
    std::fill(end, to + width_, -1);
  }
}

void Predictor::note_successor(int32_t token, int32_t follower) {
  const int32_t fresh = int32_t(successors_.size() / size_t(width_));
  const int32_t row = rows_[0].at(uint32_t(token), fresh);
  if (row == fresh) successors_.resize(successors_.size() + size_t(width_), -1);
  int32_t* to = successors_.data() + int64_t(row) * width_;
  int32_t* place = std::find(to, to + width_ - 1, follower);  // the last place is reused if it is not in the list
  std::copy_backward(to, place, place + 1);
  to[0] = follower;
}

void Predictor::commit_step(const int32_t* tokens, const int32_t* parents, int64_t count, const int32_t* emitted,
                            int64_t emitted_count, const int32_t* top, int64_t wide) {
  for (int64_t i = 0; i < count; ++i)
    if (parents[i] < -1 || parents[i] >= i) throw std::invalid_argument("a draft token's parent must come before it");
  const int32_t last = here_.last, before = here_.before;
  commit(emitted, emitted_count);
  see_successors(before, last, top, wide);
  for (int64_t i = 0; i < count; ++i)
    see_successors(parents[i] < 0 ? last : tokens[parents[i]], tokens[i], top + (i + 1) * wide, wide);
}

void Predictor::begin(const int32_t* prompt, int64_t count) {
  forget();
  for (int64_t i = 0; i < count; ++i) {
    // If the text itself is not indexed, its pairs serve as successors until the target's lists arrive.
    if (depth_ == 0 && width_ > 0 && here_.last >= 0) note_successor(here_.last, prompt[i]);
    take(prompt[i]);
  }
}

void Predictor::commit(const int32_t* tokens, int64_t count) {
  for (int64_t i = 0; i < count; ++i) take(tokens[i]);
}

void Predictor::take(int32_t token) {
  learn(token);
  State after = advance(here_, token);
  if (depth_ > 0) {
    own_.extend(token);
    after.own = own_.here();
  }
  here_ = after;
}

Predictor::State Predictor::advance(const State& from, int32_t token) const {
  State after;
  if (depth_ > 0) after.own = own_.advance(from.own, token);
  if (store_) after.store = store_->advance(from.store, token);
  after.before = from.last;
  after.last = token;
  return after;
}

void Predictor::learn(int32_t token) {
  const auto one = [&](const SuffixTrie& suffixes, const SuffixContext& context, Source source) {
    for (int l = 1; l <= context.length; ++l) {
      const SuffixTrie::Node& node = suffixes.node(context.nodes[l]);
      if (node.total == 0) break;
      escape(node, l, source).learn(suffixes.child(context.nodes[l], token) < 0);
    }
  };
  if (depth_ > 0) one(own_, here_.own, Source::suffix);
  if (store_) one(*store_, here_.store, Source::store);
  for (int order = 0; order < kOrders; ++order)
    if (const int32_t* row = successors(here_, order)) {
      const int rank = int(std::find(row, row + width_, token) - row);
      ranks_[order].learn(rank < width_ ? rank : -1);
    }
}

// Adds a follower of the current context, with its weight among the followers.
void Predictor::follow(int32_t token, double weight, Source source) {
  size_t at = 0;
  while (at < guesses_.size() && guesses_[at].token != token) ++at;
  if (at == guesses_.size()) guesses_.push_back({token, 0, source});
  followers_.push_back({at, weight, source});
}

// Followers share 1 - out by their weights and their probabilities in shorter contexts; other tokens share `out`.
void Predictor::mix(double out, double weight) {
  double before = 0;
  for (const Follower& f : followers_) before += guesses_[f.guess].p;
  if (!(weight + before > 0)) return;  // evidence that has decayed to zero
  const double in = (1 - out) / (weight + (before > 0 ? kBelow : 0)), below = before > 0 ? kBelow / before : 0;
  const double rest = before < 0.99 ? out / (1 - before) : out / 0.01;
  for (const Follower& f : followers_) {
    Guess& g = guesses_[f.guess];
    g.p = -in * (f.weight + below * g.p);  // the sign marks followers
    g.source = f.source;
  }
  for (Guess& g : guesses_) g.p = g.p < 0 ? -g.p : g.p * rest;
}

void Predictor::mix_successors(const State& state, int order) {
  const int32_t* row = successors(state, order);
  if (!row) return;
  const Ranks& ranks = ranks_[order];
  double inside = 0;
  followers_.clear();
  for (int r = 0; r < width_ && row[r] >= 0; ++r) {
    follow(row[r], ranks.hits[r], Source::recycling);
    inside += ranks.hits[r];
  }
  mix(1 - inside / ranks.trials, inside);
}

void Predictor::mix_children(const SuffixTrie& suffixes, int32_t id, int length, Source source) {
  const SuffixTrie::Node& node = suffixes.node(id);
  if (node.total == 0) return;
  double weight = 0;
  followers_.clear();
  for (int32_t c = node.first_child; c >= 0 && followers_.size() < kConsidered; c = suffixes.node(c).next) {
    const SuffixTrie::Node& child = suffixes.node(c);
    const double w = double(child.count) + (followers_.empty() ? kRecent : 0);
    follow(child.token, w, source);
    weight += w;
  }
  mix(escape(node, length, source).estimate(), weight);
}

void Predictor::predict(const State& state) {
  guesses_.clear();
  if (width_ > 0) mix_successors(state, 0);
  const int longest = std::max(state.own.length, state.store.length);
  for (int l = 1; l <= longest || l <= 2; ++l) {
    if (l == 2 && width_ > 0) mix_successors(state, 1);
    if (store_ && l <= state.store.length) mix_children(*store_, state.store.nodes[l], l, Source::store);
    if (depth_ > 0 && l <= state.own.length) mix_children(own_, state.own.nodes[l], l, Source::suffix);
  }
}

DraftTree Predictor::propose(int64_t budget) {
  struct Open {
    double path;
    int64_t order;
    int32_t parent;
    Guess guess;
    bool operator<(const Open& o) const { return path != o.path ? path < o.path : order > o.order; }
  };
  DraftTree tree;
  if (budget > kMaxDrafts)
    throw std::invalid_argument("the budget is " + std::to_string(budget) + "; it must be at most " +
                                std::to_string(kMaxDrafts));
  if (budget <= 0) return tree;
  std::vector<Open> open;
  std::vector<State> states;
  int64_t order = 0;
  const auto look = [&](const State& state, int32_t parent, double path) {
    predict(state);
    for (const Guess& g : guesses_) {
      open.push_back({path * g.p, order++, parent, g});
      std::push_heap(open.begin(), open.end());
    }
  };
  look(here_, -1, 1.0);
  while (!open.empty() && int64_t(tree.tokens.size()) < budget) {
    std::pop_heap(open.begin(), open.end());
    const Open best = open.back();
    open.pop_back();
    const int32_t row = int32_t(tree.tokens.size());
    tree.tokens.push_back(best.guess.token);
    tree.parents.push_back(best.parent);
    tree.probs.push_back(best.guess.p);
    tree.sources.push_back(int32_t(best.guess.source));
    states.push_back(advance(best.parent < 0 ? here_ : states[size_t(best.parent)], best.guess.token));
    if (row + 1 < budget) look(states.back(), row, best.path);
  }
  return tree;
}

}  // namespace ipex_lookahead
