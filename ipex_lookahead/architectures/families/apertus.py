"""Apertus (the Swiss AI initiative): norms over each head of q and k, and an MLP of xIELU without a gate."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.hparams import Source, check_even_heads, one_of
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names, usual
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import Activation, Block, ModelSpec, Place, Tensor, Xielu
from ipex_lookahead.architectures.windows import no_window


def _check(config: dict[str, Any], source: Source) -> None:
    check_even_heads(config, source)
    if config["rope_scaling"] is None:  # in words: without them the rope is this family's stretched one
        config["rope_scaling"] = {"rope_type": "default"}


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors


KEYS = ConfigKeys(
    used={**usual("tie_word_embeddings attention_bias"), "hidden_act": one_of("xielu")},
    defaults={
        "max_position_embeddings": 65536,
        "rms_norm_eps": 1e-5,
        "rope_theta": 12000000.0,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
        "hidden_act": "xielu",
        "tie_word_embeddings": False,
        "attention_bias": False,
    },
    refused=no_window("Apertus"),
    check=_check,
)  # fmt: skip
GGUF = GgufKeys("apertus", "ApertusForCausalLM", complete=_complete)


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that an apertus ``config`` describes."""
    names, turn = Names(config), rope(config)

    def parameter(i: int, name: str) -> Tensor:
        ours = f"model.layers.{i}.mlp.act_fn.{name}"
        shape = () if name in ("beta", "eps") else (1,)
        layers = (config["num_hidden_layers"],)
        return Tensor(ours, shape, Place(ours, shape), Place(f"xielu.{name}", layers, rows=(i, 1), layout="key"))

    def block(i: int) -> Block:
        return Block(
            mixer=names.attention(i, rope=turn, head_norms=True),
            feed_forward=names.mlp(
                i,
                Activation("xielu"),
                parameters=Xielu(*(parameter(i, name) for name in Xielu.__slots__)),
            ),
            mixer_norm=names.norm(i, "attention_layernorm", "attn_norm"),
            feed_forward_norm=names.norm(i, "feedforward_layernorm", "ffn_norm"),
        )

    return names.model(block)
