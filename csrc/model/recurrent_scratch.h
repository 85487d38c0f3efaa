// Scratch shared by the layers with recurrent states.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "model/operation.h"
#include "model/states/recurrent.h"

namespace ipex_lookahead {

struct RecurrentScratch {
  Buffer<float> raw;           // [rows][raw_width]: raw inputs of the step's rows
  Buffer<float> mixed;         // [accepted + step's rows][mixed_width]: after the convolution, then steps, decays and betas
  Buffer<float> y;             // [rows][y_width]
  std::vector<int64_t> first;  // first row of each sequence in `mixed`
  int64_t raw_width = 0, mixed_width = 0, y_width = 0;

  void need(int64_t raw_floats, int64_t mixed_floats, int64_t y_floats) {
    raw_width = std::max(raw_width, raw_floats);
    mixed_width = std::max(mixed_width, mixed_floats);
    y_width = std::max(y_width, padded(y_floats, kLanes));
  }
  // Reserves memory for the sequences of a step.
  void plan(const StepRows& rows) {
    if (raw_width == 0) return;
    int64_t count = 0;
    first.clear();
    for (const Sequence& s : rows.sequences) {
      first.push_back(count);
      count += s.cache->accepted() + s.rows;
    }
    ensure(raw, rows.count * raw_width);
    ensure(mixed, count * mixed_width);
    ensure(y, rows.count * y_width);
  }
};

// Convolution weights transposed to tap order, as kernels read them.
class Taps {
 public:
  // Transposes weights in channel order, unless these were transposed last.
  void prepare(const float* by_channel, int kernel, int64_t channels) {
    prepare(kernel, channels, {{by_channel, channels, 1}});
  }
  // The same for consecutive parts of the channels, each with a factor on its weights.
  struct Part {
    const float* by_channel;
    int64_t channels;
    float factor;
  };
  void prepare(int kernel, int64_t channels, std::initializer_list<Part> parts) {
    if (made_of_ == parts.begin()->by_channel) return;
    by_tap_.resize(size_t(kernel * channels));
    int64_t first = 0;
    for (const Part& part : parts) {
      for (int64_t c = 0; c < part.channels; ++c)
        for (int t = 0; t < kernel; ++t) by_tap_[size_t(t * channels + first + c)] = part.factor * part.by_channel[c * kernel + t];
      first += part.channels;
    }
    made_of_ = parts.begin()->by_channel;
  }
  const float* at(int64_t channel) const { return by_tap_.data() + channel; }

 private:
  Buffer<float> by_tap_;
  const float* made_of_ = nullptr;
};

}  // namespace ipex_lookahead
