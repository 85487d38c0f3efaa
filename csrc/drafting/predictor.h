// Predicts likely continuations of a text as a tree of draft tokens, best first.
//
// Prediction by partial matching (Cleary and Witten, 1984): distributions of short contexts are mixed into those of longer
// ones. The weight of each is how often the next token was among the tokens seen there. Contexts are counted suffixes of the
// text and of a store of earlier texts, and the target's own most likely successors of a token and of a pair of tokens, as
// last seen (Token Recycling, arXiv 2408.08696). Every committed token updates the statistics, drafted or not, so they are
// not censored. Only +, * and / of doubles in a fixed order: the same calls give the same drafts on every machine.
#pragma once

#include <cstdint>
#include <vector>

#include "drafting/suffix_trie.h"

namespace ipex_lookahead {

enum class Source : uint8_t { recycling, store, suffix };

constexpr int64_t kMaxDrafts = 1 << 16;

struct DraftTree {
  std::vector<int32_t> tokens, parents;  // parents precede children; -1: the last committed token
  std::vector<double> probs;             // probability of each token, given its parent
  std::vector<int32_t> sources;          // Source
};

class Predictor {
 public:
  // depth: longest context from the text, 0: none. width: number of successors stored per token, 0: none. The store, or
  // nullptr, must outlive the predictor, and may grow meanwhile.
  Predictor(int depth, int width, const SuffixTrie* store);

  void begin(const int32_t* prompt, int64_t count);
  void commit(const int32_t* tokens, int64_t count);
  // Commits the emitted tokens of a step, then stores the target's most likely ids after each of its rows, most likely first.
  // top is int32 [count + 1, wide]: row 0 after the last committed token, row i + 1 after draft token i; a negative id ends a
  // list. The order matters: a list that already holds the answer would bias the statistics.
  void commit_step(const int32_t* tokens, const int32_t* parents, int64_t count, const int32_t* emitted,
                   int64_t emitted_count, const int32_t* top, int64_t wide);
  // Returns at most `budget` tokens; std::invalid_argument above kMaxDrafts.
  DraftTree propose(int64_t budget);

 private:
  // Statistics of how often the next token was not among the seen ones.
  struct Escape {
    double missed, trials;
    double estimate() const { return missed / trials; }
    void learn(bool miss);
  };
  static constexpr int kOrders = 2, kMaxWidth = 8;
  struct Ranks {  // statistics of a list of successors
    double hits[kMaxWidth];
    double trials;
    void learn(int rank);  // -1: not in the list
  };
  struct State {
    SuffixContext own, store;
    int32_t last = -1, before = -1;
  };
  struct Guess {
    int32_t token;
    double p;
    Source source;
  };
  struct Follower {
    size_t guess;
    double weight;
    Source source;
  };

  void forget();
  void take(int32_t token);
  void learn(int32_t token);
  void see_successors(int32_t before, int32_t token, const int32_t* ids, int64_t count);
  void note_successor(int32_t token, int32_t follower);
  State advance(const State& from, int32_t token) const;
  void predict(const State& state);
  void mix_successors(const State& state, int order);
  void mix_children(const SuffixTrie& suffixes, int32_t node, int length, Source source);
  void follow(int32_t token, double weight, Source source);
  void mix(double out, double weight);
  Escape& escape(const SuffixTrie::Node& node, int length, Source source);
  const int32_t* successors(const State& state, int order) const;

  int depth_, width_;
  const SuffixTrie* store_;
  SuffixTrie own_;
  State here_;
  IntegerMap rows_[kOrders];          // token or pair -> row of successors_
  std::vector<int32_t> successors_;   // [rows, width], -1: none
  Ranks ranks_[kOrders];
  std::vector<Escape> escapes_;       // [store or suffix, length, count]
  std::vector<Guess> guesses_;        // of the current context
  std::vector<Follower> followers_;   // followers in the context that is being mixed in
};

}  // namespace ipex_lookahead
