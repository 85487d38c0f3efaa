// A mixture of experts: each row goes through the few that its router likes best.
//
// Rows are gathered by expert, so that an expert's weights leave memory once for all of its rows, and only the chosen
// ones' do. What an expert makes of a row depends on that row alone, and a row's experts are added in ascending order of
// their rank, so neither the neighbours nor the gathering shows in the bits.
#pragma once

#include <string>
#include <vector>

#include "model/mlp.h"

namespace ipex_lookahead {

// What the layers' mixtures share.
struct ExpertsScratch {
  RowsMemory shared;            // what shared experts make of rows
  ExpertChoice choice;
  Buffer<float> router_logits;  // [rows][experts padded to 16, and 16 for the shared expert's gate]
  Buffer<float> results;        // of experts whose results have a norm, [rows][stride]
  int64_t touched = 0;          // experts that the step has read so far, over all layers
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

  // Adds to a row what its experts and the shared one come to, each after its norm; scratch for two rows.
  void add_normed(StepRows& rows, int64_t row, float* scratch) const;

  // Scores of the experts that may be chosen, -inf for those of other groups.
  void limit_to_groups(float* scores) const;

  const ExpertsShape shape_;
  const int64_t used_, intermediate_;
  Matrix router_, shared_gate_;
  const float *correction_ = nullptr, *expert_scales_ = nullptr;
  Norm router_norm_, norm_, results_norm_, shared_norm_;
  std::vector<GatedMlp> experts_;
  GatedMlp shared_;
  RowsMemory& gated_;
  ExpertsScratch& scratch_;
};

}  // namespace ipex_lookahead
