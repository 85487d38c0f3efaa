// What a decoder keeps of one sequence: a state of each kind of layer, behind one interface.
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

// Another kind of state is one more alternative here, and its class.
using StateShape = std::variant<KvShape, RecurrentShape>;

struct CacheShape {
  std::vector<StateShape> states;
  int64_t max_context = 0;
  bool operator==(const CacheShape& o) const { return states == o.states && max_context == o.max_context; }
  int64_t bytes_per_position() const;
  int64_t state_bytes() const;  // that do not grow with the positions

  // The number of the state of layers like that one, which is added where there is none yet.
  template <typename Shape>
  size_t joined(const Shape& own) {
    for (size_t i = 0; i < states.size(); ++i)
      if (const Shape* one = std::get_if<Shape>(&states[i]); one != nullptr && one->alike(own)) return i;
    states.emplace_back(own);
    return states.size() - 1;
  }
};

// What changes a cache, and a step that runs on it, claims it meanwhile: from another thread each of these is refused with
// BusyError, whichever comes second.
class Cache {
 public:
  explicit Cache(const CacheShape& shape);
  Cache(Cache&&) = default;

  int64_t length() const { return length_; }
  const CacheShape& shape() const { return shape_; }

  // Rows of the last step that were kept, and that a state takes in with the next one.
  int64_t accepted() const;

  // For the steps that run on it; the functions below that claim are keep, crop, checkpoint, fill_blank, fork, bytes and state_bytes.
  Claimable& claimable() { return claimable_; }

  // Makes room for a step of so many rows, of which the first are certain to be kept. Throws std::bad_alloc, and then the cache
  // is as it was.
  void prepare(int64_t rows, int64_t settled);
  template <typename Kind>
  const Kind& state(size_t number) const { return static_cast<const Kind&>(*states_[number]); }

  // After the step: the parents of its rows, which keep() checks paths against.
  void stepped(const int32_t* parents, int64_t rows, int64_t settled);

  // Throws std::invalid_argument if `rows` is no path of the last step from its root, or lacks one of its settled rows.
  void keep(const int64_t* rows, int64_t count);
  // Goes back to `length`, or where a state cannot, to the last length before it that all can, 0 at worst; which is returned.
  int64_t crop(int64_t length);
  // Remembers the present length as one that crop() can go back to, one of the last kCheckpoints, and drops the last step's rows.
  void checkpoint();
  // Commits `length` positions of zeros, at most the context, to an empty cache: for measuring steps at that length.
  void fill_blank(int64_t length);
  // From now on keeps what a head that drafts needs, of the rows to come. Nothing where it does so for that head already.
  void follow(const std::shared_ptr<Decoder>& head);
  // What it keeps for one, or null.
  HeadState* head() const { return head_; }
  // Tokens that it may draft beside its part of the lm_head; see HeadState::see.
  void see(const int32_t* tokens, int64_t count);
  // Has that head read what waits, if that is much; between steps.
  void catch_up();
  Cache fork();
  int64_t bytes();        // of memory, what forks share included
  int64_t state_bytes();  // of them those that do not grow with the positions: recurrent states, and features for a head

 private:
  CacheShape shape_;
  Claimable claimable_;
  int64_t length_ = 0;
  std::vector<std::unique_ptr<State>> states_;  // and behind those of the shape a head's, if there is one
  HeadState* head_ = nullptr;
  std::vector<int32_t> parents_;
  int64_t settled_ = 0;  // rows of the last step that are yet to be kept
};

}  // namespace ipex_lookahead
