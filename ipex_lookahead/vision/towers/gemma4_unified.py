"""Gemma 4 12B has no tower: norms and two linear layers turn blocks of 48 x 48 pixels into tokens."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

from ipex_lookahead.architectures.encoder import EncoderSpec, PlainNorm
from ipex_lookahead.architectures.hparams import integer, number
from ipex_lookahead.architectures.spec import Linear, Norm, Place, Tensor
from ipex_lookahead.engines.native.encoder import NativeEncoder, Pause
from ipex_lookahead.errors import InputError
from ipex_lookahead.vision import preparation as preparations
from ipex_lookahead.vision.preparation import Patches, Preparation
from ipex_lookahead.vision.tiling import Plan
from ipex_lookahead.vision.towers.base import Features, GgufTower, Key, Piece, layer_norm, linear, tensor

KEYS = {
    "patch_size": Key(integer(1, 256), 16),
    "pooling_kernel_size": Key(integer(1, 16), 3),
    "mm_embed_dim": Key(integer(16, 1 << 16), 3840),
    "mm_posemb_size": Key(integer(1, 1 << 20), 1120),
    "output_proj_dims": Key(integer(16, 1 << 16), 3840),
    "rms_norm_eps": Key(number(1e-30, 1), 1e-6),
}
NEUTRAL: dict[str, str] = {}
LAYER_NORM_EPSILON = 1e-5
"""Torch's default."""
OUTER = {"boi_token_id": Key(integer(0, 1 << 27), 255999), "eoi_token_id": Key(integer(0, 1 << 27), 258882)}
"""Tokens before and after an image, which the template does not write."""
PATCHES, FEATURES = 0, 1
"""Chains."""


def spec(config: Mapping[str, Any], hidden: int) -> EncoderSpec:
    """Return the embedder, an encoder without layers."""
    d, positions = config["mm_embed_dim"], config["mm_posemb_size"]
    values = 3 * (config["patch_size"] * config["pooling_kernel_size"]) ** 2
    name, table = "vision_embedder", "vision_embedder.pos_embedding"

    def of_pixels(part: str, shape: tuple[int, ...], gguf: str) -> Tensor:
        return tensor(f"{name}.{part}", shape, Place(gguf, shape, layout="channels_first"))

    return EncoderSpec(
        model_type="gemma4_unified_vision",
        hidden=d,
        chains=(
            (
                Norm(
                    of_pixels("patch_ln1.weight", (values,), "v.patch_norm.1.weight"),
                    LAYER_NORM_EPSILON,
                    of_pixels("patch_ln1.bias", (values,), "v.patch_norm.1.bias"),
                    centered=True,
                ),
                Linear(
                    of_pixels("patch_dense.weight", (d, values), "v.patch_embd.weight"),
                    tensor(f"{name}.patch_dense.bias", (d,), "v.patch_embd.bias"),
                ),
                layer_norm(f"{name}.patch_ln2", d, LAYER_NORM_EPSILON, "v.patch_norm.2"),
            ),
            (
                layer_norm(f"{name}.pos_norm", d, LAYER_NORM_EPSILON, "v.patch_norm.3"),
                PlainNorm(d, config["rms_norm_eps"]),
                linear("embed_vision.embedding_projection", hidden, d, "mm.input_projection"),
            ),
        ),
        tables=(
            tensor(
                table,
                (2 * positions, d),
                Place("v.position_embd.weight", (2, positions, d), layout="axes_first"),
                Place(table, (positions, 2, d)),
            ),
        ),
    )


def preparation(file: str, given: Mapping[str, Any], config: Mapping[str, Any]) -> Preparation:
    """Return the preparation. Raises ModelFormatError for settings that the family cannot have."""
    sizes = {key: config[key] for key in ("patch_size", "pooling_kernel_size")}
    made = preparations.gemma4(file, {**sizes, **given})
    return Preparation(sizing=made.sizing, patch=made.patch * made.merge, merge=1)


def marker(config: Mapping[str, Any]) -> int | None:
    """Return None: the chat template writes the image token itself."""
    return None


def pieces(config: Mapping[str, Any], plan: Plan) -> tuple[tuple[Piece, ...], ...]:
    """Return what is before and after an image."""
    return (int(config["boi_token_id"]),), (int(config["eoi_token_id"]),)


def encode(encoder: NativeEncoder, config: Mapping[str, Any], patches: Patches, pause: Pause) -> Features:
    """Return a tile's features."""
    positions = config["mm_posemb_size"]
    if max(patches.grid) > positions:
        raise InputError(f"the image has {max(patches.grid)} tokens on a side; the model has {positions} positions")
    rows = encoder.chain(PATCHES, patches.values, pause)
    x, y = patches.places[:, 0], patches.places[:, 1]
    along_x = encoder.tables[0][: 2 * x.max() + 1 : 2]
    along_y = encoder.tables[0][1 : 2 * y.max() + 2 : 2]
    rows = rows + (along_x[x] + along_y[y])
    return Features(encoder.chain(FEATURES, rows, pause))


def gguf_config(file: GgufTower) -> dict[str, Any]:
    """Return the ``vision_config`` that a folder of the model would have."""
    patch, side = file.whole("patch_size"), isqrt(file.shape("v.patch_norm.1.weight", 1)[0] // 3)
    return {
        "patch_size": patch,
        "pooling_kernel_size": side // max(patch, 1),
        "mm_embed_dim": file.whole("embedding_length"),
        "mm_posemb_size": file.shape("v.position_embd.weight", 3)[1],
    }


def gguf_settings(file: GgufTower) -> dict[str, Any]:
    """Return nothing: GGUF files have no settings of Gemma 4's image processor."""
    return {}
