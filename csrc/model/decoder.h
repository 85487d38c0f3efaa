// A decoder: one call is one step, from token ids to what is wanted of their rows, through a vector of blocks.
//
// What is made for all steps is in decoder.cc, and one step in decoder_step.cc. What a block does is a list of operations,
// each in a file of its own, which this only walks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "model/attention.h"
#include "model/cache.h"
#include "model/candidates.h"
#include "model/experts.h"
#include "model/feature_inputs.h"
#include "model/latent_attention.h"
#include "model/operation.h"
#include "model/per_layer_gate.h"
#include "model/phase_times.h"
#include "model/recurrence.h"
#include "model/short_conv.h"
#include "model/spec.h"
#include "model/thread_context.h"
#include "model/weights.h"
#include "runtime/arena.h"
#include "runtime/thread_pool.h"

namespace ipex_lookahead {

constexpr int64_t kMostRows = 1 << 20;  // of a step,
constexpr int64_t kMostTree = 1 << 13;  // and of a sequence of it that is no chain
constexpr int kMostTop = 64;

// One step's rows: several sequences, each with its own cache.
struct Step {
  std::vector<Cache*> caches;
  std::vector<int64_t> counts;
  std::vector<int64_t> settled;  // of each sequence's rows the first so many, a chain, are certain to be kept; or kHold
  const int32_t* tokens = nullptr;
  const int32_t* parents = nullptr;
  const float* features = nullptr;  // [rows][width], of a model whose rows have them
  bool own_features = false;        // these are the model's own, fed back: [rows][hidden]
  bool claimed = false;             // the caller has claimed the caches
  int64_t rows = 0;
  const int32_t* want = nullptr;  // rows whose output is asked for
  int64_t wanted = 0;
};

// What a step writes. Null or none: not wanted.
struct StepOutputs {
  int top = 1;               // of the wanted rows, largest logit first and the lowest id first among equals
  int32_t* ids = nullptr;    // [wanted][top], -1 where no further logit is above -inf, or where one is not finite
  float* logits = nullptr;   // [wanted][Decoder::logits()]
  int32_t* centroids = nullptr;  // [wanted][used], ascending: of a head of candidates those whose outputs are computed
  const int32_t* tiles = nullptr;  // of 16 tokens of the whole lm_head, of a model that has a part of it: of the one wanted row
  int64_t tile_count = 0;
  float* tile_logits = nullptr;    // [tile_count][16]
  const int32_t* hidden_layers = nullptr;  // ascending, of 0 to the number of layers, after kFinalNorm where that is one
  int64_t layers = 0;
  const int32_t* hidden_rows = nullptr;    // rows whose hidden states are asked for, ascending
  int64_t hidden_wanted = 0;
  float* hidden = nullptr;   // [layers][hidden_wanted][hidden]
  PhaseTimes* times = nullptr;  // added to
};

// Whoever changes it holds the process's threads meanwhile (a Crew), so there is one step at a time, weights are not set
// in the middle of one, and a child after fork() finds it whole.
class Decoder {
 public:
  // Throws std::invalid_argument for a shape or a number of threads that no decoder has. A drafting head's may be that its layers
  // have the keys and values of a `target`, which must outlive it: then its caches are the target's, its rows see what is
  // committed there and follow it side by side, and a step leaves a cache as it was.
  Decoder(const DecoderShape& shape, int threads, const std::string& isa, const Decoder* target = nullptr);

  // layers.0.mixer.q.weight, ..., final_norm.weight, embedding (which is the lm_head too where they are tied), head.weight.
  DecoderWeights& weights() { return weights_; }
  const DecoderWeights& weights() const { return weights_; }

  const DecoderShape& shape() const { return shape_; }
  const CacheShape& cache_shape() const { return cache_shape_; }
  const char* isa() const { return kernels_->name; }
  int threads() const { return threads_; }
  Cache new_cache() const { return Cache(cache_shape_); }
  bool has_target_keys() const { return target_ != nullptr; }
  // Of a row: those of all outputs, or of the candidates.
  int64_t logits() const { return candidates_.any() ? candidates_.count() : shape_.outputs; }
  // Which output the i-th of them is of.
  int64_t output(const int32_t* centroids, int64_t i) const {
    return candidates_.any() ? centroids[i / candidates_.each()] * candidates_.each() + i % candidates_.each() : i;
  }

  // Of a head that drafts: the token that each of its outputs stands for; and the lm_head that these are a part of, its
  // own, or another decoder's, which must outlive this one. Throw std::invalid_argument for what does not fit.
  void set_outputs(const int32_t* tokens, int64_t count);
  void set_whole_head(const PlainMatrix& whole);
  void share_whole_head(const Matrix& whole);
  int32_t token_of(int64_t output) const { return outputs_.empty() ? int32_t(output) : outputs_[size_t(output)]; }
  bool drafts(int32_t token) const { return outputs_.empty() || is_output_[size_t(token)]; }
  bool has_whole_head() const { return whole_head_.codes != nullptr; }

  // How many experts the last step read, over all layers: what a step of a mixture costs goes by it. 0 without experts.
  int64_t experts_touched() const;

  // Throws std::out_of_range beyond max_context, std::invalid_argument for bad tokens, parents, caches, layers or wanted
  // rows, MissingWeightError, BusyError where another thread is at one of the caches; nothing is committed.
  void forward(const Step& step, const StepOutputs& out);

 private:
  // Where in the model an operation stands: see OperationParts.
  struct Placed {
    bool held = false;
    const Operation* beside = nullptr;
    std::string output_scale = {};
  };
  std::unique_ptr<Operation> operation_of(const BranchShape& shape, const std::string& name, const Placed& placed);
  void check(const Step& step, const StepOutputs& out) const;
  void plan(const Step& step);
  void reserve(const Step& step, const StepOutputs& out);

  // The phases of a step; every thread goes through all of them.
  void run(int thread, const Step& step, const StepOutputs& out);
  void embed(ThreadContext& context, const Step& step);
  void keep_hidden(ThreadContext& context, const StepOutputs& out, int32_t layer);
  void keep_features(ThreadContext& context, int32_t layer);
  void head(ThreadContext& context, int64_t wanted, const StepOutputs& out);
  void head_and_top(ThreadContext& context, const Rows& x, int64_t item, int64_t wanted, const StepOutputs& out);
  void candidates_and_top(ThreadContext& context, const Rows& x, int64_t item, int64_t wanted, const StepOutputs& out);
  void finish_logits(float* logits, int64_t n, int64_t first, int64_t at, int top);
  void merge_tops(int64_t wanted, int top, int32_t* ids);

  using Block = std::vector<std::unique_ptr<Operation>>;

  const DecoderShape shape_;
  const Decoder* const target_;
  CacheShape cache_shape_;
  const KernelTable* const kernels_;
  const int threads_;
  DecoderWeights weights_;
  Matrix lm_head_, own_embedding_, whole_head_;
  std::vector<int32_t> outputs_;  // empty: all tokens
  std::vector<bool> is_output_;
  const Matrix& embedding_;
  Norm final_norm_;
  PerLayerInputs per_layer_;
  FeatureInputs features_;
  Candidates candidates_;

  // The step in hand.
  StepRows rows_;
  Phases phases_;
  const int32_t* want_ = nullptr;
  bool followed_ = false;  // whether a head drafts for any of its sequences

  // Scratch that operations of a kind share, and the operations.
  AttentionScratch attention_;
  LatentScratch latent_;
  RowsMemory gated_;
  Buffer<float> per_layer_gated_;
  ExpertsScratch experts_;
  RecurrentScratch recurrent_;
  std::vector<Block> blocks_;
  int64_t reserved_rows_ = 0, reserved_partials_ = 0, reserved_orders_ = 0;  // what the operations' scratch is large enough for

  int64_t head_items_ = 0;            // the lm_head's outputs in this many pieces, ascending
  Buffer<float> top_values_;          // [head_items][wanted][top]
  std::vector<int32_t> top_ids_;
  std::vector<int> top_counts_;       // [head_items][wanted]
  std::vector<int> merge_at_;         // [head_items]
};

}  // namespace ipex_lookahead
