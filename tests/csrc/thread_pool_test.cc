// The thread pool and its phases, for ThreadSanitizer: every item runs exactly once and no phase starts early, for jobs in
// rapid succession and after sleeps, narrow and wide ones, from several callers at once, with more threads than cores, and in
// children of fork().
#include <dirent.h>
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
  Crew crew(threads);
  Phases phases(threads);
  constexpr int kPhases = 25;
  constexpr int64_t kItems = 17;
  std::vector<int64_t> values(kItems);
  for (int round = 0; round < rounds; ++round) {
    for (auto& v : values) v = round;
    phases.begin(kPhases);
    crew.run([&](int thread) {
      for (int p = 0; p < kPhases; ++p)
        phases.run(thread, size_t(p), kItems, [&](int64_t item) {
          if ((item + p + thread) % 11 == 0) sched_yield();  // vary the order
          if (p % 2 == 0)
            values[size_t(item)] += 1;
          else
            values[size_t((item * 5) % kItems)] *= 2;  // 5 and 17 are coprime: each value once, by another thread
        });
    });
    int64_t expected = round;
    for (int p = 0; p < kPhases; ++p) expected = p % 2 == 0 ? expected + 1 : expected * 2;
    for (auto v : values) check(v == expected, "an item was done twice, never, or before its phase");
  }
}

void every_item_once(int threads) {
  Crew crew(threads);
  for (int64_t items : {0, 1, 2, 3, 64, 1000}) {
    std::vector<std::atomic<int>> done(static_cast<size_t>(items));
    crew.for_each(items, [&](int64_t i) { done[size_t(i)].fetch_add(1); });
    for (auto& d : done) check(d.load() == 1, "an item was not done exactly once");
  }
}

void wakes_after_sleep(int threads) {
  Crew crew(threads);
  std::atomic<int64_t> sum{0};
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // longer than workers spin
    crew.for_each(100, [&](int64_t item) { sum.fetch_add(item); });
  }
  check(sum.load() == 5 * 4950, "work was lost over a sleep");
}

int64_t sum_of_100(int threads) {
  std::atomic<int64_t> sum{0};
  Crew crew(threads);
  crew.for_each(100, [&](int64_t item) { sum.fetch_add(item); });
  return sum.load();
}

// A draft model with few threads next to its target with many: no job gets more threads than it requested.
void narrow_jobs_stay_narrow(int most) {
  for (int round = 0; round < 200; ++round) {
    const int threads = 1 + round % most;
    std::atomic<int> highest{0};
    Crew crew(threads);
    crew.run([&](int thread) {
      int seen = highest.load();
      while (seen < thread && !highest.compare_exchange_weak(seen, thread)) {
      }
      if (round % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // lets the workers arrive
    });
    check(highest.load() < threads, "a job ran on more threads than it asked for");
  }
}

int threads_of_this_process() {
  int count = 0;
  if (DIR* folder = opendir("/proc/self/task")) {
    while (const dirent* entry = readdir(folder)) count += entry->d_name[0] != '.';
    closedir(folder);
  }
  return count;
}

void callers_take_turns() {
  std::atomic<int> at_work{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&, c] {
      for (int i = 0; i < 100; ++i) {
        Crew crew(1 + c % 3);
        check(at_work.fetch_add(1) == 0, "two callers had the threads at once");
        std::atomic<int> done{0};
        crew.for_each(20, [&](int64_t) { done.fetch_add(1); });
        check(done.load() == 20, "a caller lost an item");
        at_work.fetch_sub(1);
      }
    });
  for (auto& t : callers) t.join();
}

// Exits with 0 if `work` is true; an alarm ends a child that hangs.
template <typename Work>
void in_a_child(const Work& work, const char* what) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(work() ? 0 : 1);
  }
  int status = 0;
  check(waitpid(child, &status, 0) == child && status == 0, what);
}

void works_in_a_child() {
  const auto works = [] { return sum_of_100(3) == 4950; };
  check(works(), "the pool does not work");
  in_a_child(works, "the pool does not work after fork()");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  in_a_child(works, "the pool does not work after fork() with its threads asleep");
  in_a_child(
      [&] {
        in_a_child(works, "the pool does not work in a child's child");
        return works();
      },
      "the pool does not work beside a child's child");
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) check(works(), "the parent's pool was disturbed by fork()");
  });
  for (int i = 0; i < 50; ++i) in_a_child(works, "the pool does not work after fork() in the middle of a job");
  stop = true;
  other.join();
}

}  // namespace

int main(int argc, char**) {
  constexpr int kManyThreads = 8;
  // Each round yields its core 40 times; if other programs use it, each yield takes milliseconds.
  const int rounds = argc == 1 ? 40 : 400;
  for (int threads : {1, 2, 3, kManyThreads, 2}) {
    phases_are_ordered(threads, rounds);
    every_item_once(threads);
    wakes_after_sleep(threads);
  }
  narrow_jobs_stay_narrow(kManyThreads);
  callers_take_turns();
  if (argc == 1) works_in_a_child();  // any argument skips it: ThreadSanitizer does not follow threads across fork()
  // ThreadSanitizer has its own thread.
  check(threads_of_this_process() <= kManyThreads + (argc == 1 ? 0 : 1), "there are more threads than any job asked for");
  std::puts("thread_pool_test: ok");
}
