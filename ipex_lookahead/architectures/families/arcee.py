"""Arcee's AFM: a Llama whose MLP has no gate, and squares what is above 0."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.hparams import check_even_heads, one_of
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names, usual
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import Activation, ModelSpec
from ipex_lookahead.architectures.windows import no_window


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors


KEYS = ConfigKeys(
    used={**usual("tie_word_embeddings attention_bias mlp_bias"), "hidden_act": one_of("relu2")},
    defaults={
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "relu2",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
    },
    refused=no_window("Arcee"),
    check=check_even_heads,
)
GGUF = GgufKeys("arcee", "ArceeForCausalLM", constants={"mlp_bias": False}, complete=_complete)


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that an arcee ``config`` describes."""
    names, turn, squared = Names(config, pairs=True), rope(config), Activation("relu_squared")
    return names.model(lambda i: names.block(i, names.attention(i, rope=turn), names.mlp(i, squared)))
