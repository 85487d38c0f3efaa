"""What the towers share: features, checked configs, and short forms for descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ipex_lookahead.architectures.encoder import EncoderSpec
from ipex_lookahead.architectures.hparams import Check, Source
from ipex_lookahead.architectures.spec import Linear, Norm, Place, Rope, Tensor
from ipex_lookahead.engines.native.decoder import rope_tables
from ipex_lookahead.engines.native.encoder import NativeEncoder, Pause
from ipex_lookahead.vision.preparation import Floats, Ints, Patches, Preparation
from ipex_lookahead.vision.tiling import Plan

Piece = str | int
"""A text, or the id of a token."""


@dataclass(frozen=True, slots=True)
class Features:
    """What a tower gives to the text model for a tile, or for the tiles of an image one after the other.

    Attributes:
        values: [tokens, hidden of the text model], row by row of a tile.
        deepstack: further [tokens, hidden], number i added after text layer i (Qwen3-VL).
    """

    values: Floats
    deepstack: tuple[Floats, ...] = ()


class Tower(Protocol):
    """A kind of tower, a module of this folder."""

    KEYS: Mapping[str, Key]
    """The used keys of ``vision_config``."""
    OUTER: Mapping[str, Key]
    """The used keys of the whole config."""

    def spec(self, config: Mapping[str, Any], hidden: int) -> EncoderSpec:
        """Return the tower for a checked config and the hidden size of the text model."""

    def preparation(self, file: str, given: Mapping[str, Any], config: Mapping[str, Any]) -> Preparation:
        """Return the preparation of images for the settings of the image processor."""

    def marker(self, config: Mapping[str, Any]) -> int | None:
        """Return the token that the chat template writes in place of an image; None: that of an image's rows."""

    def pieces(self, config: Mapping[str, Any], plan: Plan) -> tuple[tuple[Piece, ...], ...]:
        """Return what is before the first tile of an image, between tiles, and after the last one."""

    def encode(self, encoder: NativeEncoder, config: Mapping[str, Any], patches: Patches, pause: Pause) -> Features:
        """Return a tile's features."""

    def gguf_config(self, file: GgufTower) -> dict[str, Any]:
        """Return the values of ``KEYS`` and ``OUTER`` that a GGUF file has."""

    def gguf_settings(self, file: GgufTower) -> dict[str, Any]:
        """Return the settings of the image processor that a GGUF file has."""


class GgufTower(Protocol):
    """The metadata and the shapes of tensors of a GGUF file with a tower. Methods raise ModelFormatError."""

    def whole(self, key: str, default: int | None = None) -> int:
        """Return a whole number of the metadata, without ``clip.vision.``; a default if it may be missing."""

    def number(self, key: str) -> float:
        """Return a positive number of the metadata."""

    def mean_and_std(self) -> dict[str, list[float]]:
        """Return ``image_mean`` and ``image_std``, those that are there."""

    def layers_with_deepstack(self) -> list[int]:
        """Return the numbers of layers with further features."""

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """Return the shape of a tensor, which must have this number of dimensions."""

    def has(self, name: str) -> bool:
        """Return True if there is a tensor of this name."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of ``vision_config``: its check, and transformers' default."""

    check: Check
    default: Any


def checked(keys: Mapping[str, Key], given: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """Return the values of the keys. Raises ModelFormatError for a value of another type or out of range."""
    return {
        name: key.default if given.get(name) is None else key.check(source, name, given[name])
        for name, key in keys.items()
    }


def rope_theta(default: float) -> Key:
    """Return the key ``rope_parameters`` of an axial rope, read as its base."""

    def check(source: Source, key: str, value: Any) -> float:
        if not isinstance(value, dict) or value.get("rope_type", "axial") not in ("axial", "default"):
            raise source.error(key, f"is {value!r}; an object with rope_type axial is supported")
        theta = value.get("rope_theta", default)
        if not isinstance(theta, int | float) or not 1 < theta < 1e9:
            raise source.error(key, f"has rope_theta {theta!r}; it must be a number from 1 to 1e9")
        return float(theta)

    return Key(check, default)


def tensor(name: str, shape: tuple[int, ...], gguf: str | Place, place: Place | None = None) -> Tensor:
    """Return a weight under its names in folders and GGUF files, or at places there."""
    other = Place(gguf, shape) if isinstance(gguf, str) else gguf
    return Tensor(name, shape, place or Place(name, shape), other)


def linear(name: str, n_out: int, n_in: int, gguf: str, *, bias: bool = False) -> Linear:
    """Return a linear layer ``name``.weight with an optional ``name``.bias; ``gguf`` is its name there."""
    return Linear(
        tensor(f"{name}.weight", (n_out, n_in), f"{gguf}.weight"),
        tensor(f"{name}.bias", (n_out,), f"{gguf}.bias") if bias else None,
    )


def layer_norm(name: str, width: int, epsilon: float, gguf: str) -> Norm:
    """Return a layer norm with bias."""
    weight, bias = (tensor(f"{name}.{part}", (width,), f"{gguf}.{part}") for part in ("weight", "bias"))
    return Norm(weight, epsilon, bias, centered=True)


def axial_rope(theta: float, head_dim: int) -> Rope:
    """Return the rope of one axis: head_dim / 4 frequencies theta^(-4 i / head_dim), as transformers rounds them."""
    spatial = head_dim // 2
    exponents = np.arange(0, spatial, 2, dtype=np.float32) / np.float32(spatial)
    return Rope((1 / np.float32(theta) ** exponents).astype(np.float32))


def axial_tables(rope: Rope, first: Ints, second: Ints) -> tuple[Floats, Floats]:
    """Return cosines and sines [rows, head_dim / 2] of positions on two axes, those of the first axis first."""
    cos, sin, _ = rope_tables(rope, int(max(first.max(), second.max())) + 1)

    def joined(table: Floats) -> Floats:
        return np.concatenate([table[first], table[second]], axis=1)

    return joined(cos), joined(sin)
