// One thread's view of a step: the phases that all threads go through together, and the rows that they read.
//
// Work items are outputs, rows or heads, never parts of a sum, so results do not depend on how items are split among threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/kernels.h"
#include "model/phase_times.h"
#include "runtime/arena.h"
#include "runtime/rows.h"
#include "runtime/thread_pool.h"

namespace ipex_lookahead {

// Up to this number of rows, every thread prepares all rows for itself, which is faster than splitting them.
constexpr int64_t kPreparedByAll = 16;
// Pieces per thread of a linear layer: enough that a thread that starts late does not delay the others.
constexpr int64_t kPieces = 2;

constexpr int64_t padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// The experts of each row, [rows][used], best first.
struct ExpertChoice {
  std::vector<int32_t> experts;
  std::vector<float> weights;
  void reserve(int64_t rows, int64_t used);
};

// The same grouped by expert: (row, rank) pairs sorted by expert, then by row.
struct ExpertPlan {
  std::vector<int32_t> begins;   // [of + 1]: the entries of expert e are [begins[e], begins[e + 1])
  std::vector<int32_t> touched;  // experts that have rows, ascending
  std::vector<int32_t> row_of;   // the row of each entry
  std::vector<int32_t> at;       // the entry of each (row, rank)
  int64_t experts_touched = 0;
  void reserve(int64_t rows, int64_t used, int64_t of);
  void make(const ExpertChoice& choice, int64_t rows, int64_t used, int64_t of);
};

struct AdapterRows;
struct LowRank;

// A matrix that an adapter of the step changes, for the adapter's rows (model/adapters.h).
struct AdaptedMatrix {
  const AdapterRows* rows;
  const Matrix* matrix;
  const LowRank* change;
  int64_t column;             // of its projections
  int64_t first_item, items;  // of the phase that computes them
};

// Scratch of one thread.
struct ThreadMemory {
  Buffer<float> scratch;
  RowsMemory rows, gathered;
  Buffer<float> unordered;  // a row before its values are reordered for a matrix
  ExpertChoice choice;
  ExpertPlan plan;
  std::vector<AdaptedMatrix> adapted;
  Buffer<float> projections;  // in steps of few rows
};

class ThreadContext {
 public:
  // `times` receives the phases' times; null: not measured.
  ThreadContext(const KernelTable* kernels, Phases& phases, int thread, int threads, ThreadMemory& own, RowsMemory& shared,
       PhaseTimes* times)
      : kernels_(kernels), phases_(phases), thread_(thread), threads_(threads), own_(own), shared_(shared), times_(times) {}

  int thread() const { return thread_; }
  float* scratch() const { return own_.scratch.data(); }

  // Sets the kind of the following phases.
  void enter(Phase kind) { kind_ = kind; }

  template <typename Work>
  void each(int64_t items, const Work& work) {
    if (times_ == nullptr) return phases_.run(thread_, phase_++, items, work);
    PhaseTime& time = (*times_)[size_t(kind_)];
    const Stopwatch whole;
    phases_.run(thread_, phase_++, items, [&](int64_t item) {
      const Stopwatch one;
      work(item);
      time.busy += one.seconds();
    });
    time.seconds += whole.seconds();
    ++time.count;
  }

  // Splits `count` items into a few pieces per thread, each of `least` to `most` items, and calls work(begin, end).
  template <typename Work>
  void split(int64_t count, int64_t least, const Work& work, int64_t most = INT64_MAX) {
    const int64_t items = std::max({int64_t(1), std::min(count / least, kPieces * threads_), (count - 1) / most + 1});
    each(items, [&](int64_t item) {
      const auto part = part_of(count, items, item);
      work(part.first, part.second);
    });
  }

  // The same for tiles of outputs, in pairs as kernels process them.
  template <typename Work>
  void split_tiles(int64_t tiles, const Work& work, int64_t most = INT64_MAX) {
    split((tiles + 1) / 2, 1, [&](int64_t begin, int64_t end) { work(2 * begin, std::min(2 * end, tiles)); },
          std::max<int64_t>(1, most / 2));
  }

  // Rows of `width` values that linear layers read, each written by make(row, out), and quantized for `integer` weights. With
  // an `order` [width], input i of the layers is the row's value order[i]. Many rows are prepared in a phase of their own.
  // Few rows are prepared by every thread on its first get(). That is safe: no thread leaves the phase, and so changes what
  // make() reads, before all items of the phase are done.
  template <typename Make>
  class Inputs {
   public:
    Inputs(ThreadContext& context, int64_t rows, int64_t width, bool integer, const int32_t* order, const Make& make)
        : context_(context),
          rows_((rows <= kPreparedByAll ? context.own_.rows : context.shared_).view(rows, width)),
          width_(width),
          integer_(integer),
          order_(order),
          make_(make) {
      if (rows <= kPreparedByAll) return;
      context.each(rows, [&](int64_t r) { make_row(r); });
      made_ = true;
    }
    const Rows& get() {
      for (int64_t r = 0; !made_ && r < rows_.count; ++r) make_row(r);
      made_ = true;
      return rows_;
    }

   private:
    void make_row(int64_t r) const {
      float* out = rows_.values_of(r);
      const int64_t whole = width_ / kLanes * kLanes;
      std::memset(out + whole, 0, size_t(rows_.stride - whole) * sizeof(float));
      if (order_ == nullptr) {
        make_(r, out);
      } else {
        float* const row = context_.own_.unordered.data();
        make_(r, row);
        for (int64_t i = 0; i < width_; ++i) out[i] = row[order_[i]];
      }
      if (integer_) context_.kernels_->quantize_row(rows_, r);
    }

    ThreadContext& context_;
    const Rows rows_;
    const int64_t width_;
    const bool integer_;
    const int32_t* const order_;
    const Make make_;
    bool made_ = false;
  };
  template <typename Make>
  Inputs<Make> inputs(int64_t rows, int64_t width, bool integer, const int32_t* order, const Make& make) {
    return Inputs<Make>(*this, rows, width, integer, order, make);
  }

 private:
  const KernelTable* const kernels_;
  Phases& phases_;
  const int thread_, threads_;
  ThreadMemory& own_;
  RowsMemory& shared_;
  PhaseTimes* const times_;
  Phase kind_ = Phase::embedding;
  size_t phase_ = 0;
};

}  // namespace ipex_lookahead
