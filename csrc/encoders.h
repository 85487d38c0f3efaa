// Encoders in the bindings: the description (ipex_lookahead/architectures/encoder.py) and the two classes.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "arguments.h"
#include "description.h"
#include "errors.h"
#include "matrices.h"
#include "model/encoder.h"

namespace ipex_lookahead {

inline LinearShape linear_of(const Description& d) {
  if (d.is_none()) return {};
  const nb::object shape = d["weight"]["shape"].object();
  return {nb::cast<int64_t>(shape[0]), nb::cast<int64_t>(shape[1]), !d["clip"].is_none()};
}

inline GateKind gate_kind_of(const Description& activation) {
  const int known = one_of("activation", activation.get<std::string>("kind"), {"silu", "gelu_tanh", "gelu", "gelu_quick", "sigmoid", "tanh", "relu"});
  constexpr GateKind kinds[] = {GateKind::silu,    GateKind::gelu_tanh, GateKind::gelu, GateKind::gelu_quick,
                                GateKind::sigmoid, GateKind::tanh,      GateKind::relu};
  return kinds[known];
}

inline LinkShape link_of(const Description& d) {
  const std::string kind = d.kind();
  if (kind == "Norm") return norm_of(d);
  if (kind == "PlainNorm") return PlainNormShape{d.get<int64_t>("width"), d.get<float>("epsilon")};
  if (kind == "Linear") return linear_of(d);
  if (kind == "Activation") return gate_kind_of(d);
  throw nb::type_error(("a chain cannot have a " + kind).c_str());
}

// Index of a layer's rope; ropes with equal tables are one.
inline int rope_number(const Description& d, EncoderShape& shape) {
  if (d.is_none()) return -1;
  Rope rope = rope_of(d);
  if (rope.query_beta != 0 || rope.interleaved || !rope.axes.empty()) throw nb::type_error("encoders have ropes of plain halves");
  for (size_t i = 0; i < shape.ropes.size(); ++i)
    if (shape.ropes[i].frequencies == rope.frequencies && shape.ropes[i].factor == rope.factor) return int(i);
  shape.ropes.push_back(std::move(rope));
  return int(shape.ropes.size()) - 1;
}

// Rows of a table; 0 for None.
inline int64_t table_of(const Description& d) {
  if (d.is_none()) return 0;
  return nb::cast<int64_t>(d["shape"].object()[0]);
}

inline EncoderBlockShape encoder_block_of(const Description& d, EncoderShape& shape) {
  const Description a = d["mixer"], m = d["feed_forward"];
  if (a.kind() != "Attention" || m.kind() != "GatedMlp") throw nb::type_error("an encoder's block is Attention and a GatedMlp");
  for (const char* name : {"gate", "softcap", "sinks", "shared"})
    if (!a[name].is_none()) throw nb::type_error((std::string("encoders have no attention with ") + name).c_str());
  if (d.get<float>("residual_multiplier") != 1 || d.get<bool>("parallel")) throw nb::type_error("encoders add branches as they are");
  EncoderBlockShape b;
  b.mixer_norm = norm_of(d["mixer_norm"]);
  b.mixer_after = norm_of(d["mixer_after"]);
  b.feed_forward_norm = norm_of(d["feed_forward_norm"]);
  b.feed_forward_after = norm_of(d["feed_forward_after"]);
  b.heads = a.get<int>("heads");
  b.kv_heads = a.get<int>("kv_heads");
  b.head_dim = a.get<int>("head_dim");
  b.rope = rope_number(a["rope"], shape);
  b.query_scale = a.get<float>("scale");
  b.distance = a.get<int64_t>("window", 0);
  b.q = linear_of(a["q"]);
  b.k = linear_of(a["k"]);
  b.v = linear_of(a["v"]);
  b.o = linear_of(a["o"]);
  b.q_norm = norm_of(a["q_norm"]);
  b.k_norm = norm_of(a["k_norm"]);
  b.value_norm = a.get<float>("value_norm", 0);
  b.gate = linear_of(m["gate"]);
  b.up = linear_of(m["up"]);
  b.down = linear_of(m["down"]);
  b.activation = gate_kind_of(m["activation"]);
  return b;
}

inline EncoderShape encoder_shape_of(const nb::object& spec) {
  const Description d(spec);
  EncoderShape shape;
  shape.hidden = d.get<int64_t>("hidden");
  shape.rope_parts = d.get<int>("rope_parts");
  for (const Description& chain : d.parts("chains")) {
    shape.chains.emplace_back();
    for (nb::handle link : nb::iter(chain.object())) shape.chains.back().push_back(link_of(Description(link)));
  }
  for (const Description& block : d.parts("layers")) shape.layers.push_back(encoder_block_of(block, shape));
  shape.vocab = table_of(d["embedding"]);
  shape.types = table_of(d["types"]);
  shape.positions = table_of(d["positions"]);
  shape.embedding_multiplier = d.get<float>("embedding_multiplier");
  shape.embedding_norm = norm_of(d["embedding_norm"]);
  shape.final_norm = norm_of(d["final_norm"]);
  shape.post_norm = d.get<bool>("post_norm");
  shape.slopes = d.get<std::vector<float>>("slopes");
  return shape;
}

// The classes Encoder and EncoderPass (model/encoder.h).
inline void def_encoders(nb::module_& m) {
  nb::class_<Encoder> encoder(m, "Encoder");
  encoder
      .def(
          "__init__",
          [](Encoder* self, const nb::object& spec, int threads, const std::string& isa) {
            new (self) Encoder(encoder_shape_of(spec), threads, isa);
          },
          "spec"_a, "threads"_a, "isa"_a = "")
      .def_prop_ro("slice_rows", &Encoder::slice_rows)
      .def("missing", [](const Encoder& e) { return e.weights().missing(); }, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "chain",
          [](Encoder& e, int64_t number, const FloatMatrix& x) {
            check_aligned(x, sizeof(float));
            const auto [inputs, outputs] = e.widths(number);
            const int64_t rows = int64_t(x.shape(0)), n_out = outputs;
            if (int64_t(x.shape(1)) != inputs) throw std::invalid_argument("x must have shape [rows, " + std::to_string(inputs) + "]");
            Owned<float, Fill::none> out{size_t(rows * n_out)};
            {
              nb::gil_scoped_release release;
              e.run_chain(number, x.data(), rows, out.data.get());
            }
            return out.array(rows, n_out);
          },
          "number"_a, "x"_a);
  def_weights(encoder);

  nb::class_<EncoderPass>(m, "EncoderPass")
      .def(
          "__init__",
          [](EncoderPass* self, Encoder& e, const FloatMatrix& x, const std::optional<FloatMatrix>& cos, const std::optional<FloatMatrix>& sin) {
            check_aligned(x, sizeof(float));
            if (int64_t(x.shape(1)) != e.shape().hidden)
              throw std::invalid_argument("x must have shape [rows, " + std::to_string(e.shape().hidden) + "]");
            const int64_t rows = int64_t(x.shape(0));
            const int64_t width = e.rope_width();
            for (const auto& table : {cos, sin}) {
              if (!table || width == 0) continue;
              check_aligned(*table, sizeof(float));
              if (int64_t(table->shape(0)) != rows || int64_t(table->shape(1)) != width)
                throw std::invalid_argument("cosines and sines must have shape [rows, " + std::to_string(width) + "]");
            }
            new (self) EncoderPass(e, x.data(), rows, cos ? cos->data() : nullptr, sin ? sin->data() : nullptr);
          },
          "encoder"_a, "x"_a, "cos"_a.none() = nb::none(), "sin"_a.none() = nb::none(), nb::keep_alive<1, 2>())
      .def_static(
          "texts",
          [](Encoder& e, const IntVector& tokens, const IntVector& lengths, const std::optional<IntVector>& types) {
            check_aligned(tokens, sizeof(int32_t));
            check_aligned(lengths, sizeof(int32_t));
            if (types) check_aligned(*types, sizeof(int32_t));
            Texts texts{tokens.data(), types ? types->data() : nullptr, {lengths.data(), lengths.data() + lengths.shape(0)}};
            int64_t rows = 0;
            for (const int64_t length : texts.lengths) rows += std::max<int64_t>(length, 0);
            if (int64_t(tokens.shape(0)) != rows || (types && int64_t(types->shape(0)) != rows))
              throw std::invalid_argument("there must be " + std::to_string(rows) + " tokens and types, the sum of the lengths");
            nb::gil_scoped_release release;
            return new EncoderPass(e, texts);
          },
          "encoder"_a, "tokens"_a, "lengths"_a, "types"_a.none() = nb::none(), nb::rv_policy::take_ownership, nb::keep_alive<0, 1>())
      .def("advance", &EncoderPass::advance, "until"_a, "work"_a = 0, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("layer", &EncoderPass::layer)
      .def("rows", [](const EncoderPass& pass, const Encoder& e) {
        if (&pass.encoder() != &e) throw std::invalid_argument("the pass belongs to another encoder");
        const int64_t hidden = e.shape().hidden;
        Owned<float, Fill::none> out{size_t(pass.rows() * hidden)};
        pass.copy(out.data.get());
        return out.array(pass.rows(), hidden);
      }, "encoder"_a);
}

}  // namespace ipex_lookahead
