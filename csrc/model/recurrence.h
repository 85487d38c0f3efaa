// Linear recurrences: gated delta nets (Yang et al., arXiv 2412.06464), Kimi delta attention (arXiv 2510.26692) and Mamba-2
// (Dao and Gu, arXiv 2405.21060).
//
//   qkv = silu(convolution(inputs x)), steps = softplus(steps x + bias), decay = e^(rate steps)
//   delta   q, k normalized to length 1, q scaled;  S = decay S, d = sigmoid(beta x) (v - S^T k), S += k d^T, y = S^T q
//   Mamba-2 (v, k, q are called x, B, C)        S = decay S + k (steps v)^T, y = S^T q + skip v
//   out(norm(y) silu(gate x)), or out(norm(y silu(gate x)))
//   Kimi    a delta net with a decay for each key (row of S), separate q, k, v, and out(norm(y) sigmoid(gate x))
//
// Every row, of a prompt too, goes through the recurrence separately and in order, so results do not depend on chunking.
#pragma once

#include <string>
#include <vector>

#include "model/lineage.h"
#include "model/operation.h"
#include "model/recurrent_scratch.h"

namespace ipex_lookahead {

class LinearRecurrence : public Operation {
 public:
  LinearRecurrence(const OperationParts& of, RecurrentScratch& scratch);
  void place(const CacheShape& cache) override { state_shape_ = std::get<RecurrentShape>(cache.states[state_]); }
  void reserve(StepRows& rows) override;
  void run(ThreadContext& context, StepRows& rows) override;

 private:
  // One head of the convolution's output: its first channel, number of channels, and column in `mixed`.
  struct Unit {
    int64_t channel, width, column;
    const float* norm;  // weights that normalize its length; null: none
  };
  // A matrix of the input, or the second of two, with the columns of its output and of the first one's in `raw`.
  struct Projection {
    Matrix first, last;
    int64_t column, first_column;
  };

  const RecurrentState& state(const Sequence& s) const { return s.cache->state<RecurrentState>(state_); }
  Lineage lineage(const StepRows& rows, size_t sequence) const;
  float* mixed(size_t sequence, int64_t row) const { return scratch_.mixed.data() + (scratch_.first[sequence] + row) * mixed_width_; }
  void convolve(const StepRows& rows, size_t sequence, const Unit& unit) const;
  void declare(Projection& projection, const std::string& name, int64_t outputs, int64_t hidden, int rank, DecoderWeights& weights);
  void project(ThreadContext& context, StepRows& rows);
  void project_last(ThreadContext& context, StepRows& rows, const Projection& projection) const;
  void steps(const StepRows& rows, size_t sequence) const;
  void decays(const StepRows& rows, size_t sequence, int64_t head) const;
  void recur(const StepRows& rows, size_t sequence, int64_t tile, float* scratch) const;
  void finish(ThreadContext& context, const StepRows& rows, int64_t row, float* out) const;

  const RecurrenceShape shape_;
  RecurrentScratch& scratch_;
  Matrix inputs_, k_, v_, beta_, out_;  // `inputs_` has all channels, or q's only
  Projection gate_, steps_;
  const float *convolution_ = nullptr, *k_convolution_ = nullptr, *v_convolution_ = nullptr;
  const float *convolution_bias_ = nullptr, *rate_ = nullptr, *step_bias_ = nullptr, *skip_ = nullptr;
  Norm norm_;
  Taps taps_;
  Buffer<float> rates_;            // -e^rate, or e^rate with a decay_bound; for each step
  const int32_t *order_ = nullptr, *out_order_ = nullptr;
  Buffer<float> q_norm_, k_norm_;  // constant weights for length 1, for q times the scale
  std::vector<Unit> units_;
  RecurrentShape state_shape_;
  size_t state_ = 0;
  int number_ = 0;                 // index among the layers of that state
  int64_t tiles_, decay_width_;    // tiles and columns of decays per head
  int64_t q_column_, k_column_, v_column_, steps_column_, decay_column_, beta_column_, mixed_width_;  // columns of `mixed`
  int64_t raw_width_;              // columns of `raw`
};

}  // namespace ipex_lookahead
