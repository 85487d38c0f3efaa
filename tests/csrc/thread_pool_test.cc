// The thread pool and its phases by themselves, for ThreadSanitizer: every item exactly once, no phase before its time,
// jobs that come thick and fast and after sleeps, more threads than cores, children of fork().
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "runtime/thread_pool.h"

using namespace ipex_lookahead;

namespace {

void check(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "thread_pool_test: %s\n", what);
  std::exit(1);
}

// Plain (not atomic) memory, written in one phase and read in the next: a sanitizer sees any missing order.
void phases_are_ordered(int threads, int rounds) {
  ThreadPool pool(threads);
  Phases phases(threads);
  constexpr int kPhases = 25;
  constexpr int64_t kItems = 17;
  std::vector<int64_t> values(kItems);
  for (int round = 0; round < rounds; ++round) {
    for (auto& v : values) v = round;
    phases.begin(kPhases);
    pool.run([&](int thread) {
      for (int p = 0; p < kPhases; ++p)
        phases.run(thread, size_t(p), kItems, [&](int64_t item) {
          if ((item + p + thread) % 11 == 0) sched_yield();  // shake the order
          if (p % 2 == 0)
            values[size_t(item)] += 1;
          else
            values[size_t((item * 5) % kItems)] *= 2;  // 5 and 17 share no factor: each once, by another thread
        });
    });
    int64_t expected = round;
    for (int p = 0; p < kPhases; ++p) expected = p % 2 == 0 ? expected + 1 : expected * 2;
    for (auto v : values) check(v == expected, "an item was done twice, never, or before its phase");
  }
}

void every_item_once(int threads) {
  ThreadPool pool(threads);
  for (int64_t items : {0, 1, 2, 3, 64, 1000}) {
    std::vector<std::atomic<int>> done(static_cast<size_t>(items));
    pool.for_each(items, [&](int64_t i) { done[size_t(i)].fetch_add(1); });
    for (auto& d : done) check(d.load() == 1, "an item was not done exactly once");
  }
}

void wakes_after_sleep(int threads) {
  ThreadPool pool(threads);
  std::atomic<int64_t> sum{0};
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // longer than workers spin
    pool.for_each(100, [&](int64_t item) { sum.fetch_add(item); });
  }
  check(sum.load() == 5 * 4950, "work was lost over a sleep");
}

void works_in_a_child() {
  ThreadPool pool(3);
  std::atomic<int> sum{0};
  pool.for_each(50, [&](int64_t) { sum.fetch_add(1); });
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int> own{0};
    pool.for_each(50, [&](int64_t) { own.fetch_add(1); });
    _exit(own.load() == 50 ? 0 : 1);
  }
  int status = 0;
  check(waitpid(child, &status, 0) == child && status == 0, "the pool does not work after fork()");
  pool.for_each(50, [&](int64_t) { sum.fetch_add(1); });
  check(sum.load() == 100, "the parent's pool was disturbed by fork()");
}

}  // namespace

int main(int argc, char**) {
  for (int threads : {1, 2, 3, 8}) {
    phases_are_ordered(threads, 400);
    every_item_once(threads);
    wakes_after_sleep(threads);
  }
  if (argc == 1) works_in_a_child();  // any argument leaves it out: ThreadSanitizer does not follow threads over fork()
  std::puts("thread_pool_test: ok");
}
