// The process's thread pool, which runs one job at a time, and phases that split work among its threads.
//
// All models of a process share one pool. So the threads of a draft model never spin on the cores of its target, and two
// callers alternate instead of oversubscribing the cores. The pool has the largest requested number of threads; each job sets
// how many of them take part. Threads are started by the first job that needs them and sleep between jobs until the process
// ends.
//
// No thread waits for another to arrive: work is counted by completed items, not by arrived threads. A core that the system
// uses for another process, a slower core or a sleeping worker costs its share of the speed and no more, and the result is
// the same, because items are fixed blocks of outputs.
//
// fork() waits until no job runs, so that what jobs write is complete in the child. The child has none of its parent's
// threads: it gets a new pool, and the inherited one is neither used nor destroyed. Whatever a thread changes without the
// GIL, it changes while it holds a Crew.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace ipex_lookahead {

class ThreadPool;

constexpr int kMaxThreads = 1024;
int checked_threads(int threads);  // returns `threads`; std::invalid_argument outside 1 to kMaxThreads

// Exclusive use of the process's threads. The constructor waits for it; the destructor releases it. A thread that holds one, or
// runs inside a job, must not create another; a holder must not wait for the GIL.
class Crew {
 public:
  explicit Crew(int threads);  // maximum number of threads, including the caller
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  int size() const { return threads_; }

  // Runs job(thread) on the caller (thread 0) and on the workers that arrive before the caller finishes. The job must be
  // complete when job(0) returns; workers inside it are waited for. A job must not throw.
  void run(const std::function<void(int)>& job);

  // Runs work(item) for every item in [0, items).
  void for_each(int64_t items, const std::function<void(int64_t)>& work);

 private:
  ThreadPool& pool_;
  const int threads_;
};

// Phases of a job, each with a number of items. Every thread goes through the same phases in the same order.
//
// Each thread has a fixed share of a phase's items, the same in every step, so that its data is still in the core's cache. A
// thread that completes its share helps with the others.
//
// The counters serve every phase of every job and are never reset: each stores the number of its phase, and counts from zero
// for a thread in a later phase. No thread enters a later phase before all items are done, so a thread that reads a later
// phase's number knows that its own phase is over.
class Phases {
 public:
  static constexpr int64_t kMaxItems = (int64_t(1) << 24) - 1;  // per phase: the range of a counter

  explicit Phases(int threads) : next_(size_t(threads)) {}

  // Numbers the phases of a job; called between jobs.
  void begin(size_t count) {
    first_ = end_;
    end_ += count;
  }

  // Works on items of phase `phase` until none is left, and returns when all are done.
  template <typename Work>
  void run(int thread, size_t phase, int64_t items, const Work& work) {
    const uint64_t number = first_ + phase;
    const int64_t threads = int64_t(next_.size());
    for (int64_t i = 0; i < threads; ++i) {
      const int64_t owner = (thread + i) % threads;
      const int64_t from = items * owner / threads, to = items * (owner + 1) / threads;
      for (int64_t item; (item = from + next_[size_t(owner)].advance(number, to - from)) < to;) {
        work(item);
        done_.advance(number, items);
      }
    }
    for (int spins = 0; done_.count(number, items) < items; ++spins) pause_or_yield(spins);
  }

 private:
  class Counter {
   public:
    // Increments the count of phase `number` up to `limit`. Returns the previous count, or `limit` if it was reached.
    int64_t advance(uint64_t number, int64_t limit) {
      uint64_t value = value_.load(std::memory_order_relaxed);
      for (;;) {
        const int64_t count = counted(value, number, limit);
        if (count >= limit) return limit;
        const uint64_t more = number << kCountBits | uint64_t(count + 1);
        if (value_.compare_exchange_weak(value, more, std::memory_order_release, std::memory_order_relaxed)) return count;
      }
    }
    int64_t count(uint64_t number, int64_t limit) const {
      return counted(value_.load(std::memory_order_acquire), number, limit);
    }

   private:
    static constexpr int kCountBits = 24;
    static int64_t counted(uint64_t value, uint64_t number, int64_t limit) {
      const uint64_t at = value >> kCountBits;
      if (at != number) return at < number ? 0 : limit;
      return int64_t(value & ((uint64_t(1) << kCountBits) - 1));
    }
    alignas(64) std::atomic<uint64_t> value_{0};
  };
  static void pause_or_yield(int spins);

  uint64_t first_ = 1, end_ = 1;
  std::vector<Counter> next_;  // per thread: number of items started of its share
  Counter done_;
};

// Item i of `items` as a range of `count` elements.
inline std::pair<int64_t, int64_t> part_of(int64_t count, int64_t items, int64_t i) {
  return {count * i / items, count * (i + 1) / items};
}

}  // namespace ipex_lookahead
