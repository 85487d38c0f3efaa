#include "model/recurrence.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/adapters.h"

namespace ipex_lookahead {

LinearRecurrence::LinearRecurrence(const OperationParts& of, RecurrentScratch& scratch)
    : Operation(of), shape_(std::get<RecurrenceShape>(of.shape.operation)), scratch_(scratch) {
  DecoderWeights& weights = of.weights;
  const std::string& name = of.name;
  const int64_t hidden = of.hidden;
  const RecurrenceShape& r = shape_;
  const int64_t channels = r.channels(), keys = padded(r.key_dim, kLanes), values = padded(r.value_dim, kLanes);
  if (r.channels_decay) {
    weights.declare_linear(name + ".q", inputs_, r.keys(), hidden, {Phase::qkv, 1, false, &order_});
    weights.declare_linear(name + ".k", k_, r.keys(), hidden, {Phase::qkv});
    weights.declare_linear(name + ".v", v_, r.values(), hidden, {Phase::qkv});
  } else {
    weights.declare_linear(name + ".inputs", inputs_, channels, hidden, {Phase::qkv, 1, false, &order_});
  }
  declare(gate_, name + ".gate", r.values(), hidden, r.gate_rank, weights);
  declare(steps_, name + ".steps", r.step_width(), hidden, r.steps_rank, weights);
  if (r.delta) weights.declare_linear(name + ".beta", beta_, r.heads, hidden, {Phase::qkv});
  if (r.channels_decay) {
    weights.declare(name + ".q_convolution", convolution_, r.kernel * r.keys());
    weights.declare(name + ".k_convolution", k_convolution_, r.kernel * r.keys());
    weights.declare(name + ".v_convolution", v_convolution_, r.kernel * r.values());
  } else {
    weights.declare(name + ".convolution", convolution_, r.kernel * channels);
  }
  if (r.convolution_bias) weights.declare(name + ".convolution_bias", convolution_bias_, channels);
  weights.declare(name + ".rate", rate_, r.heads);
  weights.declare(name + ".step_bias", step_bias_, r.step_width());
  if (r.skip) weights.declare(name + ".skip", skip_, r.heads);
  norm_.declare(name + ".norm", r.norm, weights);
  weights.declare_linear(name + ".out", out_, hidden, r.values(), {Phase::output, 1, false, &out_order_});

  const Matrix* const of_gate = r.gate_rank > 0 ? &gate_.first : &gate_.last;
  const Matrix* const of_steps = r.steps_rank > 0 ? &steps_.first : &steps_.last;
  weights.take_adapters({&inputs_, &k_, &v_, of_gate, of_steps, &beta_}, &order_);
  weights.take_adapters({&out_}, &out_order_);

  // First channels of each unit: a delta net has the order q, k, v, Mamba-2 the order x, B, C.
  tiles_ = values / kLanes;
  decay_width_ = r.channels_decay ? keys : 1;
  q_column_ = 0;
  k_column_ = r.groups * keys;
  v_column_ = 2 * r.groups * keys;
  steps_column_ = v_column_ + r.heads * values;
  decay_column_ = steps_column_ + padded(r.heads * decay_width_, kLanes);
  beta_column_ = decay_column_ + padded(r.heads * decay_width_, kLanes);
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

  steps_.column = channels;
  gate_.column = padded(channels + r.gates(), kLanes);
  steps_.first_column = gate_.column + padded(r.values(), kLanes);
  gate_.first_column = steps_.first_column + padded(r.steps_rank, kLanes);
  raw_width_ = gate_.first_column + padded(r.gate_rank, kLanes);
  scratch.need(raw_width_, mixed_width_, r.heads * values);
  const RecurrentShape own{0, r.kernel, channels, r.gates(), r.heads * tiles_, r.key_dim};
  state_ = of.cache.state_index(own);
  number_ = std::get<RecurrentShape>(of.cache.states[state_]).layers++;
}

void LinearRecurrence::declare(Projection& projection, const std::string& name, int64_t outputs, int64_t hidden, int rank,
                               DecoderWeights& weights) {
  if (rank > 0) weights.declare_linear(name + "_a", projection.first, rank, hidden, {Phase::qkv});
  weights.declare_linear(name, projection.last, outputs, rank > 0 ? rank : hidden, {Phase::qkv});
  if (rank > 0) weights.take_adapters({&projection.last}, nullptr);
}

void LinearRecurrence::reserve(StepRows& rows) {
  const RecurrenceShape& r = shape_;
  const RecurrenceShape::Multipliers& by = r.multipliers;
  if (r.channels_decay)
    taps_.prepare(r.kernel, r.channels(), {{convolution_, r.keys(), 1}, {k_convolution_, r.keys(), 1}, {v_convolution_, r.values(), 1}});
  else if (r.delta)
    taps_.prepare(convolution_, r.kernel, r.channels());
  else
    taps_.prepare(r.kernel, r.channels(), {{convolution_, r.values(), by.v},
                                           {convolution_ + r.kernel * r.values(), r.keys(), by.k},
                                           {convolution_ + r.kernel * (r.values() + r.keys()), r.keys(), by.q}});
  Buffer<float> rates(rate_, rate_ + r.heads);
  rows.kernels.exponentials(rates.data(), r.heads);
  const int64_t steps = r.step_width() / r.heads;
  rates_.resize(size_t(r.step_width()));
  for (int64_t i = 0; i < r.step_width(); ++i) rates_[size_t(i)] = r.decay_bound == 0 ? -rates[size_t(i / steps)] : rates[size_t(i / steps)];
  rows.reserve_inputs(rows.width, order_ != nullptr);
  rows.reserve_inputs(r.values(), out_order_ != nullptr);
  if (r.steps_rank > 0 || r.gate_rank > 0) rows.reserve_inputs(std::max(r.steps_rank, r.gate_rank), false);
  rows.reserve_scratch(std::max({rows.stride, r.key_dim * int64_t(kLanes), 2 * padded(r.norm_group, kLanes), padded(r.values(), kLanes)}));
}

Lineage LinearRecurrence::lineage(const StepRows& rows, size_t sequence) const {
  const Sequence& s = rows.sequences[sequence];
  return {rows, s, state(s), number_, state_shape_, scratch_.raw.data(), raw_width_};
}

// Computes the raw inputs of every row, and its gate.
void LinearRecurrence::project(ThreadContext& context, StepRows& rows) {
  const bool low_steps = shape_.steps_rank > 0, low_gate = shape_.gate_rank > 0;
  const Matrix &gate = low_gate ? gate_.first : gate_.last, &steps = low_steps ? steps_.first : steps_.last;
  const bool separate = shape_.channels_decay;
  const JoinedLinears joined{{{{&inputs_, 0},
                               {separate ? &k_ : nullptr, shape_.keys()},
                               {separate ? &v_ : nullptr, 2 * shape_.keys()},
                               {&gate, low_gate ? gate_.first_column : gate_.column},
                               {&steps, low_steps ? steps_.first_column : steps_.column},
                               {shape_.delta ? &beta_ : nullptr, steps_.column + shape_.step_width()}}}};
  bool integer = false;
  for (const JoinedLinears::Part& part : joined.parts) integer = integer || (part.matrix != nullptr && !is_float(part.matrix->format));
  context.enter(Phase::qkv);
  auto x = context.inputs(rows.count, rows.width, integer, order_, [&](int64_t row, float* out) { input(rows, row, out); });
  Projections of_input(context, rows, {&inputs_, &k_, &v_, &gate, &steps, &beta_}, [&]() -> const Rows& { return x.get(); });
  context.split(joined.tiles(), 1, [&](int64_t begin, int64_t end) {
    joined.run(rows.kernels, x.get(), begin, end, scratch_.raw.data(), raw_width_, &of_input);
  });
  if (low_steps) project_last(context, rows, steps_);
  if (low_gate) project_last(context, rows, gate_);
}

void LinearRecurrence::project_last(ThreadContext& context, StepRows& rows, const Projection& projection) const {
  const Matrix& last = projection.last;
  float* const raw = scratch_.raw.data();
  auto x = context.inputs(rows.count, last.n_in, !is_float(last.format), nullptr, [&](int64_t row, float* out) {
    std::copy_n(raw + row * raw_width_ + projection.first_column, last.n_in, out);
  });
  Projections of_rank(context, rows, {&last}, [&]() -> const Rows& { return x.get(); });
  context.split_tiles(last.tiles(), [&](int64_t begin, int64_t end) {
    float* const out = raw + projection.column + begin * kLanes;
    rows.kernels.linear(last, x.get(), begin, end, out, raw_width_, false);
    of_rank.add(last, begin, end, out, raw_width_);
  });
}

void LinearRecurrence::run(ThreadContext& context, StepRows& rows) {
  project(context, rows);
  const int64_t convolved = int64_t(units_.size()), units = convolved + (shape_.channels_decay ? shape_.heads : 1);
  const int64_t sequences = int64_t(rows.sequences.size());
  context.enter(Phase::heads);
  context.split(sequences * units, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t unit = i % units;
      const size_t sequence = size_t(i / units);
      if (unit < convolved)
        convolve(rows, sequence, units_[size_t(unit)]);
      else if (shape_.channels_decay)
        decays(rows, sequence, unit - convolved);
      else
        steps(rows, sequence);
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
  Projections of_values(context, rows, {&out_}, [&]() -> const Rows& { return finished.get(); });
  add_to_hidden(context, rows, [&](int64_t begin, int64_t end, float* out, bool add) {
    rows.kernels.linear(out_, finished.get(), begin, end, out, rows.stride, add);
    of_values.add(out_, begin, end, out, rows.stride);
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
  float scaled[kLanes];
  for (int64_t row = 0; row < line.count(); ++row) {
    const float* const raw = line.inputs(row) + steps_.column;
    float *const out = mixed(sequence, row), *const betas = out + beta_column_;
    for (int64_t h = 0; h < heads; h += kLanes) {
      const int64_t n = std::min<int64_t>(kLanes, heads - h);
      std::copy_n(raw + h, n, scaled);
      if (shape_.multipliers.steps != 1) rows.kernels.scale(scaled, n, shape_.multipliers.steps);
      rows.kernels.recurrence_steps(scaled, step_bias_ + h, rates_.data() + h, shape_.least_step, shape_.most_step, n,
                                    out + steps_column_ + h, out + decay_column_ + h);
    }
    if (shape_.delta) {
      std::fill_n(betas, heads, 1.0f);
      rows.kernels.gate(raw + heads, heads, GateKind::sigmoid, betas);
    } else {
      std::copy_n(out + steps_column_, heads, betas);
    }
  }
  line.leave(steps_.column, state_shape_.gates);
}

// Computes the decays of a head's keys and its beta, for every row of a sequence.
void LinearRecurrence::decays(const StepRows& rows, size_t sequence, int64_t head) const {
  const Lineage line = lineage(rows, sequence);
  const int64_t keys = shape_.key_dim, first = head * keys, steps = steps_.column + first;
  const int64_t beta = steps_.column + shape_.step_width() + head;
  for (int64_t row = 0; row < line.count(); ++row) {
    const float* const raw = line.inputs(row);
    float *const out = mixed(sequence, row), *const found = out + decay_column_ + head * decay_width_;
    if (shape_.decay_bound != 0)
      rows.kernels.bounded_decays(raw + steps, step_bias_ + first, rates_.data() + first, shape_.decay_bound, keys, found);
    else
      rows.kernels.recurrence_steps(raw + steps, step_bias_ + first, rates_.data() + first, 0, INFINITY, keys,
                                    out + steps_column_ + head * decay_width_, found);
    out[beta_column_ + head] = 1;
    rows.kernels.gate(raw + beta, 1, GateKind::sigmoid, out + beta_column_ + head);
  }
  line.leave(steps, keys);
  line.leave(beta, 1);
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
    if (shape_.channels_decay) one.decays = in + decay_column_ + head * decay_width_;
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
  const float* const gate = scratch_.raw.data() + row * raw_width_ + gate_.column;
  const GateKind kind = shape_.channels_decay ? GateKind::sigmoid : GateKind::silu;
  const auto apply_gate = [&] {
    if (shape_.multipliers.gate == 1) return rows.kernels.gate(gate, values, kind, out);
    float* const scaled = context.scratch();
    std::copy_n(gate, values, scaled);
    rows.kernels.scale(scaled, values, shape_.multipliers.gate);
    rows.kernels.gate(scaled, values, kind, out);
  };
  for (int h = 0; h < shape_.heads; ++h) std::copy_n(y + h * tiles_ * kLanes, head, out + h * head);
  if (shape_.gate_first || norm_.width == 0) apply_gate();
  if (norm_.width == 0) return;
  const int64_t whole = padded(width, kLanes);  // norms read and write whole vectors of 16
  float *const part = context.scratch(), *const weight = part + whole;
  for (int64_t first = 0; first < values; first += width) {
    std::fill_n(part, 2 * whole, 0.0f);
    std::copy_n(out + first, width, part);
    std::copy_n(norm_.weight + (norm_.width == width ? 0 : first), width, weight);
    rows.kernels.rms_norm(part, weight, width, norm_.epsilon, part);
    std::copy_n(part, width, out + first);
  }
  if (!shape_.gate_first) apply_gate();
}

}  // namespace ipex_lookahead
