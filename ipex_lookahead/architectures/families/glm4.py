"""GLM-4-0414 (9B, 32B, Z1): norms before and after attention and MLP; half of a head is rotated, by neighbours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipex_lookahead.architectures.families import phi3
from ipex_lookahead.architectures.hparams import number
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names, usual
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import Block, ModelSpec
from ipex_lookahead.architectures.windows import no_window
from ipex_lookahead.files.refusal import Refusal


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors


KEYS = ConfigKeys(
    used={
        **usual("hidden_act tie_word_embeddings attention_bias"),
        "partial_rotary_factor": number(0, 1, above=True),
    },
    defaults={
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 0.00000015625,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
    },
    refused=no_window("GLM-4"),
)
GGUF = GgufKeys(
    "glm4",
    "Glm4ForCausalLM",
    refused={"rope.dimension_sections": Refusal()},  # of a model that sees, whose rows of q and k stand otherwise
    complete=_complete,
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that a glm4 ``config`` describes."""
    names, turn = Names(config), replace(rope(config), interleaved=True)
    bias = "qkv" if config["attention_bias"] else ""

    def block(i: int) -> Block:
        return Block(
            mixer=names.attention(i, rope=turn, bias=bias),
            feed_forward=phi3.fused_mlp(names, i),
            mixer_norm=names.norm(i, "input_layernorm", "attn_norm"),
            mixer_after=names.norm(i, "post_self_attn_layernorm", "post_attention_norm"),
            feed_forward_norm=names.norm(i, "post_attention_layernorm", "ffn_norm"),
            feed_forward_after=names.norm(i, "post_mlp_layernorm", "post_ffw_norm"),
        )

    return names.model(block)
