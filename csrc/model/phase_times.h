// Where a step's time goes, as its first thread sees it: asked for by who measures, and not taken otherwise.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace ipex_lookahead {

// Kinds of phases, in a step's order. What prepares a phase's rows (norms, quantising, merging heads) counts as its own.
enum class Phase : int { embedding, qkv, heads, attention, output, router, gate_up, down, head };
constexpr const char* kPhaseNames[] = {"embedding", "qkv", "heads", "attention", "output", "router", "gate_up", "down", "head"};
constexpr int kPhaseKinds = int(sizeof(kPhaseNames) / sizeof(kPhaseNames[0]));

struct PhaseTime {
  int64_t count = 0;     // phases of the kind
  double seconds = 0;    // from where the thread began them to where all threads were through,
  double busy = 0;       // and those of them in which it worked itself
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
