// The routed experts of a model's layers, for an engine that runs the rest of the model, routers included, on another device.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/experts.h"

namespace ipex_lookahead {

// Methods that change it hold the process's thread pool (a Crew).
class RoutedExperts {
 public:
  // `layers`: the mixtures by layer; null: a layer without one here. Routers, norms and shared experts are the caller's.
  // Throws std::invalid_argument for an invalid shape or number of threads.
  RoutedExperts(const std::vector<std::optional<ExpertsShape>>& layers, int hidden, int threads, const std::string& isa);

  // Names are those of a decoder: layers.0.feed_forward.experts.0.gate.weight, ...
  DecoderWeights& weights() { return weights_; }
  const DecoderWeights& weights() const { return weights_; }

  const char* isa() const { return rows_.kernels.name; }
  int threads() const { return threads_; }
  int64_t hidden() const { return rows_.width; }
  int64_t used(int64_t layer) const { return at(layer).used; }  // number of experts per row

  // Writes the weighted sums of the chosen experts' outputs, in order of rank, to out [rows][hidden], with the bits of a
  // decoder. x [rows][hidden]: the rows as the experts' first linear layers read them; experts, weights: [rows][used]. Returns
  // the number of experts that were read. Throws std::invalid_argument for a layer or an expert that does not exist, or too
  // many rows, and MissingWeightError.
  int64_t run(int64_t layer, const float* x, const int32_t* experts, const float* weights, int64_t rows, float* out);

 private:
  struct Layer {
    int64_t used = 0, count = 0;
    std::unique_ptr<Experts> experts;
  };
  const Layer& at(int64_t layer) const;

  const int threads_;
  DecoderWeights weights_;
  StepRows rows_;
  Phases phases_;
  RowsMemory gated_;
  ExpertsScratch scratch_;
  std::vector<Layer> layers_;
};

}  // namespace ipex_lookahead
