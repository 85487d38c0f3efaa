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
  if (rope.query_beta != 0) within("a rope's query_original", rope.query_original, 1, INT32_MAX);
}

// A norm over one of these widths, if there is one.
void check(const std::string& name, const NormShape& norm, std::initializer_list<int64_t> widths) {
  if (norm.width == 0) return;
  finite(name + "'s epsilon", norm.epsilon, 0);
  if (std::find(widths.begin(), widths.end(), norm.width) == widths.end())
    throw std::invalid_argument(name + " is over " + std::to_string(norm.width) + " values; it must be over " +
                                std::to_string(*widths.begin()));
}

void check(const AttentionShape& a, const DecoderShape& shape) {
  within("heads", a.heads, 1, kMostHeads);
  within("kv_heads", a.kv_heads, 1, a.heads);
  within("head_dim", a.head_dim, 1, kMostHeadDim);
  if (a.heads % a.kv_heads != 0) throw std::invalid_argument("heads must be a multiple of kv_heads");
  if (a.head_dim % 8 != 0) throw std::invalid_argument("head_dim must be a multiple of 8");
  within("rope", a.rope, -1, int64_t(shape.ropes.size()) - 1);
  if (a.rope >= 0) check(shape.ropes[size_t(a.rope)], a.head_dim);
  within("window", a.window, 0, INT32_MAX);
  finite("query_scale", a.query_scale, -INFINITY);
  finite("softcap", a.softcap, 0);
  check("q_norm", a.q_norm, {a.head_dim, a.q_width()});
  check("k_norm", a.k_norm, {a.head_dim, a.kv_width()});
}

void check(const MlpShape& mlp, const DecoderShape&) {
  within("intermediate", mlp.intermediate, 1, kMostWidth);
  finite("alpha", mlp.activation.alpha, -INFINITY);
  finite("limit", mlp.activation.limit, 0);
}

void check(const ExpertsShape& mixture, const DecoderShape& shape) {
  within("experts", int64_t(mixture.experts.size()), 1, kMostExperts);
  within("experts used", mixture.used, 1, int64_t(mixture.experts.size()));
  for (const MlpShape& mlp : mixture.experts) {
    check(mlp, shape);
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
  check("a norm before it", branch.before, {shape.hidden});
  check("a norm after it", branch.after, {shape.hidden});
  finite("residual_multiplier", branch.multiplier, -INFINITY);
}

}  // namespace

const DecoderShape& checked(const DecoderShape& s) {
  within("the number of layers", int64_t(s.layers.size()), 1, kMostLayers);
  within("hidden", s.hidden, 1, kMostWidth);
  within("vocab", s.vocab, 1, kMostVocab);
  within("max_context", s.max_context, 1, INT32_MAX);
  finite("embedding_multiplier", s.embedding_multiplier, -INFINITY);
  finite("logit_multiplier", s.logit_multiplier, -INFINITY);
  finite("logit_softcap", s.logit_softcap, 0);
  check("the final norm", s.final_norm, {s.hidden});
  int64_t mlps = 0;
  for (const BlockShape& layer : s.layers) {
    check(layer.mixer, s);
    check(layer.feed_forward, s);
    mlps += mlps_of(layer.feed_forward);
  }
  within("the number of experts in all layers", mlps, 1, kMostMlps);
  return s;
}

}  // namespace ipex_lookahead
