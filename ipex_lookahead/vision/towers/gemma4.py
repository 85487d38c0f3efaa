"""The vision tower of Gemma 4 E2B, E4B, 26B and 31B: rope over two axes, a mean of 3 x 3 patches, clipped linears."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ipex_lookahead.architectures.encoder import EncoderSpec, PlainNorm
from ipex_lookahead.architectures.hparams import boolean, integer, number, one_of
from ipex_lookahead.architectures.spec import (
    Activation,
    Attention,
    Block,
    Clip,
    GatedMlp,
    Linear,
    Norm,
    Place,
)
from ipex_lookahead.engines.native.encoder import NativeEncoder, Pause
from ipex_lookahead.errors import InputError
from ipex_lookahead.vision import preparation as preparations
from ipex_lookahead.vision.preparation import Patches, Preparation
from ipex_lookahead.vision.tiling import Plan
from ipex_lookahead.vision.towers.base import (
    Features,
    GgufTower,
    Key,
    Piece,
    axial_rope,
    axial_tables,
    linear,
    rope_theta,
    tensor,
)

KEYS = {
    "hidden_size": Key(integer(16, 1 << 16), 768),
    "intermediate_size": Key(integer(1, 1 << 18), 3072),
    "num_hidden_layers": Key(integer(1, 512), 16),
    "num_attention_heads": Key(integer(1, 1024), 12),
    "num_key_value_heads": Key(integer(1, 1024), 12),
    "head_dim": Key(integer(8, 512), 64),
    "hidden_activation": Key(one_of("gelu_pytorch_tanh"), "gelu_pytorch_tanh"),
    "rms_norm_eps": Key(number(1e-30, 1), 1e-6),
    "rope_parameters": rope_theta(100.0),
    "pooling_kernel_size": Key(integer(1, 16), 3),
    "patch_size": Key(integer(1, 256), 16),
    "position_embedding_size": Key(integer(1, 1 << 20), 10240),
    "use_clipped_linears": Key(boolean, False),
    "standardize": Key(boolean, False),
}
NEUTRAL = {
    "attention_bias": "read by no class of transformers; the linear layers have no biases",
    "max_position_embeddings": "read by no class of transformers; the table of positions has its own size",
}
OUTER = {"boi_token_id": Key(integer(0, 1 << 27), 255999), "eoi_token_id": Key(integer(0, 1 << 27), 258882)}
"""Tokens before and after an image, which the template does not write."""
PATCHES, FEATURES = 0, 1
"""Chains."""
_LIMITS = ("input_min", "input_max", "output_min", "output_max")


def spec(config: Mapping[str, Any], hidden: int) -> EncoderSpec:
    """Return the tower."""
    d, epsilon, patch = config["hidden_size"], config["rms_norm_eps"], config["patch_size"]
    positions = config["position_embedding_size"]
    table = "vision_tower.patch_embedder.position_embedding_table"
    axes = (2, positions, d)
    tables = [tensor(table, (2 * positions, d), Place("v.position_embd.weight", axes), Place(table, axes))]
    if config["standardize"]:
        tables += [tensor(f"vision_tower.std_{part}", (d,), f"v.std_{part}") for part in ("bias", "scale")]
    projection = linear("embed_vision.embedding_projection", hidden, d, "mm.input_projection")
    values = (d, 3 * patch * patch)
    in_gguf = Place("v.patch_embd.weight", (d, 3, patch, patch), layout="channels_first")
    return EncoderSpec(
        model_type="gemma4_vision",
        hidden=d,
        chains=(
            (Linear(tensor("vision_tower.patch_embedder.input_proj.weight", values, in_gguf)),),
            (PlainNorm(d, epsilon), projection),
        ),
        layers=tuple(_block(config, number) for number in range(config["num_hidden_layers"])),
        rope_parts=2,
        tables=tuple(tables),
    )


def _block(config: Mapping[str, Any], number: int) -> Block:
    d, epsilon, head_dim = config["hidden_size"], config["rms_norm_eps"], config["head_dim"]
    heads, kv_heads, width = (
        config[key] for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size")
    )
    name, gguf = f"vision_tower.encoder.layers.{number}", f"v.blk.{number}"

    def norm(part: str, other: str, size: int = d) -> Norm:
        return Norm(tensor(f"{name}.{part}.weight", (size,), f"{gguf}.{other}.weight"), epsilon)

    def clipped(part: str, n_out: int, n_in: int, other: str) -> Linear:
        made = linear(f"{name}.{part}.linear", n_out, n_in, f"{gguf}.{other}")
        if not config["use_clipped_linears"]:
            return made
        limits = (tensor(f"{name}.{part}.{limit}", (), Place(f"{gguf}.{other}.{limit}", (1,))) for limit in _LIMITS)
        return replace(made, clip=Clip(*limits))

    return Block(
        mixer_norm=norm("input_layernorm", "ln1"),
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=1.0,
            rope=axial_rope(config["rope_parameters"], head_dim),
            q=clipped("self_attn.q_proj", heads * head_dim, d, "attn_q"),
            k=clipped("self_attn.k_proj", kv_heads * head_dim, d, "attn_k"),
            v=clipped("self_attn.v_proj", kv_heads * head_dim, d, "attn_v"),
            q_norm=norm("self_attn.q_norm", "attn_q_norm", head_dim),
            k_norm=norm("self_attn.k_norm", "attn_k_norm", head_dim),
            value_norm=epsilon,
            o=clipped("self_attn.o_proj", d, heads * head_dim, "attn_out"),
        ),
        mixer_after=norm("post_attention_layernorm", "attn_post_norm"),
        feed_forward_norm=norm("pre_feedforward_layernorm", "ln2"),
        feed_forward=GatedMlp(
            clipped("mlp.gate_proj", width, d, "ffn_gate"),
            clipped("mlp.up_proj", width, d, "ffn_up"),
            clipped("mlp.down_proj", d, width, "ffn_down"),
            Activation("gelu_tanh"),
        ),
        feed_forward_after=norm("post_feedforward_layernorm", "ffn_post_norm"),
    )


def preparation(file: str, given: Mapping[str, Any], config: Mapping[str, Any]) -> Preparation:
    """Return the preparation. Raises ModelFormatError for settings that the family cannot have."""
    sizes = {key: config[key] for key in ("patch_size", "pooling_kernel_size")}
    return preparations.gemma4(file, {**sizes, **given})


def marker(config: Mapping[str, Any]) -> int | None:
    """Return None: the chat template writes the image token itself."""
    return None


def pieces(config: Mapping[str, Any], plan: Plan) -> tuple[tuple[Piece, ...], ...]:
    """Return what is before and after an image."""
    return (int(config["boi_token_id"]),), (int(config["eoi_token_id"]),)


def encode(encoder: NativeEncoder, config: Mapping[str, Any], patches: Patches, pause: Pause) -> Features:
    """Return a tile's features."""
    positions, d = config["position_embedding_size"], config["hidden_size"]
    x, y = patches.places[:, 0], patches.places[:, 1]
    if max(patches.grid) > positions:
        raise InputError(f"the image has {max(patches.grid)} patches on a side; the tower has {positions} positions")
    rows = encoder.chain(PATCHES, 2 * (patches.values - np.float32(0.5)), pause)
    along_x = encoder.tables[0][: x.max() + 1]
    along_y = encoder.tables[0][positions : positions + y.max() + 1]
    rows = rows + (along_x[x] + along_y[y])
    pause()
    rope = axial_rope(config["rope_parameters"], config["head_dim"])
    layers = len(encoder.spec.layers)
    rows = encoder.layers(rows, *axial_tables(rope, x, y), pause=pause)[layers]
    size = config["pooling_kernel_size"] ** 2
    parts = rows.reshape(-1, size, d)
    pooled = parts[:, 0]
    for i in range(1, size):
        pooled = pooled + parts[:, i]
    pooled = pooled / np.float32(size) * np.float32(math.sqrt(d))
    if config["standardize"]:
        pooled = (pooled - encoder.tables[1][:]) * encoder.tables[2][:]
    return Features(encoder.chain(FEATURES, pooled, pause))


def gguf_config(file: GgufTower) -> dict[str, Any]:
    """Return the ``vision_config`` that a folder of the model would have."""
    head_dim = file.shape("v.blk.0.attn_q_norm.weight", 1)[0]
    return {
        "patch_size": file.whole("patch_size"),
        "hidden_size": file.whole("embedding_length"),
        "intermediate_size": file.whole("feed_forward_length"),
        # A mixed file has 128 blocks for its sound.
        "num_hidden_layers": sum(file.has(f"v.blk.{i}.ln1.weight") for i in range(file.whole("block_count"))),
        "num_attention_heads": file.whole("attention.head_count"),
        "num_key_value_heads": file.shape("v.blk.0.attn_k.weight", 2)[0] // head_dim,
        "head_dim": head_dim,
        "position_embedding_size": file.shape("v.position_embd.weight", 3)[1],
        "use_clipped_linears": file.has("v.blk.0.attn_q.input_min"),
        "standardize": file.has("v.std_bias"),
    }


def gguf_settings(file: GgufTower) -> dict[str, Any]:
    """Return nothing: GGUF files have no settings of Gemma 4's image processor."""
    return {}
