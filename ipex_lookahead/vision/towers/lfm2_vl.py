"""The vision tower of LFM2-VL: SigLIP 2 for any ratio, blocks of patches joined, and two linear layers."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

import numpy as np

from ipex_lookahead.architectures.encoder import EncoderSpec, Link
from ipex_lookahead.architectures.hparams import Source, boolean, integer, one_of
from ipex_lookahead.architectures.spec import Activation
from ipex_lookahead.engines.native.encoder import NativeEncoder, Pause, Table
from ipex_lookahead.errors import UnsupportedModelError
from ipex_lookahead.vision import preparation as preparations
from ipex_lookahead.vision.preparation import Floats, Ints, Patches, Preparation
from ipex_lookahead.vision.tiling import Plan
from ipex_lookahead.vision.towers import siglip
from ipex_lookahead.vision.towers.base import Features, GgufTower, Key, Piece, layer_norm, linear

KEYS = {**siglip.KEYS, "num_patches": Key(integer(1, 1 << 20), 256)}
NEUTRAL = siglip.NEUTRAL


def _last_layer(source: Source, key: str, value: Any) -> int:
    if value != -1:
        raise UnsupportedModelError(f"{source.file}: {source.spelling(key)} is {value!r}; only -1 is supported")
    return -1


OUTER = {
    "downsample_factor": Key(integer(1, 16), 2),
    "projector_hidden_size": Key(integer(1, 1 << 18), 2560),
    "projector_hidden_act": Key(one_of("gelu"), "gelu"),
    "projector_bias": Key(boolean, True),
    "projector_use_layernorm": Key(boolean, True),
    "vision_feature_layer": Key(_last_layer, -1),
}
LAYER_NORM_EPSILON = 1e-5
"""Torch's default, of the projector's norm."""
_NAME, _PROJECTOR = "vision_tower", "multi_modal_projector"


def spec(config: Mapping[str, Any], hidden: int) -> EncoderSpec:
    """Return the tower."""
    joined, middle = _joined(config), config["projector_hidden_size"]
    bias = config["projector_bias"]
    norm = layer_norm(f"{_PROJECTOR}.layer_norm", joined, LAYER_NORM_EPSILON, "mm.input_norm")
    features: tuple[Link, ...] = (
        *((norm,) if config["projector_use_layernorm"] else ()),
        linear(f"{_PROJECTOR}.linear_1", middle, joined, "mm.1", bias=bias),
        Activation("gelu"),
        linear(f"{_PROJECTOR}.linear_2", hidden, middle, "mm.2", bias=bias),
    )
    return siglip.spec("lfm2_vl_vision", config, _NAME, isqrt(config["num_patches"]) ** 2, features, conv=False)


def _joined(config: Mapping[str, Any]) -> int:
    return int(config["hidden_size"] * config["downsample_factor"] ** 2)


def preparation(file: str, given: Mapping[str, Any], config: Mapping[str, Any]) -> Preparation:
    """Return the preparation. Raises ModelFormatError for settings that the family cannot have."""
    return preparations.lfm2_vl(file, given, config["patch_size"], config["downsample_factor"])


def marker(config: Mapping[str, Any]) -> int | None:
    """Return None: the chat template writes the image token itself."""
    return None


def pieces(config: Mapping[str, Any], plan: Plan) -> tuple[tuple[Piece, ...], ...]:
    """Return the texts around tiles: a name for each tile of a grid, and for the whole image after it."""
    begin, end = "<|image_start|>", "<|image_end|>"
    if plan.rows == plan.columns == 1:
        return (begin,), (end,)
    names = [f"<|img_row_{r + 1}_col_{c + 1}|>" for r in range(plan.rows) for c in range(plan.columns)]
    names[0] = begin + names[0]
    return (*((name,) for name in (*names, *(("<|img_thumbnail|>",) if plan.overview else ()))), (end,))


def encode(encoder: NativeEncoder, config: Mapping[str, Any], patches: Patches, pause: Pause) -> Features:
    """Return a tile's features."""
    positions = _positions(encoder.tables[0], patches.places, patches.grid)
    last = siglip.rows(encoder, patches.values, positions, pause)
    return Features(encoder.chain(siglip.FEATURES, last.reshape(-1, _joined(config)), pause))


def _positions(table: Table, places: Ints, grid: tuple[int, int]) -> Floats:
    """Return position embeddings: the square table resized to ``grid`` (columns, rows), bilinear with antialiasing."""
    side = isqrt(len(table))

    def taps(at: Ints, size: int) -> list[tuple[Ints, Floats]]:
        scale = np.float32(side) / np.float32(size)
        support = max(scale, np.float32(1))
        center = (at.astype(np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
        first = np.floor(center - support).astype(np.int32) + 1
        sources = [first + i for i in range(2 * int(np.ceil(support)))]
        weights = []
        for source in sources:
            weight = np.maximum(1 - np.abs(source.astype(np.float32) - center) / support, np.float32(0))
            weights.append(np.where((source >= 0) & (source < side), weight, np.float32(0)))
        total = weights[0]
        for weight in weights[1:]:
            total = total + weight
        return [(np.clip(s, 0, side - 1), weight / total) for s, weight in zip(sources, weights, strict=True)]

    found: Floats | None = None
    for row, by_row in taps(places[:, 1], grid[1]):
        for column, by_column in taps(places[:, 0], grid[0]):
            part = table[row * side + column] * (by_row * by_column)[:, None]
            found = part if found is None else found + part
    assert found is not None
    return found


def gguf_config(file: GgufTower) -> dict[str, Any]:
    """Return the ``vision_config`` that a folder of the model would have, and the used keys outside of it."""
    return siglip.gguf_config(file) | {
        "num_patches": file.shape("v.position_embd.weight", 2)[0],
        "downsample_factor": file.whole("projector.scale_factor"),
        "projector_hidden_size": file.shape("mm.1.weight", 2)[0],
        "projector_bias": file.has("mm.1.bias"),
        "projector_use_layernorm": file.has("mm.input_norm.weight"),
    }


def gguf_settings(file: GgufTower) -> dict[str, Any]:
    """Return the settings of the image processor that a GGUF file has."""
    return dict(file.mean_and_std())
