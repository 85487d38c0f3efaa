// The self-test of tile registers survives every fault of a processor, with several threads running.
#include "runtime/tile_registers.h"

#include <atomic>
#include <cstdio>
#include <string>
#include <thread>

#include "kernels/kernels.h"
#include "runtime/cpu_features.h"

using namespace ipex_lookahead;

// Stubs: only the child's part is tested here.
namespace ipex_lookahead {
const CpuFeatures& cpu_features() {
  static const CpuFeatures none;
  return none;
}
const KernelTable* scalar_kernels() { return nullptr; }
const KernelTable* amx_int8_kernels() { return nullptr; }
bool amx_tiles_multiply() { return false; }
}  // namespace ipex_lookahead

int main() {
  std::atomic<bool> done{false};
  std::thread busy([&] {
    while (!done) delete[] new char[1000];
  });
  int failures = 0;
  const auto expect = [&](bool (*test)(), const char* wanted) {
    const std::string got = problem_in_child(test);
    if (got == wanted) return;
    ++failures;
    std::fprintf(stderr, "got '%s' instead of '%s'\n", got.c_str(), wanted);
  };
  for (int i = 0; i < 20; ++i) {
    expect([] { return true; }, "");
    expect([] { return false; }, "its self-test gave other sums");
    expect(
        [] {
          __asm__ volatile("ud2");
          return true;
        },
        "its self-test ended with signal 4");
    expect([] { return *static_cast<volatile char*>(nullptr) == 0; }, "its self-test ended with signal 11");
  }
  done = true;
  busy.join();
  if (tile_registers_problem() != "the processor does not have it") ++failures;
  if (failures == 0) std::puts("tile_registers_test: ok");
  return failures != 0;
}
