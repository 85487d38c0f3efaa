#include "model/feature_inputs.h"

#include <cstring>

namespace ipex_lookahead {

FeatureInputs::FeatureInputs(const FeatureInputsShape& shape, int64_t hidden, DecoderWeights& weights)
    : shape_(shape), hidden_(hidden) {
  if (!any()) return;
  embedding_norm_.declare("features.embedding_norm", shape.embedding_norm, weights);
  norm_.declare("features.norm", shape.norm, weights);
  weights.declare_linear("features.project", project_, hidden, hidden + shape.width, {Phase::embedding});
}

void FeatureInputs::reserve(StepRows& rows) {
  if (!any()) return;
  rows.reserve_inputs(hidden_ + shape_.width, false);
  rows.reserve_scratch(2 * padded(shape_.width, kLanes));
  ensure(rows.branch, rows.count * rows.stride);
}

void FeatureInputs::run(ThreadContext& context, StepRows& rows, const float* features) {
  if (!any()) return;
  const int64_t width = shape_.width;
  auto x = context.inputs(rows.count, hidden_ + width, !is_float(project_.format), nullptr, [&](int64_t row, float* out) {
    float* const own = context.scratch();  // norms read and write whole vectors
    float* const normed = own + padded(width, kLanes);
    std::memcpy(own, features + row * width, size_t(width) * sizeof(float));
    std::fill(own + width, normed, 0.0f);
    norm_(rows.kernels, own, normed);
    embedding_norm_(rows.kernels, rows.row(row), out);
    std::memcpy(out + hidden_, normed, size_t(width) * sizeof(float));
  });
  context.split_tiles(project_.tiles(), [&](int64_t begin, int64_t end) {
    rows.kernels.linear(project_, x.get(), begin, end, rows.branch.data() + begin * kLanes, rows.stride, false);
  });
  context.each(rows.count, [&](int64_t row) {
    std::memcpy(rows.row(row), rows.branch.data() + row * rows.stride, size_t(rows.stride) * sizeof(float));
  });
}

}  // namespace ipex_lookahead
