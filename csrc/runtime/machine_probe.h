// The two hardware limits that benchmarks compare with: memory bandwidth and integer throughput.
#pragma once

#include <cstdint>
#include <string>

namespace ipex_lookahead {

// Bytes per second that `threads` threads together read from a buffer of `bytes`; best of several passes.
double read_bandwidth(int64_t bytes, int threads, const std::string& isa);

// Integer multiply-adds per second (int8 x uint8 into int32) in registers; best of several runs. One counts as two operations.
double integer_peak(int threads, const std::string& isa);

}  // namespace ipex_lookahead
