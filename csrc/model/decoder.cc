// Construction of a decoder and checks of a step; the step itself is in decoder_step.cc.
#include "model/decoder.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <stdexcept>

#include "errors.h"
#include "model/head_state.h"
#include "runtime/dispatch.h"

namespace ipex_lookahead {
namespace {

// Claims the caches of a step.
class StepClaim {
 public:
  explicit StepClaim(const std::vector<Cache*>& caches) : caches_(caches) {
    for (; taken_ < caches_.size(); ++taken_)
      if (!caches_[taken_]->claimable().try_claim()) {
        release();
        throw BusyError("a cache of the step is in use by another thread");
      }
  }
  ~StepClaim() { release(); }
  StepClaim(const StepClaim&) = delete;
  StepClaim& operator=(const StepClaim&) = delete;

 private:
  void release() {
    while (taken_ > 0) caches_[--taken_]->claimable().release();
  }

  const std::vector<Cache*>& caches_;
  size_t taken_ = 0;
};

}  // namespace

Decoder::Decoder(const DecoderShape& shape, int threads, const std::string& isa, const Decoder* target)
    : shape_(checked(shape, target == nullptr ? nullptr : &target->shape_)),
      target_(target),
      cache_shape_(target == nullptr ? CacheShape{{}, shape.max_context} : target->cache_shape_),
      kernels_(kernels_for(isa)),
      threads_(checked_threads(threads)),
      weights_(threads),
      embedding_(shape.tied ? lm_head_ : own_embedding_),
      per_layer_(shape_.per_layer, shape.hidden, weights_),
      features_(shape_.features, shape.hidden, weights_),
      candidates_(shape_.candidates, shape.outputs),
      rows_(*kernels_, threads, shape.hidden),
      phases_(threads),
      attention_(shape_.ropes, shape.max_context, threads) {
  const int64_t embedding = features_.any() ? shape.features.embedding : shape.hidden;
  if (!shape.tied) weights_.declare("embedding", own_embedding_, shape.vocab, embedding, {Phase::embedding, 0});
  rows_.position_offset = target == nullptr ? 0 : 1;
  blocks_.reserve(shape.layers.size());
  for (size_t i = 0; i < shape.layers.size(); ++i) {
    const std::string block = "layers." + std::to_string(i) + ".";
    const auto& [mixer, feed_forward, per_layer, second_mixer, parallel, scaled] = shape.layers[i];
    const std::string scale = scaled ? block + "output_scale" : "", none;  // of the last operation
    blocks_.emplace_back();
    const bool deferred = parallel || second_mixer;
    if (mixer) blocks_.back().push_back(operation_of(*mixer, block + "mixer", {deferred, nullptr, feed_forward || per_layer ? none : scale}));
    if (second_mixer) blocks_.back().push_back(operation_of(*second_mixer, block + "second_mixer", {false, blocks_.back().front().get(), none}));
    const Operation* const mixer_operation = parallel ? blocks_.back().front().get() : nullptr;
    if (feed_forward) blocks_.back().push_back(operation_of(*feed_forward, block + "feed_forward", {false, mixer_operation, per_layer ? none : scale}));
    if (per_layer) blocks_.back().push_back(operation_of(*per_layer, block + "per_layer", {false, nullptr, scale}));
  }
  for (Block& block : blocks_)
    for (auto& operation : block) operation->place(cache_shape_);
  final_norm_.declare("final_norm", shape.final_norm, weights_);
  if (shape.embedding_norm != 0) ones_.assign(size_t(padded(shape.hidden, kLanes)), 1.0f);
  candidates_.declare(shape.hidden, weights_);
  if (shape.tied)
    weights_.declare("embedding", lm_head_, shape.vocab, shape.hidden, {Phase::head});
  else
    weights_.declare_linear("head", lm_head_, shape.outputs, shape.hidden, {Phase::head});
}

// To add a kind of operation, add a line here.
std::unique_ptr<Operation> Decoder::operation_of(const BranchShape& shape, const std::string& name, const Placed& placed) {
  const auto* attends = std::get_if<AttentionShape>(&shape.operation);
  const std::vector<Block>& blocks = target_ == nullptr ? blocks_ : target_->blocks_;
  const Operation* const shared =
      attends == nullptr || attends->has_keys() ? nullptr : blocks[size_t(attends->shared)].front().get();
  const OperationParts of{shape,          name, shape_.hidden, shape_.kv_format, weights_, cache_shape_, placed.defer_residual_add,
                          placed.parallel_mixer, placed.output_scale, shared, target_ != nullptr};
  if (std::holds_alternative<AttentionShape>(shape.operation)) return std::make_unique<Attention>(of, attention_);
  if (std::holds_alternative<LatentAttentionShape>(shape.operation)) return std::make_unique<LatentAttention>(of, attention_, latent_);
  if (std::holds_alternative<RecurrenceShape>(shape.operation)) return std::make_unique<LinearRecurrence>(of, recurrent_);
  if (std::holds_alternative<ShortConvShape>(shape.operation)) return std::make_unique<ShortConv>(of, recurrent_);
  if (std::holds_alternative<PerLayerGateShape>(shape.operation))
    return std::make_unique<PerLayerGate>(of, per_layer_, per_layer_gated_);
  if (std::holds_alternative<ExpertsShape>(shape.operation)) return std::make_unique<Experts>(of, gated_, experts_);
  return std::make_unique<Mlp>(of, gated_);
}

void Decoder::set_outputs(const int32_t* tokens, int64_t count) {
  if (count != shape_.outputs) throw std::invalid_argument("the lm_head has " + std::to_string(shape_.outputs) + " outputs, not " + std::to_string(count));
  for (int64_t i = 0; i < count; ++i)
    if (tokens[i] < 0 || tokens[i] >= shape_.vocab)
      throw std::invalid_argument("outputs stand for tokens of the vocabulary; " + std::to_string(tokens[i]) + " is none");
  Crew crew(threads_);
  outputs_.assign(tokens, tokens + count);
  is_output_.assign(size_t(shape_.vocab), false);
  for (const int32_t token : outputs_) is_output_[size_t(token)] = true;
}

void Decoder::set_whole_head(const PlainMatrix& whole) { share_whole_head(weights_.hold(whole)); }

void Decoder::share_whole_head(const Matrix& whole) {
  if (whole.n_out != shape_.vocab || whole.n_in != shape_.hidden || whole.format != lm_head_.format)
    throw std::invalid_argument("the whole lm_head has another size or format than its part");
  Crew crew(threads_);
  whole_head_ = whole;
}

int64_t Decoder::experts_touched() const {
  Crew crew(threads_);  // another thread may be in a step
  return experts_.touched;
}

void Decoder::check(const Step& step, const StepOutputs& out) const {
  const auto fail = [](const std::string& what) { throw std::invalid_argument(what); };
  if (step.caches.size() != step.counts.size() || step.settled.size() != step.counts.size() || step.caches.empty()) fail("a step needs one count a cache, and one of settled rows");
  if (step.rows < 1 || step.rows > kMaxStepRows || step.wanted < 0 || step.wanted > step.rows)
    fail("a step has from 1 to " + std::to_string(kMaxStepRows) + " rows, and not more wanted rows than rows");
  if (!step.adapters.empty() && (step.adapters.size() != step.counts.size() || step.adapter_scales.size() != step.counts.size()))
    fail("a step needs one adapter and one scale a cache, or none at all");
  for (const Adapter* const adapter : step.adapters)
    if (adapter != nullptr && !adapter->belongs_to(weights_)) fail("an adapter belongs to another model");
  if (step.own_features && step.features == nullptr) fail("own_features is set, but features are not given");
  if ((step.features != nullptr) != features_.any())
    fail(features_.any() ? "a drafting head needs the target's features for its rows" : "only drafting heads take features");
  check_given(step);
  int64_t first = 0;
  for (size_t i = 0; i < step.caches.size(); ++i) {
    const Cache* cache = step.caches[i];
    if (cache == nullptr) fail("a cache is None");
    if (!(cache->shape() == cache_shape_)) fail("a cache of another model was given");
    if (target_ != nullptr && cache->length() == 0) fail("the head's target cache is empty");
    if (const HeadState* const head = cache->head(); head != nullptr && target_ == nullptr) {
      const FeatureInputsShape& features = head->head().shape().features;
      const int64_t layers = int64_t(features.layers.size());
      if (layers * shape_.hidden != features.width || layers > int64_t(kMaxFeatureLayers) ||
          *std::max_element(features.layers.begin(), features.layers.end()) > int64_t(blocks_.size()))
        fail("the cache follows a drafting head of another model");
    }
    if (std::find(step.caches.begin(), step.caches.begin() + std::ptrdiff_t(i), cache) !=
        step.caches.begin() + std::ptrdiff_t(i))
      fail("the same cache was given twice in one step");
    if (step.counts[i] < 1 || step.counts[i] > step.rows - first) fail("counts must be positive and sum to the rows");
    const int64_t settled = step.settled[i];
    if (settled < kHold || settled > step.counts[i]) fail("settled rows must be among a sequence's rows");
    for (int64_t r = 0; r < step.counts[i]; ++r) {
      const int32_t token = step.tokens[first + r], parent = step.parents[first + r];
      if (token < 0 || token >= shape_.vocab)
        fail("token id " + std::to_string(token) + " is outside the vocabulary of " + std::to_string(shape_.vocab));
      if (parent < -1 || parent >= r)
        fail("row " + std::to_string(r) + " has parent " + std::to_string(parent) + "; parents are -1 or an earlier row");
      if (target_ != nullptr && parent != -1) fail("rows of a head on its target's keys must have parent -1");
      if (settled > 0 && (r < settled ? parent != r - 1 : parent < settled - 1))
        fail("row " + std::to_string(r) + " has parent " + std::to_string(parent) + ", which does not follow the settled rows");
    }
    first += step.counts[i];
  }
  if (first != step.rows) fail("counts must be positive and sum to the rows");
  const auto ascending = [](const int32_t* values, int64_t n, int64_t least, int64_t end) {
    for (int64_t i = 0; i < n; least = values[i++] + 1)
      if (values[i] < least || values[i] >= end) return false;
    return true;
  };
  if (!ascending(step.want, step.wanted, 0, step.rows) || !ascending(out.hidden_rows, out.hidden_wanted, 0, step.rows))
    fail("wanted rows must be ascending rows of the step");
  if (out.tile_count > 0 && (!has_whole_head() || step.wanted != 1)) fail("tiles are those of the whole lm_head, of one row");
  for (int64_t i = 0; i < out.tile_count; ++i)
    if (out.tiles[i] < 0 || out.tiles[i] >= whole_head_.tiles()) fail("the lm_head has no such tile");
  if (!ascending(out.hidden_layers, out.layers, kFinalNorm, int64_t(blocks_.size()) + 1))
    fail("hidden states are those of 0 to " + std::to_string(blocks_.size()) + " layers, ascending, or -1, after the final norm");
}

void Decoder::check_given(const Step& step) const {
  const auto fail = [](const std::string& what) { throw std::invalid_argument(what); };
  if (!step.offsets.empty() && step.offsets.size() != step.counts.size()) fail("offsets must be one for each sequence");
  if (step.deepstack_layers < 0 || step.deepstack_layers > int64_t(blocks_.size()))
    fail("deepstack features are those of up to " + std::to_string(blocks_.size()) + " layers");
  if (step.given_count > 0 && step.given == nullptr) fail("embeddings are given for no rows");
  for (int64_t r = 0; step.given != nullptr && r < step.rows; ++r)
    if (step.given[r] < -1 || step.given[r] >= step.given_count) fail("row " + std::to_string(r) + " has no given embedding");
  for (int64_t i = 0; step.positions != nullptr && i < step.rows * kAxes; ++i)
    if (step.positions[i] >= shape_.max_context || (step.positions[i] < 0) != (step.positions[i / kAxes * kAxes] < 0))
      fail("a RoPE position is " + std::to_string(step.positions[i]) + "; it must be below " + std::to_string(shape_.max_context));
}

// Sets the rows' RoPE positions and the ends of their spans; returns the largest position.
int64_t Decoder::plan_given(const Step& step) {
  int64_t furthest = 0;
  rows_.has_positions = rows_.has_spans = false;  // position() below returns the slots
  if (std::any_of(step.offsets.begin(), step.offsets.end(), [](int64_t one) { return one != 0; }) || step.positions != nullptr) {
    ensure(rows_.positions, step.rows * kAxes);
    for (int64_t r = 0; r < step.rows; ++r)
      for (int axis = 0; axis < kAxes; ++axis) {
        const int64_t own = step.positions == nullptr ? -1 : step.positions[r * kAxes + axis];
        const int64_t offset = step.offsets.empty() ? 0 : step.offsets[size_t(rows_.sequence_of[size_t(r)])];
        const int64_t position = own >= 0 ? own : rows_.position(r) + offset;
        if (position < 0 || position >= shape_.max_context)
          throw std::invalid_argument("a RoPE position is " + std::to_string(position) + "; it must be from 0 to below " +
                                      std::to_string(shape_.max_context));
        rows_.positions[size_t(r * kAxes + axis)] = int32_t(position);
        furthest = std::max(furthest, position);
      }
    rows_.has_positions = true;
  }
  if (step.last_seen == nullptr) return furthest;
  ensure(rows_.seen, step.rows);
  for (const Sequence& s : rows_.sequences)
    for (int64_t r = s.first_row; r < s.first_row + s.rows; ++r) {
      const int32_t own = rows_.depth[size_t(r)], last = step.last_seen[r] < 0 ? own : step.last_seen[r];
      if (last < own || last >= s.rows || (last > own && !s.chain))
        throw std::invalid_argument("row " + std::to_string(r) + " sees up to row " + std::to_string(last) +
                                    "; it must see itself, and only rows of a chain see later ones");
      rows_.seen[size_t(r)] = last;
    }
  rows_.has_spans = true;
  return furthest;
}

void Decoder::plan(const Step& step) {
  rows_.count = step.rows;
  want_ = step.want;
  rows_.sequences.clear();
  ensure(rows_.depth, step.rows);
  ensure(rows_.sequence_of, step.rows);
  int64_t first = 0, paths = 0, furthest = 0;
  for (size_t i = 0; i < step.caches.size(); ++i) {
    const int64_t rows = step.counts[i], length = step.caches[i]->length() - rows_.position_offset;
    bool chain = true;
    int64_t deepest = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const int32_t parent = step.parents[first + r];
      const int32_t depth = parent < 0 ? 0 : rows_.depth[size_t(first + parent)] + 1;
      rows_.depth[size_t(first + r)] = depth;
      rows_.sequence_of[size_t(first + r)] = int32_t(i);
      deepest = std::max<int64_t>(deepest, depth);
      chain = chain && (parent == r - 1 || target_ != nullptr);  // rows see none of the step's rows
    }
    const int64_t last = length + deepest + rows_.position_offset;
    if (last >= shape_.max_context)
      throw std::out_of_range("position " + std::to_string(last) + " is beyond the context of " +
                              std::to_string(shape_.max_context) + " tokens");
    furthest = std::max(furthest, last);
    rows_.sequences.push_back({step.caches[i], first, rows, length, step.settled[i], chain, paths, (length + deepest) / kBlock + 1});
    if (!chain) {
      if (rows > kMaxTree)
        throw std::invalid_argument("a tree has " + std::to_string(rows) + " rows; it may have " +
                                    std::to_string(kMaxTree));
      ensure(rows_.ancestors, paths + rows * rows);
      for (int64_t r = 0; r < rows; ++r) {
        int64_t at = r;
        for (int32_t d = rows_.depth[size_t(first + r)]; d >= 0; --d, at = step.parents[first + at])
          rows_.ancestors[size_t(paths + r * rows + d)] = int32_t(at);
      }
      paths += rows * rows;
    }
    first += rows;
  }
  furthest = std::max(furthest, plan_given(step));
  attention_.plan(rows_, furthest + 1);
  recurrent_.plan(rows_);
  plan_adapters(step);
}

// Lists the rows of each adapter.
void Decoder::plan_adapters(const Step& step) {
  rows_.adapters.clear();
  for (size_t i = 0; i < step.adapters.size(); ++i) {
    const Adapter* const adapter = step.adapters[i];
    if (adapter == nullptr) continue;
    auto found = std::find_if(rows_.adapters.begin(), rows_.adapters.end(), [&](const AdapterRows& one) { return one.adapter == adapter; });
    if (found == rows_.adapters.end()) found = rows_.adapters.insert(found, {adapter, {}});
    const auto [first, rows] = std::pair(rows_.sequences[i].first_row, rows_.sequences[i].rows);
    if (!found->runs.empty() && found->runs.back().first + found->runs.back().second == first)
      found->runs.back().second += rows;
    else
      found->runs.emplace_back(first, rows);
    ensure(rows_.adapter_scales, step.rows);
    std::fill_n(rows_.adapter_scales.begin() + first, rows, step.adapter_scales[i]);
  }
}

void Decoder::forward(const Step& step, const StepOutputs& out) {
  Crew crew(threads_);
  weights_.check_complete();
  check(step, out);
  std::optional<StepClaim> claim;
  if (!step.claimed) claim.emplace(step.caches);
  plan(step);
  reserve(step, out);
  followed_ = false;
  const bool keeps = target_ == nullptr;  // false: the caches belong to the target
  for (size_t i = 0; keeps && i < step.caches.size(); ++i) {
    step.caches[i]->prepare(step.counts[i], step.settled[i]);
    if (HeadState* const head = step.caches[i]->head(); head != nullptr) {
      head->step(step, rows_, rows_.sequences[i]);
      followed_ = true;
    }
  }
  const auto job = [&](int thread) { run(thread, step, out); };
  crew.run(std::cref(job));  // std::function stores a reference without allocating
  int64_t first = 0;
  for (size_t i = 0; keeps && i < step.caches.size(); first += step.counts[i], ++i)
    step.caches[i]->stepped(step.parents + first, step.counts[i], step.settled[i]);
}

}  // namespace ipex_lookahead
