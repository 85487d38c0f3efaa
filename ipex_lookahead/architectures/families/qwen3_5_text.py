"""Qwen3.5 to 3.8 (dense), the text part: three gated delta nets per attention layer; attention has gated heads.

A quarter of a head is rotated. In GGUF files value heads have another order, in which head i uses the keys of group i
modulo the number of groups; this order is preserved (``tiled``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ipex_lookahead.architectures.hparams import (
    MAX_HEAD_DIM,
    Source,
    boolean,
    check_one_per_layer,
    integer,
    list_of,
    number,
    one_of,
    shown,
)
from ipex_lookahead.architectures.images import SECTIONS, sections
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.mtp import QWEN, mtp_head, renamed
from ipex_lookahead.architectures.names import Names
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.routing import MAX_DRAFTING
from ipex_lookahead.architectures.spec import (
    Attention,
    Block,
    FeedForward,
    GatedDeltaNet,
    Linear,
    ModelSpec,
    Norm,
    Place,
)

LINEAR, FULL = "linear_attention", "full_attention"
MAX_KERNEL = 16
IMAGE_TOKEN = 248056
"""Placeholder for a row of an image; GGUF files do not name it."""
TURNS = [11, 11, 10]


def check_layers(config: dict[str, Any], source: Source) -> None:
    """Fill in the attention layers, and check the delta nets' numbers of heads."""
    layers, every = config["num_hidden_layers"], config.pop("full_attention_interval")
    if config["layer_types"] is None:
        config["layer_types"] = [LINEAR if (i + 1) % every else FULL for i in range(layers)]
    check_one_per_layer(config, source, "layer_types")
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    if values % keys:
        raise source.error(
            "linear_num_value_heads", f"is {values}; it must be a multiple of linear_num_key_heads, {keys}"
        )


KEYS = ConfigKeys(
    used={
        "hidden_act": one_of("silu"),
        "tie_word_embeddings": boolean,
        "attention_bias": boolean,
        "partial_rotary_factor": number(0, 1, above=True),
        "full_attention_interval": integer(1, 1 << 16),
        "layer_types": list_of(LINEAR, FULL),
        "linear_conv_kernel_dim": integer(1, MAX_KERNEL),
        "linear_key_head_dim": integer(1, MAX_HEAD_DIM),
        "linear_value_head_dim": integer(1, MAX_HEAD_DIM),
        "linear_num_key_heads": integer(1, 1 << 16),
        "linear_num_value_heads": integer(1, 1 << 16),
        "linear_value_heads": one_of("grouped", "tiled"),
        "mtp_num_hidden_layers": integer(0, MAX_DRAFTING),
        SECTIONS: sections,
    },
    defaults={
        "vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32,
        "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False,
        "attention_bias": False, "partial_rotary_factor": 0.25, "full_attention_interval": 4, "layer_types": None,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_heads": "grouped",
        "mtp_num_hidden_layers": 0,
    },
    nullable=("layer_types",),
    neutral={
        "mamba_ssm_dtype": "the dtype of states, which is float32 here",
        "mtp_use_dedicated_embeddings": "for MTP blocks",
        "output_router_logits": "additional outputs",
    },
    check=check_layers,
)  # fmt: skip


def complete(file: GgufSource, config: dict[str, Any]) -> None:
    """Fill in head sizes, which are derived from total sizes, the attention layers, and the number of MTP blocks."""
    blocks, past = config["num_hidden_layers"], config.setdefault("mtp_num_hidden_layers", 0)
    if past >= blocks:
        raise file.error("nextn_predict_layers", None, f"is {past}; there are {blocks} blocks in total")
    config["num_hidden_layers"] = blocks - past
    config.setdefault(SECTIONS, TURNS)
    if (recurrent := config.pop("recurrent_layers", None)) is not None:
        if not isinstance(recurrent, np.ndarray):
            key = "attention.recurrent_layers"
            raise file.error(key, None, f"is {shown(recurrent)}; it must be a list of bools, one per layer")
        if len(recurrent) != blocks:
            raise file.error("attention.recurrent_layers", None, f"has {len(recurrent)} values for {blocks} blocks")
        config["layer_types"] = [LINEAR if one else FULL for one in recurrent[: blocks - past]]
    inner, heads = config.pop("linear_inner_size", None), config.get("linear_num_value_heads")
    if type(inner) is not int or heads is None or inner % heads:
        problem = f"is {shown(inner)}; it must be a multiple of ssm.time_step_rank, which is {shown(heads)}"
        raise file.error("ssm.inner_size", None, problem)
    config["linear_value_head_dim"] = inner // heads


GGUF = GgufKeys(
    "qwen35",
    "Qwen3_5ForCausalLM",
    used={
        "linear_conv_kernel_dim": "ssm.conv_kernel",
        "linear_key_head_dim": "ssm.state_size",
        "linear_num_key_heads": "ssm.group_count",
        "linear_num_value_heads": "ssm.time_step_rank",
        "linear_inner_size": "ssm.inner_size",
        "full_attention_interval": "full_attention_interval",
        "recurrent_layers": "attention.recurrent_layers",
        SECTIONS: "rope.dimension_sections",
        "mtp_num_hidden_layers": "nextn_predict_layers",
    },
    constants={"attention_bias": False, "linear_value_heads": "tiled", "image_token_id": IMAGE_TOKEN},
    complete=complete,
)


def gated_attention(names: Names, layer: int, **switches: Any) -> Attention:
    """Return attention with a query matrix that holds each head's query followed by its gate."""
    heads, d, bias = names.heads, names.head_dim, names.config["attention_bias"]
    whole, shape = (2 * heads * d, names.hidden), (heads * d, names.hidden)

    def half(name: str, first: int) -> Linear:
        hf = Place("self_attn.q_proj", whole, rows=(first, 2 * d), block=d)
        gguf = Place("attn_q", whole, rows=(first, 2 * d), block=d)
        return names.part(layer, f"self_attn.{name}", hf, gguf, shape, bias=bias)

    return Attention(
        heads=heads,
        kv_heads=names.kv_heads,
        head_dim=d,
        scale=d**-0.5,
        q=half("q_proj", 0),
        k=names.linear(layer, "self_attn.k_proj", "attn_k", names.kv_heads * d, names.hidden, bias=bias),
        v=names.linear(layer, "self_attn.v_proj", "attn_v", names.kv_heads * d, names.hidden, bias=bias),
        gate=half("gate_proj", d),
        q_norm=names.norm(layer, "self_attn.q_norm", "attn_q_norm", d),
        k_norm=names.norm(layer, "self_attn.k_norm", "attn_k_norm", d),
        o=names.linear(layer, "self_attn.o_proj", "attn_output", names.hidden, heads * d, bias=bias),
        **switches,
    )


def delta_net(names: Names, layer: int, inputs: Linear, gate: Linear, steps: Linear, beta: Linear) -> GatedDeltaNet:
    """Return the delta net of block ``layer``, given the linear layers that read the hidden state."""
    config = names.config
    groups, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key, value, kernel = (config[f"linear_{name}_dim"] for name in ("key_head", "value_head", "conv_kernel"))
    weight = names.tensor(f"model.layers.{layer}.linear_attn.norm.weight", f"blk.{layer}.ssm_norm.weight", (value,))
    channels = 2 * groups * key + heads * value
    rate, theirs = f"model.layers.{layer}.linear_attn.A_log", f"blk.{layer}.ssm_a"
    return GatedDeltaNet(
        heads=heads,
        groups=groups,
        tiled=config["linear_value_heads"] == "tiled",
        key_dim=key,
        value_dim=value,
        kernel=kernel,
        inputs=inputs,
        gate=gate,
        steps=steps,
        beta=beta,
        convolution=names.convolution(layer, "linear_attn.conv1d", "ssm_conv1d", channels, kernel),
        rate=names.logarithm(rate, theirs, heads),
        step_bias=names.vector(layer, "linear_attn.dt_bias", "ssm_dt.bias", heads),
        norm=Norm(weight, names.epsilon),
        out=names.linear(layer, "linear_attn.out_proj", "ssm_out", names.hidden, heads * value),
    )


def spec(config: dict[str, Any]) -> ModelSpec:
    """Return the decoder for a qwen3_5_text ``config``."""
    return decoder(config, Names.gated_mlp)


def _projections(names: Names, layer: int) -> tuple[Linear, Linear, Linear, Linear]:
    """Return the linear layers of a delta net that read the hidden state: inputs, gate, steps and beta."""
    config = names.config
    groups, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    values = heads * config["linear_value_head_dim"]
    channels = 2 * groups * config["linear_key_head_dim"] + values
    return (
        names.linear(layer, "linear_attn.in_proj_qkv", "attn_qkv", channels, names.hidden),
        names.linear(layer, "linear_attn.in_proj_z", "attn_gate", values, names.hidden),
        names.linear(layer, "linear_attn.in_proj_a", "ssm_alpha", heads, names.hidden),
        names.linear(layer, "linear_attn.in_proj_b", "ssm_beta", heads, names.hidden),
    )


def decoder(
    config: dict[str, Any],
    feed_forward: Callable[[Names, int], FeedForward],
    projections: Callable[[Names, int], tuple[Linear, Linear, Linear, Linear]] = _projections,
) -> ModelSpec:
    """Return a decoder with this ``feed_forward`` in each layer, and these ``projections`` in delta nets."""
    names, turn = Names(config, norm_offset=1.0), rope(config)

    def mixer(i: int) -> Attention | GatedDeltaNet:
        if config["layer_types"][i] == FULL:
            return gated_attention(names, i, rope=turn)
        return delta_net(names, i, *projections(names, i))

    def block(i: int) -> Block:
        return Block(
            mixer=mixer(i),
            feed_forward=feed_forward(names, i),
            mixer_norm=names.norm(i, "input_layernorm", "attn_norm"),
            feed_forward_norm=names.norm(i, "post_attention_layernorm", "post_attention_norm"),
        )

    layers, drafting = config["num_hidden_layers"], config["mtp_num_hidden_layers"]
    past = (f"blk.{i}." for i in range(layers, layers + drafting))
    model = names.model(block, read_past=("mtp.", *past))
    if drafting != 1:
        return model
    own = Block(
        mixer=gated_attention(names, layers, rope=turn),
        feed_forward=feed_forward(names, layers),
        mixer_norm=names.norm(layers, "input_layernorm", "attn_norm"),
        feed_forward_norm=names.norm(layers, "post_attention_layernorm", "post_attention_norm"),
    )
    own = renamed(own, f"model.layers.{layers}.", "mtp.layers.0.")
    return replace(model, mtp=mtp_head(model, names, own, QWEN))
