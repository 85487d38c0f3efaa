#include "model/head_state.h"

#include <algorithm>
#include <numeric>

#include "errors.h"
#include "model/decoder.h"

namespace ipex_lookahead {
namespace {

constexpr int64_t kRowsAtOnce = 512;
// From this number of rows on, features are read between steps: they take more memory than keys.
constexpr int64_t kMaxPending = 64;
constexpr int64_t kRowsHeld = 129;  // rows of scratch that stay allocated: a token and the longest draft
// Maximum number of allowed tiles of 16 tokens: an eighth of a part of 32,768 outputs. The latest tiles are kept.
constexpr size_t kMaxDraftTiles = 256;

}  // namespace

HeadState::HeadState(std::shared_ptr<Decoder> head, int64_t length) : HeadState(head, head->new_cache()) { length_ = end_ = length; }

HeadState::HeadState(std::shared_ptr<Decoder> head, Cache keys)
    : head_(std::move(head)), width_(head_->shape().features.width), keys_(std::move(keys)) {}

void HeadState::allow_tokens(const int32_t* tokens, int64_t count) {
  if (!head_->has_whole_head()) return;
  for (int64_t i = 0; i < count; ++i) {
    if (tokens[i] < 0 || tokens[i] >= head_->shape().vocab || head_->drafts(tokens[i])) continue;
    const int32_t tile = tokens[i] / kLanes;
    const auto found = std::find(tiles_.begin(), tiles_.end(), tile);
    if (found != tiles_.end()) tiles_.erase(found);
    else if (tiles_.size() == kMaxDraftTiles) tiles_.erase(tiles_.begin());
    tiles_.push_back(tile);
  }
}

void HeadState::prepare(int64_t, int64_t rows, int64_t) {
  if (int64_t(step_features_.size()) < rows * width_) step_features_.resize(size_t(rows * width_));
  const size_t most = head_->has_target_keys() ? size_t(width_) : pending_.size() + size_t(rows * width_);
  if (pending_.capacity() < most) pending_.reserve(std::max(most, 2 * pending_.size()));
}

void HeadState::keep(int64_t length, const int64_t* rows, int64_t count) {
  end();
  for (int64_t i = 0; i < count; ++i) {
    const int32_t token = step_tokens_[size_t(rows[i])];
    const int64_t position = length + i;
    if (head_->has_target_keys())
      pending_.clear();
    else if (!pending_.empty())
      tokens_.push_back(token);
    else if (end_ == position && !read_.empty() && token != read_.back())
      forget(position - 1);  // another text than the one that it drafted for
    else if (end_ + 1 < position)
      continue;  // beyond the end of its context
    pending_.insert(pending_.end(), features(rows[i]), features(rows[i]) + width_);
    allow_tokens(&token, 1);
  }
  length_ = length + count;
  if (!head_->has_target_keys() && keys_.length() + pending() >= head_->shape().max_context) {  // its context is full
    pending_ = {};
    tokens_.clear();
  }
  if (int64_t(step_features_.size()) > kRowsHeld * width_) step_features_ = {};  // frees a prompt's features
}

// keep() detects whether the token at `length` changes. Features that were read are gone, so the head's row at which the token
// changes cannot be recomputed.
void HeadState::crop(int64_t length) {
  end();
  const int64_t first = length_ - pending();
  if (length > first) {  // a head on its target's keys keeps the last position only
    pending_.resize(size_t((length - first) * width_));
    tokens_.resize(size_t(length - first - 1));
  } else if (length < length_) {
    pending_.clear();
    tokens_.clear();
    if (length < end_) forget(length);
  }
  length_ = length;
}

void HeadState::fill_blank(int64_t length) {
  if (!head_->has_target_keys()) keys_.fill_blank(std::min(length, head_->shape().max_context));
  read_.assign(size_t(keys_.length()), -1);
  length_ = end_ = length;
}

std::unique_ptr<State> HeadState::fork(int64_t, bool) const {
  std::unique_ptr<HeadState> other(new HeadState(head_, keys_.fork()));
  other->length_ = length_;
  other->end_ = end_;
  other->pending_ = pending_;
  other->tokens_ = tokens_;
  other->read_ = read_;
  other->tiles_ = tiles_;
  other->end();
  return other;
}

int64_t HeadState::bytes() const {
  return keys_.bytes() + feature_bytes() + int64_t(read_.capacity() * sizeof(int32_t));
}

void HeadState::catch_up() {
  end();
  if (int64_t(tokens_.size()) >= kMaxPending) read(false);
}

bool HeadState::first(Cache& target, int32_t token) {
  end();
  if (pending_.empty()) return false;
  if (head_->has_target_keys()) {
    if (target.length() >= head_->shape().max_context) return false;
    return feed(target, &token, pending_.data(), 1, true, false, true);
  }
  tokens_.push_back(token);
  bool found = false;
  try {
    found = read(true);
  } catch (...) {
    tokens_.pop_back();
    throw;
  }
  if (!tokens_.empty()) tokens_.pop_back();
  return found;
}

bool HeadState::next(Cache& target, int32_t token, bool answer) {
  if (keys_.length() + 1 >= head_->shape().max_context) return false;
  const std::vector<float> features = own_;
  Cache& cache = head_->has_target_keys() ? target : keys_;
  return feed(cache, &token, features.data(), 1, answer, true, true) || !answer;
}

int64_t HeadState::output(size_t i) const { return head_->output(centroids_.data(), int64_t(i)); }

void HeadState::end() {
  if (const int64_t rows = int64_t(read_.size()); keys_.length() > rows) read_.resize(size_t(keys_.crop(rows)));
}

// Drops what was read from that position on. The head may have fewer rows than positions; then it drops earlier ones as well.
void HeadState::forget(int64_t length) {
  const int64_t rows = int64_t(read_.size());
  read_.resize(size_t(keys_.crop(std::max<int64_t>(0, rows - (end_ - length)))));  // a window may roll back further
  end_ = length;
}

// Reads the pending rows with known tokens; none beyond the end of the head's context.
bool HeadState::read(bool answer) {
  const int64_t rows = int64_t(tokens_.size()), length = keys_.length();
  if (length + rows >= head_->shape().max_context) return false;
  bool found = false;
  try {
    for (int64_t first = 0; first < rows; first += kRowsAtOnce) {
      const int64_t some = std::min(kRowsAtOnce, rows - first);
      const bool last = answer && first + some == rows;
      found = feed(keys_, tokens_.data() + first, pending_.data() + first * width_, some, last, false, last);
    }
  } catch (...) {
    read_.resize(size_t(keys_.crop(length)));
    throw;
  }
  end_ = length_ - pending() + rows;
  read_.insert(read_.end(), tokens_.begin(), tokens_.end());
  pending_.erase(pending_.begin(), pending_.begin() + rows * width_);
  if (rows > kRowsHeld) pending_.shrink_to_fit();
  tokens_.clear();
  return found;
}

// `own`: the features are the head's; `goes_on`: the last row's features are fed back.
bool HeadState::feed(Cache& cache, const int32_t* tokens, const float* features, int64_t rows, bool answer, bool own, bool goes_on) {
  std::vector<int32_t> parents(static_cast<size_t>(rows));
  std::iota(parents.begin(), parents.end(), -1);
  const DecoderShape& shape = head_->shape();
  const int32_t last = int32_t(rows) - 1;
  int32_t id = -1;
  Step step;
  step.caches = {&cache};
  step.claimed = head_->has_target_keys();
  step.counts = {rows};
  step.settled = {own || step.claimed ? kHold : rows};
  step.tokens = tokens;
  step.parents = parents.data();
  step.features = features;
  step.own_features = own;
  step.rows = rows;
  step.want = &last;
  step.wanted = answer;
  StepOutputs out;
  out.ids = &id;
  if (answer) {
    logits_.resize(size_t(head_->logits()));
    centroids_.resize(size_t(shape.candidates.used));
    out.centroids = centroids_.empty() ? nullptr : centroids_.data();
    tile_logits_.resize(tiles_.size() * kLanes);
    out.logits = logits_.data();
    out.tiles = tiles_.data();
    out.tile_count = int64_t(tiles_.size());
    out.tile_logits = tile_logits_.data();
  }
  if (goes_on) {
    own_.resize(size_t(shape.hidden));
    out.hidden_layers = &shape.features.feedback;
    out.layers = 1;
    out.hidden_rows = &last;
    out.hidden_wanted = 1;
    out.hidden = own_.data();
  }
  head_->forward(step, out);
  if (head_->has_target_keys()) return id >= 0;
  std::vector<int64_t> kept(static_cast<size_t>(rows));
  std::iota(kept.begin(), kept.end(), 0);
  keys_.keep(kept.data(), rows);
  return id >= 0;
}

}  // namespace ipex_lookahead
