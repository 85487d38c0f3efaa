"""Seed-OSS (ByteDance): a Llama with biases on q, k and v, and heads of a size of their own."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.hparams import boolean
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names, usual
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import Block, ModelSpec
from ipex_lookahead.architectures.windows import no_window

KEYS = ConfigKeys(
    used={**usual("hidden_act tie_word_embeddings attention_bias mlp_bias"), "attention_out_bias": boolean},
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 524288,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": True,
        "attention_out_bias": False,
        "mlp_bias": False,
    },
    neutral={
        "pretraining_tp": "the same products in slices; the sums round a little differently",
        "residual_dropout": "zero outside training",
    },
    refused=no_window("Seed-OSS"),
)


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors


GGUF = GgufKeys(
    "seed_oss", "SeedOssForCausalLM", constants={"attention_out_bias": False, "mlp_bias": False}, complete=_complete
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that a seed_oss ``config`` describes."""
    names, turn = Names(config), rope(config)
    bias = "qkv" * config["attention_bias"] + "o" * config["attention_out_bias"]

    def block(i: int) -> Block:
        after = names.norm(i, "post_attention_layernorm", "post_attention_norm")
        attention = names.attention(i, rope=turn, bias=bias)
        return names.block(i, attention, names.gated_mlp(i), feed_forward_norm=after)

    return names.model(block)
