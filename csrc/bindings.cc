// The Python module ipex_lookahead._native. It checks arguments and calls the core; it has no logic of its own.
// It is one file of more than 500 lines because nanobind registers a module in one function, NB_MODULE.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "arguments.h"
#include "description.h"
#include "drafting/predictor.h"
#include "encoders.h"
#include "errors.h"
#include "matrices.h"
#include "model/decoder.h"
#include "model/draft_chain.h"
#include "model/head_state.h"
#include "model/routed_experts.h"
#include "runtime/dispatch.h"
#include "runtime/machine_probe.h"
#include "sampling.h"
#include "weights/linear.h"

using namespace ipex_lookahead;
using namespace nb::literals;

namespace {

void check_linear(const LinearLayer& l, const FloatMatrix& x) {
  check_aligned(x, sizeof(float));
  if (int64_t(x.shape(1)) != l.matrix().n_in) throw std::invalid_argument("x must have shape [rows, n_in]");
}

// Cosines and sines [positions][half] and query factors, for kernels outside the core.
nb::tuple rope_tables(const nb::object& description, int64_t positions) {
  const Rope rope = rope_of(Description(description));
  if (positions < 1 || positions > kMaxOutputs)
    throw std::invalid_argument("positions must be from 1 to " + std::to_string(kMaxOutputs));
  if (rope.query_beta != 0 && rope.query_original < 1) throw std::invalid_argument("query_original must be at least 1");
  RopeTable table;
  table.reserve(rope, positions, positions);
  const auto copy = [](const auto& from, auto... shape) {
    Owned<float> to(from.size());
    std::copy(from.begin(), from.end(), to.data.get());
    return to.array(shape...);
  };
  return nb::make_tuple(copy(table.cos, positions, rope.half()), copy(table.sin, positions, rope.half()),
                        copy(table.query, positions));
}

// [(name, phases, seconds, seconds at work, bytes of weights that a step of one row reads)], in step order.
nb::list phase_times(const PhaseTimes& times, const std::array<int64_t, kPhaseKinds>& bytes) {
  nb::list found;
  for (size_t i = 0; i < times.size(); ++i)
    found.append(nb::make_tuple(kPhaseNames[i], times[i].count, times[i].seconds, times[i].busy, bytes[i]));
  return found;
}

// Copies the listed rows, because other threads may change the array meanwhile; all rows if none are listed.
std::vector<int32_t> rows_of(const std::optional<IntVector>& listed, int64_t rows) {
  if (!listed) {
    std::vector<int32_t> every(static_cast<size_t>(rows));
    std::iota(every.begin(), every.end(), 0);
    return every;
  }
  if (int64_t(listed->shape(0)) > rows) throw std::invalid_argument("more rows are requested than the step has");
  check_aligned(*listed, sizeof(int32_t));
  return {listed->data(), listed->data() + listed->shape(0)};
}

// Copies the features [rows][width] of a step. The model's own features have the width of its hidden states.
std::vector<float> features_of(const Decoder& d, const std::optional<FloatMatrix>& given, int64_t rows, bool own) {
  if (!given) return {};
  check_aligned(*given, sizeof(float));
  const int64_t width = own ? d.shape().hidden : d.shape().features.width;
  if (int64_t(given->shape(0)) != rows || int64_t(given->shape(1)) != width)
    throw std::invalid_argument("features must have shape [rows, " + std::to_string(width) + "]");
  return {given->data(), given->data() + rows * int64_t(given->shape(1))};
}

// The inputs of a step's rows of images, copied from (given [rows], embeddings [n, width], deepstack of each layer [n, hidden],
// positions [rows, 3] or None, last_seen [rows] or None).
class GivenInputs {
 public:
  GivenInputs(const Decoder& d, const std::optional<nb::tuple>& images, Step& step) {
    if (!images) return;
    if (images->size() != 5) throw nb::type_error("images must be a tuple of five");
    const int64_t rows = step.rows, width = d.shape().features.width > 0 ? d.shape().features.embedding : d.shape().hidden;
    ints((*images)[0], rows, 1, given_);
    step.given = given_.data();
    step.given_count = floats((*images)[1], -1, width, embeddings_);
    step.embeddings = embeddings_.data();
    for (nb::handle one : nb::iter((*images)[2])) {
      floats(one, step.given_count, d.shape().hidden, deepstack_);
      ++step.deepstack_layers;
    }
    step.deepstack = deepstack_.data();
    if (!(*images)[3].is_none()) step.positions = ints((*images)[3], rows, kAxes, positions_);
    if (!(*images)[4].is_none()) step.last_seen = ints((*images)[4], rows, 1, last_seen_);
  }

 private:
  static const int32_t* ints(nb::handle from, int64_t rows, int64_t columns, std::vector<int32_t>& to) {
    IntMatrix values;
    if (!nb::try_cast(from, values)) throw nb::type_error("rows of images need int32 matrices");
    check_aligned(values, sizeof(int32_t));
    if (int64_t(values.shape(0)) != rows || int64_t(values.shape(1)) != columns)
      throw std::invalid_argument("an array of rows must have shape [" + std::to_string(rows) + ", " + std::to_string(columns) + "]");
    to.assign(values.data(), values.data() + values.size());
    return to.data();
  }
  // Appends [rows, width]; rows < 0: any number. Returns the number of rows.
  static int64_t floats(nb::handle from, int64_t rows, int64_t width, std::vector<float>& to) {
    FloatMatrix values;
    if (!nb::try_cast(from, values)) throw nb::type_error("embeddings must be float32 matrices");
    check_aligned(values, sizeof(float));
    if ((rows >= 0 && int64_t(values.shape(0)) != rows) || int64_t(values.shape(1)) != width || int64_t(values.shape(0)) > kMaxStepRows)
      throw std::invalid_argument("embeddings must have shape [rows of images, " + std::to_string(width) + "]");
    to.insert(to.end(), values.data(), values.data() + values.size());
    return int64_t(values.shape(0));
  }

  std::vector<int32_t> given_, positions_, last_seen_;
  std::vector<float> embeddings_, deepstack_;
};

// Returns (sums [rows, hidden], number of experts read).
nb::tuple run_experts(RoutedExperts& r, int64_t layer, FloatMatrix x, IntMatrix experts, FloatMatrix weights) {
  check_aligned(x, sizeof(float));
  check_aligned(experts, sizeof(int32_t));
  check_aligned(weights, sizeof(float));
  const int64_t rows = int64_t(x.shape(0)), used = r.used(layer);
  const auto fits = [rows](const auto& array, int64_t n) { return int64_t(array.shape(0)) == rows && int64_t(array.shape(1)) == n; };
  if (!fits(x, r.hidden()) || !fits(experts, used) || !fits(weights, used))
    throw std::invalid_argument("x must have shape [rows, " + std::to_string(r.hidden()) + "], experts and weights [rows, " +
                                std::to_string(used) + "]");
  Owned<float, Fill::none> out{size_t(rows * r.hidden())};
  int64_t touched;
  {
    nb::gil_scoped_release release;
    touched = r.run(layer, x.data(), experts.data(), weights.data(), rows, out.data.get());
  }
  return nb::make_tuple(out.array(rows, r.hidden()), touched);
}

void check_sampling(const SamplingParams& p) {
  if (!(p.temperature >= 0 && p.temperature <= std::numeric_limits<double>::max() && p.top_p >= 0 && p.min_p >= 0) || p.top_k < 0)
    throw std::invalid_argument("temperature, top_k, top_p and min_p must be at least 0, and temperature finite");
}

void check_drafts(const Decoder& head, const Cache& target, const std::vector<int32_t>& tokens) {
  if (target.head() == nullptr || &target.head()->head() != &head)
    throw std::invalid_argument("the cache does not follow this head; call follow first");
  for (const int32_t token : tokens)
    if (token < 0 || token >= head.shape().vocab)
      throw std::invalid_argument("token id " + std::to_string(token) + " is outside the vocabulary of " + std::to_string(head.shape().vocab));
}

// Returns (tokens, probabilities); see draft_chain. `draw`: temperature, top_k, top_p, min_p, seed, sequence, position; or
// None.
nb::tuple draft(Decoder& d, Cache& target, int32_t last, const std::vector<int32_t>& copied, int64_t max_tokens,
                const std::vector<float>& rates, float min_chance, const std::vector<int32_t>& ends,
                std::optional<std::tuple<double, int64_t, double, double, uint64_t, uint32_t, uint32_t>> draw) {
  check_drafts(d, target, copied);
  check_drafts(d, target, {last});
  DraftRequest request;
  request.last = last;
  request.copied = copied;
  request.max_tokens = max_tokens;
  request.rates = rates;
  request.min_chance = min_chance;
  request.ends = ends;
  if (draw) {
    const auto [temperature, top_k, top_p, min_p, seed, sequence, position] = *draw;
    request.draw = Draw{{temperature, top_k, top_p, min_p}, seed, sequence, position};
    check_sampling(request.draw->params);
  }
  DraftChain chain;
  {
    nb::gil_scoped_release release;
    chain = draft_chain(target, request);
  }
  return nb::make_tuple(chain.tokens, chain.probs);
}

// Returns the logits [vocab] after the token, or None.
nb::object draft_one(Decoder& d, Cache& target, int32_t token, bool first) {
  check_drafts(d, target, {token});
  std::vector<float> logits;
  {
    nb::gil_scoped_release release;
    logits = draft_step(target, token, first);
  }
  return logits.empty() ? nb::none() : nb::object(export_vector(logits.data(), int64_t(logits.size())));
}

// Returns (ids [wanted, top], logits [wanted, outputs], hidden states [layers, hidden rows, hidden], phases, centroids of the
// logits [wanted, used]), with None for what is not requested. Tokens and parents are copied, and caches are kept alive.
nb::tuple forward(Decoder& d, const std::vector<nb::object>& caches, const std::vector<int64_t>& counts,
                  const std::vector<int64_t>& settled, IntVector tokens,
                  IntVector parents, std::optional<IntVector> want, bool logits, int top,
                  const std::vector<int32_t>& hidden_layers, std::optional<IntVector> hidden_rows, bool timings,
                  std::optional<FloatMatrix> features, bool own, const std::vector<nb::object>& adapters,
                  const std::vector<float>& adapter_scales, const std::vector<int64_t>& offsets,
                  const std::optional<nb::tuple>& images) {
  if (top < 1 || top > kMaxTop) throw std::invalid_argument("top must be from 1 to " + std::to_string(kMaxTop));
  Step step;
  for (nb::handle cache : caches) {
    step.caches.emplace_back();
    if (!nb::try_cast(cache, step.caches.back()) || step.caches.back() == nullptr)
      throw nb::type_error("caches must be made by new_cache() and fork()");
  }
  for (nb::handle adapter : adapters) {
    step.adapters.emplace_back();
    if (!adapter.is_none() && (!nb::try_cast(adapter, step.adapters.back()) || step.adapters.back() == nullptr))
      throw nb::type_error("adapters must be made by load_adapter()");
  }
  step.adapter_scales = adapter_scales;
  step.counts = counts;
  step.settled = settled;
  step.settled.resize(settled.empty() ? counts.size() : settled.size());
  step.rows = int64_t(tokens.shape(0));
  if (parents.shape(0) != tokens.shape(0)) throw std::invalid_argument("tokens and parents must have the same length");
  if (step.rows < 1 || step.rows > kMaxStepRows)
    throw std::invalid_argument("a step has from 1 to " + std::to_string(kMaxStepRows) + " rows");
  if (hidden_layers.size() > d.shape().layers.size() + 2) throw std::invalid_argument("a layer is requested twice");
  check_aligned(tokens, sizeof(int32_t));
  check_aligned(parents, sizeof(int32_t));
  const std::vector<int32_t> own_tokens(tokens.data(), tokens.data() + step.rows);
  const std::vector<int32_t> own_parents(parents.data(), parents.data() + step.rows);
  const std::vector<int32_t> own_want = rows_of(want, step.rows);
  step.tokens = own_tokens.data();
  step.parents = own_parents.data();
  step.want = own_want.data();
  step.wanted = int64_t(own_want.size());
  const std::vector<float> own_features = features_of(d, features, step.rows, own);
  step.own_features = own;
  step.offsets = offsets;
  const GivenInputs inputs(d, images, step);
  step.features = features ? own_features.data() : nullptr;
  std::vector<int32_t> own_hidden_rows;
  if (!hidden_layers.empty()) own_hidden_rows = rows_of(hidden_rows, step.rows);
  const int64_t vocab = d.logits(), hidden = d.shape().hidden, layers = int64_t(hidden_layers.size());
  const int64_t used = logits ? d.shape().candidates.used : 0;
  const int64_t kept = int64_t(own_hidden_rows.size()), states = layers * kept * hidden;
  Owned<int32_t> ids{size_t(step.wanted * top)}, centroids{size_t(step.wanted * used)};
  Owned<float, Fill::none> values{size_t(logits ? step.wanted * vocab : 0)}, kept_states{size_t(states)};
  PhaseTimes times{};
  std::array<int64_t, kPhaseKinds> bytes{};
  StepOutputs out;
  out.top = top;
  out.ids = ids.data.get();
  out.logits = logits ? values.data.get() : nullptr;
  out.centroids = used > 0 ? centroids.data.get() : nullptr;
  out.hidden_layers = hidden_layers.data();
  out.layers = layers;
  out.hidden_rows = own_hidden_rows.data();
  out.hidden_wanted = kept;
  out.hidden = kept_states.data.get();
  out.times = timings ? &times : nullptr;
  {
    nb::gil_scoped_release release;
    for (Cache* const cache : step.caches) cache->catch_up();
    d.forward(step, out);
    if (timings) bytes = d.weights().phase_bytes();
    if (!std::all_of(out.hidden, out.hidden + states, [](float x) { return std::isfinite(x); }))
      throw NonFiniteError("the model's hidden states are not finite");
  }
  for (int64_t w = 0; w < step.wanted; ++w)
    if (ids.data[size_t(w * top)] < 0) throw NonFiniteError("the model's logits are not finite");
  return nb::make_tuple(ids.array(step.wanted, top), logits ? values.array(step.wanted, vocab) : nb::none(),
                        layers > 0 ? kept_states.array(layers, kept, hidden) : nb::none(),
                        timings ? nb::object(phase_times(times, bytes)) : nb::none(),
                        used > 0 ? centroids.array(step.wanted, used) : nb::none());
}

// Copies an adapter's changes: (name of the matrix, A [rank, n_in], B [n_out, rank], scale).
std::unique_ptr<Adapter> load_adapter(Decoder& d, const std::vector<std::tuple<std::string, FloatMatrix, FloatMatrix, float>>& changes) {
  for (const auto& [name, a, b, scale] : changes) {
    check_aligned(a, sizeof(float));
    check_aligned(b, sizeof(float));
    if (a.shape(0) != b.shape(1)) throw std::invalid_argument("the ranks of A and B of " + name + " differ");
  }
  nb::gil_scoped_release release;
  auto adapter = std::make_unique<Adapter>(d.weights());
  for (const auto& [name, a, b, scale] : changes)
    adapter->add(name, a.data(), int64_t(a.shape(1)), b.data(), int64_t(b.shape(0)), int64_t(a.shape(0)), scale);
  return adapter;
}

// Returns the image that `write()` makes, uint8 [bytes].
template <typename Write>
nb::object export_image(const Write& write) {
  Image image;
  {
    nb::gil_scoped_release release;
    image = write();
  }
  Owned<uint8_t, Fill::none> bytes{0};
  bytes.data = std::move(image.bytes);
  return bytes.array(image.size);
}

int32_t sample_one(FloatVector logits, double temperature, int64_t top_k, double top_p, double min_p, uint64_t seed,
                   uint32_t sequence, uint32_t position) {
  static thread_local SamplingWorkspace workspace;
  const SamplingParams params{temperature, top_k, top_p, min_p};
  check_sampling(params);
  check_aligned(logits, sizeof(float));
  if (logits.shape(0) > size_t(INT32_MAX)) throw std::invalid_argument("there are more logits than token ids");
  return sample(logits.data(), int64_t(logits.shape(0)), params, seed, sequence, position, workspace);
}

// See lead() in sampling.h; `token` is the sampled one.
double lead_of(FloatVector logits, double temperature, uint64_t seed, uint32_t sequence, uint32_t position, int32_t token) {
  check_sampling(SamplingParams{temperature, 0, 1.0, 0.0});
  check_aligned(logits, sizeof(float));
  if (token < 0 || size_t(token) >= logits.shape(0)) throw std::invalid_argument("the token has no logit");
  return lead(logits.data(), int64_t(logits.shape(0)), temperature, seed, sequence, position, token);
}

// The caller guarantees that the addresses are valid; what the numbers alone show to be wrong is rejected.
void run_at(LinearLayer& l, uintptr_t x, int64_t rows, uintptr_t out) {
  if (rows < 0 || rows > Phases::kMaxItems)
    throw std::invalid_argument("rows is " + std::to_string(rows) + "; it must be from 0 to " +
                                std::to_string(Phases::kMaxItems));
  if (rows == 0) return;
  const uint64_t read = uint64_t(rows * l.matrix().n_in) * sizeof(float);
  const uint64_t written = uint64_t(rows * l.matrix().n_out) * sizeof(float);
  const auto fits = [](uint64_t at, uint64_t size) { return at != 0 && at % alignof(float) == 0 && at <= UINT64_MAX - size; };
  if (!fits(x, read) || !fits(out, written)) throw std::invalid_argument("x and out must be addresses of floats");
  if (x < out + written && out < x + read) throw std::invalid_argument("x and out must not overlap");
  nb::gil_scoped_release release;
  l.run(reinterpret_cast<const float*>(x), rows, reinterpret_cast<float*>(out));
}

}  // namespace

NB_MODULE(_native, m) {
#ifdef NDEBUG
  nb::set_leak_warnings(false);  // objects alive at interpreter exit are the script's business
#endif
  m.doc() = "Native core of ipex_lookahead: decoder, KV cache, quantizers, sampler.";
  nb::exception<BusyError>(m, "BusyError", PyExc_RuntimeError);
  nb::exception<MissingWeightError>(m, "MissingWeightError", PyExc_RuntimeError);
  nb::exception<NonFiniteError>(m, "NonFiniteError", PyExc_RuntimeError);
  m.def("known_isas", &known_isas);
  m.def("available_isas", &available_isas);
  m.def("amx_state", &amx_state);
  m.def("weight_formats", &weight_formats);
  m.def("rope_tables", &rope_tables, "rope"_a, "positions"_a);
  m.def("chosen_isa", [](const std::string& name) { return std::string(kernels_for(name)->name); }, "name"_a = "");
  m.def("most_search_lanes", &most_search_lanes);
  m.def("quantize", &quantize_matrix, "format"_a, "values"_a, "kind"_a, "importance"_a, "searched"_a, "size"_a, "numbers"_a,
        "whole"_a, "tries"_a, "step_limit"_a, "code_of"_a, "largest"_a, "codes"_a.noconvert(),
        "scales"_a.none().noconvert(), "minimums"_a.none().noconvert(), "threads"_a, "lanes"_a = 0);
  m.def("prepack", &prepack_tiles, "format"_a, "n_out"_a, "n_in"_a, "group"_a, "codes"_a, "scales"_a.none().noconvert(),
        "minimums"_a.none().noconvert(), "threads"_a);
  m.def("unpack", &unpack_tiles, "format"_a, "n_out"_a, "n_in"_a, "group"_a, "codes"_a.noconvert(),
        "scales"_a.none().noconvert(), "minimums"_a.none().noconvert(), "steps"_a.none().noconvert(), "threads"_a);
  m.def("sample", &sample_one, "logits"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "seed"_a, "sequence"_a,
        "position"_a);
  m.def("lead", &lead_of, "logits"_a, "temperature"_a, "seed"_a, "sequence"_a, "position"_a, "token"_a);
  m.def(
      "read_bandwidth",
      [](int64_t bytes, int threads, const std::string& isa) {
        nb::gil_scoped_release release;
        return read_bandwidth(bytes, threads, isa);
      },
      "bytes"_a, "threads"_a, "isa"_a = "");
  m.def(
      "integer_peak",
      [](int threads, const std::string& isa) {
        nb::gil_scoped_release release;
        return integer_peak(threads, isa);
      },
      "threads"_a, "isa"_a = "");

  nb::class_<LinearPool>(m, "LinearPool")
      .def(
          "__init__",
          [](LinearPool* self, int threads, const std::string& isa) { new (self) LinearPool(threads, isa); },
          "threads"_a, "isa"_a = "")
      .def_prop_ro("isa", &LinearPool::isa)
      .def_prop_ro("threads", &LinearPool::threads)
      .def_prop_ro("weight_bytes", &LinearPool::weight_bytes);

  nb::class_<LinearLayer>(m, "LinearLayer")
      .def(
          "__init__",
          [](LinearLayer* self, std::shared_ptr<LinearPool> pool, const std::string& format, int64_t n_out, int64_t n_in,
             int group, AnyMatrix codes, std::optional<HalfMatrix> scales, std::optional<HalfMatrix> minimums,
             std::optional<FloatVector> bias) {
            const PlainMatrix plain = plain_of(format, n_out, n_in, group, codes, scales, minimums);
            const float* b = vector_of(bias, n_out, "the bias");
            if (!pool) throw nb::type_error("pool must be a LinearPool");
            nb::gil_scoped_release release;
            new (self) LinearLayer(std::move(pool), plain, b);
          },
          "pool"_a, "format"_a, "n_out"_a, "n_in"_a, "group"_a, "codes"_a, "scales"_a.none().noconvert(),
          "minimums"_a.none().noconvert(), "bias"_a.none())
      .def_prop_ro("n_in", [](const LinearLayer& l) { return l.matrix().n_in; })
      .def_prop_ro("n_out", [](const LinearLayer& l) { return l.matrix().n_out; })
      .def("export",
           [](LinearLayer& l) {
             return export_matrix(l.matrix(), [&](auto... streams) { l.pool().plain(l.matrix(), streams...); });
           })
      .def(
          "into",
          [](LinearLayer& l, FloatMatrix x, OutMatrix out) {
            check_linear(l, x);
            check_aligned(out, sizeof(float));
            if (out.shape(0) != x.shape(0) || int64_t(out.shape(1)) != l.matrix().n_out)
              throw std::invalid_argument("out must have shape [rows, n_out]");
            nb::gil_scoped_release release;
            l.run(x.data(), int64_t(x.shape(0)), out.data());
          },
          "x"_a, "out"_a.noconvert())  // noconvert: a conversion would write to a copy
      .def("run_at", &run_at, "x"_a, "rows"_a, "out"_a)  // wrapping arrays costs more than a small product
      .def("__call__", [](LinearLayer& l, FloatMatrix x) {
        check_linear(l, x);
        const int64_t rows = int64_t(x.shape(0)), n_out = l.matrix().n_out;
        Owned<float> out{size_t(rows * n_out)};
        {
          nb::gil_scoped_release release;
          l.run(x.data(), rows, out.data.get());
        }
        return out.array(rows, n_out);
      });

  nb::class_<SuffixTrie>(m, "SuffixTrie")
      .def(nb::init<int>(), "depth"_a)
      .def("__len__", &SuffixTrie::size)
      .def("extend",
           [](SuffixTrie& s, IntVector text) {
             check_ids(text);
             s.cut();
             for (size_t i = 0; i < text.shape(0); ++i) s.extend(text.data()[i]);
           },
           "text"_a.noconvert())
      .def("extend_all",
           [](SuffixTrie& s, IntVector tokens, IntVector lengths) {
             check_ids(tokens);
             size_t sum = 0;
             for (size_t i = 0; i < lengths.shape(0); ++i) {
               if (lengths.data()[i] < 0) throw std::invalid_argument("a text has a negative length");
               sum += size_t(lengths.data()[i]);
             }
             if (sum != tokens.shape(0)) throw std::invalid_argument("the lengths of the texts do not sum to the tokens");
             nb::gil_scoped_release release;  // so no other thread may use this trie until the call returns
             const int32_t* next = tokens.data();
             for (size_t i = 0; i < lengths.shape(0); ++i) {
               s.cut();
               for (const int32_t* end = next + lengths.data()[i]; next < end; ++next) s.extend(*next);
             }
           },
           "tokens"_a.noconvert(), "lengths"_a.noconvert())
      .def("reserve",
           [](SuffixTrie& s, size_t nodes) {
             if (nodes > size_t(1) << 26) throw std::invalid_argument("room for more than 67,108,864 nodes");
             s.reserve(nodes);
           },
           "nodes"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("followers", [](const SuffixTrie& s, IntVector context) {
        check_ids(context);
        int32_t at = 0;
        for (size_t i = 0; at >= 0 && i < context.shape(0); ++i) at = s.child(at, context.data()[i]);
        std::vector<std::pair<int32_t, uint32_t>> found;
        if (at < 0) return found;
        for (int32_t c = s.node(at).first_child; c >= 0; c = s.node(c).next)
          found.emplace_back(s.node(c).token, s.node(c).count);
        return found;
      }, "context"_a.noconvert());

  nb::class_<Predictor>(m, "Predictor")
      .def(nb::init<int, int, const SuffixTrie*>(), "depth"_a, "width"_a, "store"_a.none(), nb::keep_alive<1, 4>())
      .def("begin",
           [](Predictor& p, IntVector prompt) {
             check_ids(prompt);
             p.begin(prompt.data(), int64_t(prompt.shape(0)));
           },
           "prompt"_a.noconvert())
      .def("propose",
           [](Predictor& p, int64_t budget) {
             DraftTree t = p.propose(budget);
             return nb::make_tuple(t.tokens, t.parents, t.probs, t.sources);
           },
           "budget"_a)
      .def(
          "observe",
          [](Predictor& p, const std::vector<int32_t>& tokens, const std::vector<int32_t>& parents,
             const std::vector<int32_t>& emitted, std::optional<IntMatrix> top) {
            check_ids(tokens.data(), tokens.size());
            check_ids(emitted.data(), emitted.size());
            if (!top) return p.commit(emitted.data(), int64_t(emitted.size()));
            if (top->shape(0) != tokens.size() + 1 || parents.size() != tokens.size())
              throw std::invalid_argument("top must have a row for the last token and for each draft token");
            check_aligned(*top, sizeof(int32_t));
            p.commit_step(tokens.data(), parents.data(), int64_t(tokens.size()), emitted.data(),
                          int64_t(emitted.size()), top->data(), int64_t(top->shape(1)));
          },
          "tokens"_a, "parents"_a, "emitted"_a, "top"_a.none());

  nb::class_<Cache>(m, "Cache")
      .def_prop_ro("length", &Cache::length)
      .def(
          "keep", [](Cache& c, const std::vector<int64_t>& rows) { c.keep(rows.data(), int64_t(rows.size())); }, "rows"_a)
      .def("crop", &Cache::crop, "length"_a)
      .def("fork", &Cache::fork)
      .def("checkpoint", &Cache::checkpoint)
      .def("follow", &Cache::follow, "head"_a)
      .def("allow_tokens", [](Cache& c, IntVector tokens) {
        check_aligned(tokens, sizeof(int32_t));
        c.allow_tokens(tokens.data(), int64_t(tokens.shape(0)));
      }, "tokens"_a.noconvert())
      .def("end_draft", &end_draft)
      .def("fill_blank", &Cache::fill_blank, "length"_a)
      .def("export_pages", [](Cache& c, int64_t first, int64_t last) { return export_image([&] { return c.export_pages(first, last); }); },
           "first"_a, "last"_a)
      .def("export_state", [](Cache& c) { return export_image([&] { return c.export_state(); }); })
      .def("import_pages", [](Cache& c, int64_t first, int64_t last, ByteVector data) {
        nb::gil_scoped_release release;
        c.import_pages(first, last, data.data(), int64_t(data.shape(0)));
      }, "first"_a, "last"_a, "data"_a.noconvert())
      .def("import_state", [](Cache& c, int64_t length, ByteVector data) {
        nb::gil_scoped_release release;
        c.import_state(length, data.data(), int64_t(data.shape(0)));
      }, "length"_a, "data"_a.noconvert())
      .def_prop_ro("bytes", &Cache::bytes)
      .def_prop_ro("state_bytes", &Cache::state_bytes);

  nb::class_<Adapter>(m, "Adapter").def_prop_ro("bytes", &Adapter::bytes);

  nb::class_<Decoder> decoder(m, "Decoder");
  decoder
      .def(
          "__init__",
          [](Decoder* self, nb::object spec, int threads, const std::string& isa, const std::string& kv_format,
             const Decoder* target) {
            const auto format = KvFormat(one_of("kv_format", kv_format, {"fp16", "int8"}));
            new (self) Decoder(shape_of(spec, format), threads, isa, target);
          },
          "spec"_a, "threads"_a, "isa"_a, "kv_format"_a, "target"_a.none() = nb::none(), nb::keep_alive<1, 6>())
      .def(
          "set_order",
          [](Decoder& d, const std::string& name, IntVector order) {
            check_aligned(order, sizeof(int32_t));
            d.weights().set_order(name, order.data(), int64_t(order.shape(0)));
          },
          "name"_a, "order"_a.noconvert())
      .def("missing", [](const Decoder& d) { return d.weights().missing(); }, nb::call_guard<nb::gil_scoped_release>())
      .def("new_cache", &Decoder::new_cache)
      .def("experts_touched", &Decoder::experts_touched, nb::call_guard<nb::gil_scoped_release>())
      .def("forward", &forward, "caches"_a, "counts"_a, "settled"_a, "tokens"_a.noconvert(), "parents"_a.noconvert(),
           "want"_a.none().noconvert(), "logits"_a, "top"_a, "hidden_layers"_a, "hidden_rows"_a.none().noconvert(),
           "timings"_a, "features"_a.none() = nb::none(), "own_features"_a = false,
           "adapters"_a = std::vector<nb::object>(), "adapter_scales"_a = std::vector<float>(),
           "offsets"_a = std::vector<int64_t>(), "images"_a.none() = nb::none())
      .def("load_adapter", &load_adapter, "changes"_a, nb::keep_alive<0, 1>())
      .def("draft", &draft, "cache"_a, "last"_a, "copied"_a, "max_tokens"_a, "rates"_a, "min_chance"_a, "ends"_a, "draw"_a.none())
      .def("draft_step", &draft_one, "cache"_a, "token"_a, "first"_a)
      .def("set_outputs",
           [](Decoder& d, IntVector tokens) {
             check_aligned(tokens, sizeof(int32_t));
             d.set_outputs(tokens.data(), int64_t(tokens.shape(0)));
           },
           "tokens"_a.noconvert())
      .def(
          "set_whole_head",
          [](Decoder& d, const std::string& format, int64_t n_out, int64_t n_in, int group, AnyMatrix codes,
             std::optional<HalfMatrix> scales, std::optional<HalfMatrix> minimums) {
            const PlainMatrix plain = plain_of(format, n_out, n_in, group, codes, scales, minimums);
            nb::gil_scoped_release release;
            d.set_whole_head(plain);
          },
          "format"_a, "n_out"_a, "n_in"_a, "group"_a, "codes"_a, "scales"_a.none().noconvert(), "minimums"_a.none().noconvert())
      .def(
          "share_whole_head",
          [](Decoder& d, const Decoder& other, const std::string& theirs) {
            nb::gil_scoped_release release;
            d.share_whole_head(other.weights().matrix(theirs));
          },
          "other"_a, "theirs"_a, nb::keep_alive<1, 2>())
      .def(
          "share_matrix",
          [](Decoder& d, const std::string& name, const Decoder& other, const std::string& theirs) {
            nb::gil_scoped_release release;
            d.weights().share_matrix(name, other.weights().matrix(theirs));
          },
          "name"_a, "other"_a, "theirs"_a, nb::keep_alive<1, 3>())
      .def_prop_ro("cache_bytes_per_position", [](const Decoder& d) { return d.cache_shape().bytes_per_position(); })
      .def_prop_ro("cache_state_bytes", [](const Decoder& d) { return d.cache_shape().state_bytes(); });
  def_weights(decoder);

  nb::class_<RoutedExperts> routed(m, "RoutedExperts");
  routed
      .def(
          "__init__",
          [](RoutedExperts* self, const std::vector<nb::object>& layers, int hidden, int threads, const std::string& isa) {
            new (self) RoutedExperts(mixtures_of(layers), hidden, threads, isa);
          },
          "layers"_a, "hidden"_a, "threads"_a, "isa"_a = "")
      .def("__call__", &run_experts, "layer"_a, "x"_a, "experts"_a.noconvert(), "weights"_a);
  def_weights(routed);
  def_encoders(m);
}
