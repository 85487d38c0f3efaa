#include "runtime/machine_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>

#include "runtime/arena.h"
#include "runtime/dispatch.h"
#include "runtime/thread_pool.h"

namespace ipex_lookahead {
namespace {

constexpr int kPasses = 9;
constexpr int64_t kMaxBytes = int64_t(1) << 34;  // far above any cache

template <typename Work>
double best_seconds(Crew& crew, const Work& work) {  // one item per thread
  double best = 1e30;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    crew.for_each(crew.size(), work);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

double read_bandwidth(int64_t bytes, int threads, const std::string& isa) {
  if (bytes < 4096 || bytes > kMaxBytes)
    throw std::invalid_argument("bytes is " + std::to_string(bytes) + "; it must be from 4096 to " +
                                std::to_string(kMaxBytes));
  const KernelTable* kernels = kernels_for(isa);
  Crew crew(threads);
  Arena arena;
  bytes = bytes / 256 * 256;
  uint8_t* data = static_cast<uint8_t*>(arena.take(size_t(bytes)));
  std::memset(data, 1, size_t(bytes));  // pages are allocated on the first write
  std::atomic<int> sink{0};
  const double seconds = best_seconds(crew, [&](int64_t thread) {
    const auto part = part_of(bytes / 256, threads, thread);
    if (kernels->read(data + part.first * 256, (part.second - part.first) * 256) > 1e30f) ++sink;
  });
  return double(bytes) / seconds;
}

double integer_peak(int threads, const std::string& isa) {
  const KernelTable* kernels = kernels_for(isa);
  Crew crew(threads);
  constexpr int64_t kRepeats = 200000;
  std::atomic<int> sink{0};
  const double seconds = best_seconds(crew, [&](int64_t) {
    if (kernels->integer_peak(kRepeats) == 1) ++sink;
  });
  return double(kRepeats) * 8 * 64 * threads / seconds;
}

}  // namespace ipex_lookahead
