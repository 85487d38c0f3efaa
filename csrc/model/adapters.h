// Low-rank adapters (LoRA): a linear layer's output becomes its product, unchanged, plus B (scale A x) in float32.
//
// A row's bits depend on the row and its adapter alone: A is split into parts of kAdapterPart inputs, the sums of the parts are
// added in ascending order, and both products use the kernels of float32 weights.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/kernels.h"
#include "model/operation.h"
#include "model/thread_context.h"
#include "model/weights.h"
#include "runtime/arena.h"

namespace ipex_lookahead {

constexpr int64_t kAdapterPart = 512;  // inputs per part of A, so that threads can share one A
constexpr int64_t kMaxRank = 4096;

// scale B A, the change of one matrix.
struct LowRank {
  std::vector<Matrix> a;  // [rank, inputs of the part]
  Matrix b;               // [n_out, rank]
  int64_t rank = 0;
  float scale = 1;
  int64_t tile_pairs() const { return (a.front().tiles() + 1) / 2; }
  int64_t columns() const { return padded(rank, kGroup); }  // of its projections, zero beyond the rank
  int64_t parts() const { return int64_t(a.size()); }
};

// The changes of a decoder's matrices. They do not change while a step may use them.
class Adapter {
 public:
  explicit Adapter(DecoderWeights& of) : of_(of) {}
  Adapter(const Adapter&) = delete;
  Adapter& operator=(const Adapter&) = delete;

  // Adds scale B A to the matrix of that name, A [rank][n_in], B [n_out][rank]. Throws std::invalid_argument for an unknown
  // name, a matrix that takes no adapter or that is changed already, and another shape.
  void add(const std::string& name, const float* a, int64_t n_in, const float* b, int64_t n_out, int64_t rank, float scale);

  bool belongs_to(const DecoderWeights& weights) const { return &of_ == &weights; }
  const LowRank* of(const Matrix& matrix) const {
    const auto found = changes_.find(&matrix);
    return found == changes_.end() ? nullptr : &found->second;
  }
  int64_t items() const { return items_; }      // of a matrix's parts of A, by pairs of tiles; the largest number
  int64_t columns() const { return columns_; }  // of a matrix's projections; the largest number
  int64_t bytes() const { return int64_t(arena_.used()); }

 private:
  DecoderWeights& of_;
  Arena arena_;
  std::unordered_map<const Matrix*, LowRank> changes_;
  int64_t items_ = 0, columns_ = 0;
};

// Grows the scratch for the adapters of the step.
void reserve_adapters(StepRows& rows);
// Whether an adapter of the step changes one of the matrices.
bool adapted(const StepRows& rows, std::initializer_list<const Matrix*> matrices);

// One thread's view of the projections scale A x of the step's rows, for linear layers that read the same inputs x. The
// constructor runs a phase if an adapter of the step changes one of the layers, and does nothing otherwise.
class Projections {
 public:
  // `inputs()` returns the rows that the layers read, with their values. At most kJoined matrices.
  template <typename Inputs>
  Projections(ThreadContext& context, StepRows& rows, std::initializer_list<const Matrix*> matrices, const Inputs& inputs)
      : rows_(rows), own_(rows.own[size_t(context.thread())]) {
    if (rows.adapters.empty()) return;
    find(matrices);
    if (!any()) return;
    context.each(items_, [&](int64_t item) { few() ? project_part(inputs(), item) : project(inputs(), item); });
  }

  bool any() const { return items_ > 0; }

  // Adds B times the projections to the outputs of tiles [begin, end) of the rows that an adapter of the step changes.
  void add(const Matrix& matrix, int64_t begin, int64_t end, float* out, int64_t stride) {
    if (any()) add_change(matrix, begin, end, out, stride);
  }

 private:
  bool few() const { return rows_.count <= kPreparedByAll; }
  void find(std::initializer_list<const Matrix*> matrices);
  const AdaptedMatrix& matrix_of(int64_t& item) const;
  void project_part(const Rows& x, int64_t item) const;
  void project(const Rows& x, int64_t item) const;
  void sum_parts();
  void finish(const AdaptedMatrix& one, int64_t row, int64_t first, int64_t end, float* projection) const;
  Buffer<float>& projections() const { return few() ? own_.projections : rows_.projections; }
  void add_change(const Matrix& matrix, int64_t begin, int64_t end, float* out, int64_t stride);

  StepRows& rows_;
  ThreadMemory& own_;
  int64_t items_ = 0, stride_ = 0;
  bool summed_ = false;
};

}  // namespace ipex_lookahead
