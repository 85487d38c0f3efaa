// The decoder of the tests here: two blocks of the Llama form, 64 wide, 100 tokens.
#pragma once

#include "model/spec.h"

namespace ipex_lookahead {

inline DecoderShape tiny_shape() {
  Layer layer;
  layer.heads = 4;
  layer.kv_heads = 2;
  layer.head_dim = 16;
  layer.rope = 0;
  layer.query_scale = 0.25f;
  layer.intermediate = 96;
  DecoderShape shape;
  shape.hidden = 64;
  shape.vocab = 100;
  shape.max_context = 4096;
  shape.rms_epsilon = 1e-5f;
  shape.ropes = {{{1, 0.5f, 0.25f, 0.1f, 0.05f, 0.01f, 0.005f, 0.001f}}};
  shape.layers = {layer, layer};
  return shape;
}

}  // namespace ipex_lookahead
