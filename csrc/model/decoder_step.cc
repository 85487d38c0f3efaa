// One step of the decoder: its plan, and the phases that threads go through together.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "model/decoder.h"

namespace ipex_lookahead {
namespace {

constexpr size_t kPhasesALayer = 16;  // at most

}  // namespace

void Decoder::reserve(const Step& step, const StepOutputs& out) {
  const int64_t rows = step.rows, top = out.top, head = kPartialHead + cache_shape_.head_dim16();
  ensure(hidden_, rows * hidden_stride_);
  ensure(qkv_, rows * qkv_stride_);
  ensure(branch_, rows * hidden_stride_);
  reserve_experts(rows);
  experts_touched_ = 0;
  ensure(partials_, rows * heads_.heads * partial_blocks_ * head);
  // About 16 thousand logits a piece stay in the cache, and no piece is larger than a thread's share.
  const int64_t tiles = lm_head_.tiles();
  const int64_t piece = std::max<int64_t>(1, 1024 / std::max<int64_t>(step.wanted, 1));
  head_items_ = std::max<int64_t>((tiles + piece - 1) / piece, std::min(tiles, kPieces * threads_));
  ensure(top_values_, head_items_ * step.wanted * top);
  ensure(top_ids_, head_items_ * step.wanted * top);
  ensure(top_counts_, head_items_ * step.wanted);
  ensure(merge_at_, head_items_);
  if (rows > kPreparedByAll) shared_rows_.reserve(rows, widest_);
  const int64_t outputs = step.wanted * (tiles / head_items_ + 1) * kLanes;
  for (ThreadMemory& own : own_) {
    own.rows.reserve(std::min(rows, kPreparedByAll), widest_);
    ensure(own.scratch, std::max(attention_floats(rows), outputs));
  }
  phases_.begin(kPhasesALayer * blocks_.size() + size_t(out.layers) + 4);
}

void Decoder::run(int thread, const Step& step, const StepOutputs& out) {
  ThreadContext context(kernels_, phases_, thread, threads_, own_[size_t(thread)], shared_rows_,
            thread == 0 ? out.times : nullptr);
  embed(context, step);
  int32_t layer = 0;
  keep_hidden(context, out, layer);
  for (const Block& block : blocks_) {
    attention(context, block);
    mlp(context, block);
    keep_hidden(context, out, ++layer);
  }
  keep_hidden(context, out, kFinalNorm);
  if (step.wanted > 0) head(context, step.wanted, out);
}

// Copies the hidden states as they are now, where those of that many layers are wanted.
void Decoder::keep_hidden(ThreadContext& context, const StepOutputs& out, int32_t layer) {
  const int32_t* const last = out.hidden_layers + out.layers;
  const int32_t* const found = std::find(out.hidden_layers, last, layer);
  if (found == last) return;
  float* const states = out.hidden + (found - out.hidden_layers) * out.hidden_wanted * shape_.hidden;
  context.split(out.hidden_wanted, 1, [&](int64_t begin, int64_t end) {
    for (int64_t w = begin; w < end; ++w) {
      const float* row = hidden(out.hidden_rows[w]);
      if (layer == kFinalNorm) {
        norm(row, final_norm_, context.scratch());  // which is longer: norms fill up to a multiple of 16
        row = context.scratch();
      }
      std::memcpy(states + w * shape_.hidden, row, size_t(shape_.hidden) * sizeof(float));
    }
  });
}

void Decoder::embed(ThreadContext& context, const Step& step) {
  context.enter(Phase::embedding);
  context.split(rows_, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      kernels_->dequantize_row(embedding_, step.tokens[r], hidden(r));
      if (shape_.embedding_multiplier != 1) kernels_->scale(hidden(r), shape_.hidden, shape_.embedding_multiplier);
    }
  });
}

// A row as a linear layer reads it: normed, where there is a norm.
void Decoder::norm(const float* x, const float* weight, float* out) const {
  if (weight == nullptr)
    std::memcpy(out, x, size_t(shape_.hidden) * sizeof(float));
  else
    kernels_->rms_norm(x, weight, shape_.hidden, shape_.rms_epsilon, out);
}

void Decoder::head(ThreadContext& context, int64_t wanted, const StepOutputs& out) {
  context.enter(Phase::head);
  auto x = context.inputs(wanted, shape_.hidden, !is_float(lm_head_.format), nullptr,
                       [this](int64_t row, float* normed) { norm(hidden(want_[row]), final_norm_, normed); });
  context.each(head_items_, [&](int64_t item) { head_and_top(context, x.get(), item, wanted, out); });
  if (context.thread() == 0) merge_tops(wanted, out.top, out.ids);
}

// Logits nobody asked for never exist all at once: each piece of the outputs goes from the linear layer into the piece's
// top and is forgotten.
void Decoder::head_and_top(ThreadContext& context, const Rows& x, int64_t item, int64_t wanted, const StepOutputs& out) {
  const int top = out.top;
  const auto part = part_of(lm_head_.tiles(), head_items_, item);
  const int64_t first = part.first * kLanes, n = std::min<int64_t>(part.second * kLanes, shape_.vocab) - first;
  const int64_t stride = out.logits != nullptr ? shape_.vocab : (part.second - part.first) * kLanes;
  float* const logits = out.logits != nullptr ? out.logits + first : context.scratch();
  kernels_->linear(lm_head_, x, part.first, part.second, logits, stride, false);
  for (int64_t w = 0; w < wanted; ++w) {
    if (shape_.logit_multiplier != 1 || shape_.logit_softcap > 0)
      kernels_->cap(logits + w * stride, n, shape_.logit_multiplier, shape_.logit_softcap);
    const int64_t at = item * wanted + w;
    top_counts_[size_t(at)] = kernels_->top_k(logits + w * stride, n, first, top, top_values_.data() + at * top,
                                              top_ids_.data() + at * top);
  }
}

// Pieces are ascending ranges of outputs, so an earlier piece wins a tie. Ids are -1 where a logit is not finite: the
// caller is told.
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
