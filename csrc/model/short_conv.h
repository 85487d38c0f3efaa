// Gated convolution of LFM2 (Liquid AI): out(c * convolution(b * x)), where b, c and x are linear layers of the same inputs.
#pragma once

#include <string>

#include "model/lineage.h"
#include "model/operation.h"
#include "model/recurrent_scratch.h"

namespace ipex_lookahead {

class ShortConv : public Operation {
 public:
  ShortConv(const OperationParts& of, RecurrentScratch& scratch);
  void place(const CacheShape& cache) override { state_shape_ = std::get<RecurrentShape>(cache.states[state_]); }
  void reserve(StepRows& rows) override;
  void run(ThreadContext& context, StepRows& rows) override;

 private:
  void convolve(const StepRows& rows, size_t sequence, int64_t channel, int64_t width) const;

  const int64_t channels_, raw_width_;
  const int kernel_;
  RecurrentScratch& scratch_;
  Matrix b_, c_, x_, out_;
  const float *convolution_ = nullptr, *bias_ = nullptr;
  Taps taps_;
  const int32_t *order_ = nullptr, *out_order_ = nullptr;
  RecurrentShape state_shape_;
  size_t state_ = 0;
  int number_ = 0;  // index among the layers of that state
};

}  // namespace ipex_lookahead
