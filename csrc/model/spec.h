// The words a model is described in, as ipex_lookahead/architectures/spec.py has them: what a step computes, and with
// which switches. Tensors are not in here, only what their shapes must be.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "kernels/kernels.h"

namespace ipex_lookahead {

enum class RouterSoftmax { all, chosen };  // over all experts' logits, or over the chosen ones' only

// Rotary position embedding of a head's first 2 * frequencies.size() values, i with i + frequencies.size().
struct Rope {
  std::vector<float> frequencies;  // radians a position
  float factor = 1;                // multiplies cos and sin
  float query_beta = 0;            // a query at position p is multiplied by 1 + beta ln(1 + floor(p / original))
  int64_t query_original = 0;
  int64_t half() const { return int64_t(frequencies.size()); }
};

struct NormShape {
  int64_t width = 0;  // 0: there is none
  float epsilon = 0;
};

struct AttentionShape {
  int heads = 0, kv_heads = 0, head_dim = 0;
  int rope = -1;             // which of the model's; -1: positions do not enter
  float query_scale = 1;     // multiplies queries
  int64_t window = 0;        // positions that one sees, itself among them; 0: all
  float softcap = 0;         // scores become cap tanh(score / cap); 0: they stay
  bool sinks = false;        // one more logit a head in the softmax's denominator
  NormShape q_norm, k_norm;  // over each head if as wide as one, else over the whole projection

  int64_t q_width() const { return int64_t(heads) * head_dim; }
  int64_t kv_width() const { return int64_t(kv_heads) * head_dim; }
};

struct MlpShape {
  int intermediate = 0;
  Activation activation;
};

struct ExpertsShape {
  std::vector<MlpShape> experts;  // all of one size
  int used = 0;
  RouterSoftmax softmax = RouterSoftmax::all;
  bool renormalise = false;
};

// Another kind of operation is one more alternative here, and its class.
using OperationShape = std::variant<AttentionShape, MlpShape, ExpertsShape>;

// x + multiplier * after(operation(before(x))).
struct BranchShape {
  OperationShape operation;
  NormShape before, after;
  float multiplier = 1;
};

struct BlockShape {
  BranchShape mixer, feed_forward;
};

struct DecoderShape {
  int hidden = 0, vocab = 0;
  int64_t max_context = 0;
  bool tied = false;  // the embedding is the lm_head too
  float embedding_multiplier = 1, logit_multiplier = 1;
  float logit_softcap = 0;  // logits become cap tanh(logit / cap), after the multiplier; 0: they stay
  NormShape final_norm;
  std::vector<Rope> ropes;
  std::vector<BlockShape> layers;
  KvFormat kv_format = KvFormat::fp16;
};

// What a decoder may be: beyond these, sums and products of its sizes would not fit.
constexpr int kMostLayers = 1 << 16, kMostHeads = 1 << 16, kMostHeadDim = 1024, kMostWidth = 1 << 24, kMostVocab = 1 << 27;
constexpr int kMostExperts = 1 << 12, kMostMlps = 1 << 17;

// Itself; std::invalid_argument, naming what is wrong, for what no decoder is.
const DecoderShape& checked(const DecoderShape& shape);

}  // namespace ipex_lookahead
