// The state of a drafting head for one sequence: features of the target's rows that the head has not read yet, and the head's
// own KV cache for the rows that it has read. It is one more state of the target's cache, so it is kept, cropped, forked and
// counted with the others.
//
// Row p of the head is computed from the features of the target's row p and the token at p + 1, which the next row brings. A
// head that shares its target's keys has no KV cache and reads the last position only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/cache.h"
#include "model/states/state.h"

namespace ipex_lookahead {

class Decoder;
struct Sequence;
struct Step;
struct StepRows;

class HeadState : public State {
 public:
  HeadState(std::shared_ptr<Decoder> head, int64_t length);  // `length`: length of the target's cache

  Decoder& head() const { return *head_; }
  int64_t width() const { return width_; }  // width of a row's features

  // Starts a step after prepare(): its rows of this sequence; features(r) is where the features of its row r are written.
  void step(const Step& step, const StepRows& rows, const Sequence& sequence);
  float* features(int64_t row) { return step_features_.data() + row * width_; }

  // Allows the head to draft these tokens even if its part of the lm_head lacks them: tokens of the text, or likely followers.
  void allow_tokens(const int32_t* tokens, int64_t count);
  // Runs the head over pending features if there are many, so that a prompt's features do not accumulate.
  void catch_up();

  // A chain starts with first(`token`), where `token` is the last one of the text, continues with next() for drafted tokens,
  // which use the head's own features, and is undone by end(), or by the next call of another method. first() and next()
  // return false if nothing can be drafted or the logits are not finite. `target`: the cache that owns this state, claimed by
  // the caller.
  bool first(Cache& target, int32_t token);
  bool next(Cache& target, int32_t token, bool answer = true);  // without `answer`, logits are not computed
  void end();
  // Logits of the last row: logits()[i] belongs to output(i); tile_logits() has 16 logits for each of tiles().
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
  // Pages have the head's rows [first - 1, last - 1), which depend on the tokens before `last`, as far as it has read them.
  // The state has other rows. Rows after missing ones, in pages of caches that did not follow the head, are not imported.
  void export_pages(int64_t first, int64_t last, ImageWriter& image) const override;
  void import_pages(int64_t first, int64_t last, ImageReader& image) override;
  void export_state(int64_t length, ImageWriter& image) const override;
  void import_state(int64_t length, ImageReader& image) override;
  // Bytes of the pending features and of the last step's features: up to 64 rows between steps.
  int64_t feature_bytes() const { return int64_t((pending_.capacity() + step_features_.capacity()) * sizeof(float)); }

 private:
  HeadState(std::shared_ptr<Decoder> head, Cache keys);
  bool feed(Cache& cache, const int32_t* tokens, const float* features, const int32_t* turns, const float* given, int64_t rows,
            bool answer, bool own, bool goes_on);
  int64_t embedding_width() const;
  void resize_pending(int64_t rows);
  bool read(bool answer);
  void forget(int64_t length);
  void crop_rows(int64_t rows);
  int64_t pending() const { return int64_t(pending_.size()) / width_; }

  std::shared_ptr<Decoder> head_;
  int64_t width_;
  int64_t length_ = 0;                // length of the target's cache
  std::vector<float> pending_;        // features [n][width] of the target's last n positions
  std::vector<int32_t> tokens_;       // the tokens after these positions, except the last; kGiven: a row of an image
  std::vector<float> given_;          // embeddings [n][embedding width] of the rows of images in tokens_
  std::vector<int32_t> turns_;        // RoPE positions minus the slots of the last n positions, [n][kAxes]
  mutable Cache keys_;                // the head's KV cache; a fork shares its pages
  std::vector<int32_t> read_;         // tokens of its committed rows
  int64_t aligned_ = 0;               // number of leading rows with their index as position; others follow a gap
  int64_t end_ = 0;                   // 1 + the last position with features that it has read
  std::vector<int32_t> step_tokens_, step_turns_;
  std::vector<float> step_given_;     // embeddings of the step's rows of images
  std::vector<int64_t> step_given_at_;  // index of each row's, or -1
  int32_t turn_ = 0;                  // RoPE position minus slot of drafted rows
  std::vector<float> step_features_;
  std::vector<int32_t> tiles_;        // tiles of the whole lm_head with allowed tokens
  std::vector<int32_t> centroids_;    // centroids of the computed logits
  std::vector<float> logits_, tile_logits_, own_;
};

}  // namespace ipex_lookahead
