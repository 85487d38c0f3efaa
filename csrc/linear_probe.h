// One linear layer by itself: what tests compare with their oracles, and what the kernel benchmark times.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "arena.h"
#include "kernels.h"
#include "packing.h"
#include "thread_pool.h"

namespace ipex_lookahead {

class LinearProbe {
 public:
  LinearProbe(const PlainMatrix& plain, const float* bias, int threads, const std::string& isa);

  // out [rows][n_out] = x [rows][n_in] W^T + bias, through the very path a decoder step takes.
  void run(const float* x, int64_t rows, float* out);

  int64_t n_in() const { return matrix_.n_in; }
  int64_t n_out() const { return matrix_.n_out; }

 private:
  const KernelTable* const kernels_;
  ThreadPool pool_;
  Arena arena_;
  Matrix matrix_;
  std::vector<float> values_, scales_, sums_;
  std::vector<int8_t> codes_;
  std::vector<int32_t> bias4_, bias8_;
};

}  // namespace ipex_lookahead
