// State of a sequence in the layers of one kind. A new kind of layer may need a new subclass.
#pragma once

#include <cstdint>
#include <memory>

#include "model/states/image.h"

namespace ipex_lookahead {

// Value of `settled` for a step after which crop() must be able to roll back its rows and the accepted rows before it.
constexpr int64_t kHold = -1;

// `length` is the number of committed positions, which the cache stores.
class State {
 public:
  virtual ~State() = default;

  // Makes room for the rows of a step after `length`, of which the first `settled` cannot be rejected (or kHold). Throws
  // std::bad_alloc and leaves the state unchanged.
  virtual void prepare(int64_t length, int64_t rows, int64_t settled) = 0;
  // Called after the step.
  virtual void stepped() {}
  // Commits rows of the last step, ascending, as positions [length, length + count).
  virtual void keep(int64_t length, const int64_t* rows, int64_t count) = 0;
  // The largest length, at most `length`, that crop() can roll back to; at worst 0.
  virtual int64_t reach(int64_t length) const = 0;
  virtual void crop(int64_t length) = 0;
  // Makes the current length reachable for crop().
  virtual void checkpoint(int64_t) {}
  // Sets an empty state to `length` positions of zeros.
  virtual void fill_blank(int64_t length) = 0;
  // Returns the same positions for another sequence. `stepped`: rows of a step may still be kept in this one.
  virtual std::unique_ptr<State> fork(int64_t length, bool stepped) const = 0;
  virtual int64_t bytes() const = 0;
  // The image of the committed positions [first, last) of layers that keep all of them, and of the rest of the state at
  // `length`. The imports build a new state: all pages in ascending order, then the rest. They throw std::invalid_argument for
  // an image that does not fit.
  virtual void export_pages(int64_t, int64_t, ImageWriter&) const {}
  virtual void import_pages(int64_t, int64_t, ImageReader&) {}
  virtual void export_state(int64_t length, ImageWriter& image) const = 0;
  virtual void import_state(int64_t length, ImageReader& image) = 0;
  // Number of kept rows of the last step that the state adds in the next step.
  virtual int64_t accepted() const { return 0; }
};

}  // namespace ipex_lookahead
