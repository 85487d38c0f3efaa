// What this machine can do at best: the two roofs that benchmarks are held against.
#pragma once

#include <cstdint>
#include <string>

namespace ipex_lookahead {

// Bytes a second that `threads` threads together read from a buffer of `bytes`, best of several passes.
double read_bandwidth(int64_t bytes, int threads, const std::string& isa);

// Integer multiply-adds a second (int8 x uint8 into int32) from registers, best of several runs; one is two operations.
double integer_peak(int threads, const std::string& isa);

}  // namespace ipex_lookahead
