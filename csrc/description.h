// Converts the Python description of a model (ipex_lookahead/architectures/spec.py) to a decoder's shape, field by field.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "model/spec.h"

namespace ipex_lookahead {

class Description {
 public:
  explicit Description(nb::handle of) : of_(nb::borrow(of)) {}

  bool is_none() const { return of_.is_none(); }
  nb::object object() const { return of_; }
  std::string kind() const { return nb::cast<std::string>(of_.type().attr("__name__")); }
  Description operator[](const char* name) const { return Description(of_.attr(name)); }
  std::vector<Description> parts(const char* name) const {
    std::vector<Description> found;
    for (nb::handle one : nb::iter(of_.attr(name))) found.emplace_back(one);
    return found;
  }
  // Throws a TypeError for a value of another type or out of range.
  template <typename T>
  T get(const char* name) const {
    const nb::object found = of_.attr(name);  // not in the initializer below: it may throw
    T value;
    if (!nb::try_cast(found, value)) throw nb::type_error((std::string(name) + " has another type or is too large").c_str());
    return value;
  }
  template <typename T>
  T get(const char* name, T otherwise) const { return (*this)[name].is_none() ? otherwise : get<T>(name); }

 private:
  nb::object of_;
};

inline NormShape norm_of(const Description& d) {
  if (d.is_none()) return {};
  return {nb::cast<int64_t>(d["weight"]["shape"].object()[0]), d.get<float>("epsilon"), d.get<bool>("centered"),
          !d["bias"].is_none()};
}

inline Rope rope_of(const Description& d) {
  const auto frequencies = d.get<FloatVector>("frequencies");
  check_aligned(frequencies, sizeof(float));
  const float* first = frequencies.data();
  return {{first, first + frequencies.shape(0)}, d.get<float>("factor"), d.get<float>("query_beta"),
          d.get<int64_t>("query_original"), d.get<bool>("interleaved"), d.get<std::vector<int32_t>>("axes")};
}

// Index of a rope; layers with the same rope object share its tables.
inline int number_of(const Description& rope, std::vector<nb::object>& seen, std::vector<Rope>& ropes) {
  if (rope.is_none()) return -1;
  for (size_t i = 0; i < seen.size(); ++i)
    if (seen[i].is(rope.object())) return int(i);
  seen.push_back(rope.object());
  ropes.push_back(rope_of(rope));
  return int(ropes.size()) - 1;
}

inline MlpShape mlp_of(const Description& d) {
  const Description a = d["activation"];
  const auto kind =
      ActivationKind(one_of("activation", a.get<std::string>("kind"), {"silu", "gelu_tanh", "clamped", "relu_squared", "xielu", "scaled_silu"}));
  return {nb::cast<int>(d["up"]["weight"]["shape"].object()[0]), !d["gate"].is_none(),
          {kind, a.get<float>("alpha"), a.get<float>("limit")}};
}

inline RecurrenceShape kimi_of(const Description& d) {
  RecurrenceShape r;
  const auto rank = [&](const char* name) { return d[name].is_none() ? 0 : nb::cast<int>(d[name]["weight"]["shape"].object()[0]); };
  r.delta = r.channels_decay = true;
  r.heads = r.groups = d.get<int>("heads");
  r.key_dim = r.value_dim = d.get<int>("head_dim");
  r.kernel = d.get<int>("kernel");
  r.norm = norm_of(d["norm"]);
  r.norm_group = r.value_dim;
  r.length_epsilon = d.get<float>("length_epsilon");
  r.decay_bound = d.get<float>("decay_bound", 0);
  r.steps_rank = rank("steps_a");
  r.gate_rank = rank("gate_a");
  return r;
}

inline RecurrenceShape recurrence_of(const Description& d, bool delta) {
  RecurrenceShape r;
  r.delta = delta;
  r.heads = d.get<int>("heads");
  r.groups = d.get<int>("groups");
  r.key_dim = d.get<int>("key_dim");
  r.value_dim = d.get<int>("value_dim");
  r.tiled = d.get<bool>("tiled");
  r.kernel = d.get<int>("kernel");
  r.norm = norm_of(d["norm"]);
  r.norm_group = delta ? r.value_dim : d.get<int64_t>("norm_group");
  if (delta) {
    r.length_epsilon = d.get<float>("length_epsilon");
    return r;
  }
  r.convolution_bias = !d["convolution_bias"].is_none();
  r.skip = true;
  r.gate_first = d.get<bool>("gate_first");
  r.least_step = d.get<float>("least_step");
  r.most_step = d.get<float>("most_step");
  const auto by = d.get<std::vector<float>>("multipliers");
  if (by.size() != 5) throw nb::type_error("multipliers must be 5 numbers");
  r.multipliers = {by[0], by[1], by[2], by[3], by[4]};
  return r;
}

// Outputs of a linear layer; 0 for None.
inline int64_t rows_of(const Description& linear) {
  return linear.is_none() ? 0 : nb::cast<int64_t>(linear["weight"]["shape"].object()[0]);
}

inline GateKind attention_gate_of(const Description& attention) {
  const bool sigmoid = one_of("gate_kind", attention.get<std::string>("gate_kind"), {"sigmoid", "softplus"}) == 0;
  return sigmoid ? GateKind::sigmoid : GateKind::softplus;
}

inline OperationShape operation_of(const Description& d, std::vector<nb::object>& seen, std::vector<Rope>& ropes) {
  const std::string kind = d.kind();
  if (kind == "Attention") {
    return AttentionShape{d.get<int>("heads"),           d.get<int>("kv_heads"),   d.get<int>("head_dim"),
                          number_of(d["rope"], seen, ropes), d.get<float>("scale"), d.get<int64_t>("window", 0),
                          d.get<float>("softcap", 0),    rows_of(d["gate"]),
                          attention_gate_of(d), !d["sinks"].is_none(), norm_of(d["q_norm"]),
                          norm_of(d["k_norm"]), d.get<bool>("norm_after_rope"), d["v"].is_none() && d["shared"].is_none(),
                          d.get<float>("value_norm", 0), d.get<int>("shared", -1), d.get<bool>("with_embedding"),
                          d.get<bool>("spans")};
  }
  if (kind == "LatentAttention") {
    LatentAttentionShape a;
    a.heads = d.get<int>("heads");
    a.latent = d.get<int>("latent");
    a.passed = d.get<int>("passed");
    a.rotated = d.get<int>("rotated");
    a.value_dim = d.get<int>("value_dim");
    a.rope = number_of(d["rope"], seen, ropes);
    a.query_scale = d.get<float>("scale");
    a.q_norm = norm_of(d["q_norm"]);
    a.kv_norm = norm_of(d["kv_norm"]);
    a.gate = !d["gate"].is_none();
    return a;
  }
  if (kind == "GatedDeltaNet" || kind == "Mamba2") return recurrence_of(d, kind == "GatedDeltaNet");
  if (kind == "KimiDeltaAttention") return kimi_of(d);
  if (kind == "ShortConv") return ShortConvShape{d.get<int>("kernel"), !d["convolution_bias"].is_none()};
  if (kind == "PerLayerGate") return PerLayerGateShape{d.get<int>("layer")};
  if (kind == "GatedMlp") return mlp_of(d);
  one_of("a mixer or feed-forward", kind, {"Attention", "LatentAttention", "GatedDeltaNet", "KimiDeltaAttention", "Mamba2", "ShortConv", "PerLayerGate", "GatedMlp", "Experts"});
  ExpertsShape mixture;
  for (const Description& one : d.parts("experts")) mixture.experts.push_back(mlp_of(one));
  mixture.used = d.get<int>("used");
  mixture.scores = RouterScores(one_of("scores", d.get<std::string>("scores"), {"all", "chosen", "sigmoid"}));
  mixture.renormalize = d.get<bool>("renormalize");
  mixture.sum_epsilon = d.get<float>("sum_epsilon");
  mixture.correction = !d["correction"].is_none();
  mixture.groups = d.get<int>("groups");
  mixture.groups_used = d.get<int>("groups_used");
  mixture.group_best = d.get<int>("group_best");
  mixture.scale = d.get<float>("scale");
  mixture.router_norm = norm_of(d["router_norm"]);
  mixture.norm = norm_of(d["norm"]);
  mixture.after = norm_of(d["after"]);
  mixture.shared_after = norm_of(d["shared_after"]);
  mixture.router_multiplier = d.get<float>("router_multiplier");
  mixture.expert_scales = !d["expert_scales"].is_none();
  if (!d["shared"].is_none()) mixture.shared = mlp_of(d["shared"]);
  mixture.shared_gate = !d["shared_gate"].is_none();
  mixture.latent = int(rows_of(d["compress"]));
  if (d["compress"].is_none() != d["expand"].is_none()) throw nb::type_error("compress and expand must be given together");
  return mixture;
}

// The mixtures of a list of Experts and None.
inline std::vector<std::optional<ExpertsShape>> mixtures_of(const std::vector<nb::object>& layers) {
  std::vector<std::optional<ExpertsShape>> found;
  std::vector<nb::object> seen;
  std::vector<Rope> ropes;
  for (const nb::object& layer : layers) {
    found.emplace_back();
    if (layer.is_none()) continue;
    const OperationShape shape = operation_of(Description(layer), seen, ropes);
    if (!std::holds_alternative<ExpertsShape>(shape)) throw nb::type_error("layers must be Experts or None");
    found.back() = std::get<ExpertsShape>(shape);
  }
  return found;
}

inline FeatureInputsShape features_of(const Description& d, int embedding) {
  FeatureInputsShape f;
  f.embedding = embedding;
  f.back = !d["back"].is_none();
  f.width = d.get<int>("width");
  f.layers = d.get<std::vector<int32_t>>("layers");
  f.feedback = d.get<int32_t>("feeds_back");
  f.keep_embedding = d.get<bool>("keep_embedding");
  f.embedding_norm = norm_of(d["embedding_norm"]);
  f.after = norm_of(d["after"]);
  for (const Description& one : d.parts("norms")) f.norms.push_back(norm_of(one));
  return f;
}

inline DecoderShape shape_of(const nb::object& spec, KvFormat kv_format) {
  const Description d(spec);
  DecoderShape shape;
  shape.hidden = d.get<int>("hidden");
  shape.vocab = d.get<int>("vocab");
  shape.max_context = d.get<int64_t>("max_context");
  shape.tied = d["head"].is_none();
  shape.embedding_multiplier = d.get<float>("embedding_multiplier");
  shape.embedding_norm = d.get<float>("embedding_norm", 0);
  shape.logit_multiplier = d.get<float>("logit_multiplier");
  shape.logit_softcap = d.get<float>("logit_softcap", 0);
  shape.final_norm = norm_of(d["final_norm"]);
  shape.kv_format = kv_format;
  if (const Description p = d["per_layer"]; !p.is_none())
    shape.per_layer = {p.get<int>("width"), p.get<int>("layers"), nb::cast<int>(p["table"]["shape"].object()[0]),
                       p.get<float>("table_multiplier"),
                       p.get<float>("projection_multiplier"), p.get<float>("multiplier"), norm_of(p["norm"])};
  shape.outputs = shape.tied ? shape.vocab : nb::cast<int>(d["head"]["weight"]["shape"].object()[0]);
  if (const Description f = d["features"]; !f.is_none()) shape.features = features_of(f, nb::cast<int>(d["embedding"]["shape"].object()[1]));
  if (const Description c = d["candidates"]; !c.is_none())
    shape.candidates = {nb::cast<int>(c["centroids"]["weight"]["shape"].object()[0]), c.get<int>("used")};
  shape.target_keys = d.get<bool>("target_keys");
  std::vector<nb::object> seen;
  for (const Description& block : d.parts("layers")) {
    const auto branch = [&](const char* name) -> std::optional<BranchShape> {
      if (block[name].is_none()) return std::nullopt;
      const std::string before = std::string(name) + "_norm", after = std::string(name) + "_after", by = std::string(name) + "_multiplier";
      const float multiplier = block.get<float>("residual_multiplier") * block.get<float>(by.c_str());
      if (std::string(name) == "second_mixer") return BranchShape{operation_of(block[name], seen, shape.ropes), {}, {}, multiplier};
      return BranchShape{operation_of(block[name], seen, shape.ropes), norm_of(block[before.c_str()]), norm_of(block[after.c_str()]), multiplier};
    };
    std::optional<BranchShape> per_layer;  // without a norm before it and with a factor of 1
    if (const Description gate = block["per_layer"]; !gate.is_none())
      per_layer = BranchShape{operation_of(gate, seen, shape.ropes), {}, norm_of(block["per_layer_after"]), 1};
    shape.layers.push_back({branch("mixer"), branch("feed_forward"), per_layer, branch("second_mixer"), block.get<bool>("parallel"),
                            !block["output_scale"].is_none()});
  }
  return shape;
}

}  // namespace ipex_lookahead
