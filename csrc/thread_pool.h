// A pool of threads for one job at a time, and phases in which they share out work.
//
// Nobody waits for a thread that has not come: work is counted by items done, not by threads arrived. So a core that the
// system has given to someone else, a slower core or a worker still asleep costs its share of the speed and no more, and
// the result is the same, since items are fixed blocks of outputs, whoever does them.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace ipex_lookahead {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return threads_; }

  // Runs job(thread) on the caller (thread 0) and on those workers that come before the caller is through. The job must
  // be complete when job(0) returns; workers inside it are waited for. Not reentrant; a job must not throw.
  void run(const std::function<void(int)>& job);

  // Runs work(item) for every item in [0, items).
  void for_each(int64_t items, const std::function<void(int64_t)>& work);

 private:
  void start();
  void stop();
  void work(int thread, uint64_t seen);
  void leave_caller() const;

  const int threads_;
  pid_t owner_ = 0;  // the process whose threads these are; a child after fork() makes new ones
  std::vector<std::thread> workers_;
  const std::function<void(int)>* job_ = nullptr;
  alignas(64) std::atomic<uint64_t> generation_{0};  // odd while a job is open
  alignas(64) std::atomic<int> inside_{0};           // workers that may touch the job
  alignas(64) std::atomic<int> asleep_{0};
  std::atomic<int> caller_core_{-1};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
};

// Phases of a job, each a number of items. Every thread goes through the same phases in the same order.
class Phases {
 public:
  // Makes `count` fresh phases; between jobs only.
  void reset(size_t count);

  // Does items of phase `phase` until none is left, and returns when all are done, whoever did them.
  template <typename Work>
  void run(size_t phase, int64_t items, const Work& work) {
    Phase& p = phases_[phase];
    while (p.next.load(std::memory_order_relaxed) < items) {
      const int64_t item = p.next.fetch_add(1, std::memory_order_relaxed);
      if (item >= items) break;
      work(item);
      p.done.fetch_add(1, std::memory_order_release);
    }
    if (p.done.load(std::memory_order_acquire) < items) wait(p, items);
  }

 private:
  struct Phase {
    alignas(64) std::atomic<int64_t> next{0};
    alignas(64) std::atomic<int64_t> done{0};
  };
  static void wait(const Phase& p, int64_t items);

  std::vector<Phase> phases_;
};

// Item i of `items` as a range of `count` things.
inline std::pair<int64_t, int64_t> part_of(int64_t count, int64_t items, int64_t i) {
  return {count * i / items, count * (i + 1) / items};
}

}  // namespace ipex_lookahead
