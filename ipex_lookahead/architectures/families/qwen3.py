"""Qwen3 (dense): a norm over each head of q and k before rope, and heads of a size of their own."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.families.qwen2 import check_windows
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys
from ipex_lookahead.architectures.names import Names, usual
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import ModelSpec

KEYS = ConfigKeys(
    used=usual(
        "hidden_act tie_word_embeddings attention_bias use_sliding_window sliding_window max_window_layers layer_types"
    ),
    defaults={
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    nullable=("sliding_window",),
    check=check_windows,
)
GGUF = GgufKeys("qwen3", "Qwen3ForCausalLM", constants={"attention_bias": False})


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that a qwen3 ``config`` describes."""
    names, turn = Names(config), rope(config)
    return names.model(lambda i: names.block(i, names.attention(i, rope=turn, head_norms=True), names.gated_mlp(i)))
