#include "model/mlp.h"

namespace ipex_lookahead {

Mlp::Mlp(const OperationParts& of, RowsMemory& gated)
    : Operation(of), intermediate_(std::get<MlpShape>(of.shape.operation).intermediate), gated_(gated) {
  mlp_.declare(of.name, std::get<MlpShape>(of.shape.operation), of.hidden, 1, &order_, &down_order_, of.weights);
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
  context.split(gated.blocks, 1, [&](int64_t begin, int64_t end) {
    kernels.gate_up(mlp_.gate, mlp_.up, activation, x.get(), begin, end, gated, integer_down && down_order_ == nullptr);
  });
  const auto down = [&](const Rows& from, int64_t begin, int64_t end, float* out, bool add) {
    kernels.linear(mlp_.down, from, begin, end, out, rows.stride, add);
  };
  context.enter(Phase::down);
  if (down_order_ == nullptr) {
    add_to_hidden(context, rows, [&](int64_t begin, int64_t end, float* out, bool add) { down(gated, begin, end, out, add); });
    return;
  }
  auto ordered = context.inputs(rows.count, intermediate_, integer_down, down_order_, [&](int64_t row, float* out) {
    std::copy_n(gated.values_of(row), intermediate_, out);
  });
  add_to_hidden(context, rows, [&](int64_t begin, int64_t end, float* out, bool add) {
    down(ordered.get(), begin, end, out, add);
  });
}

}  // namespace ipex_lookahead
