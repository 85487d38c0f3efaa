"""Qwen2-VL: the text part, a `qwen2`; images and videos are not for this package."""

from __future__ import annotations

from dataclasses import replace

from ipex_lookahead.architectures.families import qwen2
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys

TEXT = replace(
    qwen2.KEYS,
    family="qwen2",
    defaults={
        **qwen2.KEYS.defaults,
        "vocab_size": 152064,
        "hidden_size": 8192,
        "intermediate_size": 29568,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "max_window_layers": 80,
    },
)
KEYS = ConfigKeys(inside="text_config", parts={"qwen2_vl_text": TEXT, "qwen2_vl": TEXT}, outside=True)
GGUF = GgufKeys(
    "qwen2vl",
    "Qwen2ForCausalLM",
    neutral={"rope.dimension_sections": "which of a place's three numbers turns a pair; a text's are the same"},
)

spec = qwen2.spec
