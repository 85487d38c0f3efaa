// The words a model is described in, as ipex_lookahead/architectures/spec.py has them: what a step computes, and with
// which switches. Tensors are not in here, only what their shapes must be.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "kernels/kernels.h"

namespace ipex_lookahead {

// What a router's logits become: their softmax over all experts, or over the chosen ones only, or each one's sigmoid.
enum class RouterScores { all, chosen, sigmoid };

// Rotary position embedding of a head's first 2 * frequencies.size() values, i with i + frequencies.size(); or 2 i with
// 2 i + 1, where they are interleaved.
struct Rope {
  std::vector<float> frequencies;  // radians a position
  float factor = 1;                // multiplies cos and sin
  float query_beta = 0;            // a query at position p is multiplied by 1 + beta ln(1 + floor(p / original))
  int64_t query_original = 0;
  bool interleaved = false;
  int64_t half() const { return int64_t(frequencies.size()); }
};

struct NormShape {
  int64_t width = 0;  // 0: there is none
  float epsilon = 0;
  bool centered = false;  // of what is left after the mean: a layer norm
  bool bias = false;      // of a layer norm alone
};

struct AttentionShape {
  int heads = 0, kv_heads = 0, head_dim = 0;
  int rope = -1;             // which of the model's; -1: positions do not enter
  float query_scale = 1;     // multiplies queries
  int64_t window = 0;        // positions that one sees, itself among them; 0: all
  float softcap = 0;         // scores become cap tanh(score / cap); 0: they stay
  bool gate = false;         // what heads come to is multiplied by its sigmoid
  bool sinks = false;        // one more logit a head in the softmax's denominator
  NormShape q_norm, k_norm;  // over each head if as wide as one, else over the whole projection
  bool norm_after_rope = false;  // these come after it, and are over heads
  bool value_of_key = false;     // values are what the key projection comes to, before its norm and rope
  float value_norm = 0;          // epsilon of an RMS norm without weights over each head of values; 0: there is none
  int shared = -1;               // the layer (with DecoderShape::target_keys the target's) whose keys and values it has; -1: its own
  bool with_embedding = false;   // q, k and v read (the embedding that FeatureInputs keeps beside the row | the row)

  bool has_keys() const { return shared < 0; }
  bool has_values() const { return has_keys() && !value_of_key; }

  int64_t q_width() const { return int64_t(heads) * head_dim; }
  int64_t kv_width() const { return int64_t(kv_heads) * head_dim; }
};

// Multi-head latent attention (model/latent_attention.h).
struct LatentAttentionShape {
  int heads = 0;
  int latent = 0;            // what a position's keys and values are made of
  int passed = 0, rotated = 0, value_dim = 0;  // of a head's query, first what meets the latents, then what is rotated
  int rope = 0;              // which of the model's
  float query_scale = 1;     // multiplies queries
  NormShape q_norm;          // of queries of low rank; none: they are of the hidden state
  NormShape kv_norm;

  int key_dim() const { return rotated + latent; }
  int64_t q_dim() const { return int64_t(passed) + rotated; }
  int64_t q_width() const { return heads * q_dim(); }
  int64_t values() const { return int64_t(heads) * value_dim; }
};

struct MlpShape {
  int intermediate = 0;
  bool gated = true;
  Activation activation;
};

struct ExpertsShape {
  std::vector<MlpShape> experts;  // all of one size
  int used = 0;
  RouterScores scores = RouterScores::all;
  bool renormalise = false;
  float sum_epsilon = 0;            // added to the sum that weights are divided by
  bool correction = false;          // a bias for the choice alone
  int groups = 1, groups_used = 1;  // experts are chosen among the best groups,
  int group_best = 2;               // by the sum of so many best of each
  float scale = 1;                  // multiplies the weights
  // Rows as the router and as the experts read them have norms of their own, what the experts come to and what the shared one
  // comes to too, and what the router reads is multiplied. All of these, or none: then all read the rows as the branch does.
  NormShape router_norm, norm, after, shared_after;
  float router_multiplier = 1;
  bool expert_scales = false;       // each expert's weight is multiplied by one of its own, in the end
  MlpShape shared;                  // an expert for every row; of no size: there is none
  bool shared_gate = false;         // it is multiplied by the sigmoid of a product with the row

  bool apart() const { return router_norm.width > 0; }
};

// A gated delta net, or Mamba-2 (model/recurrence.h).
struct RecurrenceShape {
  bool delta = false;
  int heads = 0, groups = 0;       // of values; of queries and keys, which heads / groups value heads share
  int key_dim = 0, value_dim = 0;
  bool tiled = false;              // value head h has the keys of group h % groups, not of h / (heads / groups)
  int kernel = 0;                  // taps of the convolution
  bool convolution_bias = false, skip = false;
  float least_step = 0, most_step = INFINITY;
  float length_epsilon = 0;        // under the root of q's and k's lengths
  int64_t norm_group = 0;          // so many values are normed together, with as many weights or with those of all
  NormShape norm;
  bool gate_first = false;         // before the norm

  int64_t keys() const { return int64_t(groups) * key_dim; }
  int64_t values() const { return int64_t(heads) * value_dim; }
  int64_t channels() const { return 2 * keys() + values(); }
};

// A gated convolution (LFM2): out(c * convolution(b * x)), where b, c, x are inputs x.
struct ShortConvShape {
  int kernel = 0;
  bool bias = false;  // of the convolution
};

// What a layer makes of the values that its rows have for it (model/per_layer_gate.h).
struct PerLayerGateShape {
  int layer = 0;
};

// Another kind of operation is one more alternative here, and its class.
using OperationShape = std::variant<AttentionShape, LatentAttentionShape, RecurrenceShape, ShortConvShape, PerLayerGateShape, MlpShape, ExpertsShape>;

// x + multiplier * after(operation(before(x))).
struct BranchShape {
  OperationShape operation;
  NormShape before, after;
  float multiplier = 1;
};

struct BlockShape {
  std::optional<BranchShape> mixer, feed_forward, per_layer;
  bool parallel = false;  // x + mixer(y) + feed_forward(y), y = mixer.before(x)
  bool output_scale = false;  // what leaves the block is multiplied by a weight
};

// Values that rows have for each layer, besides what goes through all.
struct PerLayerShape {
  int width = 0, layers = 0;  // of no layers: there are none
  int tokens = 0;             // that the table has rows for
  float table_multiplier = 1, projection_multiplier = 1, multiplier = 1;
  NormShape norm;
};

// What a hidden state has gone through: so many layers, 0 the embedding alone; or all of them and the final norm.
constexpr int32_t kFinalNorm = -1;

// What rows are made of besides their token's embedding (model/feature_inputs.h).
struct FeatureInputsShape {
  int width = 0;                // of a row's features; 0: there are none
  std::vector<int32_t> layers;  // the target's hidden states that they are, each of width / layers.size() values
  int32_t feedback = kFinalNorm;        // which of the head's own are the features of what it drafted (kFinalNorm, or of so many layers)
  bool beside = false;          // the embedding stays beside the row, for attention that reads both
  int embedding = 0;            // values of its token's embedding
  bool back = false;            // the head's own are made as wide as the target's where they go in
  NormShape embedding_norm, after;
  std::vector<NormShape> norms;  // over the features: each over as many as it has weights, one behind the other; none: there are none
};
constexpr size_t kMostFeatureLayers = 16;

// Of the lm_head's outputs, in so many runs that are all as long, those are computed whose runs' centroids a row likes best
// (model/candidates.h).
struct CandidatesShape {
  int centroids = 0;  // 0: all outputs are computed
  int used = 0;
};

struct DecoderShape {
  int hidden = 0, vocab = 0;
  int outputs = 0;  // of the lm_head: the vocabulary, or, of a drafting head, a part of it
  int64_t max_context = 0;
  bool tied = false;  // the embedding is the lm_head too
  float embedding_multiplier = 1, logit_multiplier = 1;
  float logit_softcap = 0;  // logits become cap tanh(logit / cap), after the multiplier; 0: they stay
  NormShape final_norm;
  std::vector<Rope> ropes;
  std::vector<BlockShape> layers;
  PerLayerShape per_layer;
  FeatureInputsShape features;
  CandidatesShape candidates;
  bool target_keys = false;  // attention has the keys and values of a target's layers, of committed positions alone
  KvFormat kv_format = KvFormat::fp16;
};

// What a decoder may be: beyond these, sums and products of its sizes would not fit.
constexpr int kMostLayers = 1 << 16, kMostHeads = 1 << 16, kMostHeadDim = 1024, kMostWidth = 1 << 24, kMostVocab = 1 << 27;
constexpr int kMostTaps = 16;
constexpr int kMostExperts = 1 << 12, kMostMlps = 1 << 17;

// How many positions more than the window of the layer whose keys it has a layer of a drafting head may see.
constexpr int64_t kBeyondWindow = 2;

// Itself; std::invalid_argument, naming what is wrong, for what no decoder is. `target`: whose keys it has; null: its own.
const DecoderShape& checked(const DecoderShape& shape, const DecoderShape* target = nullptr);

}  // namespace ipex_lookahead
