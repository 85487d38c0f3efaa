// The decoder of these tests: two Llama blocks, 64 wide, 100 tokens.
#pragma once

#include "model/spec.h"

namespace ipex_lookahead {

inline DecoderShape tiny_shape() {
  AttentionShape attention;
  attention.heads = 4;
  attention.kv_heads = 2;
  attention.head_dim = 16;
  attention.rope = 0;
  attention.query_scale = 0.25f;
  DecoderShape shape;
  shape.hidden = 64;
  shape.vocab = shape.outputs = 100;
  shape.max_context = 4096;
  shape.tied = true;
  shape.final_norm = {64, 1e-5f};
  shape.ropes = {{{1, 0.5f, 0.25f, 0.1f, 0.05f, 0.01f, 0.005f, 0.001f}}};
  const BlockShape layer = {BranchShape{attention, shape.final_norm, {}, 1}, BranchShape{MlpShape{96, true, {}}, shape.final_norm, {}, 1}};
  shape.layers = {layer, layer};
  return shape;
}

}  // namespace ipex_lookahead
