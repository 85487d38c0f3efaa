#include "model/mlp.h"

#include "model/adapters.h"

namespace ipex_lookahead {

Mlp::Mlp(const OperationParts& of, RowsMemory& gated)
    : Operation(of), intermediate_(std::get<MlpShape>(of.shape.operation).intermediate), gated_(gated) {
  mlp_.declare(of.name, std::get<MlpShape>(of.shape.operation), of.hidden, 1, &order_, &down_order_, of.weights);
  of.weights.take_adapters({&mlp_.gate, &mlp_.up}, &order_);
  of.weights.take_adapters({&mlp_.down}, &down_order_);
}

void Mlp::reserve(StepRows& rows) {
  gated_.reserve(rows.count, intermediate_);
  rows.reserve_inputs(rows.width, order_ != nullptr);
  if (down_order_ != nullptr) rows.reserve_inputs(intermediate_, true);
}

void Mlp::run(ThreadContext& context, StepRows& rows) {
  const KernelTable& kernels = rows.kernels;
  const Rows gated = gated_.view(rows.count, intermediate_);
  context.enter(Phase::gate_up);
  auto x = context.inputs(rows.count, rows.width, mlp_.integer(), order_,
                          [&](int64_t row, float* out) { input(rows, row, out); });
  const bool integer_down = !is_float(mlp_.down.format);
  const Activation activation = mlp_.activation_now(kernels);
  const bool quantizes = integer_down && down_order_ == nullptr;
  if (adapted(rows, {&mlp_.gate, &mlp_.up, &mlp_.down})) {
    Projections projections(context, rows, {&mlp_.gate, &mlp_.up}, [&]() -> const Rows& { return x.get(); });
    context.split(gated.blocks, 1, [&](int64_t begin, int64_t end) {
      adapted_gate_up(context, rows, activation, x.get(), begin, end, gated, quantizes, projections);
    });
  } else {
    context.split(gated.blocks, 1, [&](int64_t begin, int64_t end) {
      kernels.gate_up(mlp_.gate, mlp_.up, activation, x.get(), begin, end, gated, quantizes);
    });
  }
  context.enter(Phase::down);
  if (down_order_ == nullptr) {
    Projections projections(context, rows, {&mlp_.down}, [&]() -> const Rows& { return gated; });
    add_to_hidden(context, rows, [&](int64_t begin, int64_t end, float* out, bool add) {
      kernels.linear(mlp_.down, gated, begin, end, out, rows.stride, add);
      projections.add(mlp_.down, begin, end, out, rows.stride);
    });
    return;
  }
  auto ordered = context.inputs(rows.count, intermediate_, integer_down, down_order_, [&](int64_t row, float* out) {
    std::copy_n(gated.values_of(row), intermediate_, out);
  });
  Projections projections(context, rows, {&mlp_.down}, [&]() -> const Rows& { return ordered.get(); });
  add_to_hidden(context, rows, [&](int64_t begin, int64_t end, float* out, bool add) {
    kernels.linear(mlp_.down, ordered.get(), begin, end, out, rows.stride, add);
    projections.add(mlp_.down, begin, end, out, rows.stride);
  });
}

// As kernels.gate_up, with the adapters' changes before the activation. The values are stored too, for an adapter of `down`.
void Mlp::adapted_gate_up(ThreadContext& context, const StepRows& rows, const Activation& activation, const Rows& x,
                          int64_t begin, int64_t end, const Rows& gated, bool quantize, Projections& projections) const {
  const bool has_gate = mlp_.gate.codes != nullptr;
  const int64_t size = rows.count * kGroup;
  float *const gate = context.scratch(), *const up = gate + size;
  for (int64_t group = begin; group < end; ++group) {
    const int64_t tile = 2 * group, last = std::min(tile + 2, mlp_.up.tiles());
    std::fill_n(gate, 2 * size, 0.0f);  // beyond the last output
    const auto run = [&](const Matrix& matrix, float* out) {
      rows.kernels.linear(matrix, x, tile, last, out, kGroup, false);
      projections.add(matrix, tile, last, out, kGroup);
    };
    if (has_gate) run(mlp_.gate, gate);
    run(mlp_.up, up);
    rows.kernels.activate(activation, has_gate ? gate : nullptr, up, gated, group, quantize);
  }
}

}  // namespace ipex_lookahead
