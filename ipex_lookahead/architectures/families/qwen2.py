"""Qwen2, Qwen2.5, Qwen2.5-Coder and the DeepSeek-R1 distils of them: a Llama with biases on q, k and v."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.hparams import Source, check_even_heads
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys
from ipex_lookahead.architectures.names import Names, usual
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import ModelSpec
from ipex_lookahead.architectures.windows import fill_layer_types


def check_windows(config: dict[str, Any], source: Source) -> None:
    """Qwen's windows: from a layer on, and only where the config switches them on."""
    first = config.pop("max_window_layers")
    if not config["use_sliding_window"]:
        config["sliding_window"] = None
    fill_layer_types(config, source, lambda layer: layer >= first)


def _check(config: dict[str, Any], source: Source) -> None:
    check_even_heads(config, source)
    check_windows(config, source)


KEYS = ConfigKeys(
    used=usual("hidden_act tie_word_embeddings use_sliding_window sliding_window max_window_layers layer_types"),
    defaults={
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    nullable=("sliding_window",),
    check=_check,
)
GGUF = GgufKeys("qwen2", "Qwen2ForCausalLM")


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that a qwen2 ``config`` describes."""
    names, turn = Names(config), rope(config)
    return names.model(lambda i: names.block(i, names.attention(i, rope=turn, bias="qkv"), names.gated_mlp(i)))
