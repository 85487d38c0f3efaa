#include "runtime/thread_pool.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

namespace ipex_lookahead {
namespace {

constexpr int kSpin = 20000;      // pauses before an idle worker sleeps: about half a millisecond
constexpr int kPhaseSpin = 2000;  // pauses before a thread that waits for others yields its core

void pause_or_yield(int spins) {
  if (spins < kPhaseSpin)
    _mm_pause();
  else
    sched_yield();
}

// Moves this thread off the caller's core: the kernel wakes a thread on the waker's core and may leave both there for many
// steps while another core is idle. The thread's affinity is restored afterwards.
void leave_core(int core) {
  cpu_set_t allowed, others;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  others = allowed;
  CPU_CLR(core, &others);
  if (CPU_COUNT(&others) == 0) return;
  if (sched_setaffinity(0, sizeof others, &others) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
}

// Round to nearest, no flush to zero, no traps, whatever other libraries have set in this thread.
class DefaultFloatMode {
 public:
  DefaultFloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~DefaultFloatMode() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
};

}  // namespace

class ThreadPool {
 public:
  void run(int threads, const std::function<void(int)>& job);

  std::mutex crew;  // held by the active crew

 private:
  struct alignas(64) Worker {
    std::atomic<bool> asleep{false};
    std::condition_variable wake;
  };

  void grow(int threads);
  void work(Worker& self, int thread, uint64_t seen);
  void leave_caller() const;
  bool is_wanted(int thread, uint64_t seen, uint64_t now) const {
    return now != seen && thread < wanted_.load(std::memory_order_relaxed);
  }

  std::vector<std::unique_ptr<Worker>> workers_;
  bool grown_ = true;  // false once the system has refused a thread
  const std::function<void(int)>* job_ = nullptr;
  alignas(64) std::atomic<uint64_t> generation_{0};  // odd while a job is open
  std::atomic<int> wanted_{0};                       // threads of the job, including the caller
  std::atomic<int> caller_core_{-1};
  alignas(64) std::atomic<int> inside_{0};  // workers that may access the job
  std::mutex sleep_;
};

namespace {

// This process's pool. Never destroyed: its threads may sleep in it when the process ends, and a child after fork() must not
// touch what its parent's threads wait on.
std::atomic<ThreadPool*> the_pool{new ThreadPool};

void before_fork() { the_pool.load()->crew.lock(); }
void after_fork_in_parent() { the_pool.load()->crew.unlock(); }
void after_fork_in_child() { the_pool.store(new ThreadPool); }

const int hooked = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);

}  // namespace

int checked_threads(int threads) {
  if (threads < 1 || threads > kMaxThreads)
    throw std::invalid_argument("threads is " + std::to_string(threads) + "; it must be from 1 to " +
                                std::to_string(kMaxThreads));
  return threads;
}

Crew::Crew(int threads) : pool_(*the_pool.load()), threads_(checked_threads(threads)) {
  if (hooked != 0) throw std::bad_alloc();  // the only possible reason
  pool_.crew.lock();
}

Crew::~Crew() { pool_.crew.unlock(); }

void Crew::run(const std::function<void(int)>& job) { pool_.run(threads_, job); }

void Crew::for_each(int64_t items, const std::function<void(int64_t)>& work) {
  Phases phases(threads_);
  phases.begin(1);
  run([&](int thread) { phases.run(thread, 0, items, work); });
}

// A worker first announces itself in inside_ and then checks whether the job is open; the caller first closes the job
// (generation_ becomes even) and then checks inside_. All four accesses are sequentially consistent, so one of the two sees the
// other: no worker touches a job that the caller has left.
void ThreadPool::run(int threads, const std::function<void(int)>& job) {
  DefaultFloatMode mode;
  if (threads == 1) {
    job(0);
    return;
  }
  grow(threads);
  job_ = &job;
  wanted_.store(threads, std::memory_order_relaxed);
  caller_core_.store(sched_getcpu(), std::memory_order_relaxed);
  generation_.fetch_add(1);
  const size_t wanted = std::min(workers_.size(), size_t(threads - 1));
  for (size_t i = 0; i < wanted; ++i) {
    if (!workers_[i]->asleep.load()) continue;
    std::lock_guard<std::mutex> lock(sleep_);
    workers_[i]->wake.notify_one();
  }
  job(0);
  generation_.fetch_add(1);
  for (int spins = 0; inside_.load() != 0; ++spins) pause_or_yield(spins);
}

// If the system refuses more threads, the existing ones do the work: the result is the same.
void ThreadPool::grow(int threads) {
  while (grown_ && int(workers_.size()) < threads - 1) {
    const int thread = int(workers_.size()) + 1;
    workers_.push_back(std::make_unique<Worker>());
    try {
      std::thread(&ThreadPool::work, this, std::ref(*workers_.back()), thread, generation_.load()).detach();
    } catch (const std::system_error&) {
      workers_.pop_back();
      grown_ = false;
    }
  }
}

void ThreadPool::leave_caller() const {
  const int core = caller_core_.load(std::memory_order_relaxed);
  if (core >= 0 && core < CPU_SETSIZE && core == sched_getcpu()) leave_core(core);
}

void ThreadPool::work(Worker& self, int thread, uint64_t seen) {
  DefaultFloatMode mode;
  for (;;) {
    uint64_t now;
    for (int spins = 0; !is_wanted(thread, seen, now = generation_.load(std::memory_order_acquire));) {
      if (++spins < kSpin) {
        // The caller may do all the work before a worker on its core runs, so the check is here.
        if (spins % 1024 == 0) leave_caller();
        _mm_pause();
        continue;
      }
      std::unique_lock<std::mutex> lock(sleep_);
      self.asleep.store(true);
      self.wake.wait(lock, [&] { return is_wanted(thread, seen, generation_.load()); });
      self.asleep.store(false);
    }
    seen = now;
    if (now % 2 == 0) continue;  // closed again
    inside_.fetch_add(1);
    if (generation_.load() == now) {
      leave_caller();
      (*job_)(thread);
    }
    inside_.fetch_sub(1);
  }
}

void Phases::pause_or_yield(int spins) { ipex_lookahead::pause_or_yield(spins); }

}  // namespace ipex_lookahead
