"""Qwen3-VL (dense): the text part, a `qwen3`; images and videos are not for this package."""

from __future__ import annotations

from dataclasses import replace

from ipex_lookahead.architectures.families import qwen3
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys

_WINDOWS = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
_OF_WINDOWS = "of windows, which transformers' Qwen3-VL has none of"
VISION_KEYS = {
    "rope.dimension_sections": "which of a place's three numbers turns a pair; a text's are the same",
    "n_deepstack_layers": "how many layers take what an image's encoder saw on its way; a text has no image",
}

_TEXT = replace(
    qwen3.KEYS,
    family="qwen3",
    neutral={**qwen3.KEYS.neutral, **dict.fromkeys(_WINDOWS, _OF_WINDOWS)},
    used={key: check for key, check in qwen3.KEYS.used.items() if key not in _WINDOWS},
    defaults={
        **qwen3.KEYS.defaults,
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 128000,
        "rope_theta": 500000.0,
    },
)
KEYS = ConfigKeys(inside="text_config", parts={"qwen3_vl_text": _TEXT, "qwen3_vl": _TEXT})
GGUF = GgufKeys("qwen3vl", "Qwen3ForCausalLM", constants=dict(qwen3.GGUF.constants), neutral=VISION_KEYS)

spec = qwen3.spec
