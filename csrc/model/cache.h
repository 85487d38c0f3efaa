// The cache of one sequence: one state per kind of layer, behind one interface.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "model/claim.h"
#include "model/states/kv_pages.h"
#include "model/states/recurrent.h"
#include "model/states/state.h"

namespace ipex_lookahead {

class Decoder;
class HeadState;

// To add a kind of state, add an alternative here and its class.
using StateShape = std::variant<KvShape, RecurrentShape>;

struct CacheShape {
  std::vector<StateShape> states;
  int64_t max_context = 0;
  bool operator==(const CacheShape& o) const { return states == o.states && max_context == o.max_context; }
  int64_t bytes_per_position() const;
  int64_t page_bytes_per_position() const;  // the part in the layers that keep all positions
  int64_t state_bytes() const;  // bytes that do not grow with the number of positions

  // Return the index of the state of layers with this shape; adds a state if there is none.
  template <typename Shape>
  size_t state_index(const Shape& own) {
    for (size_t i = 0; i < states.size(); ++i)
      if (const Shape* one = std::get_if<Shape>(&states[i]); one != nullptr && one->same_layout(own)) return i;
    states.emplace_back(own);
    return states.size() - 1;
  }
};

// Methods that change a cache, and steps that run on it, claim it. A claim by a second thread raises BusyError.
class Cache {
 public:
  explicit Cache(const CacheShape& shape);
  Cache(Cache&&) = default;

  int64_t length() const { return length_; }
  const CacheShape& shape() const { return shape_; }

  // Number of accepted rows of the last step that a recurrent state adds in the next step.
  int64_t accepted() const;

  // For steps. keep, crop, checkpoint, fill_blank, fork, bytes and state_bytes claim the cache themselves.
  Claimable& claimable() { return claimable_; }

  // Makes room for a step of `rows` rows, of which the first `settled` cannot be rejected. Throws std::bad_alloc and leaves the
  // cache unchanged.
  void prepare(int64_t rows, int64_t settled);
  template <typename Kind>
  const Kind& state(size_t number) const { return static_cast<const Kind&>(*states_[number]); }

  // Called after the step with the parents of its rows, which keep() checks paths against.
  void stepped(const int32_t* parents, int64_t rows, int64_t settled);

  // Commits the accepted rows of the last step. Throws std::invalid_argument if `rows` is not a path from a root of the step,
  // or lacks one of its settled rows.
  void keep(const int64_t* rows, int64_t count);
  // Rolls back to `length`, or to the largest smaller length that every state can reach (at worst 0). Returns that length.
  int64_t crop(int64_t length);
  // Makes the current length reachable for crop() (the last kCheckpoints are stored) and drops the last step's rows.
  void checkpoint();
  // Commits `length` positions of zeros, at most the context, to an empty cache; for benchmarks.
  void fill_blank(int64_t length);
  // Starts to collect the features that a drafting head needs. No effect if the cache already follows that head.
  void follow(const std::shared_ptr<Decoder>& head);
  // The state of the drafting head, or null.
  HeadState* head() const { return head_; }
  // Allows the head to draft tokens outside its part of the lm_head; see HeadState::allow_tokens.
  void allow_tokens(const int32_t* tokens, int64_t count);
  // Runs the head over its pending features if there are many; called between steps.
  void catch_up();
  Cache fork();
  // The cache's image: the positions [first, last) of layers that keep all of them, where `first` is a multiple of kPage, and
  // the rest. They throw std::invalid_argument for another range.
  Image export_pages(int64_t first, int64_t last);
  Image export_state();
  // Fill an empty cache: all pages in ascending order, then the rest, which commits `length` positions. A cache that follows
  // a head when it is empty gets the head's state, or stops to follow it if the image has none. They throw
  // std::invalid_argument for an image that does not fit; the cache can then be deleted only.
  void import_pages(int64_t first, int64_t last, const uint8_t* data, int64_t size);
  void import_state(int64_t length, const uint8_t* data, int64_t size);
  int64_t bytes();        // memory, including pages shared with forks
  int64_t state_bytes();  // the part that does not grow with positions: recurrent states, and features for a head

 private:
  friend class HeadState;  // the image of a head has that of its own cache

  // A claimed cache's pages and states, or those of a head's cache.
  void write_pages(int64_t first, int64_t last, ImageWriter& image) const;
  void write_state(ImageWriter& image) const;
  void read_pages(int64_t first, int64_t last, ImageReader& image);
  void read_state(int64_t length, ImageReader& image);

  CacheShape shape_;
  Claimable claimable_;
  int64_t length_ = 0;
  int64_t imported_ = 0;  // positions with imported pages, before there is a length
  std::vector<std::unique_ptr<State>> states_;  // the states of shape_, then the head's state if any
  HeadState* head_ = nullptr;
  std::vector<int32_t> parents_;
  int64_t settled_ = 0;  // rows of the last step that must be kept
};

}  // namespace ipex_lookahead
