#include "model/cache.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "model/decoder.h"
#include "model/head_state.h"

namespace ipex_lookahead {
namespace {

std::unique_ptr<State> state_of(const KvShape& shape) { return std::make_unique<KvPages>(shape); }
std::unique_ptr<State> state_of(const RecurrentShape& shape) { return std::make_unique<RecurrentState>(shape); }

}  // namespace

int64_t CacheShape::state_bytes() const {
  int64_t bytes = 0;
  for (const StateShape& state : states)
    if (const auto* one = std::get_if<RecurrentShape>(&state); one != nullptr) bytes += one->bytes();
  return bytes;
}

int64_t CacheShape::bytes_per_position() const {
  int64_t bytes = 0;
  for (const StateShape& state : states)
    bytes += std::visit([](const auto& shape) { return shape.bytes_per_position(); }, state);
  return bytes;
}

int64_t CacheShape::page_bytes_per_position() const {
  int64_t bytes = 0;
  for (const StateShape& state : states)
    if (const auto* one = std::get_if<KvShape>(&state); one != nullptr && one->window == 0) bytes += one->bytes_per_position();
  return bytes;
}

Cache::Cache(const CacheShape& shape) : shape_(shape) {
  states_.reserve(shape.states.size());
  for (const StateShape& state : shape.states)
    states_.push_back(std::visit([](const auto& of) { return state_of(of); }, state));
}

void Cache::prepare(int64_t rows, int64_t settled) {
  settled_ = 0;
  for (auto& state : states_) state->prepare(length_, rows, settled);
}

int64_t Cache::accepted() const {
  int64_t most = 0;
  for (const auto& state : states_) most = std::max(most, state->accepted());
  return most;
}

void Cache::stepped(const int32_t* parents, int64_t rows, int64_t settled) {
  for (auto& state : states_) state->stepped();
  parents_.assign(parents, parents + rows);
  settled_ = std::max<int64_t>(settled, 0);
}

void Cache::checkpoint() {
  const Claim claim(claimable_, "checkpoint");
  parents_.clear();
  settled_ = 0;
  for (auto& state : states_) state->checkpoint(length_);
}

void Cache::keep(const int64_t* rows, int64_t count) {
  const Claim claim(claimable_, "keep");
  if (count < settled_)
    throw std::invalid_argument("keep: the last step's first " + std::to_string(settled_) + " rows were settled, and these are " +
                                std::to_string(count));
  int64_t parent = -1;
  for (int64_t i = 0; i < count; ++i) {
    if (rows[i] < 0 || rows[i] >= int64_t(parents_.size()))
      throw std::invalid_argument("keep: row " + std::to_string(rows[i]) + " is not one of the last step's " +
                                  std::to_string(parents_.size()) + " rows");
    if (parents_[size_t(rows[i])] != parent)
      throw std::invalid_argument("keep: rows must be a path of the last step, root first; row " +
                                  std::to_string(rows[i]) + " does not follow row " + std::to_string(parent));
    parent = rows[i];
  }
  for (auto& state : states_) state->keep(length_, rows, count);
  length_ += count;
  parents_.clear();
  settled_ = 0;
}

int64_t Cache::crop(int64_t length) {
  const Claim claim(claimable_, "crop");
  if (length < 0 || length > length_)
    throw std::invalid_argument("crop: length " + std::to_string(length) + " is not between 0 and the present " +
                                std::to_string(length_));
  for (size_t agreed = 0, i = 0; agreed < states_.size(); i = (i + 1) % states_.size()) {
    const int64_t reached = states_[i]->reach(length);
    agreed = reached == length ? agreed + 1 : 1;
    length = reached;
  }
  for (auto& state : states_) state->crop(length);
  length_ = length;
  imported_ = 0;
  parents_.clear();
  settled_ = 0;
  return length;
}

Cache Cache::fork() {
  const Claim claim(claimable_, "fork");
  Cache other({{}, shape_.max_context});
  other.shape_ = shape_;
  other.length_ = length_;
  for (const auto& state : states_) other.states_.push_back(state->fork(length_, !parents_.empty()));
  if (head_ != nullptr) other.head_ = static_cast<HeadState*>(other.states_.back().get());
  return other;
}

void Cache::follow(const std::shared_ptr<Decoder>& head) {
  const Claim claim(claimable_, "follow");
  if (head->shape().features.width == 0) throw std::invalid_argument("follow: this model is not a drafting head");
  if (head_ != nullptr && &head_->head() == head.get()) return;
  auto state = std::make_unique<HeadState>(head, length_);
  if (head_ == nullptr) states_.push_back(std::move(state));
  else states_.back() = std::move(state);
  head_ = static_cast<HeadState*>(states_.back().get());
  parents_.clear();  // rows of the last step have no features for the head
  settled_ = 0;
}

void Cache::allow_tokens(const int32_t* tokens, int64_t count) {
  if (head_ == nullptr) return;
  const Claim claim(claimable_, "allow_tokens");
  head_->allow_tokens(tokens, count);
}

void Cache::catch_up() {
  if (head_ == nullptr) return;
  const Claim claim(claimable_, "catch_up");
  head_->catch_up();
}

void Cache::fill_blank(int64_t length) {
  const Claim claim(claimable_, "fill_blank");
  if (length_ != 0) throw std::invalid_argument("fill_blank: the cache holds " + std::to_string(length_) + " positions");
  if (length < 0 || length > shape_.max_context)
    throw std::invalid_argument("fill_blank: length " + std::to_string(length) + " is not between 0 and the context of " +
                                std::to_string(shape_.max_context) + " tokens");
  for (auto& state : states_) state->fill_blank(length);
  length_ = length;
  parents_.clear();
}

void Cache::write_pages(int64_t first, int64_t last, ImageWriter& image) const {
  for (const auto& state : states_) state->export_pages(first, last, image);
}

void Cache::write_state(ImageWriter& image) const {
  image.add_number(head_ != nullptr);
  for (const auto& state : states_) state->export_state(length_, image);
}

void Cache::read_pages(int64_t first, int64_t last, ImageReader& image) {
  for (auto& state : states_) state->import_pages(first, last, image);
  imported_ = last;
}

void Cache::read_state(int64_t length, ImageReader& image) {
  const bool follows = image.number(0, head_ != nullptr, "drafting head") != 0;
  if (head_ != nullptr && !follows) {
    head_ = nullptr;
    states_.pop_back();
  }
  for (auto& state : states_) state->import_state(length, image);
  length_ = length;
  imported_ = 0;
}

Image Cache::export_pages(int64_t first, int64_t last) {
  const Claim claim(claimable_, "export_pages");
  if (first < 0 || first % kPage != 0 || first >= last || last > length_)
    throw std::invalid_argument("export_pages: [" + std::to_string(first) + ", " + std::to_string(last) +
                                ") is not a range of the " + std::to_string(length_) + " positions that starts at a multiple of " +
                                std::to_string(kPage));
  return ImageWriter::image([&](ImageWriter& image) { write_pages(first, last, image); });
}

Image Cache::export_state() {
  const Claim claim(claimable_, "export_state");
  if (head_ != nullptr) head_->end();
  return ImageWriter::image([&](ImageWriter& image) { write_state(image); });
}

void Cache::import_pages(int64_t first, int64_t last, const uint8_t* data, int64_t size) {
  const Claim claim(claimable_, "import_pages");
  if (length_ != 0) throw std::invalid_argument("import_pages: the cache holds " + std::to_string(length_) + " positions");
  if (first != imported_ || first % kPage != 0 || first >= last || last > shape_.max_context)
    throw std::invalid_argument("import_pages: [" + std::to_string(first) + ", " + std::to_string(last) +
                                ") does not continue the first " + std::to_string(imported_) +
                                " positions in whole pages, or exceeds the context of " + std::to_string(shape_.max_context));
  ImageReader image(data, size);
  read_pages(first, last, image);
  image.finish();
}

void Cache::import_state(int64_t length, const uint8_t* data, int64_t size) {
  const Claim claim(claimable_, "import_state");
  if (length_ != 0) throw std::invalid_argument("import_state: the cache holds " + std::to_string(length_) + " positions");
  if (length != imported_)
    throw std::invalid_argument("import_state: the pages have " + std::to_string(imported_) + " positions, and the length is " +
                                std::to_string(length));
  ImageReader image(data, size);
  read_state(length, image);
  image.finish();
}

int64_t Cache::bytes() {
  const Claim claim(claimable_, "bytes");
  int64_t bytes = 0;
  for (const auto& state : states_) bytes += state->bytes();
  return bytes;
}

int64_t Cache::state_bytes() {
  const Claim claim(claimable_, "state_bytes");
  int64_t bytes = 0;
  for (size_t i = 0; i < shape_.states.size(); ++i)
    if (std::holds_alternative<RecurrentShape>(shape_.states[i])) bytes += states_[i]->bytes();
  if (head_ != nullptr) bytes += head_->feature_bytes();
  return bytes;
}

}  // namespace ipex_lookahead
