#include "model/routed_experts.h"

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "runtime/dispatch.h"

namespace ipex_lookahead {
namespace {

constexpr size_t kPhases = 8;  // upper bound

}  // namespace

RoutedExperts::RoutedExperts(const std::vector<std::optional<ExpertsShape>>& layers, int hidden, int threads,
                             const std::string& isa)
    : threads_(checked_threads(threads)), weights_(threads), rows_(*kernels_for(isa), threads, hidden), phases_(threads) {
  CacheShape none{{}, 1};
  for (const auto& shape : checked(layers, hidden)) {
    const std::string name = "layers." + std::to_string(layers_.size()) + ".feed_forward";
    layers_.emplace_back();
    if (!shape) continue;
    BranchShape branch;
    ExpertsShape& routed = branch.operation.emplace<ExpertsShape>();
    routed.experts = shape->experts;
    routed.used = shape->used;
    routed.given = true;
    const OperationParts parts{branch, name, hidden, KvFormat::fp16, weights_, none};
    layers_.back() = {shape->used, int64_t(shape->experts.size()), std::make_unique<Experts>(parts, gated_, scratch_)};
  }
}

const RoutedExperts::Layer& RoutedExperts::at(int64_t layer) const {
  if (layer < 0 || layer >= int64_t(layers_.size()) || layers_[size_t(layer)].experts == nullptr)
    throw std::invalid_argument("layer " + std::to_string(layer) + " has no experts here");
  return layers_[size_t(layer)];
}

int64_t RoutedExperts::run(int64_t layer, const float* x, const int32_t* experts, const float* weights, int64_t rows,
                           float* out) {
  const Layer& mixture = at(layer);
  if (rows < 1 || rows > Phases::kMaxItems)
    throw std::invalid_argument("rows is " + std::to_string(rows) + "; it must be from 1 to " +
                                std::to_string(Phases::kMaxItems));
  Crew crew(threads_);
  weights_.check_complete();
  rows_.count = rows;
  ensure(rows_.hidden, rows * rows_.stride);
  ensure(rows_.branch, rows * rows_.stride);
  mixture.experts->reserve(rows_);
  ExpertChoice& choice = scratch_.choice;
  const int64_t pairs = rows * mixture.used;
  std::copy_n(experts, pairs, choice.experts.begin());  // checked in the copy, which no other thread changes
  std::copy_n(weights, pairs, choice.weights.begin());
  for (int64_t i = 0; i < pairs; ++i)
    if (const int32_t e = choice.experts[size_t(i)]; e < 0 || e >= mixture.count)
      throw std::invalid_argument("expert " + std::to_string(e) + " is not one of the layer's " + std::to_string(mixture.count));
  for (int64_t r = 0; r < rows; ++r) std::copy_n(x + r * rows_.width, rows_.width, rows_.row(r));
  scratch_.touched = 0;
  phases_.begin(kPhases);
  const auto job = [&](int thread) {
    ThreadContext context(&rows_.kernels, phases_, thread, threads_, rows_.own[size_t(thread)], rows_.shared, nullptr);
    mixture.experts->run(context, rows_);
  };
  crew.run(std::cref(job));  // std::function stores a reference without allocating
  for (int64_t r = 0; r < rows; ++r) std::copy_n(rows_.branch.data() + r * rows_.stride, rows_.width, out + r * rows_.width);
  return scratch_.touched;
}

}  // namespace ipex_lookahead
