// The ancestors of a step's rows for a layer with a recurrent state, and the raw inputs that the next step needs.
#pragma once

#include <cstdint>
#include <cstring>

#include "model/operation.h"
#include "model/states/recurrent.h"

namespace ipex_lookahead {

// Row numbers start after the committed state: first the rows accepted since, then the step's rows. Negative numbers are
// positions inside the state.
struct Lineage {
  const StepRows& rows;
  const Sequence& sequence;
  const RecurrentState& state;
  int layer;              // index among the layers of the state
  const RecurrentShape& shape;
  const float* raw;       // raw inputs of the step's rows, with row stride `stride`
  int64_t stride;

  int64_t accepted() const { return state.accepted(); }
  int64_t count() const { return accepted() + sequence.rows; }
  // Number of rows that the step adds to the state.
  int64_t committed() const { return sequence.settled == kHold ? 0 : accepted() + sequence.settled; }

  // The raw inputs of a row. Positions inside the state have the convolution's inputs only.
  const float* inputs(int64_t row) const {
    if (row < 0) return state.history(layer, shape.kernel - 1 + row);
    return row < accepted() ? state.accepted(layer, row) : raw + (sequence.first_row + row - accepted()) * stride;
  }
  // The ancestor `back` rows before `row`.
  int64_t before(int64_t row, int64_t back) const {
    if (row < accepted() || sequence.chain) return row - back;
    const int64_t r = row - accepted(), depth = rows.depth[size_t(sequence.first_row + r)] - back;
    return accepted() + (depth < 0 ? depth : rows.ancestors[size_t(sequence.ancestors + r * sequence.rows + depth)]);
  }
  // Fills `at` with the convolution's taps at channel c of a row, oldest first.
  void taps(int64_t row, int64_t c, const float** at) const {
    for (int t = 0; t < shape.kernel; ++t) at[t] = inputs(before(row, shape.kernel - 1 - t)) + c;
  }
  // Stores raw inputs [c, c + n) for the next step: the last ones of the committed rows, and those of rows that may be
  // accepted.
  void leave(int64_t c, int64_t n) const {
    for (int64_t i = 0; c < shape.channels && i < shape.kernel - 1; ++i)
      std::memcpy(state.next_history(layer, i) + c, inputs(committed() - (shape.kernel - 1) + i) + c, size_t(n) * sizeof(float));
    for (int64_t i = committed(); i < count(); ++i)
      std::memcpy(state.next_draft(layer, i - committed()) + c, inputs(i) + c, size_t(n) * sizeof(float));
  }
};

}  // namespace ipex_lookahead
