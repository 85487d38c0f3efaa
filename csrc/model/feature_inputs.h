// Inputs of a drafting head: the token's embedding and features, which are hidden states of the target.
#pragma once

#include <cstdint>
#include <vector>

#include "model/operation.h"

namespace ipex_lookahead {

// x = project(embedding_norm(e) | norms(features)), where e is the token's embedding (DeepSeek-V3's MTP, arXiv 2412.19437).
// The norms are optional, and e may have another width than x; the head's own features are then back(features) (Gemma 4's
// assistants). With keep_embedding: x = after(project(norms(features))), and embedding_norm(e) is stored in
// StepRows::embeddings. The head's own features replace the output of `project` (EAGLE-3, arXiv 2503.01840).
class FeatureInputs {
 public:
  FeatureInputs(const FeatureInputsShape& shape, int64_t hidden, DecoderWeights& weights);
  bool any() const { return shape_.width > 0; }
  // Width of a row's features: of the target, or with `own` of the head.
  int64_t width(bool own) const { return own ? hidden_ : shape_.width; }
  void reserve(StepRows& rows);
  // Destination of the embedding of a row's token, written before run().
  float* embedding(StepRows& rows, int64_t row) { return wide() ? embeddings_.data() + row * stride_ : rows.row(row); }
  // Computes the rows from features [rows][width(own)]; every thread calls it.
  void run(ThreadContext& context, StepRows& rows, const float* features, bool own);

 private:
  bool wide() const { return any() && shape_.embedding != hidden_; }
  // Number of inputs of `project` before the features.
  int64_t before() const { return shape_.keep_embedding ? 0 : shape_.embedding; }
  void project(ThreadContext& context, StepRows& rows, const float* features, int64_t stride);
  void widen(ThreadContext& context, StepRows& rows, const float* features);
  void norm_features(const StepRows& rows, const float* features, float* scratch, float* out) const;

  const FeatureInputsShape shape_;
  const int64_t hidden_, stride_;  // row stride of embeddings_, for embeddings with another width than rows
  Norm embedding_norm_, after_;
  std::vector<Norm> norms_;
  Matrix project_, back_;
  Buffer<float> embeddings_, widened_;  // [rows][stride_], [rows][width, padded]
};

}  // namespace ipex_lookahead
