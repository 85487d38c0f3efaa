// Linear layers without a decoder: what the torch engine's modules run on, what tests compare with their oracles, and
// what the kernel benchmark times.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/kernels.h"
#include "runtime/arena.h"
#include "runtime/thread_pool.h"
#include "weights/packing.h"

namespace ipex_lookahead {

// What the layers of one model share: their number of threads, memory for weights, and room for quantised activations.
// Whoever changes it holds the process's threads meanwhile (a Crew): calls from several threads wait for each other.
class LinearPool {
 public:
  LinearPool(int threads, const std::string& isa);

  const char* isa() const { return kernels_->name; }
  int threads() const { return threads_; }
  int64_t weight_bytes() const;

  // Prepacks a weight. It lives as long as the pool.
  Matrix add(const PlainMatrix& plain, const float* bias);
  void plain(const Matrix& matrix, void* codes, uint16_t* scales, uint16_t* minimums);  // the streams, sizes as in packing.h

  // out [rows][n_out] = x [rows][n_in] W^T + bias, through the very path a decoder step takes. Throws
  // std::invalid_argument for more rows than a phase has items.
  void run(const Matrix& matrix, const float* x, int64_t rows, float* out);

 private:
  const KernelTable* const kernels_;
  const int threads_;
  Arena arena_;
  Phases phases_;
  Buffer<float> values_, scales_, sums_;
  Buffer<int8_t> codes_;
  Buffer<int32_t> bias4_, bias8_, halves_;
};

class LinearLayer {
 public:
  LinearLayer(std::shared_ptr<LinearPool> pool, const PlainMatrix& plain, const float* bias)
      : pool_(std::move(pool)), matrix_(pool_->add(plain, bias)) {}

  void run(const float* x, int64_t rows, float* out) { pool_->run(matrix_, x, rows, out); }

  const Matrix& matrix() const { return matrix_; }
  LinearPool& pool() { return *pool_; }

 private:
  std::shared_ptr<LinearPool> pool_;
  const Matrix matrix_;
};

}  // namespace ipex_lookahead
