"""Ministral 3's text model: a Mistral whose queries grow warmer with their position."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.families import llama
from ipex_lookahead.architectures.hparams import Source
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import usual
from ipex_lookahead.architectures.windows import one_kind_of_layer
from ipex_lookahead.errors import UnsupportedModelError

_ROPE = {
    "rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16384, "beta_fast": 32.0, "beta_slow": 1.0,
    "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip


def _check(config: dict[str, Any], source: Source) -> None:
    scaling = config["rope_scaling"] or {}
    if "llama_4_scaling_beta" not in scaling or "original_max_position_embeddings" not in scaling:
        raise UnsupportedModelError(
            f"{source.file}: rope_parameters of a ministral3 must have llama_4_scaling_beta and "
            "original_max_position_embeddings, which transformers' model computes with"
        )


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    scaling = config["rope_scaling"]
    if scaling is not None and "mscale_all_dim" in scaling:
        scaling["mscale"] = 1.0  # as llama.cpp has it
    if scaling is None or "llama_4_scaling_beta" not in scaling:  # rope of another kind, and queries as they are
        original = config["max_position_embeddings"]
        plain = {"rope_type": "linear", "factor": 1.0, "original_max_position_embeddings": original}
        config["rope_scaling"] = {**(scaling or plain), "llama_4_scaling_beta": 0.0}


KEYS = ConfigKeys(
    used=usual("hidden_act tie_word_embeddings sliding_window"),
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
        "rope_scaling": _ROPE,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "sliding_window": None,
    },
    nullable=("sliding_window",),
    refused=one_kind_of_layer("Ministral 3"),
    check=_check,
)
GGUF = GgufKeys(
    "mistral3",
    "Ministral3ForCausalLM",
    used={
        "rope_scaling.mscale_all_dim": "rope.scaling.yarn_log_multiplier",
        "rope_scaling.llama_4_scaling_beta": "attention.temperature_scale",
    },
    complete=_complete,
)


spec = llama.spec
