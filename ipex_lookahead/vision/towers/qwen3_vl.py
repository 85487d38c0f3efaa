"""The vision tower of Qwen3-VL and Qwen3.5 to 3.8: interpolated positions, rope over two axes, a merger of patches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ipex_lookahead.architectures.encoder import EncoderSpec, Link
from ipex_lookahead.architectures.hparams import Source, integer, one_of
from ipex_lookahead.architectures.spec import Activation, Attention, Block, GatedMlp, Linear, Place, Tensor
from ipex_lookahead.engines.native.encoder import NativeEncoder, Pause, Table
from ipex_lookahead.vision import preparation as preparations
from ipex_lookahead.vision.preparation import Floats, Ints, Patches, Preparation
from ipex_lookahead.vision.tiling import Plan
from ipex_lookahead.vision.towers.base import (
    Features,
    GgufTower,
    Key,
    Piece,
    axial_rope,
    axial_tables,
    layer_norm,
    linear,
    rope_theta,
    tensor,
)


def _layers(source: Source, key: str, value: Any) -> tuple[int, ...]:
    numbers = isinstance(value, list) and all(isinstance(one, int) and 0 <= one < 512 for one in value)
    if not numbers or sorted(set(value)) != value:
        raise source.error(key, f"is {value!r}; it must be ascending numbers of layers")
    return tuple(value)


KEYS = {
    "depth": Key(integer(1, 512), 27),
    "hidden_size": Key(integer(16, 1 << 16), 1152),
    "hidden_act": Key(one_of("gelu_pytorch_tanh"), "gelu_pytorch_tanh"),
    "intermediate_size": Key(integer(1, 1 << 18), 4304),
    "num_heads": Key(integer(1, 1024), 16),
    "in_channels": Key(integer(3, 3), 3),
    "patch_size": Key(integer(1, 256), 16),
    "spatial_merge_size": Key(integer(1, 16), 2),
    "temporal_patch_size": Key(integer(1, 16), 2),
    "out_hidden_size": Key(integer(1, 1 << 16), 3584),
    "num_position_embeddings": Key(integer(1, 1 << 20), 2304),
    "deepstack_visual_indexes": Key(_layers, ()),
    "rope_parameters": rope_theta(10000.0),
}
NEUTRAL: dict[str, str] = {}
OUTER: dict[str, Key] = {}
MAX_TOKENS = 2048
"""Maximum number of tokens of an image; encoding time grows with its square. The model's own limit is 16,384."""
EPSILON = 1e-6
PATCHES, MERGER_NORM, MERGER, DEEPSTACK = 0, 1, 2, 3
"""Chains; that of deepstack layer i is ``DEEPSTACK + i``."""


def spec(config: Mapping[str, Any], hidden: int) -> EncoderSpec:
    """Return the tower."""
    d, side = config["hidden_size"], config["patch_size"]
    shape = (d, config["in_channels"], config["temporal_patch_size"], side, side)
    weight, values = "visual.patch_embed.proj.weight", int(np.prod(shape[1:]))
    patches = Linear(
        tensor(weight, (d, values), Place("v.patch_embd.weight", shape, layout="frames"), Place(weight, shape)),
        tensor("visual.patch_embed.proj.bias", (d,), "v.patch_embd.bias"),
    )
    table = tensor("visual.pos_embed.weight", (config["num_position_embeddings"], d), "v.position_embd.weight")
    deepstack = (
        (
            layer_norm(f"visual.deepstack_merger_list.{i}.norm", _joined(config), EPSILON, f"v.deepstack.{layer}.norm"),
            *_merger(config, hidden, f"visual.deepstack_merger_list.{i}", f"v.deepstack.{layer}.fc", (1, 2)),
        )
        for i, layer in enumerate(config["deepstack_visual_indexes"])
    )
    return EncoderSpec(
        model_type="qwen3_vl_vision",
        hidden=d,
        chains=(
            (patches,),
            (layer_norm("visual.merger.norm", d, EPSILON, "v.post_ln"),),
            _merger(config, hidden, "visual.merger", "mm.", (0, 2)),
            *deepstack,
        ),
        layers=tuple(_block(config, number) for number in range(config["depth"])),
        tables=(table,),
    )


def _joined(config: Mapping[str, Any]) -> int:
    return int(config["hidden_size"] * config["spatial_merge_size"] ** 2)


def _merger(config: Mapping[str, Any], hidden: int, name: str, gguf: str, ends: tuple[int, int]) -> tuple[Link, ...]:
    width = _joined(config)
    return (
        linear(f"{name}.linear_fc1", width, width, f"{gguf}{ends[0]}", bias=True),
        Activation("gelu"),
        linear(f"{name}.linear_fc2", hidden, width, f"{gguf}{ends[1]}", bias=True),
    )


def _block(config: Mapping[str, Any], number: int) -> Block:
    d, heads, width = config["hidden_size"], config["num_heads"], config["intermediate_size"]
    name, gguf = f"visual.blocks.{number}", f"v.blk.{number}"

    def joined(part: int) -> Linear:
        """Return the queries, keys or values in ``attn.qkv``."""

        def one(kind: str, shape: tuple[int, ...]) -> Tensor:
            place = Place(f"{name}.attn.qkv.{kind}", (3 * d, *shape[1:]), rows=(part * d, 1))
            other = Place(f"{gguf}.attn_qkv.{kind}", place.shape, rows=place.rows)
            return Tensor(f"{name}.attn.qkv.{part}.{kind}", shape, place, other)

        return Linear(one("weight", (d, d)), one("bias", (d,)))

    return Block(
        mixer_norm=layer_norm(f"{name}.norm1", d, EPSILON, f"{gguf}.ln1"),
        mixer=Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=d // heads,
            scale=float(d // heads) ** -0.5,
            rope=axial_rope(config["rope_parameters"], d // heads),
            q=joined(0),
            k=joined(1),
            v=joined(2),
            o=linear(f"{name}.attn.proj", d, d, f"{gguf}.attn_out", bias=True),
        ),
        feed_forward_norm=layer_norm(f"{name}.norm2", d, EPSILON, f"{gguf}.ln2"),
        feed_forward=GatedMlp(
            None,
            linear(f"{name}.mlp.linear_fc1", width, d, f"{gguf}.ffn_up", bias=True),
            linear(f"{name}.mlp.linear_fc2", d, width, f"{gguf}.ffn_down", bias=True),
            Activation("gelu_tanh"),
        ),
    )


def preparation(file: str, given: Mapping[str, Any], config: Mapping[str, Any]) -> Preparation:
    """Return the preparation. Raises ModelFormatError for settings that the family cannot have."""
    sizes = {
        "patch_size": config["patch_size"],
        "merge_size": config["spatial_merge_size"],
        "temporal_patch_size": config["temporal_patch_size"],
    }
    return preparations.qwen3_vl(file, {**sizes, **given}).limited(MAX_TOKENS)


def marker(config: Mapping[str, Any]) -> int | None:
    """Return None: the chat template writes the image token itself."""
    return None


def pieces(config: Mapping[str, Any], plan: Plan) -> tuple[tuple[Piece, ...], ...]:
    """Return nothing: the chat template writes the tokens around an image."""
    return (), ()


def encode(encoder: NativeEncoder, config: Mapping[str, Any], patches: Patches, pause: Pause) -> Features:
    """Return a tile's features."""
    columns, rows = patches.places[:, 0], patches.places[:, 1]
    x = encoder.chain(PATCHES, patches.values, pause)
    x = x + _positions(encoder.tables[0], rows, columns, patches.grid, pause)
    pause()
    rope = axial_rope(config["rope_parameters"], config["hidden_size"] // config["num_heads"])
    after = [layer + 1 for layer in config["deepstack_visual_indexes"]]
    states = encoder.layers(x, *axial_tables(rope, rows, columns), after=after, pause=pause)
    last = encoder.chain(MERGER_NORM, states[len(encoder.spec.layers)], pause)
    width = _joined(config)
    return Features(
        encoder.chain(MERGER, last.reshape(-1, width), pause),
        tuple(encoder.chain(DEEPSTACK + i, states[layer].reshape(-1, width), pause) for i, layer in enumerate(after)),
    )


def _positions(table: Table, rows: Ints, columns: Ints, grid: tuple[int, int], pause: Pause) -> Floats:
    """Return position embeddings, interpolated bilinearly between the corners of a square table."""
    side, values = round(len(table) ** 0.5), table[:]

    def taps(index: Ints, size: int) -> list[tuple[Ints, Floats]]:
        at = index.astype(np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))
        low = np.floor(at)
        near = low.astype(np.int32)
        far = at - low
        return [(near, np.float32(1) - far), (np.minimum(near + 1, side - 1), far)]

    total: Floats | None = None
    for row, by_row in taps(rows, grid[1]):
        for column, by_column in taps(columns, grid[0]):
            pause()
            part = values[row * side + column]
            part *= (by_row * by_column)[:, None]
            total = part if total is None else np.add(total, part, out=total)
    assert total is not None
    return total


def gguf_config(file: GgufTower) -> dict[str, Any]:
    """Return the ``vision_config`` that a folder of the model would have."""
    return {
        "patch_size": file.whole("patch_size"),
        "hidden_size": file.whole("embedding_length"),
        "intermediate_size": file.whole("feed_forward_length"),
        "depth": file.whole("block_count"),
        "num_heads": file.whole("attention.head_count"),
        "spatial_merge_size": file.whole("spatial_merge_size"),
        "num_position_embeddings": file.shape("v.position_embd.weight", 2)[0],
        "deepstack_visual_indexes": file.layers_with_deepstack(),
    }


def gguf_settings(file: GgufTower) -> dict[str, Any]:
    """Return the settings of the image processor that a GGUF file has."""
    return dict(file.mean_and_std())
