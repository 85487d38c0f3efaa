"""The vision tower of Idefics 3, SmolVLM and SmolVLM 2: SigLIP on tiles, blocks of patches joined, and a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ipex_lookahead.architectures.encoder import EncoderSpec
from ipex_lookahead.architectures.hparams import integer
from ipex_lookahead.engines.native.encoder import NativeEncoder, Pause
from ipex_lookahead.vision import preparation as preparations
from ipex_lookahead.vision.preparation import Ints, Patches, Preparation
from ipex_lookahead.vision.tiling import Plan
from ipex_lookahead.vision.towers import siglip
from ipex_lookahead.vision.towers.base import Features, GgufTower, Key, Piece, linear

KEYS = {
    **siglip.KEYS,
    "hidden_size": Key(integer(16, 1 << 16), 1152),
    "num_attention_heads": Key(integer(1, 1024), 16),
    "patch_size": Key(integer(1, 256), 32),
    "image_size": Key(integer(1, 8192), 224),
}
NEUTRAL = siglip.NEUTRAL
OUTER = {"scale_factor": Key(integer(1, 16), 2)}
_TILE, _OVERVIEW = "<fake_token_around_image>", "<global-img>"


def spec(config: Mapping[str, Any], hidden: int) -> EncoderSpec:
    """Return the tower."""
    joined = config["hidden_size"] * config["scale_factor"] ** 2
    features = (linear("connector.modality_projection.proj", hidden, joined, "mm.model.fc"),)
    return siglip.spec("idefics3_vision", config, "vision_model", _side(config) ** 2, features, conv=True)


def _side(config: Mapping[str, Any]) -> int:
    """Return the number of position embeddings on a side."""
    return int(config["image_size"] // config["patch_size"])


def preparation(file: str, given: Mapping[str, Any], config: Mapping[str, Any]) -> Preparation:
    """Return the preparation. Raises ModelFormatError for settings that the family cannot have."""
    return preparations.idefics3(file, given, config["patch_size"], config["scale_factor"], config["image_size"])


def marker(config: Mapping[str, Any]) -> int | None:
    """Return None: the chat template writes the image token itself."""
    return None


def pieces(config: Mapping[str, Any], plan: Plan) -> tuple[tuple[Piece, ...], ...]:
    """Return the texts around tiles: a name for each tile, and line breaks after each row of tiles."""
    if not plan.overview:
        return (_TILE + _OVERVIEW,), (_TILE,)
    names = [f"{_TILE}<row_{r + 1}_col_{c + 1}>" for r in range(plan.rows) for c in range(plan.columns)]
    for at in range(plan.columns, len(names), plan.columns):
        names[at] = "\n" + names[at]
    return (*((name,) for name in names), (f"\n\n{_TILE}{_OVERVIEW}",), (_TILE,))


def encode(encoder: NativeEncoder, config: Mapping[str, Any], patches: Patches, pause: Pause) -> Features:
    """Return a tile's features."""
    side = _side(config)
    x, y = (_buckets(patches.places[:, axis], patches.grid[axis], side) for axis in (0, 1))
    last = siglip.rows(encoder, patches.values, encoder.tables[0][y * side + x], pause)
    joined = config["hidden_size"] * config["scale_factor"] ** 2
    return Features(encoder.chain(siglip.FEATURES, last.reshape(-1, joined), pause))


def _buckets(at: Ints, count: int, side: int) -> Ints:
    """Return the positions on an axis of ``side`` for patches ``at`` of ``count``, in transformers' rounding."""
    step = 1 / side
    bounds = (step + np.arange(max(int(np.ceil((1 - step) / step)), 0)) * step).astype(np.float32)
    places = np.minimum(at.astype(np.float32) * np.float32(1 / np.float32(count)), np.float32(1 - 1e-6))
    found: Ints = np.searchsorted(bounds, places, side="right").astype(np.int32)
    return found


def gguf_config(file: GgufTower) -> dict[str, Any]:
    """Return the ``vision_config`` that a folder of the model would have, and the used keys outside of it."""
    return siglip.gguf_config(file) | {
        "image_size": file.whole("image_size"),
        "scale_factor": file.whole("projector.scale_factor"),
    }


def gguf_settings(file: GgufTower) -> dict[str, Any]:
    """Return the settings of the image processor that a GGUF file has."""
    longest = file.whole("preproc_image_size", 0)
    return {**file.mean_and_std(), **({"size": {"longest_edge": longest}} if longest else {})}
