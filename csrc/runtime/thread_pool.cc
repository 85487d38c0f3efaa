#include "runtime/thread_pool.h"

#include <immintrin.h>
#include <sched.h>
#include <unistd.h>

namespace ipex_lookahead {
namespace {

constexpr int kSpin = 20000;      // pauses before a worker without a job sleeps: about half a millisecond
constexpr int kPhaseSpin = 2000;  // pauses before a thread that waits for others gives its core away

void pause_or_yield(int spins) {
  if (spins < kPhaseSpin)
    _mm_pause();
  else
    sched_yield();
}

// Moves this thread off a core where the caller runs: the kernel wakes a thread where its waker is and may leave the two
// there for many steps, sharing one core while another is idle. Where the thread may run is as before afterwards.
void leave_core(int core) {
  cpu_set_t allowed, others;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  others = allowed;
  CPU_CLR(core, &others);
  if (CPU_COUNT(&others) == 0) return;
  if (sched_setaffinity(0, sizeof others, &others) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
}

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
  // After fork() the parent's threads are not here: forget them without joining, and start afresh.
  for (auto& t : workers_) t.detach();
  workers_.clear();
  inside_ = 0;
  asleep_ = 0;
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
    generation_.fetch_add(2);
  }
  wake_.notify_all();
  for (auto& t : workers_) t.join();
  workers_.clear();
}

// The job is open while generation_ is odd. A worker first says that it is inside and then looks whether the job is open;
// the caller first closes it and then looks whether anyone is inside. All four are sequentially consistent, so one of the
// two sees the other: no worker touches a job that the caller has left.
void ThreadPool::run(const std::function<void(int)>& job) {
  DefaultFloatMode mode;
  if (threads_ == 1) {
    job(0);
    return;
  }
  start();
  job_ = &job;
  caller_core_.store(sched_getcpu(), std::memory_order_relaxed);
  generation_.fetch_add(1);
  if (asleep_.load() > 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_all();
  }
  job(0);
  generation_.fetch_add(1);
  for (int spins = 0; inside_.load() != 0; ++spins) pause_or_yield(spins);
}

void ThreadPool::leave_caller() const {
  const int core = caller_core_.load(std::memory_order_relaxed);
  if (core >= 0 && core < CPU_SETSIZE && core == sched_getcpu()) leave_core(core);
}

void ThreadPool::work(int thread, uint64_t seen) {
  DefaultFloatMode mode;
  for (;;) {
    int spins = 0;
    uint64_t now;
    while ((now = generation_.load(std::memory_order_acquire)) == seen) {
      if (++spins < kSpin) {
        // The caller may do all the work before a worker that shares its core is let in, so this is the place to look.
        if (spins % 1024 == 0) leave_caller();
        _mm_pause();
        continue;
      }
      std::unique_lock<std::mutex> lock(mutex_);
      asleep_.fetch_add(1);
      wake_.wait(lock, [&] { return generation_.load() != seen; });
      asleep_.fetch_sub(1);
    }
    if (stopping_) return;
    seen = now;
    if (now % 2 == 0) continue;  // closed again before we came
    inside_.fetch_add(1);
    if (generation_.load() == now) {
      leave_caller();
      (*job_)(thread);
    }
    inside_.fetch_sub(1);
  }
}

void ThreadPool::for_each(int64_t items, const std::function<void(int64_t)>& work) {
  Phases phases(threads_);
  phases.begin(1);
  run([&](int thread) { phases.run(thread, 0, items, work); });
}

void Phases::pause_or_yield(int spins) { ipex_lookahead::pause_or_yield(spins); }

}  // namespace ipex_lookahead
