"""From pixels to a tower's inputs: the size that a family resizes to, the number of tokens, and the patches.

The values come from a folder's ``preprocessor_config.json`` or ``processor_config.json``. Everything but the pixels
follows from the size in an image's header, so prompts are counted without decoding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ipex_lookahead.errors import InputError, ModelFormatError
from ipex_lookahead.files.safe_json import load_object

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

BUDGETS = (70, 140, 280, 560, 1120)
"""Numbers of tokens per image that Gemma 4 was trained with."""
MAX_RATIO = 200
"""Greatest ratio of the sides of an image for Qwen."""
MAX_SETTINGS = 1 << 20
BICUBIC = 3


class Sizing(Protocol):
    """A family's rule for the size that an image is resized to."""

    def fit(self, width: int, height: int, unit: int) -> tuple[int, int]:
        """Return width and height, multiples of ``unit``, the side of a token in pixels.

        Raises InputError for an image that the family cannot represent.
        """


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """Gemma 4: the largest size of about the same ratio with at most ``tokens`` tokens; small images are enlarged."""

    tokens: int

    def fit(self, width: int, height: int, unit: int) -> tuple[int, int]:
        factor = math.sqrt(self.tokens * unit * unit / (width * height))
        columns, rows = int(factor * width / unit), int(factor * height / unit)
        if rows == 0:
            rows, columns = 1, min(width // height, self.tokens)
        elif columns == 0:
            columns, rows = 1, min(height // width, self.tokens)
        return columns * unit, rows * unit


@dataclass(frozen=True, slots=True)
class PixelRange:
    """Qwen: both sides rounded half to even, then scaled if there are more or fewer pixels than allowed."""

    least: int
    most: int

    def fit(self, width: int, height: int, unit: int) -> tuple[int, int]:
        if max(width, height) > MAX_RATIO * min(width, height):
            raise InputError(
                f"the image cannot be used: it has {width:,} x {height:,} pixels; one side may be at most {MAX_RATIO} "
                "times the other",
                hint="crop it",
            )
        sides = [round(side / unit) * unit for side in (width, height)]
        if sides[0] * sides[1] > self.most:
            ratio = math.sqrt(width * height / self.most)
            sides = [max(unit, math.floor(side / ratio / unit) * unit) for side in (width, height)]
        elif sides[0] * sides[1] < self.least:
            ratio = math.sqrt(self.least / (width * height))
            sides = [math.ceil(side * ratio / unit) * unit for side in (width, height)]
        return sides[0], sides[1]


@dataclass(frozen=True, slots=True)
class Patches:
    """A tower's inputs for one image, the patches of a token next to each other.

    Attributes:
        values: [patches, values per patch].
        places: [patches, 2], column and row of each patch.
        grid: columns and rows of patches.
    """

    values: Floats
    places: Ints
    grid: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What happens to an image before the tower.

    Attributes:
        sizing: rule for the size.
        patch: side of a patch in pixels.
        merge: a token is of ``merge`` x ``merge`` patches.
        resample: number of Pillow's filter.
        scale, mean, std: a channel's value is (pixel * scale - mean) / std.
        channels_first: a patch is [channel, frame, y, x]; else [y, x, channel].
        frames: copies of the image in a patch.
    """

    sizing: Sizing
    patch: int
    merge: int
    resample: int = BICUBIC
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    channels_first: bool = False
    frames: int = 1

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height that an image is resized to. Raises InputError as :class:`Sizing`."""
        return self.sizing.fit(width, height, self.patch * self.merge)

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Return columns and rows of an image's tokens. Raises InputError as :class:`Sizing`."""
        unit = self.patch * self.merge
        columns, rows = self.size(width, height)
        return columns // unit, rows // unit

    def with_tokens(self, tokens: int) -> Preparation:
        """Return the preparation with another limit on the tokens of an image."""
        sizing = self.sizing
        if isinstance(sizing, PixelRange):
            most = tokens * (self.patch * self.merge) ** 2
            return replace(self, sizing=PixelRange(min(sizing.least, most), min(sizing.most, most)))
        return replace(self, sizing=TokenBudget(tokens))

    def capped(self, tokens: int) -> Preparation:
        """Return the preparation, with a limit on the tokens of an image if its own is larger."""
        sizing, unit = self.sizing, self.patch * self.merge
        most = sizing.tokens if isinstance(sizing, TokenBudget) else getattr(sizing, "most", 0) // unit**2
        return self if most <= tokens else self.with_tokens(tokens)

    def patches(self, pixels: npt.NDArray[np.uint8]) -> Patches:
        """Return the patches of resized pixels uint8 [height, width, 3]."""
        p, m = self.patch, self.merge
        rows, columns = pixels.shape[0] // p, pixels.shape[1] // p
        # [row of tokens, row in token, y, column of tokens, column in token, x, channel]
        blocks = pixels.reshape(rows // m, m, p, columns // m, m, p, 3).transpose(0, 3, 1, 4, 2, 5, 6)
        values = self._values(blocks.reshape(-1, p, p, 3))
        if self.channels_first:
            values = values.transpose(0, 3, 1, 2)[:, :, None]
            values = np.broadcast_to(values, (*values.shape[:2], self.frames, p, p))
        places = self.places(rows, columns)
        return Patches(np.ascontiguousarray(values.reshape(len(places), -1)), places, (columns, rows))

    def places(self, rows: int, columns: int) -> Ints:
        """Return column and row of each patch [patches, 2], those of a token next to each other."""
        m = self.merge
        at = np.arange(rows * columns, dtype=np.int32).reshape(rows // m, m, columns // m, m)
        at = at.transpose(0, 2, 1, 3).reshape(-1)
        return np.stack([at % columns, at // columns], axis=1)

    def _values(self, pixels: npt.NDArray[np.uint8]) -> Floats:
        """Return the channels' values [..., 3], by a table of 256 for each channel."""
        levels = (np.arange(256) * self.scale).astype(np.float32)
        table = np.stack([(levels - np.float32(m)) / np.float32(s) for m, s in zip(self.mean, self.std, strict=True)])
        return np.stack([table[channel][pixels[..., channel]] for channel in range(3)], axis=-1)


def settings(folder: Path) -> tuple[str, Mapping[str, Any]]:
    """Return (file name, settings of the image processor) of a folder; empty settings without such a file.

    Raises ModelFormatError for a file that is not a JSON object.
    """
    for name, key in (("preprocessor_config.json", ""), ("processor_config.json", "image_processor")):
        path = folder / name
        if path.is_file():
            found: Any = load_object(path, MAX_SETTINGS)
            found = found.get(key) if key else found
            if isinstance(found, dict):
                return str(path), found
    return str(folder / "preprocessor_config.json"), {}


def gemma4(file: str, given: Mapping[str, Any]) -> Preparation:
    """Return Gemma 4's preparation. Raises ModelFormatError for settings that it cannot have."""
    _expect(file, given, {"do_resize": True, "do_rescale": True, "do_normalize": False, "resample": BICUBIC})
    tokens = given.get("max_soft_tokens", 280)
    if tokens not in BUDGETS:
        allowed = ", ".join(map(str, BUDGETS))
        raise ModelFormatError(file, "max_soft_tokens", None, f"is {tokens!r}; it must be one of {allowed}")
    patch, merge = (_size(file, given, name, n) for name, n in (("patch_size", 16), ("pooling_kernel_size", 3)))
    return Preparation(sizing=TokenBudget(tokens), patch=patch, merge=merge)


def qwen3_vl(file: str, given: Mapping[str, Any]) -> Preparation:
    """Return the preparation of Qwen3-VL and Qwen3.5 to 3.8. Raises ModelFormatError for settings it cannot have."""
    _expect(file, given, {"do_resize": True, "do_rescale": True, "do_normalize": True, "resample": BICUBIC})
    size = given.get("size")
    size = size if isinstance(size, dict) else {}
    least = given.get("min_pixels") or size.get("shortest_edge", 65536)
    most = given.get("max_pixels") or size.get("longest_edge", 16777216)
    if not (isinstance(least, int) and isinstance(most, int) and 0 < least <= most):
        raise ModelFormatError(
            file, "size", None, f"has {least!r} to {most!r} pixels; both must be positive, ascending"
        )
    return Preparation(
        sizing=PixelRange(least, most),
        patch=_size(file, given, "patch_size", 16),
        merge=_size(file, given, "merge_size", 2),
        mean=_channels(file, given, "image_mean"),
        std=_channels(file, given, "image_std"),
        channels_first=True,
        frames=_size(file, given, "temporal_patch_size", 2),
    )


def _expect(file: str, given: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if given.get(key, value) != value:
            raise ModelFormatError(file, key, None, f"is {given[key]!r}; only {value!r} is supported")
    scale = given.get("rescale_factor", 1 / 255)
    if scale != 1 / 255:
        raise ModelFormatError(file, "rescale_factor", None, f"is {scale!r}; only 1/255 is supported")


def _size(file: str, given: Mapping[str, Any], key: str, default: int) -> int:
    value = given.get(key, default)
    if not isinstance(value, int) or not 1 <= value <= 256:
        raise ModelFormatError(file, key, None, f"is {value!r}; it must be an integer from 1 to 256")
    return value


def _channels(file: str, given: Mapping[str, Any], key: str) -> tuple[float, ...]:
    value = given.get(key, [0.5, 0.5, 0.5])
    numbers = isinstance(value, list) and len(value) == 3 and all(isinstance(one, int | float) for one in value)
    if not numbers or (key == "image_std" and not all(one > 0 for one in value)):
        raise ModelFormatError(file, key, None, f"is {value!r}; it must be three numbers")
    return tuple(float(one) for one in value)
