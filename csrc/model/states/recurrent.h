// Recurrent states of the layers of one shape: a matrix that every position updates, and the last inputs of a convolution.
//
// A step starts from the committed state. Rows that may be rejected store their raw inputs only: keep() records which rows
// were accepted, and the next step first replays them with the same code. So the state's bytes do not depend on drafts. Rows
// that cannot be rejected (`settled`: prompt rows) update the state in the same step, in new memory, so that the step can
// still be dropped. A step with kHold updates nothing, so crop() can roll back its rows and the accepted ones before it;
// draft models, which add one row per step, use it.
//
// A step reads one state and writes another: forks share a matrix until one of them steps, without a copy.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernels.h"
#include "model/states/state.h"

namespace ipex_lookahead {

struct RecurrentShape {
  int layers = 0;
  int kernel = 0;        // taps of the convolution, including the row's own
  int64_t channels = 0;  // channels of the convolution
  int64_t gates = 0;     // further raw inputs of a row
  int64_t tiles = 0;     // tiles of 16 values, each [keys][16] floats
  int64_t keys = 0;

  bool same_layout(const RecurrentShape& o) const {  // equal except for the number of layers
    return kernel == o.kernel && channels == o.channels && gates == o.gates && tiles == o.tiles && keys == o.keys;
  }
  bool operator==(const RecurrentShape& o) const { return same_layout(o) && layers == o.layers; }

  int64_t raw() const { return channels + gates; }  // floats of a row's raw inputs: the convolution's, then the gates'
  int64_t matrix() const { return tiles * keys * kLanes; }
  int64_t history() const { return (kernel - 1) * channels; }
  int64_t bytes() const { return layers * (matrix() + history()) * int64_t(sizeof(float)); }
  int64_t bytes_per_position() const { return 0; }
};

// Maximum number of checkpoints of a cache; the oldest is dropped.
constexpr size_t kCheckpoints = 4;

class RecurrentState : public State {
 public:
  explicit RecurrentState(const RecurrentShape& shape);

  // Inputs of the current step for a layer: the matrix (null: zeros); the convolution's inputs at the i-th of the kernel - 1
  // positions before the state, oldest first; the raw inputs of the i-th accepted row that the state does not include yet.
  // accepted() is right before prepare() too, which rolls back settled rows that were not kept.
  int64_t accepted() const override { return int64_t((settled_ > 0 ? undo_ : now_).accepted.size()); }
  const float* matrix(int layer) const { return now_.matrix == nullptr ? nullptr : now_.matrix.get() + layer * shape_.matrix(); }
  const float* history(int layer, int64_t i) const { return now_.history.get() + layer * shape_.history() + i * shape_.channels; }
  const float* accepted(int layer, int64_t i) const { return draft(now_, layer, now_.accepted[size_t(i)]); }
  // Outputs of the current step: the matrix after accepted and settled rows, their last inputs, the raw inputs of other rows.
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
  void export_state(int64_t length, ImageWriter& image) const override;
  void import_state(int64_t length, ImageReader& image) override;

 private:
  using Memory = std::shared_ptr<float>;
  // A state with its pending rows. Immutable once shared.
  struct Snapshot {
    Memory matrix, history, drafts;  // [layers][...]
    int64_t draft_rows = 0;          // capacity of `drafts`, per layer
    int64_t at = 0;                  // number of positions in the matrix
    std::vector<int64_t> accepted;   // rows of `drafts` that follow them
    int64_t length() const { return at + int64_t(accepted.size()); }
  };

  float* draft(const Snapshot& snapshot, int layer, int64_t i) const {
    return snapshot.drafts.get() + (layer * snapshot.draft_rows + i) * shape_.raw();
  }
  Snapshot empty() const;

  RecurrentShape shape_;
  void drop_settled();  // rolls back to before the last step if its settled rows were not kept

  Snapshot now_, next_, undo_;     // undo_: now_ before the last step, while its settled rows are not kept
  Memory spare_;               // a matrix for the next settled rows
  int64_t settled_ = 0;        // settled rows of the last step, until keep()
  int64_t next_settled_ = 0;   // settled rows of the current step
  int64_t deferred_ = 0;           // accepted rows that the current or last step did not add to the state (kHold)
  std::vector<Snapshot> checkpoints_;  // ascending
};

}  // namespace ipex_lookahead
