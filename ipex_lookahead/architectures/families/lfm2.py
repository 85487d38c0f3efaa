"""LFM2 and 2.5 (Liquid AI): gated short convolutions, attention in some layers, and norms over each head of q and k."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ipex_lookahead.architectures.hparams import (
    Source,
    boolean,
    check_even_heads,
    check_one_per_layer,
    integer,
    layer_numbers,
    list_of,
    number,
)
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys
from ipex_lookahead.architectures.names import SILU, Names
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import Attention, Block, FeedForward, GatedMlp, ModelSpec, Norm, Place, ShortConv

CONV, FULL = "conv", "full_attention"
MAX_KERNEL = 16


def check(config: dict[str, Any], source: Source) -> None:
    """Store sizes and layer types under one name, and check them against each other."""
    check_even_heads(config, source)
    layers = config["num_hidden_layers"]
    config["rms_norm_eps"] = config["norm_eps"]
    full = config.pop("full_attn_idxs", None)
    if config["layer_types"] is None:
        config["layer_types"] = [FULL if full is None or i in full else CONV for i in range(layers)]
    check_one_per_layer(config, source, "layer_types")
    if (tied := config.pop("tie_embedding", None)) is not None:
        config["tie_word_embeddings"] = tied
    if (inner := config.pop("block_ff_dim", None)) is not None:
        config["intermediate_size"] = inner
    if config.get("block_auto_adjust_ff_dim"):
        config["block_auto_adjust_ff_dim"] = False  # applied below
        inner = int(config["block_ffn_dim_multiplier"] * int(2 * config["intermediate_size"] / 3))
        multiple = config["block_multiple_of"]
        config["intermediate_size"] = -(-inner // multiple) * multiple


KEYS = ConfigKeys(
    used={
        "norm_eps": number(1e-30, 1),
        "tie_word_embeddings": boolean,
        "tie_embedding": boolean,
        "conv_bias": boolean,
        "conv_L_cache": integer(1, MAX_KERNEL),
        "block_ff_dim": integer(1, 1 << 22),
        "block_multiple_of": integer(1, 1 << 20),
        "block_ffn_dim_multiplier": number(0, 1024, above=True),
        "block_auto_adjust_ff_dim": boolean,
        "full_attn_idxs": layer_numbers,
        "layer_types": list_of(CONV, FULL),
    },
    defaults={
        "vocab_size": 65536, "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 128000, "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0, "norm_eps": 1e-5, "tie_word_embeddings": True, "conv_bias": False, "conv_L_cache": 3,
        "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": True,
        "layer_types": None,
    },
    nullable=("layer_types",),
    check=check,
)  # fmt: skip
IMAGE_TOKEN = 396
"""Default id of the placeholder for a row of an image."""
GGUF = GgufKeys(
    "lfm2",
    "Lfm2ForCausalLM",
    used={"conv_L_cache": "shortconv.l_cache"},
    constants={"block_auto_adjust_ff_dim": False, "conv_bias": False, "image_token_id": IMAGE_TOKEN},
    without_attention=CONV,
    complete=lambda file, config: config.update(norm_eps=config["rms_norm_eps"]),
)


def short_conv(names: Names, layer: int) -> ShortConv:
    """Return the gated convolution of block ``layer``; b, c and x are thirds of one matrix."""
    hidden, kernel, bias = names.hidden, names.config["conv_L_cache"], names.config["conv_bias"]

    def third(name: str, number: int) -> Any:
        rows, whole = (number * hidden, 1), (3 * hidden, hidden)
        hf, gguf = Place("conv.in_proj", whole, rows=rows), Place("shortconv.in_proj", whole, rows=rows)
        return names.part(layer, f"conv.in_proj_{name}", hf, gguf, (hidden, hidden), bias=bias)

    return ShortConv(
        kernel=kernel,
        b=third("b", 0),
        c=third("c", 1),
        x=third("x", 2),
        convolution=names.convolution(layer, "conv.conv", "shortconv.conv", hidden, kernel),
        convolution_bias=names.vector(layer, "conv.conv.bias", "shortconv.conv.bias", hidden) if bias else None,
        out=names.linear(layer, "conv.out_proj", "shortconv.out_proj", hidden, hidden, bias=bias),
    )


def attention(names: Names, layer: int, **switches: Any) -> Attention:
    """Return the attention of block ``layer``."""
    heads, kv, d = names.heads, names.kv_heads, names.head_dim
    return Attention(
        heads=heads,
        kv_heads=kv,
        head_dim=d,
        scale=d**-0.5,
        q=names.linear(layer, "self_attn.q_proj", "attn_q", heads * d, names.hidden),
        k=names.linear(layer, "self_attn.k_proj", "attn_k", kv * d, names.hidden),
        v=names.linear(layer, "self_attn.v_proj", "attn_v", kv * d, names.hidden),
        q_norm=names.norm(layer, "self_attn.q_layernorm", "attn_q_norm", d),
        k_norm=names.norm(layer, "self_attn.k_layernorm", "attn_k_norm", d),
        o=names.linear(layer, "self_attn.out_proj", "attn_output", names.hidden, heads * d),
        **switches,
    )


def mlp(names: Names, layer: int) -> GatedMlp:
    """Return the dense MLP of block ``layer``."""
    hidden, inner = names.hidden, names.config["intermediate_size"]
    return GatedMlp(
        gate=names.linear(layer, "feed_forward.w1", "ffn_gate", inner, hidden),
        up=names.linear(layer, "feed_forward.w3", "ffn_up", inner, hidden),
        down=names.linear(layer, "feed_forward.w2", "ffn_down", hidden, inner),
        activation=SILU,
    )


def spec(config: dict[str, Any]) -> ModelSpec:
    """Return the decoder for an lfm2 ``config``."""
    return decoder(config, mlp)


def decoder(config: dict[str, Any], feed_forward: Callable[[Names, int], FeedForward]) -> ModelSpec:
    """Return a decoder with this ``feed_forward`` in each layer."""
    names, turn = Names(config), rope(config)

    def block(i: int) -> Block:
        return Block(
            mixer=short_conv(names, i) if config["layer_types"][i] == CONV else attention(names, i, rope=turn),
            feed_forward=feed_forward(names, i),
            mixer_norm=names.norm(i, "operator_norm", "attn_norm"),
            feed_forward_norm=names.norm(i, "ffn_norm", "ffn_norm"),
        )

    norm = names.tensor("model.embedding_norm.weight", "token_embd_norm.weight", (names.hidden,))
    return names.model(block, final_norm=Norm(norm, names.epsilon))
