// One thread's way through a step: the phases that all threads go through together, and the rows that they read.
//
// Items are outputs, rows or heads, never parts of a sum, so neither their number nor who does them shows in the bits.
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

// Up to this many rows every thread prepares all rows for itself, which is cheaper than sharing them out.
constexpr int64_t kPreparedByAll = 16;
// Pieces a linear layer is shared out in, for each thread: enough that a late thread does not hold up the others.
constexpr int64_t kPieces = 2;

constexpr int64_t padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Which experts rows go to, [rows][used], best first.
struct ExpertChoice {
  std::vector<int32_t> experts;
  std::vector<float> weights;
  void reserve(int64_t rows, int64_t used);
};

// The same by expert: (row, rank) pairs sorted by expert, then by row.
struct ExpertPlan {
  std::vector<int32_t> begins;   // [of + 1], the places of expert e are [begins[e], begins[e + 1])
  std::vector<int32_t> touched;  // experts that have rows, ascending
  std::vector<int32_t> row_of;   // the row at each place
  std::vector<int32_t> at;       // the place of each (row, rank)
  int64_t experts_touched = 0;
  void reserve(int64_t rows, int64_t used, int64_t of);
  void make(const ExpertChoice& choice, int64_t rows, int64_t used, int64_t of);
};

// What one thread has to itself.
struct ThreadMemory {
  Buffer<float> scratch;
  RowsMemory rows, gathered;
  Buffer<float> unordered;  // a row before its values are put into a matrix's order
  ExpertChoice choice;
  ExpertPlan plan;
};

class ThreadContext {
 public:
  // `times` takes the phases' times; null measures nothing.
  ThreadContext(const KernelTable* kernels, Phases& phases, int thread, int threads, ThreadMemory& own, RowsMemory& shared,
       PhaseTimes* times)
      : kernels_(kernels), phases_(phases), thread_(thread), threads_(threads), own_(own), shared_(shared), times_(times) {}

  int thread() const { return thread_; }
  float* scratch() const { return own_.scratch.data(); }

  // Of what kind the phases from here on are.
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

  // Shares out `count` things in a few pieces a thread, of `least` things at least and `most` at most: work(begin, end).
  template <typename Work>
  void split(int64_t count, int64_t least, const Work& work, int64_t most = INT64_MAX) {
    const int64_t items = std::max({int64_t(1), std::min(count / least, kPieces * threads_), (count - 1) / most + 1});
    each(items, [&](int64_t item) {
      const auto part = part_of(count, items, item);
      work(part.first, part.second);
    });
  }

  // The same for tiles of outputs, two by two as kernels take them.
  template <typename Work>
  void split_tiles(int64_t tiles, const Work& work, int64_t most = INT64_MAX) {
    split((tiles + 1) / 2, 1, [&](int64_t begin, int64_t end) { work(2 * begin, std::min(2 * end, tiles)); },
          std::max<int64_t>(1, most / 2));
  }

  // Rows of `width` that linear layers read, each made by make(row, out), and quantised for `integer` weights. With an
  // `order` [width] the layers' input i is the row's value order[i]. Many are
  // made in a phase of their own. Few are made by every thread that gets something to do with them, when it first asks:
  // until what it does is done nobody goes on and changes what rows are made of.
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
