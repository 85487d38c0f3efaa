// A pool of threads that takes one job at a time: spin while work is likely to come soon, then sleep.
//
// The caller is worker 0. Workers never outlive the pool, and a child process after fork() makes new ones.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ipex_lookahead {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return threads_; }

  // Runs job(thread) on every thread and returns when all are done. Not reentrant.
  void run(const std::function<void(int)>& job);

  // To be called by every thread of a running job: returns when all have come.
  void barrier();

  // Contiguous share of `count` items for `thread`: [first, second).
  std::pair<int64_t, int64_t> share(int thread, int64_t count) const {
    return {count * thread / threads_, count * (thread + 1) / threads_};
  }

 private:
  void start();
  void stop();
  void work(int thread, uint64_t seen);

  const int threads_;
  pid_t owner_ = 0;  // the process whose threads these are
  std::vector<std::thread> workers_;
  const std::function<void(int)>* job_ = nullptr;
  alignas(64) std::atomic<uint64_t> generation_{0};
  alignas(64) std::atomic<int> running_{0};
  alignas(64) std::atomic<int> waiting_{0};
  alignas(64) std::atomic<uint64_t> phase_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<int> asleep_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace ipex_lookahead
