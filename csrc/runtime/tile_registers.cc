#include "runtime/tile_registers.h"

#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/cpu_features.h"
#include "runtime/rows.h"

namespace ipex_lookahead {
namespace {

constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA

// Compares a product with the scalar kernels: 49 rows, 24 outputs, 8 blocks, for formats with one scale per block, with two
// steps, and with steps and minimums.
bool equals_scalar(WeightFormat format) {
  constexpr int64_t kCount = 49, kOutputs = 24, kBlocks = 8, kStride = kBlocks * kGroup, kTiles = 2;
  std::vector<uint8_t> codes(kTiles * kBlocks * 512), steps(kTiles * kBlocks * 32);
  std::vector<uint16_t> halves(kTiles * kBlocks * kLanes);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = uint8_t(i * 167 >> 3);
  for (size_t i = 0; i < steps.size(); ++i) steps[i] = uint8_t(i * 151 >> 2);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = uint16_t(0x2c00 + i * 13 % 0x400 + (i % 3 == 0 ? 0x8000 : 0));
  Matrix w;
  w.format = format;
  w.n_out = kOutputs;
  w.n_in = kStride;
  w.blocks = kBlocks;
  w.group_blocks = format == WeightFormat::sym_int4 ? 1 : kBlocks;
  w.codes = codes.data();
  w.scales = w.minimums = halves.data();
  w.steps = steps.data();

  RowsMemory memory;
  memory.reserve(kCount, kStride);
  const Rows x = memory.view(kCount, kStride);
  for (int64_t i = 0; i < kCount * kStride; ++i) x.values[i] = float(int(i * 7919 % 2003) - 1001) / 1001.0f;
  for (int64_t r = 0; r < kCount; ++r) scalar_kernels()->quantize_row(x, r);

  std::vector<float> expected(kCount * kOutputs), got(kCount * kOutputs);
  scalar_kernels()->linear(w, x, 0, kTiles, expected.data(), kOutputs, false);
  amx_int8_kernels()->linear(w, x, 0, kTiles, got.data(), kOutputs, false);
  return std::memcmp(expected.data(), got.data(), expected.size() * sizeof(float)) == 0;
}

std::string find_problem() {
  if (!cpu_features().amx_int8) return "the processor does not have it";
  if (!cpu_features().tiles_saved) return "the system does not save its tile registers";
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0)
    return std::string("the system does not permit its tile registers (") + std::strerror(errno) + ")";
  if (std::string problem = problem_in_child(amx_tiles_multiply); !problem.empty()) return problem;
  for (WeightFormat format : {WeightFormat::sym_int4, WeightFormat::q6_k, WeightFormat::q2_k})
    if (!equals_scalar(format)) return "its self-test gave other bytes than the scalar kernels";
  return "";
}

}  // namespace

// The first tile operations run in a child process, because they may crash. clone() instead of fork(): no handlers of other
// libraries run, and no signal about an unknown child reaches the process.
std::string problem_in_child(bool (*test)()) {
  const long child = syscall(SYS_clone, 0UL, nullptr, nullptr, nullptr, 0UL);
  if (child == 0) {
    for (int fault : {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGTRAP}) signal(fault, SIG_DFL);  // drop other libraries' handlers
    const rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    alarm(10);
    _exit(test() ? 0 : 1);
  }
  if (child < 0) return std::string("its self-test got no process (") + std::strerror(errno) + ")";
  int status = 0;
  pid_t ended;
  do ended = waitpid(pid_t(child), &status, __WALL);
  while (ended < 0 && errno == EINTR);
  if (ended != child) return std::string("its self-test's process was lost (") + std::strerror(errno) + ")";
  if (WIFSIGNALED(status)) return "its self-test ended with signal " + std::to_string(WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : "its self-test gave other sums";
}

const std::string& tile_registers_problem() {
  static const std::string problem = find_problem();
  return problem;
}

}  // namespace ipex_lookahead
