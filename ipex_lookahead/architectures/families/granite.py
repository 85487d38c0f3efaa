"""Granite 3, and 4 (dense) in GGUF files: a Llama with multipliers on embedding, attention, residuals and logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ipex_lookahead.architectures.hparams import check_even_heads, number
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names, usual
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import Block, ModelSpec
from ipex_lookahead.architectures.windows import one_kind_of_layer
from ipex_lookahead.files.refusal import Refusal

_multiplier = number(1e-6, 1e6)


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    config["mlp_bias"] = "blk.0.ffn_gate.bias" in file.tensors
    config.setdefault("attention_multiplier", config["head_dim"] ** -0.5)


KEYS = ConfigKeys(
    used={
        **usual("hidden_act tie_word_embeddings attention_bias mlp_bias"),
        "embedding_multiplier": _multiplier,
        "attention_multiplier": _multiplier,
        "residual_multiplier": _multiplier,
        "logits_scaling": _multiplier,
    },
    defaults={
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "embedding_multiplier": 1.0,
        "attention_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
    refused={
        **one_kind_of_layer("Granite"),
        "sliding_window": Refusal(
            "limits how far attention reaches back, which transformers' Granite does not", unless=(None,)
        ),
    },
    check=check_even_heads,
)
GGUF = GgufKeys(
    "granite",
    "GraniteForCausalLM",
    used={
        "embedding_multiplier": "embedding_scale",
        "attention_multiplier": "attention.scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    },
    refused={
        "rope.scaling.finetuned": Refusal(unless=(1,)),  # llama.cpp's switch for a Granite without rope
        "deepstack_mapping": Refusal(),  # pictures go into layers of Granite 4 Vision
    },
    neutral={
        **dict.fromkeys(
            ("ssm.conv_kernel", "ssm.group_count", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank"),
            "for recurrent layers, which the converter of Granite 4 writes, and there are none",
        ),
        "expert_shared_feed_forward_length": "the MLP's own size again where there are no experts",
    },
    complete=_complete,
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that a granite ``config`` describes."""
    names, turn = Names(config, pairs=True), rope(config)

    def block(i: int) -> Block:
        attention = names.attention(i, rope=turn, scale=config["attention_multiplier"])
        return names.block(i, attention, names.gated_mlp(i), residual_multiplier=config["residual_multiplier"])

    return model(names, block)


def model(names: Names, block: Callable[[int], Block]) -> ModelSpec:
    """A decoder of those blocks, with Granite's multipliers on embedding and logits."""
    return names.model(
        block,
        embedding_multiplier=names.config["embedding_multiplier"],
        logit_multiplier=1 / names.config["logits_scaling"],
    )
