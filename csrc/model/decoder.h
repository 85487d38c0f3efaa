// A decoder: one call of forward() is one step, from token ids to logits and hidden states.
//
// decoder.cc has construction and checks, decoder_step.cc has the step. A block is a list of operations, one file each.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "model/adapters.h"
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

constexpr int64_t kMaxStepRows = 1 << 20;  // per step
constexpr int64_t kMaxTree = 1 << 13;  // per sequence that is not a chain
constexpr int kMaxTop = 64;

// Input of a step: rows of several sequences, each with its cache.
struct Step {
  std::vector<Cache*> caches;
  std::vector<int64_t> counts;
  std::vector<int64_t> settled;  // settled[i]: number of leading rows of sequence i that cannot be rejected (a chain), or kHold
  const int32_t* tokens = nullptr;
  const int32_t* parents = nullptr;
  // Rows of images with given embeddings, and positions and visibility of rows around them. Null or 0: no images.
  const int32_t* given = nullptr;      // [rows]: index of a row's embedding, or -1: its token's
  const float* embeddings = nullptr;   // [given_count][width of embeddings]; not multiplied by embedding_multiplier
  const float* deepstack = nullptr;    // [deepstack_layers][given_count][hidden], added after the first layers
  int64_t given_count = 0, deepstack_layers = 0;
  std::vector<int64_t> offsets;        // RoPE position minus slot, for each sequence; empty: 0
  const int32_t* positions = nullptr;  // [rows][kAxes], RoPE positions; a negative one: the slot's, with the offset
  const int32_t* last_seen = nullptr;  // [rows], the last row that a row sees in layers with spans, among its sequence's; negative: itself
  const float* features = nullptr;  // [rows][width], for a drafting head
  bool own_features = false;        // features are the model's own hidden states, [rows][hidden]
  bool claimed = false;             // the caller has claimed the caches
  int64_t rows = 0;
  const int32_t* want = nullptr;  // rows with outputs, ascending; `wanted` of them
  int64_t wanted = 0;
  std::vector<const Adapter*> adapters;  // of each sequence, null: none; empty: no sequence has one
  std::vector<float> adapter_scales;     // of each sequence
};

// Outputs of a step. Null or 0: not requested.
struct StepOutputs {
  int top = 1;               // ids per wanted row, largest logit first; the lowest id first among equals
  int32_t* ids = nullptr;    // [wanted][top]; -1 where no further logit is above -inf, or where one is not finite
  float* logits = nullptr;   // [wanted][Decoder::logits()]
  int32_t* centroids = nullptr;  // [wanted][used], ascending: centroids of the computed outputs, for a head with candidates
  const int32_t* tiles = nullptr;  // tiles of 16 tokens of the whole lm_head, for a head with a part of it; requires wanted = 1
  int64_t tile_count = 0;
  float* tile_logits = nullptr;    // [tile_count][16]
  const int32_t* hidden_layers = nullptr;  // ascending: kFinalNorm, or numbers of layers from 0
  int64_t layers = 0;
  const int32_t* hidden_rows = nullptr;    // rows with hidden states in the output, ascending
  int64_t hidden_wanted = 0;
  float* hidden = nullptr;   // [layers][hidden_wanted][hidden]
  PhaseTimes* times = nullptr;  // times are added to it
};

// Methods that change a decoder hold the process's thread pool (a Crew). So steps do not overlap, weights cannot change
// during a step, and a child after fork() sees a consistent decoder.
class Decoder {
 public:
  // Throws std::invalid_argument for an invalid shape or number of threads. A drafting head may share the keys and values of
  // a `target`, which must outlive it. Its caches are then the target's caches; each of its rows sees the committed positions
  // and no other row, and a step does not change the cache.
  Decoder(const DecoderShape& shape, int threads, const std::string& isa, const Decoder* target = nullptr);

  // Names: layers.0.mixer.q.weight, ..., final_norm.weight, embedding (also the lm_head if tied), head.weight.
  DecoderWeights& weights() { return weights_; }
  const DecoderWeights& weights() const { return weights_; }

  const DecoderShape& shape() const { return shape_; }
  const CacheShape& cache_shape() const { return cache_shape_; }
  const char* isa() const { return kernels_->name; }
  const KernelTable& kernels() const { return *kernels_; }
  int threads() const { return threads_; }
  Cache new_cache() const { return Cache(cache_shape_); }
  bool has_target_keys() const { return target_ != nullptr; }
  // Number of logits per row: all outputs, or the candidates.
  int64_t logits() const { return candidates_.any() ? candidates_.count() : shape_.outputs; }
  // Output index of a row's i-th logit.
  int64_t output(const int32_t* centroids, int64_t i) const {
    return candidates_.any() ? centroids[i / candidates_.each()] * candidates_.each() + i % candidates_.each() : i;
  }

  // For a drafting head: the token of each output, and the whole lm_head of which its outputs are a part. The lm_head may be
  // another decoder's, which must outlive this one. Throw std::invalid_argument if sizes or formats do not match.
  void set_outputs(const int32_t* tokens, int64_t count);
  void set_whole_head(const PlainMatrix& whole);
  void share_whole_head(const Matrix& whole);
  int32_t token_of(int64_t output) const { return outputs_.empty() ? int32_t(output) : outputs_[size_t(output)]; }
  bool drafts(int32_t token) const { return outputs_.empty() || is_output_[size_t(token)]; }
  bool has_whole_head() const { return whole_head_.codes != nullptr; }

  // Number of experts that the last step read, summed over layers; 0 without experts. The cost of a step depends on it.
  int64_t experts_touched() const;

  // Throws std::out_of_range beyond max_context, std::invalid_argument for invalid tokens, parents, caches, layers or wanted
  // rows, MissingWeightError, and BusyError if another thread uses one of the caches. Nothing is committed then.
  void forward(const Step& step, const StepOutputs& out);

 private:
  // Position of an operation in its block; see OperationParts.
  struct Placed {
    bool defer_residual_add = false;
    const Operation* parallel_mixer = nullptr;
    std::string output_scale = {};
  };
  std::unique_ptr<Operation> operation_of(const BranchShape& shape, const std::string& name, const Placed& placed);
  void check(const Step& step, const StepOutputs& out) const;
  void plan(const Step& step);
  void plan_adapters(const Step& step);
  void reserve(const Step& step, const StepOutputs& out);

  // Runs the phases of a step; every thread goes through all of them.
  void run(int thread, const Step& step, const StepOutputs& out);
  void embed(ThreadContext& context, const Step& step);
  void add_deepstack(ThreadContext& context, const Step& step, int32_t layer);
  void check_given(const Step& step) const;
  int64_t plan_given(const Step& step);
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
  std::vector<int32_t> outputs_;  // empty: output i is token i
  std::vector<bool> is_output_;
  const Matrix& embedding_;
  Norm final_norm_;
  std::vector<float> ones_;  // weights of the norm of embeddings; empty: there is none
  PerLayerInputs per_layer_;
  FeatureInputs features_;
  Candidates candidates_;

  // The current step.
  StepRows rows_;
  Phases phases_;
  const int32_t* want_ = nullptr;
  bool followed_ = false;  // a drafting head follows one of the sequences

  // Scratch shared by operations of a kind, and the operations.
  AttentionScratch attention_;
  LatentScratch latent_;
  RowsMemory gated_;
  Buffer<float> per_layer_gated_;
  ExpertsScratch experts_;
  RecurrentScratch recurrent_;
  std::vector<Block> blocks_;
  int64_t reserved_rows_ = 0, reserved_partials_ = 0, reserved_orders_ = 0;  // sizes that the scratch is reserved for

  int64_t head_items_ = 0;            // number of pieces of the lm_head's outputs, in ascending order
  Buffer<float> top_values_;          // [head_items][wanted][top]
  std::vector<int32_t> top_ids_;
  std::vector<int> top_counts_;       // [head_items][wanted]
  std::vector<int> merge_at_;         // [head_items]
};

}  // namespace ipex_lookahead
