#include "model/spec.h"

#include <algorithm>
#include <cmath>
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

void check(const Layer& l, const DecoderShape& shape) {
  const Layer& first = shape.layers[0];
  within("heads", l.heads, 1, kMostHeads);
  within("kv_heads", l.kv_heads, 1, l.heads);
  within("head_dim", l.head_dim, 1, kMostHeadDim);
  if (l.heads % l.kv_heads != 0) throw std::invalid_argument("heads must be a multiple of kv_heads");
  if (l.head_dim % 8 != 0) throw std::invalid_argument("head_dim must be a multiple of 8");
  if (l.heads != first.heads || l.kv_heads != first.kv_heads || l.head_dim != first.head_dim)
    throw std::invalid_argument("heads, kv_heads and head_dim must be the same in all layers");
  within("intermediate", l.intermediate, 1, kMostWidth);
  within("rope", l.rope, -1, int64_t(shape.ropes.size()) - 1);
  within("window", l.window, 0, INT32_MAX);
  finite("query_scale", l.query_scale, -INFINITY);
  finite("softcap", l.softcap, 0);
  finite("alpha", l.activation.alpha, -INFINITY);
  finite("limit", l.activation.limit, 0);
  finite("residual_multiplier", l.residual_multiplier, -INFINITY);
  within("experts", l.experts, 0, kMostExperts);
  within("experts_used", l.experts_used, l.experts > 0 ? 1 : 0, l.experts);
}

}  // namespace

const DecoderShape& checked(const DecoderShape& s) {
  within("the number of layers", int64_t(s.layers.size()), 1, kMostLayers);
  within("hidden", s.hidden, 1, kMostWidth);
  within("vocab", s.vocab, 1, kMostVocab);
  within("max_context", s.max_context, 1, INT32_MAX);
  finite("rms_epsilon", s.rms_epsilon, 0);
  finite("embedding_multiplier", s.embedding_multiplier, -INFINITY);
  finite("logit_multiplier", s.logit_multiplier, -INFINITY);
  finite("logit_softcap", s.logit_softcap, 0);
  for (const Layer& layer : s.layers) check(layer, s);
  int64_t mlps = 0;
  for (const Layer& layer : s.layers) mlps += std::max(layer.experts, 1);
  within("the number of experts in all layers", mlps, 1, kMostMlps);
  for (const Rope& rope : s.ropes) check(rope, s.layers[0].head_dim);
  return s;
}

}  // namespace ipex_lookahead
