// What a caller may want to tell apart from the standard library's exceptions; each has a type of its own in Python.
#pragma once

#include <stdexcept>

namespace ipex_lookahead {

// Another thread is at the cache.
class BusyError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A step before all weights were set.
class MissingWeightError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The model's logits hold NaN or infinity.
class NonFiniteError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace ipex_lookahead
