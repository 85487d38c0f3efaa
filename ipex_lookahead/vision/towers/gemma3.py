"""The vision tower of Gemma 3 4B, 12B and 27B: SigLIP, a mean of 4 x 4 patches, a norm and a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

from ipex_lookahead.architectures.encoder import EncoderSpec
from ipex_lookahead.architectures.hparams import integer
from ipex_lookahead.architectures.spec import Linear, Norm, Place
from ipex_lookahead.engines.native.encoder import NativeEncoder, Pause
from ipex_lookahead.errors import UnsupportedModelError
from ipex_lookahead.vision import preparation as preparations
from ipex_lookahead.vision.preparation import Patches, Preparation
from ipex_lookahead.vision.tiling import Plan
from ipex_lookahead.vision.towers import siglip
from ipex_lookahead.vision.towers.base import Features, GgufTower, Key, Piece, tensor

KEYS = {**siglip.KEYS, "image_size": Key(integer(1, 8192), 224)}
NEUTRAL = siglip.NEUTRAL
OUTER = {
    "mm_tokens_per_image": Key(integer(1, 1 << 16), 256),
    "boi_token_index": Key(integer(0, 1 << 27), 255999),
    "eoi_token_index": Key(integer(0, 1 << 27), 256000),
}
_NAME, _PROJECTOR = "vision_tower", "multi_modal_projector"


def _merge(config: Mapping[str, Any]) -> int:
    """Return the side of a token in patches. Raises UnsupportedModelError if tokens do not divide the image."""
    patches, tokens = config["image_size"] // config["patch_size"], isqrt(config["mm_tokens_per_image"])
    if tokens**2 != config["mm_tokens_per_image"] or patches % tokens:
        raise UnsupportedModelError(
            f"mm_tokens_per_image is {config['mm_tokens_per_image']}; it must be a square that divides an image of"
            f" {patches} x {patches} patches"
        )
    return int(patches // tokens)


def spec(config: Mapping[str, Any], hidden: int) -> EncoderSpec:
    """Return the tower."""
    d = config["hidden_size"]
    norm, projection = f"{_PROJECTOR}.mm_soft_emb_norm.weight", f"{_PROJECTOR}.mm_input_projection_weight"
    gguf = "mm.input_projection.weight"
    shape = (d, hidden)
    features = (
        Norm(
            tensor(norm, (d,), "mm.soft_emb_norm.weight", Place(norm, (d,), offset=1.0)),
            config["layer_norm_eps"],
        ),
        Linear(
            tensor(
                projection,
                (hidden, d),
                Place(gguf, shape, layout="transposed"),
                Place(projection, shape, layout="transposed"),
            )
        ),
    )
    positions = (config["image_size"] // config["patch_size"]) ** 2
    return siglip.spec("gemma3_vision", config, _NAME, positions, features, conv=True)


def preparation(file: str, given: Mapping[str, Any], config: Mapping[str, Any]) -> Preparation:
    """Return the preparation. Raises ModelFormatError for settings that the family cannot have."""
    return preparations.gemma3(file, given, config["patch_size"], _merge(config), config["image_size"])


def marker(config: Mapping[str, Any]) -> int | None:
    """Return the token that the chat template writes in place of an image."""
    return int(config["boi_token_index"])


def pieces(config: Mapping[str, Any], plan: Plan) -> tuple[tuple[Piece, ...], ...]:
    """Return what is before and after an image."""
    return ("\n\n", int(config["boi_token_index"])), (int(config["eoi_token_index"]), "\n\n")


def encode(encoder: NativeEncoder, config: Mapping[str, Any], patches: Patches, pause: Pause) -> Features:
    """Return an image's features."""
    columns, merge, d = patches.grid[0], _merge(config), config["hidden_size"]
    at = patches.places[:, 1] * columns + patches.places[:, 0]
    parts = siglip.rows(encoder, patches.values, encoder.tables[0][at], pause).reshape(-1, merge**2, d)
    total = parts[:, 0]
    for i in range(1, merge**2):
        total = total + parts[:, i]
    return Features(encoder.chain(siglip.FEATURES, total / total.dtype.type(merge**2), pause))


def gguf_config(file: GgufTower) -> dict[str, Any]:
    """Return the ``vision_config`` that a folder of the model would have, and the used keys outside of it."""
    config = siglip.gguf_config(file)
    side = isqrt(file.shape("v.position_embd.weight", 2)[0])
    merge = file.whole("projector.scale_factor", 4)
    tokens = (side // max(merge, 1)) ** 2
    return config | {"image_size": file.whole("image_size"), "mm_tokens_per_image": tokens}


def gguf_settings(file: GgufTower) -> dict[str, Any]:
    """Return the settings of the image processor that a GGUF file has."""
    return dict(file.mean_and_std())
