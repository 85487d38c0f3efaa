#include "model/head_state.h"

#include <algorithm>
#include <numeric>

#include "errors.h"
#include "model/decoder.h"

namespace ipex_lookahead {
namespace {

constexpr int64_t kRowsAtOnce = 512;
constexpr int32_t kGiven = -1;  // in tokens_: the row's embedding is given
// From this number of rows on, features are read between steps: they take more memory than keys.
constexpr int64_t kMaxPending = 64;
constexpr int64_t kRowsHeld = 129;  // rows of scratch that stay allocated: a token and the longest draft
// Maximum number of allowed tiles of 16 tokens: an eighth of a part of 32,768 outputs. The latest tiles are kept.
constexpr size_t kMaxDraftTiles = 256;

}  // namespace

namespace {

// The token ids of rows, 0 for rows of images.
std::vector<int32_t> token_ids(const int32_t* tokens, int64_t rows) {
  std::vector<int32_t> ids(tokens, tokens + rows);
  std::replace(ids.begin(), ids.end(), kGiven, int32_t(0));
  return ids;
}

// The index of each row's given embedding, or -1; empty if all rows have tokens.
std::vector<int32_t> given_rows(const int32_t* tokens, int64_t rows) {
  std::vector<int32_t> at;
  if (std::find(tokens, tokens + rows, kGiven) == tokens + rows) return at;
  int32_t next = 0;
  for (int64_t r = 0; r < rows; ++r) at.push_back(tokens[r] == kGiven ? next++ : -1);
  return at;
}

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

int64_t HeadState::embedding_width() const { return head_->shape().features.embedding; }

void HeadState::step(const Step& step, const StepRows& rows, const Sequence& sequence) {
  const int64_t first = sequence.first_row, width = embedding_width();
  step_tokens_.assign(step.tokens + first, step.tokens + first + sequence.rows);
  step_turns_.clear();
  step_given_.clear();
  step_given_at_.clear();
  if (rows.has_positions)
    for (int64_t r = first; r < first + sequence.rows; ++r)
      for (int axis = 0; axis < kAxes; ++axis) step_turns_.push_back(int32_t(rows.position(r, axis) - rows.last_seen(r)));
  if (step.given == nullptr || head_->has_target_keys() || width != rows.width) return;  // else it reads the padding token
  for (int64_t r = 0; r < sequence.rows; ++r) {
    const int32_t given = step.given[first + r];
    step_given_at_.push_back(given < 0 ? -1 : int64_t(step_given_.size()) / width);
    if (given < 0) continue;
    step_tokens_[size_t(r)] = kGiven;
    step_given_.insert(step_given_.end(), step.embeddings + given * width, step.embeddings + (given + 1) * width);
  }
}

// Drops the pending features after the first `rows`.
void HeadState::resize_pending(int64_t rows) {
  pending_.resize(size_t(rows * width_));
  turns_.resize(size_t(rows * kAxes));
  tokens_.resize(size_t(std::max<int64_t>(rows - 1, 0)));
  given_.resize(size_t(std::count(tokens_.begin(), tokens_.end(), kGiven) * embedding_width()));
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
    if (head_->has_target_keys()) {
      resize_pending(0);
    } else if (!pending_.empty()) {
      tokens_.push_back(token);
      if (token == kGiven) {
        const float* const given = step_given_.data() + step_given_at_[size_t(rows[i])] * embedding_width();
        given_.insert(given_.end(), given, given + embedding_width());
      }
    } else if (end_ == position && !read_.empty() && (token != read_.back() || token == kGiven)) {
      forget(position - 1);  // another text than the one that it drafted for, or maybe another image
    } else if (end_ + 1 < position) {
      continue;  // beyond the end of its context
    }
    pending_.insert(pending_.end(), features(rows[i]), features(rows[i]) + width_);
    for (int axis = 0; axis < kAxes; ++axis) turns_.push_back(step_turns_.empty() ? 0 : step_turns_[size_t(rows[i] * kAxes + axis)]);
    allow_tokens(&token, 1);
  }
  length_ = length + count;
  if (!head_->has_target_keys() && keys_.length() + pending() >= head_->shape().max_context) {  // its context is full
    resize_pending(0);
    pending_ = {};
  }
  if (int64_t(step_features_.size()) > kRowsHeld * width_) step_features_ = {};  // frees a prompt's features
}

// keep() detects whether the token at `length` changes. Features that were read are gone, so the head's row at which the token
// changes cannot be recomputed.
void HeadState::crop(int64_t length) {
  end();
  const int64_t first = length_ - pending();
  if (length > first) {  // a head on its target's keys keeps the last position only
    resize_pending(length - first);
  } else if (length < length_) {
    resize_pending(0);
    if (length < end_) forget(length);
  }
  length_ = length;
}

void HeadState::fill_blank(int64_t length) {
  if (!head_->has_target_keys()) keys_.fill_blank(std::min(length, head_->shape().max_context));
  read_.assign(size_t(keys_.length()), -1);
  aligned_ = keys_.length();
  length_ = end_ = length;
}

std::unique_ptr<State> HeadState::fork(int64_t, bool) const {
  std::unique_ptr<HeadState> other(new HeadState(head_, keys_.fork()));
  other->length_ = length_;
  other->end_ = end_;
  other->aligned_ = aligned_;
  other->pending_ = pending_;
  other->tokens_ = tokens_;
  other->given_ = given_;
  other->turns_ = turns_;
  other->read_ = read_;
  other->tiles_ = tiles_;
  other->end();
  return other;
}

void HeadState::export_pages(int64_t first, int64_t last, ImageWriter& image) const {
  const int64_t begin = std::max<int64_t>(first - 1, 0), end = std::min(last - 1, aligned_);
  if (begin >= end) return;
  image.add(read_.data() + begin, (end - begin) * int64_t(sizeof(int32_t)));
  keys_.write_pages(begin, end, image);
}

void HeadState::import_pages(int64_t first, int64_t last, ImageReader& image) {
  const int64_t begin = std::max<int64_t>(first - 1, 0), most = std::min(last - 1, head_->shape().max_context) - begin;
  const int64_t bytes = int64_t(sizeof(int32_t)) + head_->cache_shape().page_bytes_per_position(), rows = image.left() / bytes;
  if (head_->has_target_keys() || image.left() == 0) return;
  if (rows > most || image.left() % bytes != 0)
    throw std::invalid_argument("the image has " + std::to_string(image.left()) + " bytes for the drafting head, which are not up to " +
                                std::to_string(most) + " rows of " + std::to_string(bytes) + " bytes");
  if (int64_t(read_.size()) != begin) {
    image.take(rows, bytes);
    return;
  }
  read_.resize(size_t(begin + rows));
  image.copy(read_.data() + begin, rows);
  keys_.read_pages(begin, begin + rows, image);
}

void HeadState::export_state(int64_t length, ImageWriter& image) const {
  const int64_t rows = int64_t(read_.size()), in_pages = std::min(aligned_, std::max<int64_t>(length - 1, 0));
  image.add_number(end_);
  image.add_number(pending());
  image.add_number(int64_t(tiles_.size()));
  image.add(pending_.data(), int64_t(pending_.size() * sizeof(float)));
  image.add(tokens_.data(), int64_t(tokens_.size() * sizeof(int32_t)));
  image.add(given_.data(), int64_t(given_.size() * sizeof(float)));
  image.add(turns_.data(), int64_t(turns_.size() * sizeof(int32_t)));
  image.add(tiles_.data(), int64_t(tiles_.size() * sizeof(int32_t)));
  if (head_->has_target_keys()) return;
  image.add_number(rows);
  image.add_number(aligned_);
  image.add(read_.data() + in_pages, (rows - in_pages) * int64_t(sizeof(int32_t)));
  keys_.write_pages(in_pages, rows, image);
  keys_.write_state(image);
}

void HeadState::import_state(int64_t length, ImageReader& image) {
  const DecoderShape& shape = head_->shape();
  const bool own = !head_->has_target_keys();
  const auto copy_ids = [&](std::vector<int32_t>& ids, int64_t count, int32_t least, int64_t most, const char* what) {
    image.check(count, sizeof(int32_t));
    ids.resize(size_t(count));
    image.copy(ids.data(), count);
    for (const int32_t id : ids)
      if (id < least || id >= most)
        throw std::invalid_argument("the image has " + std::string(what) + " " + std::to_string(id) + " of " + std::to_string(most));
  };
  length_ = length;
  end_ = image.number(0, length, "number of positions with read features");
  const int64_t pending = image.number(0, own ? length - end_ : std::min<int64_t>(length, 1), "number of features");
  const int64_t tiles = image.number(0, head_->has_whole_head() ? int64_t(kMaxDraftTiles) : 0, "number of tiles");
  image.check(pending, width_ * int64_t(sizeof(float)));
  pending_.resize(size_t(pending * width_));
  image.copy(pending_.data(), pending * width_);
  copy_ids(tokens_, own ? std::max<int64_t>(pending - 1, 0) : 0, kGiven, shape.vocab, "token id");
  const int64_t given = std::count(tokens_.begin(), tokens_.end(), kGiven) * embedding_width();
  image.check(given, sizeof(float));
  given_.resize(size_t(given));
  image.copy(given_.data(), given);
  image.check(pending * kAxes, sizeof(int32_t));
  turns_.resize(size_t(pending * kAxes));
  image.copy(turns_.data(), pending * kAxes);
  copy_ids(tiles_, tiles, 0, (int64_t(shape.vocab) + kLanes - 1) / kLanes, "tile");
  if (!own) return;
  const int64_t rows = image.number(0, std::min(end_, shape.max_context), "number of the drafting head's rows");
  const int64_t aligned = image.number(0, rows, "number of aligned rows");
  const int64_t in_pages = std::min(aligned, std::max<int64_t>(length - 1, 0));
  if (int64_t(read_.size()) < in_pages) {  // some pages are those of caches that did not follow the head
    image.take(image.left(), 1);
    keys_.crop(0);
    read_.clear();
    return;
  }
  image.check(rows - in_pages, sizeof(int32_t));
  read_.resize(size_t(rows));
  image.copy(read_.data() + in_pages, rows - in_pages);
  keys_.read_pages(in_pages, rows, image);
  keys_.read_state(rows, image);
  aligned_ = aligned;
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
    return feed(target, &token, pending_.data(), turns_.data(), nullptr, 1, true, false, true);
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
  const std::vector<int32_t> turns(kAxes, turn_);
  return feed(cache, &token, features.data(), turns.data(), nullptr, 1, answer, true, true) || !answer;
}

int64_t HeadState::output(size_t i) const { return head_->output(centroids_.data(), int64_t(i)); }

void HeadState::end() {
  if (const int64_t rows = int64_t(read_.size()); keys_.length() > rows) crop_rows(rows);
}

void HeadState::crop_rows(int64_t rows) {
  read_.resize(size_t(keys_.crop(rows)));  // a window may roll back further
  aligned_ = std::min(aligned_, keys_.length());
}

// Drops what was read from that position on. The head may have fewer rows than positions; then it drops earlier ones as well.
void HeadState::forget(int64_t length) {
  crop_rows(std::max<int64_t>(0, int64_t(read_.size()) - (end_ - length)));
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
      const int64_t given = std::count(tokens_.begin(), tokens_.begin() + std::ptrdiff_t(first), kGiven) * embedding_width();
      found = feed(keys_, tokens_.data() + first, pending_.data() + first * width_, turns_.data() + first * kAxes,
                   given_.data() + given, some, last, false, last);
    }
  } catch (...) {
    crop_rows(length);
    throw;
  }
  if (aligned_ == length && length == length_ - pending()) aligned_ += rows;
  end_ = length_ - pending() + rows;
  read_.insert(read_.end(), tokens_.begin(), tokens_.end());
  pending_.erase(pending_.begin(), pending_.begin() + rows * width_);
  turns_.erase(turns_.begin(), turns_.begin() + rows * kAxes);
  given_.clear();
  if (rows > kRowsHeld) pending_.shrink_to_fit();
  tokens_.clear();
  return found;
}

// `turns`: RoPE positions minus slots, [rows][kAxes]; `given`: embeddings of rows of images, in order; `own`: the features are
// the head's; `goes_on`: the last row's features are fed back.
bool HeadState::feed(Cache& cache, const int32_t* tokens, const float* features, const int32_t* turns, const float* given,
                     int64_t rows, bool answer, bool own, bool goes_on) {
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
  const std::vector<int32_t> ids = token_ids(tokens, rows);
  const std::vector<int32_t> at = given_rows(tokens, rows);
  if (!at.empty()) {
    step.given = at.data();
    step.embeddings = given;
    step.given_count = std::count(tokens, tokens + rows, kGiven);
  }
  turn_ = turns[(rows - 1) * kAxes];
  std::vector<int32_t> positions;
  if (std::any_of(turns, turns + rows * kAxes, [](int32_t one) { return one != 0; })) {
    const int64_t most = shape.max_context - 1;
    for (int64_t i = 0; i < rows * kAxes; ++i)
      positions.push_back(int32_t(std::clamp<int64_t>(cache.length() + (i / kAxes) + turns[i], 0, most)));
    step.positions = positions.data();
  }
  step.tokens = ids.data();
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
