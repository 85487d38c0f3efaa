// Mixture of experts: each row goes through the few experts that its router scores highest.
//
// Rows are gathered by expert, so the weights of each chosen expert are read once per step. An expert's output depends on the
// row alone, and a row's experts are added in ascending order of rank. So results do not depend on the other rows of the
// step.
#pragma once

#include <string>
#include <vector>

#include "model/mlp.h"

namespace ipex_lookahead {

// Scratch shared by the mixtures of all layers.
struct ExpertsScratch {
  RowsMemory shared;            // inner activations of the shared experts
  ExpertChoice choice;          // of many rows, or the caller's (ExpertsShape::given)
  Buffer<float> router_logits;  // [rows][experts padded to 16, 16 for the shared expert's gate, the latent padded to 16]
  Buffer<float> results;        // sums of experts that are normed or expanded, [rows][stride]
  int64_t touched = 0;          // number of experts read by the current step, summed over layers
};

class Experts : public Operation {
 public:
  Experts(const OperationParts& of, RowsMemory& gated, ExpertsScratch& scratch);
  void reserve(StepRows& rows) override;
  void run(ThreadContext& context, StepRows& rows) override;

 private:
  int64_t held_rows(const StepRows& rows) const;
  int64_t count() const { return int64_t(experts_.size()); }
  void choose(const KernelTable& kernels, const float* logits, float* scratch, int32_t* experts, float* weights) const;

  // Adds the experts' sum and the shared expert's output to a row, each after its norm. `scratch` holds two rows.
  void add_normed(StepRows& rows, int64_t row, float* scratch) const;

  // Sets the scores of experts outside the chosen groups to -inf.
  void limit_to_groups(float* scores) const;

  const ExpertsShape shape_;
  const int64_t used_, intermediate_;
  Matrix router_, shared_gate_, compress_, expand_;
  const float *correction_ = nullptr, *expert_scales_ = nullptr;
  Norm router_norm_, norm_, results_norm_, shared_norm_;
  std::vector<GatedMlp> experts_;
  GatedMlp shared_;
  RowsMemory& gated_;
  ExpertsScratch& scratch_;
};

}  // namespace ipex_lookahead
