// Exceptions with their own Python type.
#pragma once

#include <stdexcept>

namespace ipex_lookahead {

// Another thread uses the cache.
class BusyError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A step ran before all weights were set.
class MissingWeightError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The model's logits are NaN or infinite.
class NonFiniteError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace ipex_lookahead
