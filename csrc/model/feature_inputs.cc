#include "model/feature_inputs.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace ipex_lookahead {

FeatureInputs::FeatureInputs(const FeatureInputsShape& shape, int64_t hidden, DecoderWeights& weights)
    : shape_(shape), hidden_(hidden), stride_(padded(shape.embedding, kGroup)), norms_(shape.norms.size()) {
  if (!any()) return;
  embedding_norm_.declare("features.embedding_norm", shape.embedding_norm, weights);
  for (size_t i = 0; i < norms_.size(); ++i)
    norms_[i].declare("features.norms." + std::to_string(i), shape.norms[i], weights);
  weights.declare_linear("features.project", project_, hidden, before() + shape.width, {Phase::embedding});
  after_.declare("features.after", shape.after, weights);
  if (shape.back) weights.declare_linear("features.back", back_, shape.width, hidden, {Phase::embedding});
}

void FeatureInputs::reserve(StepRows& rows) {
  if (!any()) return;
  rows.reserve_inputs(before() + shape_.width, false);
  rows.reserve_scratch(2 * std::max(padded(shape_.width, kLanes), rows.stride));
  ensure(rows.branch, rows.count * rows.stride);
  if (shape_.keep_embedding) ensure(rows.embeddings, rows.count * rows.stride);
  if (wide()) ensure(embeddings_, rows.count * stride_);
  if (!shape_.back) return;
  rows.reserve_inputs(hidden_, false);
  ensure(widened_, rows.count * padded(shape_.width, kLanes));
}

void FeatureInputs::run(ThreadContext& context, StepRows& rows, const float* features, bool own) {
  if (!any()) return;
  const bool made = own && shape_.keep_embedding, narrow = own && shape_.back;
  if (narrow) widen(context, rows, features);
  if (!made) project(context, rows, narrow ? widened_.data() : features, narrow ? padded(shape_.width, kLanes) : shape_.width);
  context.each(rows.count, [&](int64_t r) {
    float* const row = rows.row(r);
    if (shape_.keep_embedding) embedding_norm_(rows.kernels, row, rows.embeddings.data() + r * rows.stride);
    float* const x = made ? context.scratch() : rows.branch.data() + r * rows.stride;
    if (made) {
      std::memcpy(x, features + r * hidden_, size_t(hidden_) * sizeof(float));
      std::fill(x + hidden_, x + rows.stride, 0.0f);
    }
    if (after_.weight != nullptr)
      after_(rows.kernels, x, row);
    else
      std::memcpy(row, x, size_t(rows.stride) * sizeof(float));
  });
}

// Writes the head's own features, projected to the target's width, to widened_.
void FeatureInputs::widen(ThreadContext& context, StepRows& rows, const float* features) {
  auto x = context.inputs(rows.count, hidden_, !is_float(back_.format), nullptr,
                          [&](int64_t row, float* out) { std::copy_n(features + row * hidden_, hidden_, out); });
  context.split_tiles(back_.tiles(), [&](int64_t begin, int64_t end) {
    rows.kernels.linear(back_, x.get(), begin, end, widened_.data() + begin * kLanes, padded(shape_.width, kLanes), false);
  });
}

// Writes the projected features to rows.branch; `stride` is the row stride of `features`.
void FeatureInputs::project(ThreadContext& context, StepRows& rows, const float* features, int64_t stride) {
  const int64_t width = shape_.width, first = before();
  auto x = context.inputs(rows.count, first + width, !is_float(project_.format), nullptr, [&](int64_t row, float* out) {
    if (first > 0 && embedding_norm_.weight != nullptr)
      embedding_norm_(rows.kernels, embedding(rows, row), out);
    else
      std::copy_n(embedding(rows, row), first, out);
    norm_features(rows, features + row * stride, context.scratch(), out + first);
  });
  context.split_tiles(project_.tiles(), [&](int64_t begin, int64_t end) {
    rows.kernels.linear(project_, x.get(), begin, end, rows.branch.data() + begin * kLanes, rows.stride, false);
  });
}

// Copies parts of the features, because norms read and write whole vectors.
void FeatureInputs::norm_features(const StepRows& rows, const float* features, float* scratch, float* out) const {
  if (norms_.empty()) std::memcpy(out, features, size_t(shape_.width) * sizeof(float));
  for (const Norm& norm : norms_) {
    const int64_t whole = padded(norm.width, kLanes);
    std::memcpy(scratch, features, size_t(norm.width) * sizeof(float));
    std::fill(scratch + norm.width, scratch + whole, 0.0f);
    norm(rows.kernels, scratch, scratch + whole);
    std::memcpy(out, scratch + whole, size_t(norm.width) * sizeof(float));
    features += norm.width;
    out += norm.width;
  }
}

}  // namespace ipex_lookahead
