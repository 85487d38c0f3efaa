#include "model/short_conv.h"

#include <algorithm>

#include "model/adapters.h"

namespace ipex_lookahead {
namespace {

constexpr int64_t kPiece = 128;  // channels per item

}  // namespace

// Columns of a row in scratch: b (which becomes b * x, the convolution's input), x, c.
ShortConv::ShortConv(const OperationParts& of, RecurrentScratch& scratch)
    : Operation(of),
      channels_(of.hidden),
      raw_width_(3 * padded(of.hidden, kLanes)),
      kernel_(std::get<ShortConvShape>(of.shape.operation).kernel),
      scratch_(scratch) {
  DecoderWeights& weights = of.weights;
  const std::string& name = of.name;
  const int64_t hidden = of.hidden;
  weights.declare_linear(name + ".b", b_, hidden, hidden, {Phase::qkv, 1, false, &order_});
  weights.declare_linear(name + ".c", c_, hidden, hidden, {Phase::qkv});
  weights.declare_linear(name + ".x", x_, hidden, hidden, {Phase::qkv});
  weights.declare(name + ".convolution", convolution_, kernel_ * hidden);
  if (std::get<ShortConvShape>(of.shape.operation).bias) weights.declare(name + ".convolution_bias", bias_, hidden);
  weights.declare_linear(name + ".out", out_, hidden, hidden, {Phase::output, 1, false, &out_order_});
  weights.take_adapters({&b_, &c_, &x_}, &order_);
  weights.take_adapters({&out_}, &out_order_);
  scratch.need(raw_width_, 0, hidden);
  state_ = of.cache.state_index(RecurrentShape{0, kernel_, hidden, 0, 0, 0});
  number_ = std::get<RecurrentShape>(of.cache.states[state_]).layers++;
}

void ShortConv::reserve(StepRows& rows) {
  taps_.prepare(convolution_, kernel_, channels_);
  rows.reserve_inputs(rows.width, order_ != nullptr || out_order_ != nullptr);
  rows.reserve_scratch(rows.stride);
}

void ShortConv::run(ThreadContext& context, StepRows& rows) {
  const int64_t column = padded(channels_, kLanes), sequences = int64_t(rows.sequences.size());
  context.enter(Phase::qkv);
  auto x = context.inputs(rows.count, rows.width, !is_float(b_.format) || !is_float(c_.format) || !is_float(x_.format), order_,
                          [&](int64_t row, float* out) { input(rows, row, out); });
  const JoinedLinears joined{{{{&b_, 0}, {&x_, column}, {&c_, 2 * column}}}};
  Projections of_input(context, rows, {&b_, &c_, &x_}, [&]() -> const Rows& { return x.get(); });
  context.split(joined.tiles(), 1, [&](int64_t begin, int64_t end) {
    joined.run(rows.kernels, x.get(), begin, end, scratch_.raw.data(), raw_width_, &of_input);
  });
  const int64_t pieces = (channels_ + kPiece - 1) / kPiece;
  context.enter(Phase::heads);
  context.split(sequences * pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t channel = i % pieces * kPiece;
      convolve(rows, size_t(i / pieces), channel, std::min(kPiece, channels_ - channel));
    }
  });
  context.enter(Phase::output);
  auto mixed = context.inputs(rows.count, channels_, !is_float(out_.format), out_order_, [&](int64_t row, float* out) {
    std::copy_n(scratch_.y.data() + row * scratch_.y_width, channels_, out);
  });
  Projections of_mixed(context, rows, {&out_}, [&]() -> const Rows& { return mixed.get(); });
  add_to_hidden(context, rows, [&](int64_t begin, int64_t end, float* out, bool add) {
    rows.kernels.linear(out_, mixed.get(), begin, end, out, rows.stride, add);
    of_mixed.add(out_, begin, end, out, rows.stride);
  });
}

void ShortConv::convolve(const StepRows& rows, size_t sequence, int64_t channel, int64_t width) const {
  const Sequence& s = rows.sequences[sequence];
  const Lineage line{rows, s, s.cache->state<RecurrentState>(state_), number_, state_shape_, scratch_.raw.data(), raw_width_};
  const int64_t column = padded(channels_, kLanes);
  const float* taps[kMaxTaps];
  for (int64_t row = s.first_row; row < s.first_row + s.rows; ++row) {
    float* const raw = scratch_.raw.data() + row * raw_width_ + channel;
    rows.kernels.gate(raw + column, width, GateKind::none, raw);
    float* const y = scratch_.y.data() + row * scratch_.y_width + channel;
    line.taps(line.accepted() + row - s.first_row, channel, taps);
    rows.kernels.convolve(taps, kernel_, taps_.at(channel), channels_, bias_ == nullptr ? nullptr : bias_ + channel, width,
                          false, y);
    rows.kernels.gate(raw + 2 * column, width, GateKind::none, y);
  }
  line.leave(channel, width);
}

}  // namespace ipex_lookahead
