"""ERNIE 4.5 (dense; Baidu): a Llama whose rope turns neighbouring values of a head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipex_lookahead.architectures.hparams import boolean
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys
from ipex_lookahead.architectures.names import Names, usual
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import ModelSpec
from ipex_lookahead.architectures.windows import no_window
from ipex_lookahead.files.refusal import Refusal

KEYS = ConfigKeys(
    used={**usual("hidden_act tie_word_embeddings"), "use_bias": boolean},
    defaults={
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "use_bias": False,
    },
    refused=no_window("ERNIE 4.5"),
)
GGUF = GgufKeys(
    "ernie4_5",
    "Ernie4_5ForCausalLM",
    constants={"use_bias": False},
    refused={"rope.dimension_sections": Refusal()},  # of PaddleOCR, which sees
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that an ernie4_5 ``config`` describes."""
    biased = config["use_bias"]
    names = Names({**config, "attention_bias": biased, "mlp_bias": biased})
    turn = replace(rope(config), interleaved=True)
    return names.model(lambda i: names.block(i, names.attention(i, rope=turn), names.gated_mlp(i)))
