// Linear layers without a decoder, for the torch engine's modules, for tests against oracles, and for the kernel benchmark.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/kernels.h"
#include "runtime/arena.h"
#include "runtime/thread_pool.h"
#include "weights/packing.h"

namespace ipex_lookahead {

// State shared by the layers of a model: threads, memory for weights, and scratch for quantized activations. Methods that
// change it hold the process's thread pool (a Crew), so calls from several threads wait for each other.
class LinearPool {
 public:
  LinearPool(int threads, const std::string& isa);

  const char* isa() const { return kernels_->name; }
  int threads() const { return threads_; }
  int64_t weight_bytes() const;

  // Prepacks a weight, which lives as long as the pool.
  Matrix add(const PlainMatrix& plain, const float* bias);
  // Writes the plain streams, with sizes as in packing.h.
  void plain(const Matrix& matrix, void* codes, uint16_t* scales, uint16_t* minimums);

  // out [rows][n_out] = x [rows][n_in] W^T + bias, with the kernels of a decoder step. Throws std::invalid_argument for more
  // rows than a phase has items.
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
