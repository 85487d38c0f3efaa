// Embeddings by layer (Gemma 4's small models): each row has a few values for each layer, made once a step of the row's token
// and of its embedding; each layer adds out(f(gate x) * its values).
#pragma once

#include <cstdint>
#include <string>

#include "model/operation.h"

namespace ipex_lookahead {

// The values of a step's rows, multiplier * (norm(projection_multiplier * projection x) + table_multiplier * table[token]),
// x being the embedding as the first layer reads it.
class PerLayerInputs {
 public:
  PerLayerInputs(const PerLayerShape& shape, int64_t hidden, DecoderWeights& weights);
  bool any() const { return shape_.layers > 0; }
  int64_t width() const { return shape_.width; }
  void reserve(StepRows& rows);
  // In phases that every thread goes through; tokens are the rows'.
  void run(ThreadContext& context, StepRows& rows, const int32_t* tokens);
  const float* of(int64_t row, int64_t layer) const { return values_.data() + (row * shape_.layers + layer) * each_; }

 private:
  void make_row(const StepRows& rows, int64_t row, int32_t token, float* scratch);

  const PerLayerShape shape_;
  const int64_t total_, stride_, each_;  // values of a row; as the projection and as layers have them
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
  Buffer<float>& gated_;  // of all layers, [rows][padded width]
  Matrix gate_, out_;
};

}  // namespace ipex_lookahead
