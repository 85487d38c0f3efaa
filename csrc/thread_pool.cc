#include "thread_pool.h"

#include <immintrin.h>
#include <sched.h>
#include <unistd.h>

namespace ipex_lookahead {
namespace {

constexpr int kSpin = 20000;       // pauses before a worker without a job sleeps: about half a millisecond
constexpr int kBarrierSpin = 2000;  // pauses before a thread at a barrier gives its core away

// Rounding to nearest, no flush to zero, no traps, whatever another library has set in this thread.
class DefaultFloatMode {
 public:
  DefaultFloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~DefaultFloatMode() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
};

}  // namespace

ThreadPool::ThreadPool(int threads) : threads_(threads < 1 ? 1 : threads) {}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::start() {
  if (owner_ == getpid()) return;
  if (owner_ != 0) {
    // After fork() the parent's threads are not here: forget them without joining, and start afresh.
    for (auto& t : workers_) t.detach();
    workers_.clear();
    running_ = waiting_ = 0;
    asleep_ = 0;
  }
  owner_ = getpid();
  const uint64_t seen = generation_.load();
  for (int t = 1; t < threads_; ++t) workers_.emplace_back(&ThreadPool::work, this, t, seen);
}

void ThreadPool::stop() {
  if (owner_ != getpid()) {
    for (auto& t : workers_) t.detach();
    return;
  }
  stopping_ = true;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (auto& t : workers_) t.join();
  workers_.clear();
}

void ThreadPool::run(const std::function<void(int)>& job) {
  DefaultFloatMode mode;
  if (threads_ == 1) {
    job(0);
    return;
  }
  start();
  job_ = &job;
  running_.store(threads_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1);  // sequentially consistent, as is asleep_: either we see the sleeper or it sees the job
  if (asleep_.load() > 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_all();
  }
  job(0);
  for (int spins = 0; running_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kBarrierSpin)
      _mm_pause();
    else
      sched_yield();
  }
}

void ThreadPool::work(int thread, uint64_t seen) {
  DefaultFloatMode mode;
  for (;;) {
    int spins = 0;
    while (generation_.load(std::memory_order_acquire) == seen) {
      if (++spins < kSpin) {
        _mm_pause();
        continue;
      }
      std::unique_lock<std::mutex> lock(mutex_);
      asleep_.fetch_add(1);
      wake_.wait(lock, [&] { return generation_.load() != seen; });
      asleep_.fetch_sub(1);
    }
    ++seen;
    if (stopping_) return;
    (*job_)(thread);
    running_.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::barrier() {
  if (threads_ == 1) return;
  const uint64_t phase = phase_.load(std::memory_order_relaxed);
  if (waiting_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
    waiting_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
    if (spins < kBarrierSpin)
      _mm_pause();
    else
      sched_yield();
  }
}

}  // namespace ipex_lookahead
