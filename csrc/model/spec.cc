#include "model/spec.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace ipex_lookahead {
namespace {

void within(const std::string& name, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most)
    throw std::invalid_argument(name + " is " + std::to_string(value) + "; it must be from " + std::to_string(least) +
                                " to " + std::to_string(most));
}

void finite(const std::string& name, float value, float least) {
  if (!std::isfinite(value) || value < least)
    throw std::invalid_argument(name + " is " + std::to_string(value) + "; it must be finite" +
                                (least == 0 ? " and not negative" : ""));
}

void check(const Rope& rope, int head_dim) {
  within("the number of rope frequencies", rope.half(), 1, head_dim / 2);
  for (float f : rope.frequencies) finite("a rope frequency", f, -INFINITY);
  finite("a rope's factor", rope.factor, -INFINITY);
  finite("a rope's query_beta", rope.query_beta, -INFINITY);
  if (!rope.axes.empty()) within("the number of a rope's axes", int64_t(rope.axes.size()), rope.half(), rope.half());
  for (const int32_t axis : rope.axes) within("a rope's axis", axis, 0, kAxes - 1);
  if (rope.query_beta != 0) within("a rope's query_original", rope.query_original, 1, INT32_MAX);
}

// Checks that a norm, if present, is over one of these widths.
void check(const std::string& name, const NormShape& norm, std::initializer_list<int64_t> widths) {
  if (norm.width == 0) return;
  finite(name + "'s epsilon", norm.epsilon, 0);
  if (norm.bias && !norm.centered) throw std::invalid_argument(name + " has a bias; only layer norms do");
  if (std::find(widths.begin(), widths.end(), norm.width) == widths.end())
    throw std::invalid_argument(name + " is over " + std::to_string(norm.width) + " values; it must be over " +
                                std::to_string(*widths.begin()));
}

void check(const AttentionShape& a, const DecoderShape& shape) {
  within("heads", a.heads, 1, kMaxHeads);
  within("kv_heads", a.kv_heads, 1, a.heads);
  within("head_dim", a.head_dim, 1, kMaxHeadDim);
  if (a.heads % a.kv_heads != 0) throw std::invalid_argument("heads must be a multiple of kv_heads");
  if (a.head_dim % 8 != 0) throw std::invalid_argument("head_dim must be a multiple of 8");
  if (a.with_embedding && !shape.features.keep_embedding)
    throw std::invalid_argument("attention with_embedding needs features that keep the embedding");
  within("rope", a.rope, -1, int64_t(shape.ropes.size()) - 1);
  if (a.rope >= 0) check(shape.ropes[size_t(a.rope)], a.head_dim);
  within("window", a.window, 0, INT32_MAX);
  finite("query_scale", a.query_scale, -INFINITY);
  finite("softcap", a.softcap, 0);
  check("q_norm", a.q_norm, {a.head_dim, a.q_width()});
  check("k_norm", a.k_norm, {a.head_dim, a.kv_width()});
  finite("value_norm", a.value_norm, 0);
  if (a.gates != 0 && a.gates != a.heads && a.gates != a.q_width())
    throw std::invalid_argument("gates are " + std::to_string(a.gates) + "; there must be one per head or per value of a head");
  if (a.value_of_key && a.k_norm.width > a.head_dim)
    throw std::invalid_argument("k_norm must be per head if values are the key projection");
  if (!a.has_keys() && (a.value_of_key || a.value_norm != 0 || a.k_norm.width != 0))
    throw std::invalid_argument("a layer that shares another layer's keys and values must not have k_norm or value_norm");
  if (!a.norm_after_rope) return;
  if (std::max(a.q_norm.width, a.k_norm.width) > a.head_dim)
    throw std::invalid_argument("norms after rope must be per head");
  if (a.rope >= 0 && shape.ropes[size_t(a.rope)].interleaved)
    throw std::invalid_argument("norms after rope cannot be combined with an interleaved rope");
}

void check(const LatentAttentionShape& a, const DecoderShape& shape) {
  within("heads", a.heads, 1, kMaxHeads);
  within("latent", a.latent, 1, kMaxHeadDim);
  within("passed", a.passed, 1, kMaxHeadDim);
  within("rotated", a.rotated, 2, kMaxHeadDim);
  within("value_dim", a.value_dim, 1, kMaxHeadDim);
  within("latent and rotated", a.key_dim(), 1, kMaxHeadDim);
  if (a.key_dim() % 8 != 0 || a.rotated % 2 != 0)
    throw std::invalid_argument("rotated must be even, and with latent a multiple of 8");
  within("rope", a.rope, 0, int64_t(shape.ropes.size()) - 1);
  check(shape.ropes[size_t(a.rope)], a.rotated);
  if (shape.ropes[size_t(a.rope)].half() != a.rotated / 2) throw std::invalid_argument("the rope must cover exactly the rotated part");
  finite("query_scale", a.query_scale, -INFINITY);
  if (a.q_norm.width != 0) {
    within("q_norm", a.q_norm.width, 1, kMaxLayerWidth);
    finite("q_norm's epsilon", a.q_norm.epsilon, 0);
  }
  if (a.kv_norm.width == 0) throw std::invalid_argument("latents must have a norm");
  check("kv_norm", a.kv_norm, {a.latent});
}

void check(const RecurrenceShape& r, const DecoderShape&) {
  within("heads", r.heads, 1, kMaxHeads);
  within("groups", r.groups, 1, r.heads);
  if (r.heads % r.groups != 0) throw std::invalid_argument("heads must be a multiple of groups");
  within("key_dim", r.key_dim, 1, kMaxHeadDim);
  within("value_dim", r.value_dim, 1, kMaxHeadDim);
  within("kernel", r.kernel, 1, kMaxTaps);
  finite("least_step", r.least_step, 0);
  if (!(r.most_step >= r.least_step)) throw std::invalid_argument("most_step must not be below least_step");
  finite("length_epsilon", r.length_epsilon, 0);
  within("norm_group", r.norm_group, 1, r.values());
  if (r.values() % r.norm_group != 0) throw std::invalid_argument("a recurrence's values must be a multiple of norm_group");
  if ((r.delta && r.norm.width == 0) || r.norm.centered) throw std::invalid_argument("a recurrence must have an RMS norm");
  check("norm", r.norm, {r.norm_group, r.values()});
  for (float one : {r.multipliers.gate, r.multipliers.v, r.multipliers.k, r.multipliers.q, r.multipliers.steps})
    finite("a multiplier of a recurrence", one, -INFINITY);
  finite("decay_bound", r.decay_bound, -INFINITY);
  within("steps_rank", r.steps_rank, 0, kMaxLayerWidth);
  within("gate_rank", r.gate_rank, 0, kMaxLayerWidth);
  if (r.channels_decay && (r.groups != r.heads || !r.delta)) throw std::invalid_argument("decays per key need a delta rule and a group per head");
}

void check(const ShortConvShape& s, const DecoderShape&) { within("kernel", s.kernel, 1, kMaxTaps); }

void check(const PerLayerGateShape& gate, const DecoderShape& shape) {
  within("the layer of a per-layer gate", gate.layer, 0, int64_t(shape.per_layer.layers) - 1);
}

void check(const PerLayerShape& p, const DecoderShape& shape) {
  within("the number of layers with per-layer values", p.layers, 0, int64_t(shape.layers.size()));
  if (p.layers == 0) return;
  within("the rows of the per-layer table", p.tokens, shape.vocab, kMaxVocab);
  within("the per-layer values of a row", p.width, 1, kMaxLayerWidth / p.layers);
  finite("table_multiplier", p.table_multiplier, -INFINITY);
  finite("projection_multiplier", p.projection_multiplier, -INFINITY);
  finite("multiplier", p.multiplier, -INFINITY);
  if (p.norm.width == 0 || p.norm.centered) throw std::invalid_argument("the per-layer projection must have an RMS norm");
  check("the norm of the per-layer projection", p.norm, {p.width});
}

void check(const FeatureInputsShape& features, const DecoderShape& shape) {
  within("the width of a row's features", features.width, 0, kMaxLayerWidth);
  if (features.width == 0) return;
  const int64_t states = int64_t(features.layers.size()), layers = int64_t(shape.layers.size());
  within("the number of hidden states that are features", states, 1, kMaxLayers);
  if (features.width % states != 0)
    throw std::invalid_argument("features of " + std::to_string(features.width) + " values are not " + std::to_string(states) +
                                " hidden states of one width");
  for (size_t i = 0; i < features.layers.size(); ++i)
    within("a hidden state that is a feature", features.layers[i], i == 0 ? -1 : features.layers[i - 1], kMaxLayers);
  within("the hidden state that is fed back", features.feedback, -1, layers);
  within("the width of the embedding of a head with features", features.embedding, 1, kMaxLayerWidth);
  if (features.keep_embedding && (features.embedding_norm.width == 0 || features.embedding != shape.hidden))
    throw std::invalid_argument("an embedding that is kept for attention must have a norm and the width of the rows");
  check("the norm of the embedding of a head with features", features.embedding_norm, {features.embedding});
  if (!features.keep_embedding && !features.back && features.width != shape.hidden)
    throw std::invalid_argument("a head's own features of " + std::to_string(shape.hidden) + " values cannot stand for the target's " +
                                std::to_string(features.width));
  if (shape.tied && features.embedding != shape.hidden) throw std::invalid_argument("an embedding of another width than the hidden state cannot be tied to the lm_head");
  check("the norm after the projection of features", features.after, {shape.hidden});
  int64_t normed = 0;
  for (const NormShape& norm : features.norms) {
    within("a norm of features", norm.width, 1, features.width);
    check("a norm of features", norm, {norm.width});
    normed += norm.width;
  }
  if (normed != 0 && normed != features.width)
    throw std::invalid_argument("the norms of features are over " + std::to_string(normed) + " values of " + std::to_string(features.width));
}

void check(const CandidatesShape& candidates, const DecoderShape& shape) {
  within("the lm_head's centroids", candidates.centroids, 0, shape.outputs);
  if (candidates.centroids == 0) return;
  within("the centroids that a row uses", candidates.used, 1, candidates.centroids);
  if (shape.tied || shape.outputs % (int64_t(candidates.centroids) * kLanes) != 0)
    throw std::invalid_argument("each centroid must have the same multiple of " + std::to_string(kLanes) + " outputs of an lm_head");
}

void check(const MlpShape& mlp, const DecoderShape&) {
  within("intermediate", mlp.intermediate, 1, kMaxLayerWidth);
  finite("alpha", mlp.activation.alpha, -INFINITY);
  finite("limit", mlp.activation.limit, 0);
}

void check(const ExpertsShape& mixture, const DecoderShape& shape) {
  within("experts", int64_t(mixture.experts.size()), 1, kMaxExperts);
  const int64_t count = int64_t(mixture.experts.size());
  within("experts used", mixture.used, 1, count);
  within("groups of experts", mixture.groups, 1, count);
  within("groups of experts used", mixture.groups_used, 1, mixture.groups);
  within("the best of a group", mixture.group_best, 1, 2);
  if (count % mixture.groups != 0) throw std::invalid_argument("experts must be a multiple of their groups");
  within("experts used", mixture.used, 1, count / mixture.groups * mixture.groups_used);
  finite("sum_epsilon", mixture.sum_epsilon, 0);
  finite("the router's scale", mixture.scale, -INFINITY);
  finite("router_multiplier", mixture.router_multiplier, -INFINITY);
  for (const NormShape* norm : {&mixture.router_norm, &mixture.norm, &mixture.after, &mixture.shared_after}) {
    check("a norm of a mixture", *norm, {shape.hidden});
    if ((norm->width > 0) != mixture.has_norms()) throw std::invalid_argument("a mixture must have all of its norms or none");
  }
  if (mixture.has_norms() && (mixture.shared.intermediate == 0 || mixture.shared_gate))
    throw std::invalid_argument("a mixture with norms must have a shared expert without a gate");
  within("the latent of experts", mixture.latent, 0, kMaxLayerWidth);
  if (mixture.latent != 0 && (mixture.has_norms() || mixture.shared_gate))
    throw std::invalid_argument("a mixture with a latent must not have norms, or a gate of its shared expert");
  if (mixture.shared.intermediate != 0) check(mixture.shared, shape);
  for (const MlpShape& mlp : mixture.experts) {
    check(mlp, shape);
    if (mlp.activation.kind == ActivationKind::xielu) throw std::invalid_argument("experts do not support xielu");
    if (mlp.intermediate != mixture.experts[0].intermediate)
      throw std::invalid_argument("the experts of a layer must be of one size");
  }
}

int64_t mlps_of(const BranchShape& branch) {
  const auto* mixture = std::get_if<ExpertsShape>(&branch.operation);
  return mixture == nullptr ? 1 : int64_t(mixture->experts.size());
}

void check(const BranchShape& branch, const DecoderShape& shape) {
  std::visit([&](const auto& operation) { check(operation, shape); }, branch.operation);
  check("the norm before an operation", branch.before, {shape.hidden});
  check("the norm after an operation", branch.after, {shape.hidden});
  finite("residual_multiplier", branch.multiplier, -INFINITY);
}

// The branches of a parallel block are added without norms or factors, and both read the mixer's norm.
void check_parallel(const BlockShape& block) {
  if (!block.mixer || !block.feed_forward) throw std::invalid_argument("a parallel block must have a mixer and a feed-forward");
  if (block.feed_forward->before.width != 0) throw std::invalid_argument("a parallel block must have one norm, before its mixer");
  for (const auto& branch : {*block.mixer, *block.feed_forward})
    if (branch.after.width != 0 || branch.multiplier != 1)
      throw std::invalid_argument("a parallel block must not have norms after its branches or a residual_multiplier");
}

// The mixers of a block both read the first one's norm.
void check_second(const BlockShape& block) {
  if (block.parallel || !block.mixer || block.second_mixer->before.width != 0)
    throw std::invalid_argument("a block with two mixers must have one norm, before the first, and must not be parallel");
  if (block.mixer->after.width != 0 || block.second_mixer->after.width != 0)
    throw std::invalid_argument("a block with two mixers must not have norms after them");
  if (block.output_scale) throw std::invalid_argument("a block with two mixers must not have an output_scale");
}

// A layer may share the keys and values of an earlier layer with the same heads and window, or of a layer of the target, also
// if its own window is up to kBeyondWindow positions larger.
void check_shared(const DecoderShape& shape, size_t layer, const DecoderShape* target) {
  const auto* own = shape.layers[layer].mixer ? std::get_if<AttentionShape>(&shape.layers[layer].mixer->operation) : nullptr;
  if (target != nullptr && (own == nullptr || own->has_keys()))
    throw std::invalid_argument("layer " + std::to_string(layer) + " must share the keys of a target's layer (target_keys)");
  if (own == nullptr || own->has_keys()) return;
  const std::vector<BlockShape>& layers = target == nullptr ? shape.layers : target->layers;
  within("the layer that owns shared keys and values", own->shared, 0, target == nullptr ? int64_t(layer) - 1 : int64_t(layers.size()) - 1);
  const BlockShape& block = layers[size_t(own->shared)];
  const auto* source = block.mixer ? std::get_if<AttentionShape>(&block.mixer->operation) : nullptr;
  if (target != nullptr && own->window == 1) throw std::invalid_argument("with a window of one position a head sees no position of its target");
  const int64_t beyond = target == nullptr || own->window == 0 ? 0 : kBeyondWindow;
  if (source == nullptr || !source->has_keys() || (source->window == 0) != (own->window == 0) || own->window < source->window ||
      own->window > source->window + beyond || source->kv_heads != own->kv_heads || source->head_dim != own->head_dim)
    throw std::invalid_argument("layer " + std::to_string(layer) + " shares the keys and values of layer " +
                                std::to_string(own->shared) + ", which has another window, other heads, or no keys");
}

}  // namespace

const DecoderShape& checked(const DecoderShape& s, const DecoderShape* target) {
  if (s.target_keys != (target != nullptr))
    throw std::invalid_argument(s.target_keys ? "a head with target_keys needs a target" : "only a head with target_keys takes a target");
  within("the number of layers", int64_t(s.layers.size()), 1, kMaxLayers);
  within("hidden", s.hidden, 1, kMaxLayerWidth);
  within("vocab", s.vocab, 1, kMaxVocab);
  within("the lm_head's outputs", s.outputs, 1, s.vocab);
  if (s.tied && s.outputs != s.vocab) throw std::invalid_argument("a tied embedding must have an output for each token");
  within("max_context", s.max_context, 1, INT32_MAX);
  finite("embedding_multiplier", s.embedding_multiplier, -INFINITY);
  finite("embedding_norm", s.embedding_norm, 0);
  if (s.embedding_norm != 0 && s.features.width != 0)
    throw std::invalid_argument("a head with features must not have embedding_norm");
  finite("logit_multiplier", s.logit_multiplier, -INFINITY);
  finite("logit_softcap", s.logit_softcap, 0);
  check("the final norm", s.final_norm, {s.hidden});
  check(s.per_layer, s);
  check(s.features, s);
  check(s.candidates, s);
  int64_t mlps = 0;
  for (size_t i = 0; i < s.layers.size(); ++i) {
    const BlockShape& layer = s.layers[i];
    if (layer.parallel) check_parallel(layer);
    if (layer.output_scale && (layer.parallel || (!layer.mixer && !layer.feed_forward && !layer.per_layer)))
      throw std::invalid_argument("a block with output_scale must have an operation and must not be parallel");
    if (layer.per_layer) check(*layer.per_layer, s);
    check_shared(s, i, target);
    if (layer.mixer) check(*layer.mixer, s);
    if (layer.second_mixer) {
      check_second(layer);
      check(*layer.second_mixer, s);
    }
    if (!layer.feed_forward) continue;
    check(*layer.feed_forward, s);
    mlps += mlps_of(*layer.feed_forward);
  }
  within("the number of experts in all layers", mlps, 0, kMaxMlps);
  return s;
}

const std::vector<std::optional<ExpertsShape>>& checked(const std::vector<std::optional<ExpertsShape>>& mixtures, int hidden) {
  within("the number of layers", int64_t(mixtures.size()), 1, kMaxLayers);
  within("hidden", hidden, 1, kMaxLayerWidth);
  DecoderShape shape;
  shape.hidden = hidden;
  int64_t mlps = 0;
  for (const auto& mixture : mixtures) {
    if (!mixture) continue;
    check(*mixture, shape);
    mlps += int64_t(mixture->experts.size());
  }
  within("the number of experts in all layers", mlps, 0, kMaxMlps);
  return mixtures;
}

}  // namespace ipex_lookahead
