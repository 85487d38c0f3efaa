// What a decoder keeps of one sequence: a state of each kind of layer, behind one interface.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "model/claim.h"
#include "model/states/kv_pages.h"
#include "model/states/state.h"

namespace ipex_lookahead {

// Another kind of state is one more alternative here, and its class.
using StateShape = std::variant<KvShape>;

struct CacheShape {
  std::vector<StateShape> states;
  int64_t max_context = 0;
  bool operator==(const CacheShape& o) const { return states == o.states && max_context == o.max_context; }
  int64_t bytes_per_position() const;
};

// What changes a cache, and a step that runs on it, claims it meanwhile: from another thread each of these is refused with
// BusyError, whichever comes second.
class Cache {
 public:
  explicit Cache(const CacheShape& shape);
  Cache(Cache&&) = default;

  int64_t length() const { return length_; }
  const CacheShape& shape() const { return shape_; }

  // For the steps that run on it; the functions below that claim are keep, crop, fill_blank, bytes and fork.
  Claimable& claimable() { return claimable_; }

  // Makes room for a step of so many rows. Throws std::bad_alloc, and then the cache is as it was.
  void prepare(int64_t rows);
  template <typename Kind>
  const Kind& state(size_t number) const { return static_cast<const Kind&>(*states_[number]); }

  // The parents of the step's rows, which keep() checks paths against.
  void set_step(const int32_t* parents, int64_t rows) { parents_.assign(parents, parents + rows); }

  // Throws std::invalid_argument if `rows` is no path of the last step from its root.
  void keep(const int64_t* rows, int64_t count);
  // Goes back to `length`, or where a state cannot, to the last length before it that all can, 0 at worst; which is returned.
  int64_t crop(int64_t length);
  // Commits `length` positions of zeros, at most the context, to an empty cache: for measuring steps at that length.
  void fill_blank(int64_t length);
  Cache fork();
  int64_t bytes();  // of memory, what forks share included

 private:
  CacheShape shape_;
  Claimable claimable_;
  int64_t length_ = 0;
  std::vector<std::unique_ptr<State>> states_;
  std::vector<int32_t> parents_;
};

}  // namespace ipex_lookahead
