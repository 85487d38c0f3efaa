// Attention of one block: projections, norms, rope, and the gate.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "model/cached_attention.h"
#include "model/operation.h"

namespace ipex_lookahead {

class Attention : public Operation {
 public:
  Attention(const OperationParts& of, AttentionScratch& scratch);
  void place(const CacheShape& cache) override { cached_.place(cache); }
  void reserve(StepRows& rows) override;
  void run(ThreadContext& context, StepRows& rows) override;

 private:
  enum class Part { q, k, v, gate };
  struct Head {
    Part part;
    int number;
  };

  CachedAttention cached(const OperationParts& of) const;
  void finish_value(const StepRows& rows, int64_t row, int head, float* value) const;
  bool whole_heads() const { return shape_.head_dim % kLanes == 0; }
  JoinedLinears joined() const;
  Head head_of(int64_t index) const;
  void make_input(ThreadContext& context, StepRows& rows, int64_t row, float* out) const;
  void qkv(const StepRows& rows, const Rows& x, int64_t begin, int64_t end, Projections& projections) const;
  void norm_whole(ThreadContext& context, const StepRows& rows, int64_t row) const;
  void norm_head(const StepRows& rows, const Norm& norm, float* x) const;
  void norm_and_rotate(const StepRows& rows, const Norm& norm, const Turn& turn, float scale, float* x) const;
  void finish_heads(const StepRows& rows, int64_t begin, int64_t end) const;
  void merge_heads(ThreadContext& context, const StepRows& rows, int64_t row, float* out) const;

  const AttentionShape shape_;
  const int64_t inputs_;  // inputs of q, k and v
  AttentionScratch& scratch_;
  CachedAttention cached_;
  Matrix q_, k_, v_, gate_, o_;
  Norm q_norm_, k_norm_;
  const float* sinks_ = nullptr;
  std::array<float, kMaxHeadDim> ones_;  // weights of the norm without weights
  const int32_t *order_ = nullptr, *o_order_ = nullptr;  // input orders of q, k, v and of o
  int64_t k_column_, v_column_, gate_column_, stride_;                 // of rows in scratch_.qkv
};

}  // namespace ipex_lookahead
