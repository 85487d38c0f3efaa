// What a block is a list of: each operation reads the rows of a step, and adds what it makes of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "model/cache.h"
#include "model/spec.h"
#include "model/thread_context.h"
#include "model/weights.h"
#include "runtime/arena.h"
#include "runtime/rows.h"

namespace ipex_lookahead {

// A sequence of the step, as operations see it.
struct Sequence {
  const Cache* cache;
  int64_t first_row, rows;
  int64_t length;     // committed positions before its rows, which stand in the slots after them; less StepRows::ahead
  int64_t settled;    // so many rows, the first, are certain to be kept; or kHold
  bool chain;         // every row follows the one before
  int64_t ancestors;  // offset of its paths in StepRows::ancestors, [rows][rows]
  int64_t blocks;     // of positions that its furthest row sees
};

// The rows of the step in hand: whose they are, where they stand, and what the layers have made of them so far. Scratch
// that all operations share is here too; it grows between steps only.
struct StepRows {
  StepRows(const KernelTable& table, int of_threads, int64_t hidden)
      : kernels(table), threads(of_threads), width(hidden), stride(padded(hidden, kLanes)), own(size_t(of_threads)) {}

  const KernelTable& kernels;
  const int threads;
  const int64_t width, stride;
  int64_t count = 0;
  // 1 where rows see committed positions only, and the last of these stands in the place that their own would have: so far
  // before a row's position.
  int64_t ahead = 0;
  std::vector<Sequence> sequences;
  std::vector<int32_t> depth, ancestors, sequence_of;
  Buffer<float> hidden, branch;  // [count][stride]
  Buffer<float> beside;          // embeddings of a drafting head's rows, the same
  std::vector<ThreadMemory> own;  // a thread
  RowsMemory shared;

  float* row(int64_t r) { return hidden.data() + r * stride; }
  const Sequence& sequence(int64_t r) const { return sequences[size_t(sequence_of[size_t(r)])]; }
  int64_t last_seen(int64_t r) const { return sequence(r).length + depth[size_t(r)]; }
  int64_t position(int64_t r) const { return last_seen(r) + ahead; }

  // Memory for rows that linear layers read, of that width; `ordered`: for their values before they are put in order too.
  void reserve_inputs(int64_t inputs, bool ordered);
  // And for so many floats that each thread has to itself.
  void reserve_scratch(int64_t floats) {
    for (ThreadMemory& one : own) ensure(one.scratch, floats);
  }
};

// Linear layers of the same inputs whose outputs lie side by side: pieces of all of them are shared out together.
struct JoinedLinears {
  struct Part {
    const Matrix* matrix;  // null: none
    int64_t column;
  };
  std::array<Part, 4> parts;

  int64_t tiles() const {
    int64_t sum = 0;
    for (const Part& part : parts) sum += part.matrix == nullptr ? 0 : part.matrix->tiles();
    return sum;
  }
  // Tiles [begin, end) of them all, for every row: out[row][column + ...], rows `stride` apart.
  void run(const KernelTable& kernels, const Rows& x, int64_t begin, int64_t end, float* out, int64_t stride) const {
    int64_t base = 0;
    for (const Part& part : parts) {
      if (part.matrix == nullptr) continue;
      const int64_t tiles = part.matrix->tiles(), from = std::max(begin - base, int64_t(0)), to = std::min(end - base, tiles);
      if (from < to) kernels.linear(*part.matrix, x, from, to, out + part.column + from * kLanes, stride, false);
      base += tiles;
    }
  }
};

// RMS norm over rows, or layer norm; without weights the rows as they are.
struct Norm {
  const float *weight = nullptr, *bias = nullptr;
  int64_t width = 0;
  float epsilon = 0;
  bool centered = false;

  void declare(const std::string& name, const NormShape& shape, DecoderWeights& weights) {
    width = shape.width;
    epsilon = shape.epsilon;
    centered = shape.centered;
    if (width > 0) weights.declare(name + ".weight", weight, width);
    if (shape.bias) weights.declare(name + ".bias", bias, width);
  }
  void operator()(const KernelTable& kernels, const float* x, float* out) const {
    if (centered)
      kernels.layer_norm(x, weight, bias, width, epsilon, out);
    else
      kernels.rms_norm(x, weight, width, epsilon, out);
  }
};

class Operation;


// What an operation is made of: its description, the name of its weights, and what it adds its weights and its state to.
struct OperationParts {
  const BranchShape& shape;
  const std::string& name;  // layers.0.mixer; of the norms around it layers.0.mixer_norm and layers.0.mixer_after
  int64_t hidden;
  KvFormat kv_format;
  DecoderWeights& weights;
  CacheShape& cache;
  bool held = false;                  // the mixer of a parallel block: what it comes to is left to the feed-forward,
  const Operation* beside = nullptr;  // which is beside it, and reads what it does
  std::string output_scale = {};      // of a block's last operation: the weight that multiplies what leaves the block, or ""
  const Operation* shared = nullptr;  // attention whose keys and values it has,
  bool committed = false;             // and of these those of committed positions only
};

// x + multiplier * after(operation(before(x))). A kind of operation has its weights and its scratch, and one thing to do.
class Operation {
 public:
  virtual ~Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // Once all operations are made: where each state's parts lie is known then.
  virtual void place(const CacheShape&) {}
  // Grows scratch for the rows of the step.
  virtual void reserve(StepRows& rows) = 0;
  // The operation's phases of a step; every thread goes through all of them.
  virtual void run(ThreadContext& context, StepRows& rows) = 0;

 protected:
  explicit Operation(const OperationParts& of)
      : input_norm_(of.beside == nullptr ? before_ : of.beside->before_),
        multiplier_(of.shape.multiplier), held_(of.held), joins_(of.beside != nullptr) {
    before_.declare(of.name + "_norm", of.shape.before, of.weights);
    after_.declare(of.name + "_after", of.shape.after, of.weights);
    if (!of.output_scale.empty()) of.weights.declare(of.output_scale, output_scale_, 1);
  }

  // Row r as the operation's first linear layers read it.
  void input(StepRows& rows, int64_t r, float* out) const {
    if (input_norm_.weight == nullptr)
      std::copy_n(rows.row(r), rows.width, out);
    else
      input_norm_(rows.kernels, rows.row(r), out);
  }

  // Adds to hidden what the operation comes to, after its norm and multiplier. `linear(begin, end, out, add)` computes tiles of
  // it, at most so many, for every row; `out` is where the first of them goes.
  template <typename Linear>
  void add_to_hidden(ThreadContext& context, StepRows& rows, const Linear& linear, int64_t most = INT64_MAX) const {
    const int64_t tiles = rows.stride / kLanes;
    if (held_ || joins_) return add_beside(context, rows, linear, most);
    if (after_.weight == nullptr && multiplier_ == 1) {
      const auto add = [&](int64_t begin, int64_t end) { linear(begin, end, rows.hidden.data() + begin * kLanes, true); };
      context.split_tiles(tiles, add, most);
      return scale_rows(context, rows);
    }
    float* const branch = rows.branch.data();
    context.split_tiles(tiles, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kLanes;
      linear(begin, end, branch + first, false);
      if (after_.weight != nullptr) return;
      const int64_t n = std::min<int64_t>(end * kLanes, rows.width) - first;
      for (int64_t r = 0; r < rows.count; ++r)
        rows.kernels.add_scaled(branch + r * rows.stride + first, n, multiplier_, rows.row(r) + first);
    }, most);
    if (after_.weight == nullptr) return scale_rows(context, rows);
    context.each(rows.count, [&](int64_t r) { add_row(rows, r, branch + r * rows.stride, context.scratch()); });
  }

  // Adds to row r what the operation comes to there, after its norm, which `scratch` is for, and multiplier.
  void add_row(StepRows& rows, int64_t r, const float* result, float* scratch) const {
    if (after_.weight != nullptr) {
      after_(rows.kernels, result, scratch);
      result = scratch;
    }
    rows.kernels.add_scaled(result, rows.width, multiplier_, rows.row(r));
    if (output_scale_ != nullptr) rows.kernels.scale(rows.row(r), rows.width, *output_scale_);
  }

  Norm before_, after_;

 private:
  // What leaves the block, where no norm comes before.
  void scale_rows(ThreadContext& context, StepRows& rows) const {
    if (output_scale_ == nullptr) return;
    context.each(rows.count, [&](int64_t r) { rows.kernels.scale(rows.row(r), rows.width, *output_scale_); });
  }

  // Of a parallel block: the mixer's results wait in `branch`, since hidden is the feed-forward's input too.
  template <typename Linear>
  void add_beside(ThreadContext& context, StepRows& rows, const Linear& linear, int64_t most) const {
    context.split_tiles(rows.stride / kLanes, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kLanes, n = std::min<int64_t>(end * kLanes, rows.width) - first;
      if (held_) return linear(begin, end, rows.branch.data() + first, false);
      for (int64_t r = 0; r < rows.count; ++r)
        rows.kernels.add_scaled(rows.branch.data() + r * rows.stride + first, n, 1, rows.row(r) + first);
      linear(begin, end, rows.hidden.data() + first, true);
    }, most);
  }

  const Norm& input_norm_;
  const float multiplier_;
  const bool held_, joins_;
  const float* output_scale_ = nullptr;
};

}  // namespace ipex_lookahead
