// What a drafting head's rows are made of: their token's embedding and features of another model's rows.
#pragma once

#include <cstdint>

#include "model/operation.h"

namespace ipex_lookahead {

// x = project(embedding_norm(x) | norm(features)), x being the token's embedding (DeepSeek-V3's MTP, arXiv 2412.19437).
class FeatureInputs {
 public:
  FeatureInputs(const FeatureInputsShape& shape, int64_t hidden, DecoderWeights& weights);
  bool any() const { return shape_.width > 0; }
  int64_t width() const { return shape_.width; }
  void reserve(StepRows& rows);
  // In phases that every thread goes through; features [rows][width()] are the rows'.
  void run(ThreadContext& context, StepRows& rows, const float* features);

 private:
  const FeatureInputsShape shape_;
  const int64_t hidden_;
  Norm embedding_norm_, norm_;
  Matrix project_;
};

}  // namespace ipex_lookahead
