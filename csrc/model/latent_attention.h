// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) in its absorbed form, for prompts too. A position's cache entry
// is one latent and one rotated key for all heads. k_b maps a head's query to the latent space, heads attend as if they
// shared one key head, and v_b maps the result to the head's values.
#pragma once

#include <cstdint>
#include <vector>

#include "model/cached_attention.h"
#include "model/operation.h"

namespace ipex_lookahead {

// Scratch shared by all layers.
struct LatentScratch {
  Buffer<float> raw, queries, absorbed, results;
};

class LatentAttention : public Operation {
 public:
  LatentAttention(const OperationParts& of, AttentionScratch& scratch, LatentScratch& latent);
  void place(const CacheShape& cache) override { cached_.place(cache); }
  void reserve(StepRows& rows) override;
  void run(ThreadContext& context, StepRows& rows) override;

 private:
  template <typename Work>
  void each_head(ThreadContext& context, const StepRows& rows, int64_t heads, const Work& work) const;
  void project(ThreadContext& context, StepRows& rows);
  void keep_latent(ThreadContext& context, const StepRows& rows, int64_t row) const;
  void absorb(ThreadContext& context, StepRows& rows, int64_t head, int64_t first, int64_t count) const;
  void expand(ThreadContext& context, StepRows& rows, int64_t head, int64_t first, int64_t count) const;
  void rotate(const StepRows& rows, int64_t row, const float* in, float* head, bool query) const;
  template <typename Make>
  void of_head(StepRows& rows, const ThreadContext& context, const Matrix& matrix, int64_t count, float* out,
               const Make& make) const;

  const LatentAttentionShape shape_;
  AttentionScratch& scratch_;
  LatentScratch& latent_;
  CachedAttention cached_;
  Matrix q_a_, q_, kv_a_, gate_, o_;
  Norm q_norm_, kv_norm_;
  std::vector<Matrix> k_b_, v_b_;  // per head, [latent, passed] and [value_dim, latent]
  const int32_t *order_ = nullptr, *q_order_ = nullptr, *o_order_ = nullptr;
  int64_t kv_column_ = 0, gate_column_ = 0, raw_width_ = 0, query_width_ = 0;  // columns and row widths in scratch
};

}  // namespace ipex_lookahead
