// Time per kind of phase of a step, as its first thread sees it. Measured on request only.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace ipex_lookahead {

// Kinds of phases in step order. Preparing a phase's rows (norms, quantization, merging heads) is part of the phase.
enum class Phase : int { embedding, qkv, heads, attention, output, router, gate_up, down, head };
constexpr const char* kPhaseNames[] = {"embedding", "qkv", "heads", "attention", "output", "router", "gate_up", "down", "head"};
constexpr int kPhaseKinds = int(sizeof(kPhaseNames) / sizeof(kPhaseNames[0]));

struct PhaseTime {
  int64_t count = 0;     // number of phases
  double seconds = 0;    // from the thread's start to the end of all threads
  double busy = 0;       // the part in which this thread worked
};

using PhaseTimes = std::array<PhaseTime, kPhaseKinds>;

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point began_ = Clock::now();
};

}  // namespace ipex_lookahead
