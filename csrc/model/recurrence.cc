#include "model/recurrence.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace ipex_lookahead {

LinearRecurrence::LinearRecurrence(const OperationParts& of, RecurrentScratch& scratch)
    : Operation(of), shape_(std::get<RecurrenceShape>(of.shape.operation)), scratch_(scratch) {
  DecoderWeights& weights = of.weights;
  const std::string& name = of.name;
  const int64_t hidden = of.hidden;
  const RecurrenceShape& r = shape_;
  const int64_t channels = r.channels(), keys = padded(r.key_dim, kLanes), values = padded(r.value_dim, kLanes);
  weights.declare_linear(name + ".inputs", inputs_, channels, hidden, {Phase::qkv, 1, false, &order_});
  weights.declare_linear(name + ".gate", gate_, r.values(), hidden, {Phase::qkv});
  weights.declare_linear(name + ".steps", steps_, r.heads, hidden, {Phase::qkv});
  if (r.delta) weights.declare_linear(name + ".beta", beta_, r.heads, hidden, {Phase::qkv});
  weights.declare(name + ".convolution", convolution_, r.kernel * channels);
  if (r.convolution_bias) weights.declare(name + ".convolution_bias", convolution_bias_, channels);
  weights.declare(name + ".rate", rate_, r.heads);
  weights.declare(name + ".step_bias", step_bias_, r.heads);
  if (r.skip) weights.declare(name + ".skip", skip_, r.heads);
  norm_.declare(name + ".norm", r.norm, weights);
  weights.declare_linear(name + ".out", out_, hidden, r.values(), {Phase::output, 1, false, &out_order_});

  // First channels of each unit: a delta net has the order q, k, v, Mamba-2 the order x, B, C.
  tiles_ = values / kLanes;
  q_column_ = 0;
  k_column_ = r.groups * keys;
  v_column_ = 2 * r.groups * keys;
  steps_column_ = v_column_ + r.heads * values;
  decay_column_ = steps_column_ + padded(r.heads, kLanes);
  beta_column_ = decay_column_ + padded(r.heads, kLanes);
  mixed_width_ = beta_column_ + padded(r.heads, kLanes);
  const float length = 1 / std::sqrt(float(r.key_dim));
  k_norm_.assign(size_t(keys), length);
  q_norm_.assign(size_t(keys), length * length);
  const int64_t q = r.delta ? 0 : r.values() + r.keys(), k = r.delta ? r.keys() : r.values(), v = r.delta ? 2 * r.keys() : 0;
  for (int g = 0; g < r.groups; ++g) {
    units_.push_back({q + g * r.key_dim, r.key_dim, q_column_ + g * keys, r.delta ? q_norm_.data() : nullptr});
    units_.push_back({k + g * r.key_dim, r.key_dim, k_column_ + g * keys, r.delta ? k_norm_.data() : nullptr});
  }
  for (int h = 0; h < r.heads; ++h) units_.push_back({v + h * r.value_dim, r.value_dim, v_column_ + h * values, nullptr});

  gates_raw_ = channels;
  gate_raw_ = padded(channels + (r.delta ? 2 : 1) * r.heads, kLanes);
  raw_width_ = gate_raw_ + padded(r.values(), kLanes);
  scratch.need(raw_width_, mixed_width_, r.heads * values);
  const RecurrentShape own{0, r.kernel, channels, (r.delta ? 2 : 1) * int64_t(r.heads), r.heads * tiles_, r.key_dim};
  state_ = of.cache.state_index(own);
  number_ = std::get<RecurrentShape>(of.cache.states[state_]).layers++;
}

void LinearRecurrence::reserve(StepRows& rows) {
  taps_.prepare(convolution_, shape_.kernel, shape_.channels());
  rates_.assign(rate_, rate_ + shape_.heads);
  rows.kernels.exponentials(rates_.data(), shape_.heads);
  for (float& rate : rates_) rate = -rate;
  rows.reserve_inputs(rows.width, order_ != nullptr);
  rows.reserve_inputs(shape_.values(), out_order_ != nullptr);
  rows.reserve_scratch(std::max({rows.stride, shape_.key_dim * int64_t(kLanes), 2 * padded(shape_.norm_group, kLanes)}));
}

Lineage LinearRecurrence::lineage(const StepRows& rows, size_t sequence) const {
  const Sequence& s = rows.sequences[sequence];
  return {rows, s, state(s), number_, state_shape_, scratch_.raw.data(), raw_width_};
}

void LinearRecurrence::run(ThreadContext& context, StepRows& rows) {
  const bool integer = !is_float(inputs_.format) || !is_float(gate_.format) || !is_float(steps_.format) || !is_float(beta_.format);
  context.enter(Phase::qkv);
  auto x = context.inputs(rows.count, rows.width, integer, order_, [&](int64_t row, float* out) { input(rows, row, out); });
  const JoinedLinears joined{{{{&inputs_, 0},
                              {&gate_, gate_raw_},
                              {&steps_, gates_raw_},
                              {shape_.delta ? &beta_ : nullptr, gates_raw_ + shape_.heads}}}};
  context.split(joined.tiles(), 1, [&](int64_t begin, int64_t end) {
    joined.run(rows.kernels, x.get(), begin, end, scratch_.raw.data(), raw_width_);
  });
  const int64_t sequences = int64_t(rows.sequences.size()), units = int64_t(units_.size()) + 1;
  context.enter(Phase::heads);
  context.split(sequences * units, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t unit = i % units;
      unit + 1 == units ? steps(rows, size_t(i / units)) : convolve(rows, size_t(i / units), units_[size_t(unit)]);
    }
  });
  context.enter(Phase::attention);
  const int64_t tiles = shape_.heads * tiles_;
  context.split(sequences * tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) recur(rows, size_t(i / tiles), i % tiles, context.scratch());
  });
  context.enter(Phase::output);
  auto finished = context.inputs(rows.count, shape_.values(), !is_float(out_.format), out_order_,
                                 [&](int64_t row, float* out) { finish(context, rows, row, out); });
  add_to_hidden(context, rows, [&](int64_t begin, int64_t end, float* out, bool add) {
    rows.kernels.linear(out_, finished.get(), begin, end, out, rows.stride, add);
  });
}

// Convolves one unit's channels for every row of a sequence.
void LinearRecurrence::convolve(const StepRows& rows, size_t sequence, const Unit& unit) const {
  const Lineage line = lineage(rows, sequence);
  const float* taps[kMaxTaps];
  const float* const bias = convolution_bias_ == nullptr ? nullptr : convolution_bias_ + unit.channel;
  for (int64_t row = 0; row < line.count(); ++row) {
    float* const out = mixed(sequence, row) + unit.column;
    line.taps(row, unit.channel, taps);
    rows.kernels.convolve(taps, shape_.kernel, taps_.at(unit.channel), shape_.channels(), bias, unit.width, true, out);
    std::fill(out + unit.width, out + padded(unit.width, kLanes), 0.0f);
    if (unit.norm != nullptr)
      rows.kernels.rms_norm(out, unit.norm, unit.width, shape_.length_epsilon / float(unit.width), out);
  }
  line.leave(unit.channel, unit.width);
}

// Computes the decay and the value factor (step or beta) of every head and row of a sequence.
void LinearRecurrence::steps(const StepRows& rows, size_t sequence) const {
  const Lineage line = lineage(rows, sequence);
  const int64_t heads = shape_.heads;
  for (int64_t row = 0; row < line.count(); ++row) {
    const float* const raw = line.inputs(row) + gates_raw_;
    float *const out = mixed(sequence, row), *const betas = out + beta_column_;
    rows.kernels.recurrence_steps(raw, step_bias_, rates_.data(), shape_.least_step, shape_.most_step, heads, out + steps_column_,
                                  out + decay_column_);
    if (shape_.delta) {
      std::fill_n(betas, heads, 1.0f);
      rows.kernels.gate(raw + heads, heads, GateKind::sigmoid, betas);
    } else {
      std::copy_n(out + steps_column_, heads, betas);
    }
  }
  line.leave(gates_raw_, state_shape_.gates);
}

// Runs one tile of a head's state over every row of a sequence: committed rows update the state; drafted rows continue in the
// thread's own scratch, and each branch restarts from the committed state.
void LinearRecurrence::recur(const StepRows& rows, size_t sequence, int64_t tile, float* scratch) const {
  const Lineage line = lineage(rows, sequence);
  const int64_t keys = shape_.key_dim, size = keys * kLanes, head = tile / tiles_, values = tiles_ * kLanes;
  const int64_t group = shape_.tiled ? head % shape_.groups : head / (shape_.heads / shape_.groups), in_head = tile % tiles_ * kLanes;
  const auto advance = [&](int64_t row, float* state, bool wanted) {
    const float* const in = mixed(sequence, row);
    const float* const v = in + v_column_ + head * values + in_head;
    Recurrence one;
    one.q = in + q_column_ + group * padded(keys, kLanes);
    one.k = in + k_column_ + group * padded(keys, kLanes);
    one.v = v;
    one.decay = in[decay_column_ + head];
    one.beta = in[beta_column_ + head];
    one.delta = shape_.delta;
    if (wanted)
      one.out = scratch_.y.data() + (line.sequence.first_row + row - line.accepted()) * scratch_.y_width + head * values + in_head;
    rows.kernels.recur(state, keys, one);
    if (wanted && skip_ != nullptr) rows.kernels.add_scaled(v, kLanes, skip_[head], one.out);
  };

  const float* const before = line.state.matrix(number_);
  const int64_t at = tile * size;
  const float* committed = before == nullptr ? nullptr : before + at;
  if (line.committed() > 0) {
    float* const next = line.state.next_matrix(number_) + at;
    if (committed == nullptr)
      std::fill_n(next, size, 0.0f);
    else if (committed != next)
      std::memcpy(next, committed, size_t(size) * sizeof(float));
    for (int64_t row = 0; row < line.committed(); ++row) advance(row, next, row >= line.accepted());
    committed = next;
  }
  const auto restart = [&] {
    if (committed == nullptr)
      std::fill_n(scratch, size, 0.0f);
    else
      std::memcpy(scratch, committed, size_t(size) * sizeof(float));
  };
  for (int64_t row = line.committed(); row < line.count(); ++row) {
    if (row == line.committed()) {
      restart();
    } else if (line.before(row, 1) != row - 1) {  // another branch: replay its ancestors
      restart();
      int64_t depth = 1;
      while (line.before(row, depth) >= line.committed()) ++depth;
      while (--depth > 0) advance(line.before(row, depth), scratch, false);
    }
    advance(row, scratch, row >= line.accepted());
  }
}

// Writes a row as the output projection reads it.
void LinearRecurrence::finish(ThreadContext& context, const StepRows& rows, int64_t row, float* out) const {
  const int64_t values = shape_.values(), head = shape_.value_dim, width = shape_.norm_group;
  const float* const y = scratch_.y.data() + row * scratch_.y_width;
  const float* const gate = scratch_.raw.data() + row * raw_width_ + gate_raw_;
  for (int h = 0; h < shape_.heads; ++h) std::copy_n(y + h * tiles_ * kLanes, head, out + h * head);
  if (shape_.gate_first) rows.kernels.gate(gate, values, GateKind::silu, out);
  const int64_t whole = padded(width, kLanes);  // norms read and write whole vectors of 16
  float *const part = context.scratch(), *const weight = part + whole;
  for (int64_t first = 0; first < values; first += width) {
    std::fill_n(part, 2 * whole, 0.0f);
    std::copy_n(out + first, width, part);
    std::copy_n(norm_.weight + (norm_.width == width ? 0 : first), width, weight);
    rows.kernels.rms_norm(part, weight, width, norm_.epsilon, part);
    std::copy_n(part, width, out + first);
  }
  if (!shape_.gate_first) rows.kernels.gate(gate, values, GateKind::silu, out);
}

}  // namespace ipex_lookahead
