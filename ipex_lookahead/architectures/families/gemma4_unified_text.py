"""Gemma 4 12B for text: a `gemma4_text` without per-layer embeddings and experts, in its GGUF files that family."""

from __future__ import annotations

from dataclasses import replace

from ipex_lookahead.architectures.families import gemma4_text
from ipex_lookahead.files.refusal import Refusal

_ABSENT = {
    "hidden_size_per_layer_input": Refusal("adds per-layer embeddings", unless=(None, 0)),
    "enable_moe_block": Refusal("adds experts", unless=(None, False)),
    "num_experts": Refusal("adds experts", unless=(None,)),
    "top_k_experts": Refusal("adds experts", unless=(None,)),
    "moe_intermediate_size": Refusal("adds experts", unless=(None,)),
}
"""Keys of Gemma 4 that this family lacks: transformers' class reads none of them."""
_KEYS = gemma4_text.KEYS
KEYS = replace(
    _KEYS,
    used={key: check for key, check in _KEYS.used.items() if key not in (*_ABSENT, "vocab_size_per_layer_input")},
    defaults={
        **_KEYS.defaults,
        "max_position_embeddings": 262144,
        "sliding_window": 1024,
        "use_bidirectional_attention": "vision",
        "hidden_size_per_layer_input": 0,
    },
    nullable=tuple(key for key in _KEYS.nullable if key not in _ABSENT),
    neutral={
        **_KEYS.neutral,
        "vision_config": "for images, in the config of the whole model",
        "vocab_size_per_layer_input": "for per-layer embeddings, which this family lacks",
    },
    refused={**_KEYS.refused, **_ABSENT},
)
GGUF = None
spec = gemma4_text.spec
