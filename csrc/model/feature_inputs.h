// What a drafting head's rows are made of: their token's embedding and features of another model's rows.
#pragma once

#include <cstdint>
#include <vector>

#include "model/operation.h"

namespace ipex_lookahead {

// x = project(embedding_norm(e) | norms(features)), e being the token's embedding (DeepSeek-V3's MTP, arXiv 2412.19437). There
// may be no norms, and e may be of another width than x; the head's own features are back(features) then (Gemma 4's assistants).
// Or, with the embedding beside: x = after(project(norms(features))), and embedding_norm(e) stays beside x; what the head
// made itself is taken for project's outcome (EAGLE-3, arXiv 2503.01840).
class FeatureInputs {
 public:
  FeatureInputs(const FeatureInputsShape& shape, int64_t hidden, DecoderWeights& weights);
  bool any() const { return shape_.width > 0; }
  // Of a row's features: the target's, or the head's `own`.
  int64_t width(bool own) const { return own ? hidden_ : shape_.width; }
  void reserve(StepRows& rows);
  // Where the embedding of a row's token goes before they run.
  float* embedding(StepRows& rows, int64_t row) { return wide() ? embeddings_.data() + row * stride_ : rows.row(row); }
  // In phases that every thread goes through; features [rows][width(own)] are the rows'.
  void run(ThreadContext& context, StepRows& rows, const float* features, bool own);

 private:
  bool wide() const { return any() && shape_.embedding != hidden_; }
  // What comes before the features where they are projected.
  int64_t before() const { return shape_.beside ? 0 : shape_.embedding; }
  void project(ThreadContext& context, StepRows& rows, const float* features, int64_t stride);
  void widen(ThreadContext& context, StepRows& rows, const float* features);
  void norm_features(const StepRows& rows, const float* features, float* scratch, float* out) const;

  const FeatureInputsShape shape_;
  const int64_t hidden_, stride_;  // of embeddings that are not as wide as rows
  Norm embedding_norm_, after_;
  std::vector<Norm> norms_;
  Matrix project_, back_;
  Buffer<float> embeddings_, widened_;  // [rows][stride_], [rows][width, padded]
};

}  // namespace ipex_lookahead
