"""Muse-Glimmer for text (30B): normed embeddings, gated attention, and rope in layers with a window only.

The layers with full attention are each fourth one, counted from the last backwards. Queries and keys have norms without
weights, which GGUF files hold as constants; the factor on queries is that constant.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipex_lookahead.architectures.granite import layer_theta
from ipex_lookahead.architectures.hparams import (
    SIZES,
    Source,
    check_even_heads,
    check_one_per_layer,
    number,
    one_of,
)
from ipex_lookahead.architectures.keys import LAYER_THETA, LOCAL_THETA, ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.names import Names, common_keys
from ipex_lookahead.architectures.rope import ropes_by_layer
from ipex_lookahead.architectures.rules import soft_cap
from ipex_lookahead.architectures.spec import Block, ModelSpec, Norm, Place, Tensor
from ipex_lookahead.architectures.windows import SLIDING, fill_layer_types, gguf_layer_types
from ipex_lookahead.errors import UnsupportedModelError

_EVERY = 4
_POST_EPSILON, _FACTOR, _CAP, _MULTIPLIER = (
    "post_norm_eps", "qk_scale_factor", "final_logit_softcapping", "output_multiplier",
)  # fmt: skip


def _check(config: dict[str, Any], source: Source) -> None:
    check_even_heads(config, source)
    last = config["num_hidden_layers"] - 1
    fill_layer_types(config, source, lambda layer: (last - layer) % _EVERY != 0)
    if config.get(LAYER_THETA) is None:
        config[LAYER_THETA] = [
            0.0 if (last - layer) % _EVERY == 0 else config["rope_theta"] for layer in range(last + 1)
        ]
    check_one_per_layer(config, source, LAYER_THETA)
    if other := {*config[LAYER_THETA]} - {0.0, config["rope_theta"]}:
        raise UnsupportedModelError(
            f"{source.file}: {source.spelling(LAYER_THETA)} has a base of {max(other):g}; transformers uses rope_theta,"
            f" {config['rope_theta']:g}, for all layers with a base other than 0"
        )


def _complete(file: GgufSource, config: dict[str, Any]) -> None:
    for key, name in (("sliding_window", "attention.sliding_window"), (_MULTIPLIER, "logit_scale")):
        if config.get(key) is None:
            raise file.error(f"muse-glimmer.{name}", file.offsets.get(f"muse-glimmer.{name}"), "is missing or 0")
    gguf_layer_types(file, config, "muse-glimmer", every=_EVERY)
    near = config["rope_theta"] = config.pop(LOCAL_THETA, config["rope_theta"])
    config[LAYER_THETA] = [near if kind == SLIDING else 0.0 for kind in config["layer_types"]]
    config.setdefault(_CAP, None)


KEYS = ConfigKeys(
    used={
        **common_keys("tie_word_embeddings attention_bias sliding_window layer_types"),
        "hidden_activation": one_of("silu"),
        _CAP: soft_cap,
        _FACTOR: number(1e-6, 1e6),
        _MULTIPLIER: number(1e-6, 1e6),
        _POST_EPSILON: SIZES["rms_norm_eps"],
        LAYER_THETA: layer_theta,
    },
    defaults={  # complete, because the text part of a larger model omits transformers' defaults
        "vocab_size": 202048, "hidden_size": 6656, "intermediate_size": 19968, "num_hidden_layers": 52,
        "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_activation": "silu", "tie_word_embeddings": False,
        "attention_bias": False, "sliding_window": 2048, _CAP: 20.0, _FACTOR: 3.87, _MULTIPLIER: 0.19611613513818404,
        _POST_EPSILON: 1e-8, "bos_token_id": 200000, "eos_token_id": 200001,
    },
    nullable=("sliding_window",),
    check=_check,
)  # fmt: skip
GGUF = GgufKeys(
    "muse-glimmer",
    "MuseGlimmerForConditionalGeneration",
    used={
        "sliding_window": "attention.sliding_window",
        "sliding_window_pattern": "attention.sliding_window_pattern",
        LOCAL_THETA: "rope.freq_base_swa",
        _CAP: "final_logit_softcapping",
        _MULTIPLIER: "logit_scale",
    },
    constants={"attention_bias": False},
    complete=_complete,
)


def spec(config: dict[str, Any]) -> ModelSpec:
    """Return the decoder for a muse_glimmer_text ``config``."""
    names, ropes = Names(config, pairs=True, norm_offset=1.0), ropes_by_layer(config)

    def constant(i: int, x: str, value: float) -> Norm:
        name, shape = f"model.layers.{i}.self_attn.{x}_norm.weight", (names.head_dim,)
        hf = Place(name, shape, constant=value)
        return Norm(Tensor(name, shape, hf, Place(f"blk.{i}.attn_{x}_norm.weight", shape)), names.epsilon)

    def after(i: int, hf: str, gguf: str) -> Norm:
        return replace(names.norm(i, hf, gguf), epsilon=config[_POST_EPSILON])

    def block(i: int) -> Block:
        gate = names.linear(i, "self_attn.gate_proj", "attn_gate", names.heads * names.head_dim, names.hidden)
        return names.block(
            i,
            names.attention(
                i,
                rope=ropes[i],
                gate=gate,
                q_norm=constant(i, "q", config[_FACTOR]),
                k_norm=constant(i, "k", 1.0),
            ),
            names.gated_mlp(i),
            mixer_after=after(i, "post_attention_layernorm", "post_attention_norm"),
            feed_forward_norm=names.norm(i, "pre_feedforward_layernorm", "ffn_norm"),
            feed_forward_after=after(i, "post_feedforward_layernorm", "post_ffw_norm"),
        )

    last = names.tensor("model.norm.weight", "output_norm.weight", (names.hidden,))  # the only one without 1 added
    return names.model(
        block,
        final_norm=Norm(last, names.epsilon),
        embedding_norm=names.epsilon,
        logit_multiplier=config[_MULTIPLIER],
        logit_softcap=config[_CAP],
    )
