// The process's threads, for one job at a time, and phases in which they share out work.
//
// There is one pool a process, whichever models use it: a draft model's threads never wait awake on the cores of its
// target's, and two callers take turns instead of running twice as many threads as there are cores. It has as many threads
// as the largest number asked for; a job says how many of them may take part. Threads come with the first job that wants
// them and stay, asleep, until the process ends.
//
// Nobody waits for a thread that has not come: work is counted by items done, not by threads arrived. So a core that the
// system has given to someone else, a slower core or a worker still asleep costs its share of the speed and no more, and
// the result is the same, since items are fixed blocks of outputs, whoever does them.
//
// fork() waits until no job is under way, so that what jobs write is whole in the child too. The child has none of its
// parent's threads: it gets a fresh pool, and the inherited one is neither used nor destroyed there. Whatever a thread
// changes without holding Python's lock, it changes while it holds a Crew.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace ipex_lookahead {

class ThreadPool;

constexpr int kMostThreads = 1024;
int checked_threads(int threads);  // itself; std::invalid_argument outside 1 to kMostThreads

// The right to the process's threads: who makes one waits until it has them, and has them until it goes. Not to be made
// by a thread that has one, nor inside a job; and who has one must not wait for Python's lock.
class Crew {
 public:
  explicit Crew(int threads);  // at most so many, the caller among them
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  int size() const { return threads_; }

  // Runs job(thread) on the caller (thread 0) and on those workers that come before the caller is through. The job must
  // be complete when job(0) returns; workers inside it are waited for. A job must not throw.
  void run(const std::function<void(int)>& job);

  // Runs work(item) for every item in [0, items).
  void for_each(int64_t items, const std::function<void(int64_t)>& work);

 private:
  ThreadPool& pool_;
  const int threads_;
};

// Phases of a job, each a number of items. Every thread goes through the same phases in the same order.
//
// Each thread has a share of a phase's items, the same in every step, so that what an item reads is still in the cache of
// the core that did it the last time; whoever is through with its own share helps the others with theirs.
//
// The counters serve every phase of every job and are never reset: each carries the number of the phase it counts for,
// and counts from zero for a thread that is further on. Nobody is further on before all items are done, so a thread that
// finds a later phase's number knows that its own phase is over.
class Phases {
 public:
  static constexpr int64_t kMostItems = (int64_t(1) << 24) - 1;  // of a phase: what a counter counts

  explicit Phases(int threads) : next_(size_t(threads)) {}

  // Numbers the phases of a job; between jobs only.
  void begin(size_t count) {
    first_ = end_;
    end_ += count;
  }

  // Does items of phase `phase` until none is left, and returns when all are done, whoever did them.
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
    // Counts one more of `limit` for the phase of that number; what the count was, or `limit` where that is reached.
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
  std::vector<Counter> next_;  // a thread's share: items begun
  Counter done_;
};

// Item i of `items` as a range of `count` things.
inline std::pair<int64_t, int64_t> part_of(int64_t count, int64_t items, int64_t i) {
  return {count * i / items, count * (i + 1) / items};
}

}  // namespace ipex_lookahead
