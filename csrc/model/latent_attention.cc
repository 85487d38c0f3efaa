#include "model/latent_attention.h"

#include <algorithm>
#include <cstring>

#include "model/adapters.h"

namespace ipex_lookahead {
namespace {

// Maximum number of rows per pass through a head's matrix.
constexpr int64_t kRowsOfHead = 64;

}  // namespace

LatentAttention::LatentAttention(const OperationParts& of, AttentionScratch& scratch, LatentScratch& latent)
    : Operation(of),
      shape_(std::get<LatentAttentionShape>(of.shape.operation)),
      scratch_(scratch),
      latent_(latent),
      cached_({shape_.heads, 1, shape_.key_dim(), shape_.latent, 0, 0}, of.kv_format, of.cache, scratch),
      k_b_(size_t(shape_.heads)),
      v_b_(size_t(shape_.heads)) {
  DecoderWeights& weights = of.weights;
  const int64_t queries = shape_.q_width(), rank = shape_.q_norm.width;
  if (rank > 0) {
    weights.declare_linear(of.name + ".q_a", q_a_, rank, of.hidden, {Phase::qkv});
    q_norm_.declare(of.name + ".q_norm", shape_.q_norm, weights);
  }
  weights.declare_linear(of.name + ".kv_a", kv_a_, shape_.key_dim(), of.hidden, {Phase::qkv, 1, false, &order_});
  kv_norm_.declare(of.name + ".kv_norm", shape_.kv_norm, weights);
  weights.declare_linear(of.name + ".q", q_, queries, rank > 0 ? rank : of.hidden,
                         {Phase::qkv, 1, false, rank > 0 ? &q_order_ : nullptr});
  if (shape_.gate) weights.declare_linear(of.name + ".gate", gate_, shape_.heads, of.hidden, {Phase::qkv});
  for (int h = 0; h < shape_.heads; ++h)
    weights.declare_linear(of.name + ".k_b." + std::to_string(h), k_b_[size_t(h)], shape_.latent, shape_.passed, {Phase::heads});
  for (int h = 0; h < shape_.heads; ++h)
    weights.declare_linear(of.name + ".v_b." + std::to_string(h), v_b_[size_t(h)], shape_.value_dim, shape_.latent, {Phase::output});
  weights.declare_linear(of.name + ".o", o_, of.hidden, shape_.values(), {Phase::output, 1, false, &o_order_});
  weights.take_adapters({rank > 0 ? &q_a_ : &q_, &kv_a_, &gate_}, &order_);
  if (rank > 0) weights.take_adapters({&q_}, &q_order_);
  weights.take_adapters({&o_}, &o_order_);
  kv_column_ = padded(rank > 0 ? rank : queries, kLanes);
  gate_column_ = kv_column_ + padded(shape_.key_dim(), kLanes);
  raw_width_ = gate_column_ + (shape_.gate ? padded(shape_.heads, kLanes) : 0);
  query_width_ = padded(queries, kLanes);
}

void LatentAttention::reserve(StepRows& rows) {
  const int64_t most = std::min(rows.count, kRowsOfHead), latent = padded(shape_.latent, kLanes);
  rows.reserve_inputs(rows.width, order_ != nullptr);
  rows.reserve_inputs(shape_.values(), o_order_ != nullptr);
  if (q_norm_.width > 0) rows.reserve_inputs(q_norm_.width, q_order_ != nullptr);
  for (ThreadMemory& own : rows.own) own.gathered.reserve(most, std::max<int64_t>(shape_.passed, shape_.latent));
  rows.reserve_scratch(std::max({rows.stride, most * std::max(latent, padded(shape_.value_dim, kLanes)) + cached_.floats(), 2 * latent + shape_.key_dim()}));
  ensure(latent_.raw, rows.count * raw_width_);
  ensure(latent_.absorbed, rows.count * shape_.heads * shape_.key_dim());
  ensure(latent_.results, rows.count * shape_.values());
  if (q_norm_.width > 0) ensure(latent_.queries, rows.count * query_width_);
  cached_.reserve(rows);
}

// Splits heads, and the rows of each if there are many: work(head, first row, rows).
template <typename Work>
void LatentAttention::each_head(ThreadContext& context, const StepRows& rows, int64_t heads, const Work& work) const {
  const int64_t parts = (rows.count + kRowsOfHead - 1) / kRowsOfHead;
  context.split(heads * parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % parts * kRowsOfHead;
      work(i / parts, first, std::min(kRowsOfHead, rows.count - first));
    }
  });
}

void LatentAttention::run(ThreadContext& context, StepRows& rows) {
  project(context, rows);
  context.enter(Phase::heads);
  each_head(context, rows, shape_.heads + 1, [&](int64_t head, int64_t first, int64_t count) {
    if (head < shape_.heads) return absorb(context, rows, head, first, count);
    for (int64_t row = first; row < first + count; ++row) keep_latent(context, rows, row);
  });
  cached_.run(context, rows, latent_.absorbed.data(), int64_t(shape_.heads) * shape_.key_dim());
  context.enter(Phase::output);
  each_head(context, rows, shape_.heads,
            [&](int64_t head, int64_t first, int64_t count) { expand(context, rows, head, first, count); });
  auto x = context.inputs(rows.count, shape_.values(), !is_float(o_.format), o_order_, [&](int64_t row, float* out) {
    std::copy_n(latent_.results.data() + row * shape_.values(), shape_.values(), out);
  });
  Projections projections(context, rows, {&o_}, [&]() -> const Rows& { return x.get(); });
  add_to_hidden(context, rows, [&](int64_t begin, int64_t end, float* out, bool add) {
    rows.kernels.linear(o_, x.get(), begin, end, out, rows.stride, add);
    projections.add(o_, begin, end, out, rows.stride);
  });
}

// Computes the queries, and the latents and keys that all heads share.
void LatentAttention::project(ThreadContext& context, StepRows& rows) {
  const bool low_rank = q_norm_.width > 0;
  const Matrix& first = low_rank ? q_a_ : q_;
  context.enter(Phase::qkv);
  const bool integer = !is_float(first.format) || !is_float(kv_a_.format) || (shape_.gate && !is_float(gate_.format));
  auto x = context.inputs(rows.count, rows.width, integer, order_,
                          [&](int64_t row, float* out) { input(rows, row, out); });
  const JoinedLinears joined{{{{&first, 0}, {&kv_a_, kv_column_}, {shape_.gate ? &gate_ : nullptr, gate_column_}}}};
  Projections of_input(context, rows, {&first, &kv_a_, &gate_}, [&]() -> const Rows& { return x.get(); });
  context.split(joined.tiles(), 1, [&](int64_t begin, int64_t end) {
    joined.run(rows.kernels, x.get(), begin, end, latent_.raw.data(), raw_width_, &of_input);
  });
  if (!low_rank) return;
  auto normed = context.inputs(rows.count, q_norm_.width, !is_float(q_.format), q_order_, [&](int64_t row, float* out) {
    q_norm_(rows.kernels, latent_.raw.data() + row * raw_width_, out);
  });
  Projections of_rank(context, rows, {&q_}, [&]() -> const Rows& { return normed.get(); });
  context.split_tiles(q_.tiles(), [&](int64_t begin, int64_t end) {
    float* const out = latent_.queries.data() + begin * kLanes;
    rows.kernels.linear(q_, normed.get(), begin, end, out, query_width_, false);
    of_rank.add(q_, begin, end, out, query_width_);
  });
}

// Applies rope to the rotated part of a query or key and writes it to the first values of `head`.
void LatentAttention::rotate(const StepRows& rows, int64_t row, const float* in, float* head, bool query) const {
  const bool interleaved = scratch_.rope(shape_.rope).interleaved;  // converted to half layout: products are the same
  const int64_t half = shape_.rotated / 2;
  for (int64_t i = 0; i < shape_.rotated; ++i) head[interleaved ? i % 2 * half + i / 2 : i] = in[i];
  const Turn turn = scratch_.turn(shape_.rope, rows, row);
  rows.kernels.rope(head, turn.cos, turn.sin, int(scratch_.rope(shape_.rope).half()), int(shape_.key_dim()),
                    query ? shape_.query_scale * turn.query : 1.0f);
}

void LatentAttention::keep_latent(ThreadContext& context, const StepRows& rows, int64_t row) const {
  const float* const in = latent_.raw.data() + row * raw_width_ + kv_column_;
  const int64_t whole = padded(shape_.latent, kLanes);  // norms read and write whole vectors of 16
  float *const raw = context.scratch(), *const latent = raw + whole, *const key = latent + whole;
  std::copy_n(in, shape_.latent, raw);
  std::fill(raw + shape_.latent, raw + whole, 0.0f);
  kv_norm_(rows.kernels, raw, latent);
  std::copy_n(latent, shape_.latent, key + shape_.rotated);
  rotate(rows, row, in + shape_.latent, key, false);
  cached_.store_key(rows, row, 0, key);
  cached_.store_value(rows, row, 0, latent);
}

// Multiplies `count` rows, each written by make(row, out), with a head's matrix: [count][outputs padded to 16].
template <typename Make>
void LatentAttention::of_head(StepRows& rows, const ThreadContext& context, const Matrix& matrix, int64_t count, float* out,
                              const Make& make) const {
  const Rows x = rows.own[size_t(context.thread())].gathered.view(count, matrix.n_in);
  for (int64_t r = 0; r < count; ++r) {
    float* const row = x.values_of(r);
    make(r, row);
    std::fill(row + matrix.n_in, row + x.stride, 0.0f);
    if (!is_float(matrix.format)) rows.kernels.quantize_row(x, r);
  }
  rows.kernels.linear(matrix, x, 0, matrix.tiles(), out, matrix.tiles() * kLanes, false);
}

// Maps the rows' queries of a head to the latent space.
void LatentAttention::absorb(ThreadContext& context, StepRows& rows, int64_t head, int64_t first, int64_t count) const {
  const bool low_rank = q_norm_.width > 0;
  const float* const queries = (low_rank ? latent_.queries : latent_.raw).data() + head * shape_.q_dim();
  const int64_t stride = low_rank ? query_width_ : raw_width_, key = shape_.key_dim(), width = padded(shape_.latent, kLanes);
  float* const out = context.scratch();
  of_head(rows, context, k_b_[size_t(head)], count, out, [&](int64_t r, float* to) {
    std::copy_n(queries + (first + r) * stride, shape_.passed, to);
  });
  for (int64_t r = 0; r < count; ++r) {
    float* const query = latent_.absorbed.data() + ((first + r) * shape_.heads + head) * key;
    std::copy_n(out + r * width, shape_.latent, query + shape_.rotated);
    rotate(rows, first + r, queries + (first + r) * stride + shape_.passed, query, true);
    cached_.prepare_query(rows, query);
  }
}

// Maps a head's attention output to its values.
void LatentAttention::expand(ThreadContext& context, StepRows& rows, int64_t head, int64_t first, int64_t count) const {
  const int64_t width = padded(shape_.value_dim, kLanes);
  float *const memory = context.scratch(), *const out = memory + cached_.floats();
  of_head(rows, context, v_b_[size_t(head)], count, out,
          [&](int64_t r, float* to) { cached_.result(rows, first + r, int(head), nullptr, memory, to); });
  for (int64_t r = 0; r < count; ++r) {
    if (shape_.gate) {
      float factor = 1;
      rows.kernels.gate(latent_.raw.data() + (first + r) * raw_width_ + gate_column_ + head, 1, GateKind::sigmoid, &factor);
      rows.kernels.scale(out + r * width, shape_.value_dim, factor);
    }
    std::copy_n(out + r * width, shape_.value_dim, latent_.results.data() + (first + r) * shape_.values() + head * shape_.value_dim);
  }
}

}  // namespace ipex_lookahead
