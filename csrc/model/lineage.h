// The rows of a sequence's step for a layer with a recurrent state: who stands before whom, and what is left for the next step.
#pragma once

#include <cstdint>
#include <cstring>

#include "model/operation.h"
#include "model/states/recurrent.h"

namespace ipex_lookahead {

// Rows are counted from the state on: those accepted since, then the step's; negative ones are positions in the state.
struct Lineage {
  const StepRows& rows;
  const Sequence& sequence;
  const RecurrentState& state;
  int layer;              // among those of the state
  const RecurrentShape& shape;
  const float* raw;       // of the step's rows, and how far they are apart
  int64_t stride;

  int64_t accepted() const { return state.accepted(); }
  int64_t count() const { return accepted() + sequence.rows; }
  int64_t committed() const { return sequence.settled == kHold ? 0 : accepted() + sequence.settled; }  // in the state after the step

  // The raw inputs of a row; of a position in the state the convolution's only.
  const float* inputs(int64_t row) const {
    if (row < 0) return state.history(layer, shape.kernel - 1 + row);
    return row < accepted() ? state.accepted(layer, row) : raw + (sequence.first_row + row - accepted()) * stride;
  }
  // The row that stands `back` before it.
  int64_t before(int64_t row, int64_t back) const {
    if (row < accepted() || sequence.chain) return row - back;
    const int64_t r = row - accepted(), depth = rows.depth[size_t(sequence.first_row + r)] - back;
    return accepted() + (depth < 0 ? depth : rows.ancestors[size_t(sequence.ancestors + r * sequence.rows + depth)]);
  }
  // The convolution's taps at channel c of a row, oldest first.
  void taps(int64_t row, int64_t c, const float** at) const {
    for (int t = 0; t < shape.kernel; ++t) at[t] = inputs(before(row, shape.kernel - 1 - t)) + c;
  }
  // Leaves raw inputs [c, c + n) for the next step: the last ones before it, and those of rows that may yet be accepted.
  void leave(int64_t c, int64_t n) const {
    for (int64_t i = 0; c < shape.channels && i < shape.kernel - 1; ++i)
      std::memcpy(state.next_history(layer, i) + c, inputs(committed() - (shape.kernel - 1) + i) + c, size_t(n) * sizeof(float));
    for (int64_t i = committed(); i < count(); ++i)
      std::memcpy(state.next_draft(layer, i - committed()) + c, inputs(i) + c, size_t(n) * sizeof(float));
  }
};

}  // namespace ipex_lookahead
