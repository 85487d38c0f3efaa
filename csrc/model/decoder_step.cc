// One step of the decoder: the phases that threads go through together.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/decoder.h"
#include "model/head_state.h"

namespace ipex_lookahead {
namespace {

constexpr size_t kPhasesALayer = 40;  // upper bound

}  // namespace

void StepRows::reserve_inputs(int64_t inputs, bool ordered) {
  if (count > kPreparedByAll) shared.reserve(count, inputs);
  for (ThreadMemory& one : own) {
    one.rows.reserve(std::min(count, kPreparedByAll), inputs);
    if (ordered) ensure(one.unordered, padded(inputs, kGroup));
  }
}

void Decoder::reserve(const Step& step, const StepOutputs& out) {
  const int64_t rows = step.rows, top = out.top;
  experts_.touched = 0;
  // Scratch grows with the number of rows, of attention partials, and of inputs with an order.
  if (rows > reserved_rows_ || rows * attention_.partial_blocks > reserved_partials_ ||
      weights_.orders() > reserved_orders_) {
    ensure(rows_.hidden, rows * rows_.stride);
    ensure(rows_.branch, rows * rows_.stride);
    rows_.reserve_scratch(rows_.stride);
    per_layer_.reserve(rows_);
    features_.reserve(rows_);
    for (Block& block : blocks_)
      for (auto& operation : block) operation->reserve(rows_);
    if (weights_.orders() > reserved_orders_) reserved_rows_ = reserved_partials_ = 0;  // inputs with an order need more memory
    reserved_orders_ = weights_.orders();
    reserved_rows_ = std::max(reserved_rows_, rows);
    reserved_partials_ = std::max(reserved_partials_, rows * attention_.partial_blocks);
  }
  if (!rows_.adapters.empty()) {
    reserve_adapters(rows_);
    rows_.reserve_scratch(2 * rows * kGroup);  // for the MLP's gate and up
  }
  candidates_.reserve(step.wanted);
  // About 16 thousand logits per piece fit the cache; no piece is larger than a thread's share.
  const int64_t tiles = (logits() + kLanes - 1) / kLanes;
  const int64_t piece = std::max<int64_t>(1, 1024 / std::max<int64_t>(step.wanted, 1));
  head_items_ = std::max<int64_t>((tiles + piece - 1) / piece, std::min(tiles, kPieces * threads_));
  if (candidates_.any()) head_items_ = candidates_.used();  // the outputs of one centroid
  ensure(top_values_, head_items_ * step.wanted * top);
  ensure(top_ids_, head_items_ * step.wanted * top);
  ensure(top_counts_, head_items_ * step.wanted);
  ensure(merge_at_, head_items_);
  rows_.reserve_scratch(step.wanted * (tiles / head_items_ + 1) * kLanes);
  phases_.begin(kPhasesALayer * blocks_.size() + size_t(out.layers + step.deepstack_layers) + 16 + kMaxFeatureLayers);
}

void Decoder::run(int thread, const Step& step, const StepOutputs& out) {
  ThreadContext context(kernels_, phases_, thread, threads_, rows_.own[size_t(thread)], rows_.shared,
                        thread == 0 ? out.times : nullptr);
  embed(context, step);
  per_layer_.run(context, rows_, step.tokens);
  features_.run(context, rows_, step.features, step.own_features);
  int32_t layer = 0;
  keep_hidden(context, out, layer);
  keep_features(context, layer);
  for (Block& block : blocks_) {
    for (auto& operation : block) operation->run(context, rows_);
    add_deepstack(context, step, layer);
    keep_hidden(context, out, ++layer);
    keep_features(context, layer);
  }
  keep_hidden(context, out, kFinalNorm);
  keep_features(context, kFinalNorm);
  if (step.wanted > 0) head(context, step.wanted, out);
}

// Copies the current hidden states if those after `layer` layers are requested.
void Decoder::keep_hidden(ThreadContext& context, const StepOutputs& out, int32_t layer) {
  const int32_t* const last = out.hidden_layers + out.layers;
  const int32_t* const found = std::find(out.hidden_layers, last, layer);
  if (found == last) return;
  float* const states = out.hidden + (found - out.hidden_layers) * out.hidden_wanted * shape_.hidden;
  context.split(out.hidden_wanted, 1, [&](int64_t begin, int64_t end) {
    for (int64_t w = begin; w < end; ++w) {
      const float* row = rows_.row(out.hidden_rows[w]);
      if (layer == kFinalNorm) {
        final_norm_(*kernels_, row, context.scratch());  // scratch is padded to a multiple of 16, as norms write
        row = context.scratch();
      }
      std::memcpy(states + w * shape_.hidden, row, size_t(shape_.hidden) * sizeof(float));
    }
  });
}

// Copies hidden states that are features of a drafting head, for the sequences that have one.
void Decoder::keep_features(ThreadContext& context, int32_t layer) {
  if (!followed_) return;
  const auto layers = [](const Sequence& one) -> const std::vector<int32_t>& {
    static const std::vector<int32_t> none;
    const HeadState* const head = one.cache->head();
    return head == nullptr ? none : head->head().shape().features.layers;
  };
  const auto wanted = [&](const Sequence& one) { return std::count(layers(one).begin(), layers(one).end(), layer) > 0; };
  if (std::none_of(rows_.sequences.begin(), rows_.sequences.end(), wanted)) return;
  context.split(rows_.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const Sequence& sequence = rows_.sequence(r);
      if (!wanted(sequence)) continue;
      const float* row = rows_.row(r);
      if (layer == kFinalNorm) {
        final_norm_(*kernels_, row, context.scratch());
        row = context.scratch();
      }
      float* to = sequence.cache->head()->features(r - sequence.first_row);
      for (const int32_t one : layers(sequence)) {  // a small target's feature layers may coincide
        if (one == layer) std::memcpy(to, row, size_t(shape_.hidden) * sizeof(float));
        to += shape_.hidden;
      }
    }
  });
}

void Decoder::embed(ThreadContext& context, const Step& step) {
  context.enter(Phase::embedding);
  context.split(rows_.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* const row = features_.embedding(rows_, r);
      if (step.given != nullptr && step.given[r] >= 0) {
        std::copy_n(step.embeddings + step.given[r] * embedding_.n_in, embedding_.n_in, row);
        std::fill(row + embedding_.n_in, row + padded(embedding_.n_in, kLanes), 0.0f);
        continue;
      }
      kernels_->dequantize_row(embedding_, step.tokens[r], row);
      if (shape_.embedding_multiplier != 1) kernels_->scale(row, embedding_.n_in, shape_.embedding_multiplier);
      if (ones_.empty()) continue;
      const Norm norm{ones_.data(), nullptr, shape_.hidden, shape_.embedding_norm};
      norm(*kernels_, row, context.scratch());
      std::memcpy(row, context.scratch(), size_t(shape_.hidden) * sizeof(float));
    }
  });
}

// Adds further features of images to their rows, after layer `layer`.
void Decoder::add_deepstack(ThreadContext& context, const Step& step, int32_t layer) {
  if (layer >= step.deepstack_layers) return;
  const float* const features = step.deepstack + layer * step.given_count * rows_.width;
  context.split(rows_.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      if (step.given[r] >= 0) kernels_->add_scaled(features + step.given[r] * rows_.width, rows_.width, 1, rows_.row(r));
  });
}

void Decoder::head(ThreadContext& context, int64_t wanted, const StepOutputs& out) {
  context.enter(Phase::head);
  auto x = context.inputs(wanted, shape_.hidden, !is_float(lm_head_.format) || candidates_.integers(), nullptr,
                       [this](int64_t row, float* normed) { final_norm_(*kernels_, rows_.row(want_[row]), normed); });
  if (candidates_.any()) candidates_.choose(context, *kernels_, wanted, x);
  context.each(head_items_, [&](int64_t item) {
    if (candidates_.any()) return candidates_and_top(context, x.get(), item, wanted, out);
    head_and_top(context, x.get(), item, wanted, out);
  });
  if (out.tile_count > 0)
    context.each(out.tile_count, [&](int64_t i) {
      float* const logits = out.tile_logits + i * kLanes;
      kernels_->linear(whole_head_, x.get(), out.tiles[i], out.tiles[i] + 1, logits, kLanes, false);
      if (shape_.logit_multiplier != 1 || shape_.logit_softcap > 0)
        kernels_->cap(logits, kLanes, shape_.logit_multiplier, shape_.logit_softcap);
    });
  if (context.thread() == 0) merge_tops(wanted, out.top, out.ids);
}

// Without requested logits, the full logits never exist at once: each piece goes from the linear layer into the piece's top k.
void Decoder::head_and_top(ThreadContext& context, const Rows& x, int64_t item, int64_t wanted, const StepOutputs& out) {
  const auto part = part_of(lm_head_.tiles(), head_items_, item);
  const int64_t first = part.first * kLanes, n = std::min<int64_t>(part.second * kLanes, shape_.outputs) - first;
  const int64_t stride = out.logits != nullptr ? shape_.outputs : (part.second - part.first) * kLanes;
  float* const logits = out.logits != nullptr ? out.logits + first : context.scratch();
  kernels_->linear(lm_head_, x, part.first, part.second, logits, stride, false);
  for (int64_t w = 0; w < wanted; ++w) finish_logits(logits + w * stride, n, first, item * wanted + w, out.top);
}

// The same for each row's item-th centroid.
void Decoder::candidates_and_top(ThreadContext& context, const Rows& x, int64_t item, int64_t wanted, const StepOutputs& out) {
  const int64_t each = candidates_.each();
  for (int64_t w = 0; w < wanted; ++w) {
    const int32_t* const chosen = candidates_.of(w);
    const int64_t number = chosen == nullptr ? 0 : chosen[item], first = number * each, at = item * wanted + w;
    float* const logits = out.logits != nullptr ? out.logits + w * candidates_.count() + item * each : context.scratch();
    kernels_->linear(lm_head_, rows_of(x, w, 1), first / kLanes, (first + each) / kLanes, logits, each, false);
    finish_logits(logits, each, first, at, out.top);
    if (chosen == nullptr) top_counts_[size_t(at)] = kNotFinite;
    if (out.centroids != nullptr) out.centroids[w * candidates_.used() + item] = int32_t(number);
  }
}

void Decoder::finish_logits(float* logits, int64_t n, int64_t first, int64_t at, int top) {
  if (shape_.logit_multiplier != 1 || shape_.logit_softcap > 0)
    kernels_->cap(logits, n, shape_.logit_multiplier, shape_.logit_softcap);
  top_counts_[size_t(at)] = kernels_->top_k(logits, n, first, top, top_values_.data() + at * top, top_ids_.data() + at * top);
}

// Pieces are ascending ranges of outputs, so an earlier piece wins a tie. An id is -1 where a logit is not finite.
void Decoder::merge_tops(int64_t wanted, int top, int32_t* ids) {
  for (int64_t w = 0; w < wanted; ++w) {
    bool finite = true;
    for (int64_t item = 0; item < head_items_; ++item) finite = finite && top_counts_[size_t(item * wanted + w)] != kNotFinite;
    if (!finite) {
      std::fill_n(ids + w * top, top, -1);
      continue;
    }
    std::fill(merge_at_.begin(), merge_at_.begin() + head_items_, 0);
    for (int i = 0; i < top; ++i) {
      int64_t best = -1;
      float best_value = -INFINITY;
      for (int64_t item = 0; item < head_items_; ++item) {
        const int next = merge_at_[size_t(item)];
        const int64_t at = item * wanted + w;
        if (next < top_counts_[size_t(at)] && top_values_[size_t(at * top + next)] > best_value) {
          best = item;
          best_value = top_values_[size_t(at * top + next)];
        }
      }
      ids[w * top + i] = best < 0 ? -1 : top_ids_[size_t((best * wanted + w) * top + merge_at_[size_t(best)])];
      if (best >= 0) ++merge_at_[size_t(best)];
    }
  }
}

}  // namespace ipex_lookahead
