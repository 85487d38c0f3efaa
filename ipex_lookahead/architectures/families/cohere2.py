"""Command R7B, Command A and Tiny Aya (Cohere): attention and MLP side by side, rope only in layers with a window."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipex_lookahead.architectures.hparams import SIZES, Source, check_even_heads, number, shown
from ipex_lookahead.architectures.keys import LOCAL_THETA, ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names, usual
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import Block, ModelSpec
from ipex_lookahead.architectures.windows import fill_layer_types, gguf_layer_types, window_of, window_pattern
from ipex_lookahead.errors import UnsupportedModelError
from ipex_lookahead.files.refusal import Refusal


def _check(config: dict[str, Any], source: Source) -> None:
    check_even_heads(config, source)
    if (d := config["hidden_size"] // config["num_attention_heads"]) != config["head_dim"]:
        raise UnsupportedModelError(
            f"{source.file}: head_dim is {config['head_dim']}, and heads of hidden_size have {d}, which transformers"
            " takes whatever head_dim says"
        )
    config["rms_norm_eps"] = config["layer_norm_eps"]
    every = config.pop("sliding_window_pattern")
    fill_layer_types(config, source, lambda layer: (layer + 1) % every != 0)


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    theta = config["rope_theta"]
    if (local := config.pop(LOCAL_THETA, theta)) != theta:
        raise UnsupportedModelError(
            f"{file.path}: cohere2.rope.freq_base_swa is {shown(local)}; a Cohere 2 has one base here, {theta:g}"
        )
    for name in ("sliding_window", "logit_scale"):
        if name not in config:
            raise file.error(f"cohere2.{GGUF.used[name]}", None, "is missing")
    config["layer_norm_eps"] = config["rms_norm_eps"]
    gguf_layer_types(file, config, "cohere2", every=4)


KEYS = ConfigKeys(
    used={
        **usual("hidden_act tie_word_embeddings attention_bias sliding_window layer_types"),
        "layer_norm_eps": SIZES["rms_norm_eps"],
        "logit_scale": number(1e-6, 1e6),
        "sliding_window_pattern": window_pattern,
    },
    defaults={
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "layer_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "logit_scale": 0.0625,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
    nullable=("sliding_window",),
    neutral={"cache_implementation": "how keys and values are kept, which is this package's own affair"},
    refused={
        "rotary_pct": Refusal("rotates a part of each head, which transformers passes over", unless=(None, 1)),
        "use_gated_activation": Refusal("asks for an MLP without a gate", unless=(None, True)),
        "use_parallel_block": Refusal("puts the MLP behind attention", unless=(None, True)),
        "use_qk_norm": Refusal("norms queries and keys, which transformers' Cohere 2 does not", unless=(None, False)),
    },
    check=_check,
)
GGUF = GgufKeys(
    "cohere2",
    "Cohere2ForCausalLM",
    used={
        "rms_norm_eps": "attention.layer_norm_epsilon",
        "logit_scale": "logit_scale",
        "sliding_window": "attention.sliding_window",
        "sliding_window_pattern": "attention.sliding_window_pattern",
        LOCAL_THETA: "rope.freq_base_swa",
    },
    constants={"attention_bias": False},
    complete=_complete,
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that a cohere2 ``config`` describes."""
    names, turn = Names(config, layer_norm="plain"), replace(rope(config), interleaved=True)

    def block(i: int) -> Block:
        return Block(
            mixer_norm=names.norm(i, "input_layernorm", "attn_norm"),
            mixer=names.attention(i, rope=None if window_of(config, i) is None else turn),
            feed_forward=names.gated_mlp(i),
            parallel=True,
        )

    return names.model(block, logit_multiplier=config["logit_scale"])
