// Operations of a block. Each reads the rows of a step and adds its output to them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/cache.h"
#include "model/spec.h"
#include "model/thread_context.h"
#include "model/weights.h"
#include "runtime/arena.h"
#include "runtime/rows.h"

namespace ipex_lookahead {

class Adapter;
class Projections;

// The rows of the step that an adapter changes, as (first, count), ascending.
struct AdapterRows {
  const Adapter* adapter;
  std::vector<std::pair<int64_t, int64_t>> runs;
};

// A sequence of the step.
struct Sequence {
  const Cache* cache;
  int64_t first_row, rows;
  int64_t length;     // first slot of its rows: committed positions minus StepRows::position_offset
  int64_t settled;    // number of leading rows that cannot be rejected (prompt rows), or kHold
  bool chain;         // every row's parent is the previous row
  int64_t ancestors;  // offset of its ancestor table [rows][rows] in StepRows::ancestors
  int64_t blocks;     // attention blocks up to its last visible position
};

// The rows of the current step, their sequences and positions, and their hidden states. Scratch that all operations share is
// here too; it grows between steps only.
struct StepRows {
  StepRows(const KernelTable& table, int of_threads, int64_t hidden)
      : kernels(table), threads(of_threads), width(hidden), stride(padded(hidden, kLanes)), own(size_t(of_threads)) {}

  const KernelTable& kernels;
  const int threads;
  const int64_t width, stride;
  int64_t count = 0;
  // RoPE position minus the index of the last visible KV slot: 1 for a head that shares its target's KV cache, else 0.
  int64_t position_offset = 0;
  std::vector<Sequence> sequences;
  std::vector<int32_t> depth, ancestors, sequence_of;
  bool has_positions = false;      // RoPE positions are `positions` [count][kAxes], not the slots
  bool has_spans = false;          // a row sees up to slot length + seen[r] in layers with spans
  std::vector<int32_t> positions, seen;
  Buffer<float> hidden, branch;  // [count][stride]
  Buffer<float> embeddings;        // embeddings of a drafting head's rows, [count][stride]
  std::vector<ThreadMemory> own;  // one per thread
  RowsMemory shared;
  std::vector<AdapterRows> adapters;  // each adapter of the step once; empty: none (model/adapters.h)
  std::vector<float> adapter_scales;  // of each row that an adapter changes
  Buffer<float> adapter_parts, projections;

  float* row(int64_t r) { return hidden.data() + r * stride; }
  const Sequence& sequence(int64_t r) const { return sequences[size_t(sequence_of[size_t(r)])]; }
  int64_t last_seen(int64_t r) const { return sequence(r).length + depth[size_t(r)]; }
  int64_t last_visible(int64_t r, bool spans) const {
    return spans && has_spans ? sequence(r).length + seen[size_t(r)] : last_seen(r);
  }
  int64_t position(int64_t r, int axis = 0) const {
    return has_positions ? positions[size_t(r * kAxes + axis)] : last_seen(r) + position_offset;
  }

  // Reserves memory for rows of `inputs` values that linear layers read. `ordered`: also for the values before reordering.
  void reserve_inputs(int64_t inputs, bool ordered);
  // Reserves `floats` floats of scratch per thread.
  void reserve_scratch(int64_t floats) {
    for (ThreadMemory& one : own) ensure(one.scratch, floats);
  }
};

// Maximum number of linear layers that read the same inputs.
constexpr int64_t kJoined = 6;

// Linear layers that read the same inputs and write adjacent columns. Threads split the tiles of all of them together.
struct JoinedLinears {
  struct Part {
    const Matrix* matrix = nullptr;  // null: absent
    int64_t column = 0;
  };
  std::array<Part, kJoined> parts;

  int64_t tiles() const {
    int64_t sum = 0;
    for (const Part& part : parts) sum += part.matrix == nullptr ? 0 : part.matrix->tiles();
    return sum;
  }
  // Computes tiles [begin, end) of the concatenated layers for every row: out[row][column + ...] with row stride `stride`.
  // `projections` are those of all layers; null: the layers take no adapters.
  void run(const KernelTable& kernels, const Rows& x, int64_t begin, int64_t end, float* out, int64_t stride,
           Projections* projections = nullptr) const;
};

// RMS norm or layer norm of a row.
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


// Constructor arguments of an operation: its description, its name, and where it registers its weights and its state.
struct OperationParts {
  const BranchShape& shape;
  const std::string& name;  // such as layers.0.mixer; its norms are layers.0.mixer_norm and layers.0.mixer_after
  int64_t hidden;
  KvFormat kv_format;
  DecoderWeights& weights;
  CacheShape& cache;
  bool defer_residual_add = false;  // for the mixer of a parallel block: the MLP, or second mixer, adds the mixer's output
  const Operation* parallel_mixer = nullptr;  // for that MLP or second mixer: the mixer, which shares its norm and input
  std::string output_scale = {};      // last operation of a block: the weight that scales the block's output, or ""
  const Operation* shared = nullptr;  // the attention that owns the keys and values, if not this one
  bool committed = false;             // it sees committed positions only (a head on its target's cache)
};

// x + multiplier * after(operation(before(x))). A subclass has its weights, its scratch and one kind of operation.
class Operation {
 public:
  virtual ~Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // Looks up the layout of its state; called after all operations are constructed.
  virtual void place(const CacheShape&) {}
  // Grows scratch for the rows of the step.
  virtual void reserve(StepRows& rows) = 0;
  // Runs the operation's phases of a step; every thread goes through all of them.
  virtual void run(ThreadContext& context, StepRows& rows) = 0;

 protected:
  explicit Operation(const OperationParts& of)
      : input_norm_(of.parallel_mixer == nullptr ? before_ : of.parallel_mixer->before_),
        multiplier_(of.shape.multiplier), mixer_multiplier_(of.parallel_mixer == nullptr ? 1 : of.parallel_mixer->multiplier_),
        defer_residual_add_(of.defer_residual_add), adds_mixer_(of.parallel_mixer != nullptr) {
    before_.declare(of.name + "_norm", of.shape.before, of.weights);
    after_.declare(of.name + "_after", of.shape.after, of.weights);
    if (!of.output_scale.empty()) of.weights.declare(of.output_scale, output_scale_, 1);
  }

  // Writes row r as the operation's first linear layers read it: normed.
  void input(StepRows& rows, int64_t r, float* out) const {
    if (input_norm_.weight == nullptr)
      std::copy_n(rows.row(r), rows.width, out);
    else
      input_norm_(rows.kernels, rows.row(r), out);
  }

  // Adds the operation's output to the hidden state, after its norm and multiplier. `linear(begin, end, out, add)` computes
  // tiles [begin, end), at most `most` of them, for every row; `out` points to the first of them.
  template <typename Linear>
  void add_to_hidden(ThreadContext& context, StepRows& rows, const Linear& linear, int64_t most = INT64_MAX) const {
    const int64_t tiles = rows.stride / kLanes;
    if (defer_residual_add_ || adds_mixer_) return add_parallel(context, rows, linear, most);
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

  // Adds `result` to row r after the norm and the multiplier; `scratch` holds the normed result.
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
  // Scales the block's output; used if no output norm follows.
  void scale_rows(ThreadContext& context, StepRows& rows) const {
    if (output_scale_ == nullptr) return;
    context.each(rows.count, [&](int64_t r) { rows.kernels.scale(rows.row(r), rows.width, *output_scale_); });
  }

  // For a parallel block: the mixer's output waits in `branch`, because the hidden state is still the other operation's input.
  template <typename Linear>
  void add_parallel(ThreadContext& context, StepRows& rows, const Linear& linear, int64_t most) const {
    context.split_tiles(rows.stride / kLanes, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kLanes, n = std::min<int64_t>(end * kLanes, rows.width) - first;
      if (defer_residual_add_) return linear(begin, end, rows.branch.data() + first, false);
      const auto add_branch = [&](float factor) {
        for (int64_t r = 0; r < rows.count; ++r)
          rows.kernels.add_scaled(rows.branch.data() + r * rows.stride + first, n, factor, rows.row(r) + first);
      };
      add_branch(mixer_multiplier_);
      if (multiplier_ == 1) return linear(begin, end, rows.hidden.data() + first, true);
      linear(begin, end, rows.branch.data() + first, false);
      add_branch(multiplier_);
    }, most);
  }

  const Norm& input_norm_;
  const float multiplier_, mixer_multiplier_;
  const bool defer_residual_add_, adds_mixer_;
  const float* output_scale_ = nullptr;
};

}  // namespace ipex_lookahead
