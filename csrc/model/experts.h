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
  ExpertChoice choice;
  Buffer<float> router_logits;  // [rows][experts padded to 16]
  int64_t touched = 0;          // experts that the step has read so far, over all layers
};

class Experts : public Operation {
 public:
  Experts(const OperationParts& of, RowsMemory& gated, ExpertsScratch& scratch);
  void reserve(StepRows& rows) override;
  void run(ThreadContext& context, StepRows& rows) override;

 private:
  int64_t count() const { return int64_t(experts_.size()); }
  void choose(const KernelTable& kernels, const float* logits, float* scratch, int32_t* experts, float* weights) const;

  const int64_t used_, intermediate_;
  const bool softmax_of_all_, renormalise_;
  Matrix router_;
  std::vector<GatedMlp> experts_;
  RowsMemory& gated_;
  ExpertsScratch& scratch_;
};

}  // namespace ipex_lookahead
