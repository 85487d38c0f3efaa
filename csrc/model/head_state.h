// What a trained head that drafts keeps of a sequence, beside the target's cache: the features of the target's rows that it has
// yet to read, and its own keys and values of those that it has read. One more state of that cache, so it is kept, cropped,
// forked and counted with the others.
//
// The head's row p is made of the features of the target's row p and of the token after it, which is known with the next row.
// A head that has its target's keys keeps none, and reads the last position alone.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/cache.h"
#include "model/states/state.h"

namespace ipex_lookahead {

class Decoder;

class HeadState : public State {
 public:
  HeadState(std::shared_ptr<Decoder> head, int64_t length);  // of a target's cache of that length

  Decoder& head() const { return *head_; }
  int64_t width() const { return width_; }  // of a row's features

  // Of the step at hand, after prepare(): its tokens, and where the features of its row r go.
  void step(const int32_t* tokens, int64_t rows) { step_tokens_.assign(tokens, tokens + rows); }
  float* features(int64_t row) { return step_features_.data() + row * width_; }

  // Tokens of the text, or likely to follow it: those that the head's part of the lm_head lacks are drafted too from now on.
  void see(const int32_t* tokens, int64_t count);
  // Has the head read what waits, if that is much: a prompt's features do not pile up.
  void catch_up();

  // A chain begins with `token`, the text's last one; goes on with drafted ones, whose rows stand on the head's own features; and
  // ends, as if these had not been, at the next call of another kind at the latest. The first two are false where there is nothing to draft from, or its logits are not finite.
  // `target`: the cache that this is a state of, which the caller has claimed.
  bool first(Cache& target, int32_t token);
  bool next(Cache& target, int32_t token, bool answer = true);  // without an answer there are no logits
  void end();
  // Of the last row: the logits of the head's outputs, the i-th of which is output(i)'s, and those of `tiles()`, 16 each.
  const std::vector<float>& logits() const { return logits_; }
  int64_t output(size_t i) const;
  const std::vector<int32_t>& tiles() const { return tiles_; }
  const std::vector<float>& tile_logits() const { return tile_logits_; }

  void prepare(int64_t length, int64_t rows, int64_t settled) override;
  void keep(int64_t length, const int64_t* rows, int64_t count) override;
  int64_t reach(int64_t length) const override { return length; }
  void crop(int64_t length) override;
  void fill_blank(int64_t length) override;
  std::unique_ptr<State> fork(int64_t length, bool stepped) const override;
  int64_t bytes() const override;
  // Bytes of the features that the head has yet to read, and of the last step's: up to 64 rows between steps.
  int64_t feature_bytes() const { return int64_t((waiting_.capacity() + step_features_.capacity()) * sizeof(float)); }

 private:
  HeadState(std::shared_ptr<Decoder> head, Cache keys);
  bool feed(Cache& cache, const int32_t* tokens, const float* features, int64_t rows, bool answer, bool own, bool goes_on);
  bool read(bool answer);
  void forget(int64_t length);
  int64_t waits() const { return int64_t(waiting_.size()) / width_; }

  std::shared_ptr<Decoder> head_;
  int64_t width_;
  int64_t length_ = 0;                // the target's
  std::vector<float> waiting_;        // features [n][width] of the target's last n positions
  std::vector<int32_t> tokens_;       // that follow them, but for the last
  mutable Cache keys_;                // of the head; a fork shares its pages
  std::vector<int32_t> read_;         // the tokens of its rows, but for drafted ones behind them
  int64_t end_ = 0;                   // the position after that whose features it read last
  std::vector<int32_t> step_tokens_;
  std::vector<float> step_features_;
  std::vector<int32_t> tiles_;        // of the whole lm_head, beside the head's part
  std::vector<int32_t> centroids_;    // whose outputs the logits are of
  std::vector<float> logits_, tile_logits_, own_;
};

}  // namespace ipex_lookahead
