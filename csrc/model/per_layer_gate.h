// Per-layer embeddings (Gemma 4's small models). Each row has a few values per layer, computed once per step from its token and
// its embedding; each layer adds out(f(gate x) * values).
#pragma once

#include <cstdint>
#include <string>

#include "model/operation.h"

namespace ipex_lookahead {

// The values of a step's rows: multiplier * (norm(projection_multiplier * projection x) + table_multiplier * table[token]),
// where x is the embedding that the first layer reads.
class PerLayerInputs {
 public:
  PerLayerInputs(const PerLayerShape& shape, int64_t hidden, DecoderWeights& weights);
  bool any() const { return shape_.layers > 0; }
  int64_t width() const { return shape_.width; }
  void reserve(StepRows& rows);
  // Computes the values of all rows; every thread calls it.
  void run(ThreadContext& context, StepRows& rows, const int32_t* tokens);
  const float* of(int64_t row, int64_t layer) const { return values_.data() + (row * shape_.layers + layer) * each_; }

 private:
  void make_row(const StepRows& rows, int64_t row, int32_t token, float* scratch);

  const PerLayerShape shape_;
  const int64_t total_, stride_, each_;  // values per row; row strides of the projection and of values_
  Matrix table_, projection_;
  Norm norm_;
  Buffer<float> projected_, values_;  // [rows][stride_], [rows][layers][each_]
};

class PerLayerGate : public Operation {
 public:
  PerLayerGate(const OperationParts& of, const PerLayerInputs& inputs, Buffer<float>& gated);
  void reserve(StepRows& rows) override;
  void run(ThreadContext& context, StepRows& rows) override;

 private:
  const int64_t layer_, width_;
  const PerLayerInputs& inputs_;
  Buffer<float>& gated_;  // scratch shared by all layers, [rows][padded width]
  Matrix gate_, out_;
};

}  // namespace ipex_lookahead
