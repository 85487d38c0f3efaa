// MLP of one block, with or without a gate.
#pragma once

#include <string>

#include "model/operation.h"

namespace ipex_lookahead {

// down(f(gate x) * up x), or down(f(up x)).
struct GatedMlp {
  Matrix gate, up, down;
  Activation activation;
  struct {
    const float *alpha_p = nullptr, *alpha_n = nullptr, *beta = nullptr, *eps = nullptr;
  } parameters;  // of xielu

  // Registers the weights; `reads` is how often a step of one row reads them. `order`: where an input order is stored, or null.
  void declare(const std::string& name, const MlpShape& shape, int64_t hidden, int64_t reads, const int32_t** order,
               const int32_t** down_order, DecoderWeights& weights) {
    activation = shape.activation;
    if (shape.gated) weights.declare_linear(name + ".gate", gate, shape.intermediate, hidden, {Phase::gate_up, reads, false, order});
    weights.declare_linear(name + ".up", up, shape.intermediate, hidden, {Phase::gate_up, reads, false, shape.gated ? nullptr : order});
    weights.declare_linear(name + ".down", down, hidden, shape.intermediate, {Phase::down, reads, false, down_order});
    if (activation.kind != ActivationKind::xielu) return;
    weights.declare(name + ".parameters.alpha_p", parameters.alpha_p, 1);
    weights.declare(name + ".parameters.alpha_n", parameters.alpha_n, 1);
    weights.declare(name + ".parameters.beta", parameters.beta, 1);
    weights.declare(name + ".parameters.eps", parameters.eps, 1);
  }
  // The activation with its trained parameters: alpha = softplus(parameter).
  Activation activation_now(const KernelTable& kernels) const {
    if (activation.kind != ActivationKind::xielu) return activation;
    const float raw[2] = {*parameters.alpha_p, *parameters.alpha_n}, none[2] = {0, 0};
    float alphas[2], unused[2];
    kernels.recurrence_steps(raw, none, none, 0, INFINITY, 2, alphas, unused);
    return {activation.kind, alphas[0], 0, *parameters.beta + alphas[1], *parameters.beta, *parameters.eps};
  }
  bool integer() const { return (gate.codes != nullptr && !is_float(gate.format)) || !is_float(up.format); }  // reads quantized rows
};

class Mlp : public Operation {
 public:
  Mlp(const OperationParts& of, RowsMemory& gated);
  void reserve(StepRows& rows) override;
  void run(ThreadContext& context, StepRows& rows) override;

 private:
  void adapted_gate_up(ThreadContext& context, const StepRows& rows, const Activation& activation, const Rows& x, int64_t begin,
                       int64_t end, const Rows& gated, bool quantize, Projections& projections) const;

  GatedMlp mlp_;
  const int64_t intermediate_;
  const int32_t *order_ = nullptr, *down_order_ = nullptr;
  RowsMemory& gated_;  // scratch shared by all layers
};

}  // namespace ipex_lookahead
