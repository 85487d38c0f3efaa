"""Mixtral 8x7B and 8x22B, and merges of their form: a Mistral with a mixture of experts in every layer.

Their GGUF files call themselves ``llama``, have a count of experts, and know no window.
"""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures import rules
from ipex_lookahead.architectures.experts import check_experts, need_counts
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys
from ipex_lookahead.architectures.names import Names, usual
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import ModelSpec
from ipex_lookahead.architectures.windows import one_kind_of_layer

KEYS = ConfigKeys(
    used=usual("hidden_act tie_word_embeddings sliding_window num_local_experts num_experts num_experts_per_tok"),
    defaults={
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096 * 32,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "sliding_window": None,
        "num_experts_per_tok": 2,
    },
    neutral={
        "output_router_logits": "what is returned beside the logits",
        "router_aux_loss_coef": "training only",
        "router_jitter_noise": "training only",
    },
    refused=one_kind_of_layer("Mixtral"),
    check=lambda config, source: check_experts(config, source, "num_local_experts", usual=8),
)
GGUF = GgufKeys(
    "llama",
    "MixtralForCausalLM",
    used={"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"},
    constants={"sliding_window": None},
    complete=lambda file, config: need_counts(file, "llama"),
    claims=lambda file: not rules.is_dense(file),
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that a mixtral ``config`` describes."""
    names, turn = Names(config, pairs=True), rope(config)
    mixture = {
        "count": config["num_local_experts"], "used": config["num_experts_per_tok"],
        "inner": config["intermediate_size"],
    }  # fmt: skip
    return names.model(
        lambda i: names.block(
            i, names.attention(i, rope=turn), names.experts(i, "block_sparse_moe", ("w1", "w3", "w2"), **mixture)
        )
    )
