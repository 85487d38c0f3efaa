// What layers keep of a sequence from step to step. A new kind of layer has a kind of its own.
#pragma once

#include <cstdint>
#include <memory>

namespace ipex_lookahead {

// Rows of a step of which none is certain to be kept, and which follow accepted ones that crop() is to go back over yet.
constexpr int64_t kHold = -1;

// `length` is the number of committed positions, which the cache knows.
class State {
 public:
  virtual ~State() = default;

  // Makes room for the rows of a step after `length`, of which the first `settled` are certain to be kept; or kHold.
  // Throws std::bad_alloc, and then the state is as it was.
  virtual void prepare(int64_t length, int64_t rows, int64_t settled) = 0;
  // After the step.
  virtual void stepped() {}
  // The rows of the last step that are kept, ascending, become positions [length, length + count).
  virtual void keep(int64_t length, const int64_t* rows, int64_t count) = 0;
  // The furthest position, at most `length`, that crop() can go back to; 0 at worst.
  virtual int64_t reach(int64_t length) const = 0;
  virtual void crop(int64_t length) = 0;
  // Makes the present length one that crop() can go back to.
  virtual void checkpoint(int64_t) {}
  // As after `length` positions of zeros, from an empty state.
  virtual void fill_blank(int64_t length) = 0;
  // The same positions for another sequence; `stepped`: rows of a step may yet be kept in this one.
  virtual std::unique_ptr<State> fork(int64_t length, bool stepped) const = 0;
  virtual int64_t bytes() const = 0;
  // Kept rows of the last step that it takes in with the next one.
  virtual int64_t accepted() const { return 0; }
};

}  // namespace ipex_lookahead
