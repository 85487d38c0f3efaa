// An lm_head that is computed in part: for each row, only the outputs of the centroids with the largest product (Gemma 4's
// assistants for E2B and E4B).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/operation.h"

namespace ipex_lookahead {

// Centroid c covers the outputs [c each(), (c + 1) each()), which are whole tiles.
class Candidates {
 public:
  Candidates(const CandidatesShape& shape, int64_t outputs)
      : shape_(shape), each_(any() ? outputs / shape.centroids : 0), stride_(padded(shape.centroids, kLanes)) {}
  bool any() const { return shape_.centroids > 0; }
  int64_t used() const { return shape_.used; }
  int64_t each() const { return each_; }
  int64_t count() const { return used() * each_; }
  bool integers() const { return any() && !is_float(centroids_.format); }

  void declare(int64_t hidden, DecoderWeights& weights) {
    if (any()) weights.declare_linear("candidates.centroids", centroids_, shape_.centroids, hidden, {Phase::head});
  }
  void reserve(int64_t rows);
  // Chooses the used() centroids with the largest product for each row; `x` are the inputs() of the rows. Every thread calls
  // it.
  template <typename Inputs>
  void choose(ThreadContext& context, const KernelTable& kernels, int64_t rows, Inputs& x) {
    context.split_tiles(centroids_.tiles(), [&](int64_t begin, int64_t end) {
      kernels.linear(centroids_, x.get(), begin, end, scores_.data() + begin * kLanes, stride_, false);
    });
    context.each(rows, [&](int64_t row) { choose_row(kernels, row); });
  }
  // The centroids of a row, ascending; null if its products are not finite.
  const int32_t* of(int64_t row) const { return finite_[size_t(row)] ? chosen_.data() + row * used() : nullptr; }

 private:
  void choose_row(const KernelTable& kernels, int64_t row);

  const CandidatesShape shape_;
  const int64_t each_, stride_;
  Matrix centroids_;
  Buffer<float> scores_, best_;   // [rows][stride_], [rows][used]
  std::vector<int32_t> chosen_;   // [rows][used]
  std::vector<uint8_t> finite_;   // [rows]
};

}  // namespace ipex_lookahead
