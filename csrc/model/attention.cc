#include "model/attention.h"

#include <algorithm>
#include <cstring>

#include "model/adapters.h"

namespace ipex_lookahead {
namespace {

// Minimum number of heads per piece for rope and stores; splitting fewer costs more than it saves.
constexpr int64_t kMinHeads = 4;

}  // namespace

Attention::Attention(const OperationParts& of, AttentionScratch& scratch)
    : Operation(of), shape_(std::get<AttentionShape>(of.shape.operation)),
      inputs_((shape_.with_embedding ? 2 : 1) * of.hidden),
      scratch_(scratch),
      cached_(cached(of)) {
  const int64_t q = shape_.q_width(), kv = shape_.kv_width();
  of.weights.declare_linear(of.name + ".q", q_, q, inputs_, {Phase::qkv, 1, false, &order_});
  ones_.fill(1.0f);
  if (shape_.has_keys()) of.weights.declare_linear(of.name + ".k", k_, kv, inputs_, {Phase::qkv});
  if (shape_.has_values()) of.weights.declare_linear(of.name + ".v", v_, kv, inputs_, {Phase::qkv});
  if (shape_.gates) of.weights.declare_linear(of.name + ".gate", gate_, shape_.gates, inputs_, {Phase::qkv});
  q_norm_.declare(of.name + ".q_norm", shape_.q_norm, of.weights);
  k_norm_.declare(of.name + ".k_norm", shape_.k_norm, of.weights);
  if (shape_.sinks) of.weights.declare(of.name + ".sinks", sinks_, shape_.heads);
  of.weights.declare_linear(of.name + ".o", o_, of.hidden, q, {Phase::output, 1, false, &o_order_});
  of.weights.take_adapters({&q_, &k_, &v_, &gate_}, &order_);
  of.weights.take_adapters({&o_}, &o_order_);
  k_column_ = padded(q, kLanes);
  v_column_ = k_column_ + padded(kv, kLanes);
  gate_column_ = v_column_ + padded(kv, kLanes);
  stride_ = gate_column_ + padded(shape_.gates, kLanes);
}

CachedAttention Attention::cached(const OperationParts& of) const {
  const int64_t own = of.committed && shape_.window > 0 ? 1 : 0;  // the window counts the row's own position
  const HeadsShape heads{shape_.heads, shape_.kv_heads, shape_.head_dim, shape_.head_dim, shape_.window - own, shape_.softcap, shape_.spans};
  if (of.shared != nullptr) return {heads, static_cast<const Attention&>(*of.shared).cached_, scratch_};
  return {heads, of.kv_format, of.cache, scratch_};
}

void Attention::reserve(StepRows& rows) {
  rows.reserve_inputs(inputs_, order_ != nullptr);
  rows.reserve_inputs(shape_.q_width(), o_order_ != nullptr);
  rows.reserve_scratch(std::max({k_column_, rows.stride, padded(shape_.heads, kLanes)}));
  ensure(scratch_.qkv, rows.count * stride_);
  cached_.reserve(rows);
}

void Attention::run(ThreadContext& context, StepRows& rows) {
  const bool integer = !is_float(q_.format) || (shape_.has_keys() && !is_float(k_.format)) ||
                       (shape_.has_values() && !is_float(v_.format)) || (shape_.gates && !is_float(gate_.format));
  const int64_t heads =
      (shape_.gates ? 2 : 1) * shape_.heads + (int(shape_.has_keys()) + int(shape_.has_values())) * int64_t(shape_.kv_heads);
  const bool whole_norm = std::max(q_norm_.width, k_norm_.width) > shape_.head_dim;
  // If heads are whole tiles, the thread that computes a head of q, k or v also norms, rotates and stores it.
  const bool fused = whole_heads() && !whole_norm;
  context.enter(Phase::qkv);
  auto x = context.inputs(rows.count, inputs_, integer, order_,
                          [&](int64_t row, float* out) { make_input(context, rows, row, out); });
  Projections of_input(context, rows, {&q_, &k_, &v_, &gate_}, [&]() -> const Rows& { return x.get(); });
  context.split(whole_heads() ? heads : joined().tiles(), 1, [&](int64_t begin, int64_t end) {
    qkv(rows, x.get(), begin, end, of_input);
    if (fused) finish_heads(rows, begin, end);
  });
  context.enter(Phase::heads);
  if (whole_norm) context.each(rows.count, [&](int64_t row) { norm_whole(context, rows, row); });
  if (!fused) context.split(heads, kMinHeads, [&](int64_t begin, int64_t end) { finish_heads(rows, begin, end); });
  cached_.run(context, rows, scratch_.qkv.data(), stride_);
  context.enter(Phase::output);
  auto merged = context.inputs(rows.count, shape_.q_width(), !is_float(o_.format), o_order_,
                               [&](int64_t row, float* out) { merge_heads(context, rows, row, out); });
  Projections of_heads(context, rows, {&o_}, [&]() -> const Rows& { return merged.get(); });
  add_to_hidden(context, rows, [&](int64_t begin, int64_t end, float* out, bool add) {
    rows.kernels.linear(o_, merged.get(), begin, end, out, rows.stride, add);
    of_heads.add(o_, begin, end, out, rows.stride);
  });
}

// Writes a row as q, k and v read it.
void Attention::make_input(ThreadContext& context, StepRows& rows, int64_t row, float* out) const {
  if (!shape_.with_embedding) return input(rows, row, out);
  const size_t bytes = size_t(rows.width) * sizeof(float);
  input(rows, row, context.scratch());  // norms write whole vectors
  std::memcpy(out, rows.embeddings.data() + row * rows.stride, bytes);
  std::memcpy(out + rows.width, context.scratch(), bytes);
}

// Applies norms over the whole width of q and k to a row.
void Attention::norm_whole(ThreadContext& context, const StepRows& rows, int64_t row) const {
  const auto norm_part = [&](const Norm& norm, int64_t column) {
    if (norm.width <= shape_.head_dim) return;
    float* x = scratch_.qkv.data() + row * stride_ + column;
    std::fill(x + norm.width, x + padded(norm.width, kLanes), 0.0f);  // a layer with another stride may have written there
    norm(rows.kernels, x, context.scratch());
    std::memcpy(x, context.scratch(), size_t(norm.width) * sizeof(float));
  };
  norm_part(q_norm_, 0);
  norm_part(k_norm_, k_column_);
}

// Writes a row as o reads it.
void Attention::merge_heads(ThreadContext& context, const StepRows& rows, int64_t row, float* out) const {
  for (int h = 0; h < shape_.heads; ++h)
    cached_.result(rows, row, h, sinks_ == nullptr ? nullptr : sinks_ + h, context.scratch(), out + h * shape_.head_dim);
  if (shape_.gates == 0) return;
  const float* const gates = scratch_.qkv.data() + row * stride_ + gate_column_;
  if (!shape_.gates_heads()) return rows.kernels.gate(gates, shape_.q_width(), shape_.gate_kind, out);
  float* const factors = context.scratch();
  std::fill_n(factors, shape_.heads, 1.0f);
  rows.kernels.gate(gates, shape_.heads, shape_.gate_kind, factors);
  for (int h = 0; h < shape_.heads; ++h) rows.kernels.scale(out + h * shape_.head_dim, shape_.head_dim, factors[h]);
}

// Computes pieces [begin, end) of the concatenated q, k and v: heads if they are whole tiles, else tiles.
void Attention::qkv(const StepRows& rows, const Rows& x, int64_t begin, int64_t end, Projections& projections) const {
  if (!whole_heads()) return joined().run(rows.kernels, x, begin, end, scratch_.qkv.data(), stride_, &projections);
  const JoinedLinears parts = joined();
  const int64_t tiles = shape_.head_dim / kLanes;
  for (int64_t i = begin; i < end; ++i) {
    const Head head = head_of(i);
    const auto& [matrix, column] = parts.parts[size_t(head.part)];
    int64_t from = head.number * tiles, to = from + tiles;
    if (head.part == Part::gate && shape_.gates_heads()) {  // a tile has the gates of 16 heads
      if (head.number % kLanes != 0) continue;
      from = head.number / kLanes;
      to = from + 1;
    }
    float* const out = scratch_.qkv.data() + column + from * kLanes;
    rows.kernels.linear(*matrix, x, from, to, out, stride_, false);
    projections.add(*matrix, from, to, out, stride_);
  }
}

JoinedLinears Attention::joined() const {
  return {{{{&q_, 0},
            {shape_.has_keys() ? &k_ : nullptr, k_column_},
            {shape_.has_values() ? &v_ : nullptr, v_column_},
            {shape_.gates ? &gate_ : nullptr, gate_column_}}}};
}

// Order of heads for the split among threads: the query heads of a key head, the key head, its value head, the gates of its
// query heads, then the next group. So a thread's share is about the heads that it attends with.
Attention::Head Attention::head_of(int64_t index) const {
  const int group = shape_.heads / shape_.kv_heads, kept = int(shape_.has_keys()) + int(shape_.has_values());
  const int each = (shape_.gates ? 2 : 1) * group + kept, kv = int(index / each), i = int(index % each);
  if (i < group) return {Part::q, kv * group + i};
  if (i < group + kept) return {i == group ? Part::k : Part::v, kv};
  return {Part::gate, kv * group + i - group - kept};
}

// Norms, rotates and stores heads [begin, end) of every row.
void Attention::finish_heads(const StepRows& rows, int64_t begin, int64_t end) const {
  const int d = shape_.head_dim;
  for (int64_t i = begin; i < end; ++i)
    for (int64_t row = 0; row < rows.count; ++row) {
      const Head head = head_of(i);
      if (head.part == Part::gate) continue;
      const Turn turn = scratch_.turn(shape_.rope, rows, row);
      float* base = scratch_.qkv.data() + row * stride_ + head.number * d;
      if (head.part == Part::q) {
        norm_and_rotate(rows, q_norm_, turn, shape_.query_scale * turn.query, base);
        cached_.prepare_query(rows, base);
        continue;
      }
      if (head.part == Part::k) {
        if (shape_.value_of_key) {
          std::memcpy(base + v_column_, base + k_column_, size_t(d) * sizeof(float));
          finish_value(rows, row, head.number, base + v_column_);
        }
        norm_and_rotate(rows, k_norm_, turn, 1.0f, base + k_column_);
        cached_.store_key(rows, row, head.number, base + k_column_);
      } else {
        finish_value(rows, row, head.number, base + v_column_);
      }
    }
}

void Attention::finish_value(const StepRows& rows, int64_t row, int head, float* value) const {
  if (shape_.value_norm != 0) norm_head(rows, {ones_.data(), nullptr, shape_.head_dim, shape_.value_norm}, value);
  cached_.store_value(rows, row, head, value);
}

// Applies norm, rope and `scale` to a head of q or k.
void Attention::norm_and_rotate(const StepRows& rows, const Norm& norm, const Turn& turn, float scale, float* x) const {
  const int d = shape_.head_dim;
  const int half = shape_.rope < 0 ? 0 : int(scratch_.rope(shape_.rope).half());
  const bool normed = norm.width == d;
  if (normed && !shape_.norm_after_rope) norm_head(rows, norm, x);
  if (half > 0 && scratch_.rope(shape_.rope).interleaved) {  // converted to half layout: products of q and k are the same
    float second[kMaxHeadDim / 2];
    for (int i = 0; i < half; ++i) {
      second[i] = x[2 * i + 1];
      x[i] = x[2 * i];
    }
    std::copy_n(second, half, x + half);
  }
  if (!normed || !shape_.norm_after_rope) return rows.kernels.rope(x, turn.cos, turn.sin, half, d, scale);
  rows.kernels.rope(x, turn.cos, turn.sin, half, d, 1.0f);
  norm_head(rows, norm, x);
  if (scale != 1) rows.kernels.scale(x, d, scale);
}

// Copies the head, because the norm reads and writes whole vectors of 16, beyond the head's end.
void Attention::norm_head(const StepRows& rows, const Norm& norm, float* x) const {
  alignas(64) float in[kMaxHeadDim], out[kMaxHeadDim];
  const int d = shape_.head_dim;
  std::memcpy(in, x, size_t(d) * sizeof(float));
  std::fill(in + d, in + padded(d, kLanes), 0.0f);
  norm(rows.kernels, in, out);
  std::memcpy(x, out, size_t(d) * sizeof(float));
}

}  // namespace ipex_lookahead
