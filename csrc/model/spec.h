// Model description of the native core, mirroring ipex_lookahead/architectures/spec.py: the operations of a step and their
// parameters. It holds the required tensor shapes, not the tensors.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "kernels/kernels.h"

namespace ipex_lookahead {

// How router logits become scores: softmax over all experts, softmax over the chosen experts, or a sigmoid per expert.
enum class RouterScores { all, chosen, sigmoid };

constexpr int kAxes = 3;  // RoPE positions of a row: time, row and column

// Rotary position embedding of the first 2 * frequencies.size() values of a head. Value i is paired with
// i + frequencies.size(), or, if interleaved, 2 i with 2 i + 1.
struct Rope {
  std::vector<float> frequencies;  // radians per position
  float factor = 1;                // multiplies cos and sin
  float query_beta = 0;            // queries at position p are scaled by 1 + beta ln(1 + floor(p / original))
  int64_t query_original = 0;
  bool interleaved = false;
  std::vector<int32_t> axes;  // [half]: which of a row's three positions a pair turns by; empty: the first
  int64_t half() const { return int64_t(frequencies.size()); }
};

struct NormShape {
  int64_t width = 0;  // 0: no norm
  float epsilon = 0;
  bool centered = false;  // subtracts the mean (layer norm)
  bool bias = false;      // layer norm only
};

struct AttentionShape {
  int heads = 0, kv_heads = 0, head_dim = 0;
  int rope = -1;             // index into DecoderShape::ropes; -1: no rotary embedding
  float query_scale = 1;     // multiplies queries
  int64_t window = 0;        // visible positions, including the row's own; 0: all
  float softcap = 0;         // scores become cap tanh(score / cap); 0: no cap
  int64_t gates = 0;         // the heads' outputs are multiplied by gate_kind of a gate: one per head, or one per value; 0: none
  GateKind gate_kind = GateKind::sigmoid;
  bool sinks = false;        // adds one logit per head to the softmax's denominator
  NormShape q_norm, k_norm;  // per head if as wide as a head, else over the whole projection
  bool norm_after_rope = false;  // the norms follow rope; they must be per head
  bool value_of_key = false;     // values are the key projection before its norm and rope
  float value_norm = 0;          // epsilon of an RMS norm without weights over each head of values; 0: no norm
  int shared = -1;               // layer that owns the keys and values (with target_keys: of the target); -1: this one
  bool with_embedding = false;   // q, k and v read the concatenation (StepRows::embeddings | row)
  bool spans = false;            // rows of a span see each other (StepRows::last_visible)

  bool has_keys() const { return shared < 0; }
  bool has_values() const { return has_keys() && !value_of_key; }
  bool gates_heads() const { return gates == heads && head_dim > 1; }

  int64_t q_width() const { return int64_t(heads) * head_dim; }
  int64_t kv_width() const { return int64_t(kv_heads) * head_dim; }
};

// Multi-head latent attention (model/latent_attention.h).
struct LatentAttentionShape {
  int heads = 0;
  int latent = 0;            // width of the latent that keys and values are computed from
  int passed = 0, rotated = 0, value_dim = 0;  // a head's query: first the part multiplied with latents, then the rotated part
  int rope = 0;              // index into DecoderShape::ropes
  float query_scale = 1;     // multiplies queries
  NormShape q_norm;          // norm of low-rank queries; no norm: queries are projected from the hidden state
  NormShape kv_norm;
  bool gate = false;         // multiplies each head's output by the sigmoid of one value per head

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
  bool renormalize = false;
  float sum_epsilon = 0;            // added to the sum that normalizes the weights
  bool correction = false;          // a bias that enters the choice of experts only
  int groups = 1, groups_used = 1;  // experts are chosen from the groups_used best groups;
  int group_best = 2;               // a group's score is the sum of its group_best best experts
  float scale = 1;                  // multiplies the weights
  // Norms of the router's input, the experts' input, the experts' sum and the shared expert's output, and a factor on the
  // router's input. Either all of them are present or none: then router and experts read the block's normed input.
  NormShape router_norm, norm, after, shared_after;
  float router_multiplier = 1;
  bool expert_scales = false;       // multiplies each expert's weight by a learned scale, last
  MlpShape shared;                  // an expert that every row uses; size 0: none
  bool shared_gate = false;         // multiplies its output by the sigmoid of a linear layer of the row
  int latent = 0;                   // experts read and write a projection of the rows of this width; 0: the rows
  bool given = false;               // the caller chooses each row's experts: there is no router (model/routed_experts.h)

  bool has_norms() const { return router_norm.width > 0; }
};

// A gated delta net, Kimi delta attention, or Mamba-2 (model/recurrence.h).
struct RecurrenceShape {
  bool delta = false;
  int heads = 0, groups = 0;       // value heads; query/key groups, each shared by heads / groups value heads
  int key_dim = 0, value_dim = 0;
  bool tiled = false;              // value head h uses the keys of group h % groups instead of h / (heads / groups)
  int kernel = 0;                  // taps of the convolution
  bool convolution_bias = false, skip = false;
  float least_step = 0, most_step = INFINITY;
  float length_epsilon = 0;        // added under the square root of the norms of q and k
  int64_t norm_group = 0;          // number of values normed together; the weights cover one group or all values
  NormShape norm;                  // Mamba-2 may have none
  bool gate_first = false;         // the gate is applied before the norm
  // Factors on the gate, v, k, q and steps of Mamba-2 before bias and convolution.
  struct Multipliers {
    float gate = 1, v = 1, k = 1, q = 1, steps = 1;
  } multipliers;
  // Kimi delta attention: separate matrices and convolutions for q, k and v, a decay for each key, a sigmoid as gate.
  bool channels_decay = false;
  float decay_bound = 0;           // decays are e^(decay_bound sigmoid(e^rate (steps + bias))); 0: e^(-e^rate softplus(steps + bias))
  int steps_rank = 0, gate_rank = 0;  // steps and gate are products of two matrices; 0: of one

  int64_t step_width() const { return channels_decay ? int64_t(heads) * key_dim : heads; }
  int64_t gates() const { return step_width() + (delta ? heads : 0); }
  int64_t keys() const { return int64_t(groups) * key_dim; }
  int64_t values() const { return int64_t(heads) * value_dim; }
  int64_t channels() const { return 2 * keys() + values(); }
};

// Gated convolution (LFM2): out(c * convolution(b * x)), where b, c and x are linear layers of the input.
struct ShortConvShape {
  int kernel = 0;
  bool bias = false;  // of the convolution
};

// Adds a gated projection of a row's per-layer values to the hidden state (model/per_layer_gate.h).
struct PerLayerGateShape {
  int layer = 0;
};

// To add a kind of operation, add an alternative here and its class.
using OperationShape = std::variant<AttentionShape, LatentAttentionShape, RecurrenceShape, ShortConvShape, PerLayerGateShape, MlpShape, ExpertsShape>;

// x + multiplier * after(operation(before(x))).
struct BranchShape {
  OperationShape operation;
  NormShape before, after;
  float multiplier = 1;
};

struct BlockShape {
  std::optional<BranchShape> mixer, feed_forward, per_layer;
  std::optional<BranchShape> second_mixer;  // x + mixer(y) + second_mixer(y), y = mixer.before(x)
  bool parallel = false;  // x + mixer(y) + feed_forward(y), y = mixer.before(x)
  bool output_scale = false;  // multiplies the block's output by a weight
};

// Per-layer input embeddings: values that each row has for each layer, in addition to the hidden state.
struct PerLayerShape {
  int width = 0, layers = 0;  // layers = 0: none
  int tokens = 0;             // rows of the table
  float table_multiplier = 1, projection_multiplier = 1, multiplier = 1;
  NormShape norm;
};

// Index of a hidden state: the number of layers it has passed (0: the embedding), or kFinalNorm after the final norm.
constexpr int32_t kFinalNorm = -1;

// Inputs of a drafting head in addition to the token's embedding (model/feature_inputs.h).
struct FeatureInputsShape {
  int width = 0;                // values per row; 0: none
  std::vector<int32_t> layers;  // the target's hidden states that are concatenated, each of width / layers.size() values
  int32_t feedback = kFinalNorm;  // index of the head's hidden state that is the features of a drafted token
  bool keep_embedding = false;  // the embedding is kept separately for attention that reads (embedding | row)
  int embedding = 0;            // width of the token's embedding
  bool back = false;            // the head's own hidden states are projected to the target's width before they are fed back
  NormShape embedding_norm, after;
  std::vector<NormShape> norms;  // over consecutive parts of the features, each as wide as its weights; empty: no norms
};
constexpr size_t kMaxFeatureLayers = 16;

// Restricts the lm_head to candidate outputs: the outputs are split into `centroids` equal runs, and only the runs of the
// `used` centroids with the largest product are computed (model/candidates.h).
struct CandidatesShape {
  int centroids = 0;  // 0: all outputs are computed
  int used = 0;
};

struct DecoderShape {
  int hidden = 0, vocab = 0;
  int outputs = 0;  // outputs of the lm_head: the vocabulary, or, for a drafting head, a part of it
  int64_t max_context = 0;
  bool tied = false;  // the embedding is also the lm_head
  float embedding_multiplier = 1, logit_multiplier = 1;
  float embedding_norm = 0;  // epsilon of an RMS norm without weights over an embedding, after its multiplier; 0: no norm
  float logit_softcap = 0;  // logits become cap tanh(logit / cap), after the multiplier; 0: no cap
  NormShape final_norm;
  std::vector<Rope> ropes;
  std::vector<BlockShape> layers;
  PerLayerShape per_layer;
  FeatureInputsShape features;
  CandidatesShape candidates;
  bool target_keys = false;  // attention reads the keys and values of a target's layers, of committed positions only
  KvFormat kv_format = KvFormat::fp16;
};

// Limits on a decoder's sizes, chosen so that their sums and products fit into int64_t.
constexpr int kMaxLayers = 1 << 16, kMaxHeads = 1 << 16, kMaxHeadDim = 1024, kMaxLayerWidth = 1 << 24, kMaxVocab = 1 << 27;
constexpr int kMaxTaps = 16;
constexpr int kMaxExperts = 1 << 12, kMaxMlps = 1 << 17;

// Number of positions beyond the window that a drafting head may read from the target layer that owns its keys.
constexpr int64_t kBeyondWindow = 2;

// Return `shape`. Throws std::invalid_argument that names the invalid field. `target`: the owner of the keys; null: the model.
const DecoderShape& checked(const DecoderShape& shape, const DecoderShape* target = nullptr);
// The same for mixtures that are not part of a decoder; null: a layer without one.
const std::vector<std::optional<ExpertsShape>>& checked(const std::vector<std::optional<ExpertsShape>>& mixtures, int hidden);

}  // namespace ipex_lookahead
