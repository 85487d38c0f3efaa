// The gated MLP of one block.
#pragma once

#include <string>

#include "model/operation.h"

namespace ipex_lookahead {

// down(f(gate x) * up x)
struct GatedMlp {
  Matrix gate, up, down;
  Activation activation;

  // Reads in a step of one row. Inputs have orders of their own where there is a place for them.
  void declare(const std::string& name, const MlpShape& shape, int64_t hidden, int64_t reads, const int32_t** order,
               const int32_t** down_order, DecoderWeights& weights) {
    activation = shape.activation;
    weights.declare_linear(name + ".gate", gate, shape.intermediate, hidden, {Phase::gate_up, reads, false, order});
    weights.declare_linear(name + ".up", up, shape.intermediate, hidden, {Phase::gate_up, reads});
    weights.declare_linear(name + ".down", down, hidden, shape.intermediate, {Phase::down, reads, false, down_order});
  }
  bool integer() const { return !is_float(gate.format) || !is_float(up.format); }  // reads quantised rows
};

class Mlp : public Operation {
 public:
  Mlp(const OperationParts& of, RowsMemory& gated);
  void reserve(StepRows& rows) override;
  void run(ThreadContext& context, StepRows& rows) override;

 private:
  GatedMlp mlp_;
  const int64_t intermediate_;
  const int32_t *order_ = nullptr, *down_order_ = nullptr;
  RowsMemory& gated_;  // scratch of all layers
};

}  // namespace ipex_lookahead
