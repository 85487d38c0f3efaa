#include "model/per_layer_gate.h"

#include <algorithm>
#include <cstring>

#include "model/adapters.h"

namespace ipex_lookahead {

PerLayerInputs::PerLayerInputs(const PerLayerShape& shape, int64_t hidden, DecoderWeights& weights)
    : shape_(shape),
      total_(int64_t(shape.layers) * shape.width),
      stride_(padded(total_, kLanes)),
      each_(padded(shape.width, kLanes)) {
  if (!any()) return;
  weights.declare("per_layer.table", table_, shape.tokens, total_, {Phase::embedding, 0});
  weights.declare_linear("per_layer.projection", projection_, total_, hidden, {Phase::embedding});
  norm_.declare("per_layer.norm", shape.norm, weights);
}

// A table row is read as outputs of a matrix, with the last group padded.
void PerLayerInputs::reserve(StepRows& rows) {
  if (!any()) return;
  rows.reserve_inputs(rows.width, false);
  rows.reserve_scratch(padded(total_, kGroup) + 2 * each_);
  ensure(projected_, rows.count * stride_);
  ensure(values_, rows.count * shape_.layers * each_);
}

void PerLayerInputs::run(ThreadContext& context, StepRows& rows, const int32_t* tokens) {
  if (!any()) return;
  auto x = context.inputs(rows.count, rows.width, !is_float(projection_.format), nullptr,
                          [&](int64_t row, float* out) { std::copy_n(rows.row(row), rows.width, out); });
  context.split_tiles(projection_.tiles(), [&](int64_t begin, int64_t end) {
    rows.kernels.linear(projection_, x.get(), begin, end, projected_.data() + begin * kLanes, stride_, false);
  });
  context.each(rows.count, [&](int64_t row) { make_row(rows, row, tokens[row], context.scratch()); });
}

void PerLayerInputs::make_row(const StepRows& rows, int64_t row, int32_t token, float* scratch) {
  float* const table = scratch;
  float* const raw = table + padded(total_, kGroup);
  rows.kernels.dequantize_row(table_, token, table);
  const size_t bytes = size_t(shape_.width) * sizeof(float);
  for (int64_t layer = 0; layer < shape_.layers; ++layer) {
    float* const out = values_.data() + (row * shape_.layers + layer) * each_;
    std::memcpy(raw, projected_.data() + row * stride_ + layer * shape_.width, bytes);
    std::fill(raw + shape_.width, raw + each_, 0.0f);  // norms read whole vectors
    rows.kernels.scale(raw, shape_.width, shape_.projection_multiplier);
    norm_(rows.kernels, raw, out);
    rows.kernels.add_scaled(table + layer * shape_.width, shape_.width, shape_.table_multiplier, out);
    rows.kernels.scale(out, shape_.width, shape_.multiplier);
  }
}

PerLayerGate::PerLayerGate(const OperationParts& of, const PerLayerInputs& inputs, Buffer<float>& gated)
    : Operation(of),
      layer_(std::get<PerLayerGateShape>(of.shape.operation).layer),
      width_(inputs.width()),
      inputs_(inputs),
      gated_(gated) {
  of.weights.declare_linear(of.name + ".gate", gate_, width_, of.hidden, {Phase::gate_up});
  of.weights.declare_linear(of.name + ".out", out_, of.hidden, width_, {Phase::down});
  of.weights.take_adapters({&gate_});
  of.weights.take_adapters({&out_});
}

void PerLayerGate::reserve(StepRows& rows) {
  rows.reserve_inputs(rows.width, false);
  rows.reserve_inputs(width_, false);
  ensure(gated_, rows.count * padded(width_, kLanes));
}

void PerLayerGate::run(ThreadContext& context, StepRows& rows) {
  const int64_t stride = padded(width_, kLanes);
  context.enter(Phase::gate_up);
  auto x = context.inputs(rows.count, rows.width, !is_float(gate_.format), nullptr,
                          [&](int64_t row, float* out) { input(rows, row, out); });
  Projections of_input(context, rows, {&gate_}, [&]() -> const Rows& { return x.get(); });
  context.split_tiles(gate_.tiles(), [&](int64_t begin, int64_t end) {
    float* const out = gated_.data() + begin * kLanes;
    rows.kernels.linear(gate_, x.get(), begin, end, out, stride, false);
    of_input.add(gate_, begin, end, out, stride);
  });
  context.enter(Phase::down);
  auto gated = context.inputs(rows.count, width_, !is_float(out_.format), nullptr, [&](int64_t row, float* out) {
    std::memcpy(out, inputs_.of(row, layer_), size_t(width_) * sizeof(float));
    rows.kernels.gate(gated_.data() + row * stride, width_, GateKind::gelu_tanh, out);
  });
  Projections of_gated(context, rows, {&out_}, [&]() -> const Rows& { return gated.get(); });
  add_to_hidden(context, rows, [&](int64_t begin, int64_t end, float* out, bool add) {
    rows.kernels.linear(out_, gated.get(), begin, end, out, rows.stride, add);
    of_gated.add(out_, begin, end, out, rows.stride);
  });
}

}  // namespace ipex_lookahead
