// The recurrent states of layers of one shape: matrices that every position changes, and the last inputs of a convolution.
//
// A step computes its rows from the committed state. Of rows that may be rejected only the raw inputs are kept: keep() notes
// which were accepted, and the next step begins with those, by the code that computed them. So a state has the same bytes
// whatever was drafted. Rows that are certain to be kept (`settled`: a prompt's) move the state on at once, and so that the
// step can be dropped yet: into memory of their own. A step that holds (kHold) takes nothing in, so that crop() goes back over
// its rows as over those before it: a draft model's, which come one by one.
//
// What a step reads and what it leaves are two: forks share a matrix until one of them steps, and nothing is copied for it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernels.h"
#include "model/states/state.h"

namespace ipex_lookahead {

struct RecurrentShape {
  int layers = 0;
  int kernel = 0;        // taps of the convolution, the row's own among them
  int64_t channels = 0;  // that it goes over
  int64_t gates = 0;     // further raw inputs of a row
  int64_t tiles = 0;     // of 16 values, [keys][16] floats each
  int64_t keys = 0;

  bool alike(const RecurrentShape& o) const {  // but for how many layers there are
    return kernel == o.kernel && channels == o.channels && gates == o.gates && tiles == o.tiles && keys == o.keys;
  }
  bool operator==(const RecurrentShape& o) const { return alike(o) && layers == o.layers; }

  int64_t raw() const { return channels + gates; }  // floats of a row's inputs: the convolution's, then the gates'
  int64_t matrix() const { return tiles * keys * kLanes; }
  int64_t history() const { return (kernel - 1) * channels; }
  int64_t bytes() const { return layers * (matrix() + history()) * int64_t(sizeof(float)); }
  int64_t bytes_per_position() const { return 0; }
};

// Checkpoints that one cache has at most; then the oldest goes.
constexpr size_t kCheckpoints = 4;

class RecurrentState : public State {
 public:
  explicit RecurrentState(const RecurrentShape& shape);

  // What the step in hand reads of a layer: null for a matrix of zeros; the inputs of the i-th of the kernel - 1 positions
  // before the state, oldest first; the raw inputs of the i-th accepted row, which the state does not hold yet.
  int64_t accepted() const override { return int64_t(now_.accepted.size()); }
  const float* matrix(int layer) const { return now_.matrix == nullptr ? nullptr : now_.matrix.get() + layer * shape_.matrix(); }
  const float* history(int layer, int64_t i) const { return now_.history.get() + layer * shape_.history() + i * shape_.channels; }
  const float* accepted(int layer, int64_t i) const { return draft(now_, layer, now_.accepted[size_t(i)]); }
  // And what it leaves: the matrix after the accepted and settled rows, their last inputs, the raw inputs of the others.
  float* next_matrix(int layer) const { return next_.matrix.get() + layer * shape_.matrix(); }
  float* next_history(int layer, int64_t i) const { return next_.history.get() + layer * shape_.history() + i * shape_.channels; }
  float* next_draft(int layer, int64_t i) const { return draft(next_, layer, i); }

  void prepare(int64_t length, int64_t rows, int64_t settled) override;
  void stepped() override;
  void keep(int64_t length, const int64_t* rows, int64_t count) override;
  int64_t reach(int64_t length) const override;
  void crop(int64_t length) override;
  void checkpoint(int64_t length) override;
  void fill_blank(int64_t length) override;
  std::unique_ptr<State> fork(int64_t length, bool stepped) const override;
  int64_t bytes() const override;

 private:
  using Memory = std::shared_ptr<float>;
  // A state and what it was left with; never written to once it is another's too.
  struct Held {
    Memory matrix, history, drafts;  // [layers][...]
    int64_t draft_rows = 0;          // that there is memory for, in each layer
    int64_t at = 0;                  // positions in the matrix
    std::vector<int64_t> accepted;   // drafts that follow them
    int64_t length() const { return at + int64_t(accepted.size()); }
  };

  float* draft(const Held& held, int layer, int64_t i) const {
    return held.drafts.get() + (layer * held.draft_rows + i) * shape_.raw();
  }
  Held empty() const;

  RecurrentShape shape_;
  void drop_settled();  // goes back to before the last step, whose settled rows were not kept

  Held now_, next_, undo_;     // undo_: now_ before the last step, while it has settled rows that are not kept
  Memory spare_;               // a matrix for the next settled rows
  int64_t settled_ = 0;        // of the last step, until its rows are kept
  int64_t next_settled_ = 0;   // of the step in hand
  int64_t held_ = 0;           // accepted rows that the step in hand, or the last one, has not taken in
  std::vector<Held> checkpoints_;  // ascending
};

}  // namespace ipex_lookahead
