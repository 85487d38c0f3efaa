// The gated MLP of one block.
#include <algorithm>

#include "model/decoder.h"

namespace ipex_lookahead {

void Decoder::mlp(ThreadContext& context, const Block& block) {
  if (block.shape.experts > 0) return experts(context, block);
  const Mlp& mlp = block.mlps[0];
  const Rows gated = gated_rows_.view(rows_, block.shape.intermediate);
  const bool integer = !is_float(mlp.gate.format) || !is_float(mlp.up.format);
  context.enter(Phase::gate_up);
  auto x = context.inputs(rows_, shape_.hidden, integer, block.order(Slot::gate),
                       [&](int64_t row, float* out) { norm(hidden(row), block.at(Vector::mlp_norm), out); });
  const int32_t* const order = block.order(Slot::down);
  const bool integer_down = !is_float(mlp.down.format);
  context.split(gated.blocks, 1, [&](int64_t begin, int64_t end) {
    kernels_->gate_up(mlp.gate, mlp.up, block.shape.activation, x.get(), begin, end, gated, integer_down && order == nullptr);
  });
  const auto down = [&](const Rows& rows, int64_t begin, int64_t end, float* out, bool add) {
    kernels_->linear(mlp.down, rows, begin, end, out, hidden_stride_, add);
  };
  context.enter(Phase::down);
  if (order == nullptr) {
    add_to_hidden(context, block, Vector::mlp_after, [&](int64_t begin, int64_t end, float* out, bool add) {
      down(gated, begin, end, out, add);
    });
    return;
  }
  auto ordered = context.inputs(rows_, block.shape.intermediate, integer_down, order, [&](int64_t row, float* out) {
    std::copy_n(gated.values_of(row), block.shape.intermediate, out);
  });
  add_to_hidden(context, block, Vector::mlp_after, [&](int64_t begin, int64_t end, float* out, bool add) {
    down(ordered.get(), begin, end, out, add);
  });
}

}  // namespace ipex_lookahead
