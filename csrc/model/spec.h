// The words a model is described in, as ipex_lookahead/architectures/spec.py has them: what a step computes, and with
// which switches. Tensors are not in here, only what their shapes must be.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"

namespace ipex_lookahead {

enum class HeadNorm { none, head, whole };    // RMS norm of q or k: none, over each head, over the whole projection
enum class RouterSoftmax { all, chosen };     // over all experts' logits, or over the chosen ones' only

// Rotary position embedding of a head's first 2 * frequencies.size() values, i with i + frequencies.size().
struct Rope {
  std::vector<float> frequencies;  // radians a position
  float factor = 1;                // multiplies cos and sin
  float query_beta = 0;            // a query at position p is multiplied by 1 + beta ln(1 + floor(p / original))
  int64_t query_original = 0;
  int64_t half() const { return int64_t(frequencies.size()); }
};

// One block: attention, then a gated MLP or a mixture of such.
struct Layer {
  int heads = 0, kv_heads = 0, head_dim = 0;
  int rope = -1;           // which of the model's; -1: positions do not enter
  float query_scale = 1;   // multiplies queries
  int64_t window = 0;      // positions that one sees, itself among them; 0: all
  float softcap = 0;       // scores become cap tanh(score / cap); 0: they stay
  bool sinks = false;      // one more logit a head in the softmax's denominator
  HeadNorm q_norm = HeadNorm::none, k_norm = HeadNorm::none;
  bool attention_norm = true, attention_after = false, mlp_norm = true, mlp_after = false;
  int intermediate = 0;
  Activation activation;
  float residual_multiplier = 1;
  int experts = 0, experts_used = 0;  // 0: one MLP for every row
  RouterSoftmax router_softmax = RouterSoftmax::all;
  bool renormalise = false;

  int64_t q_width() const { return int64_t(heads) * head_dim; }
  int64_t kv_width() const { return int64_t(kv_heads) * head_dim; }
};

struct DecoderShape {
  int hidden = 0, vocab = 0;
  int64_t max_context = 0;
  float rms_epsilon = 0;
  float embedding_multiplier = 1, logit_multiplier = 1;
  float logit_softcap = 0;  // logits become cap tanh(logit / cap), after the multiplier; 0: they stay
  std::vector<Rope> ropes;
  std::vector<Layer> layers;  // all with the same heads
  KvFormat kv_format = KvFormat::fp16;
};

// What a decoder may be: beyond these, sums and products of its sizes would not fit.
constexpr int kMostLayers = 1 << 16, kMostHeads = 1 << 16, kMostHeadDim = 1024, kMostWidth = 1 << 24, kMostVocab = 1 << 27;
constexpr int kMostExperts = 1 << 12, kMostMlps = 1 << 17;

// Itself; std::invalid_argument, naming what is wrong, for what no decoder is.
const DecoderShape& checked(const DecoderShape& shape);

}  // namespace ipex_lookahead
