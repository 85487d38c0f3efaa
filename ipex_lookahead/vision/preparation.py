"""From pixels to a tower's inputs: a family's settings, the numbers of tokens, and the patches.

The values come from a folder's ``preprocessor_config.json`` or ``processor_config.json``. Everything but the pixels
follows from the size in an image's header, so prompts are counted without decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.engines.native.encoder import Pause, no_pause
from ipex_lookahead.errors import ModelFormatError
from ipex_lookahead.files.safe_json import load_object
from ipex_lookahead.vision.tiling import (
    BUDGETS,
    LongestSide,
    PixelRange,
    Plan,
    Sizing,
    Square,
    Tile,
    TilesAndOverview,
    TokenBudget,
)

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

MAX_SETTINGS = 1 << 20
BILINEAR, BICUBIC, LANCZOS = 2, 3, 1
"""Numbers of Pillow's filters."""
MAX_TILES = 64
"""Maximum number of tiles of an image."""


@dataclass(frozen=True, slots=True)
class Patches:
    """A tower's inputs for one tile, the patches of a token next to each other.

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
        sizing: rule for the tiles.
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

    @property
    def unit(self) -> int:
        """Side of a token in pixels."""
        return self.patch * self.merge

    def plan(self, width: int, height: int) -> Plan:
        """Return the tiles of an image. Raises InputError for an image that the family cannot represent."""
        return self.sizing.plan(width, height, self.unit)

    def grid(self, tile: Tile) -> tuple[int, int]:
        """Return rows and columns of a tile's tokens."""
        return tile.height // self.unit, tile.width // self.unit

    def tokens(self, width: int, height: int) -> int:
        """Return the number of tokens of an image. Raises InputError as :meth:`plan`."""
        grids = map(self.grid, self.plan(width, height).tiles)
        return sum(rows * columns for rows, columns in grids)

    def limited(self, tokens: int) -> Preparation:
        """Return the preparation with at most this number of tokens for an image, as far as the family has a choice."""
        return replace(self, sizing=self.sizing.limited(tokens, self.unit))

    def detailed(self, detail: str) -> Preparation:
        """Return the preparation for a ``detail`` of OpenAI's API: "low", "high", or else the model's own."""
        if detail not in ("low", "high"):
            return self
        return replace(self, sizing=getattr(self.sizing, detail)(self.unit))

    def patches(self, pixels: npt.NDArray[np.uint8], pause: Pause = no_pause) -> Patches:
        """Return the patches of a tile uint8 [height, width, 3], without pixels beyond the last whole token.

        ``pause`` is called between rows of tokens.
        """
        p, m = self.patch, self.merge
        rows, columns = pixels.shape[0] // self.unit * m, pixels.shape[1] // self.unit * m
        pixels = pixels[: rows * p, : columns * p]
        # [row of tokens, row in token, y, column of tokens, column in token, x, channel]
        blocks = pixels.reshape(rows // m, m, p, columns // m, m, p, 3).transpose(0, 3, 1, 4, 2, 5, 6)
        shape = (self.frames, p, p) if self.channels_first else (p, p)
        found = np.empty((rows // m, m * columns, *((3, *shape) if self.channels_first else (*shape, 3))), np.float32)
        for row, out in zip(blocks, found, strict=True):
            values = self._values(row.reshape(-1, p, p, 3))
            out[...] = values.transpose(0, 3, 1, 2)[:, :, None] if self.channels_first else values
            pause()
        return Patches(found.reshape(rows * columns, -1), self.places(rows, columns), (columns, rows))

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


def gemma3(file: str, given: Mapping[str, Any], patch: int, merge: int, side: int) -> Preparation:
    """Return Gemma 3's preparation: a square, whatever the ratio. Raises ModelFormatError for other settings.

    Args:
        file: name of the settings' file.
        given: the settings.
        patch: side of a patch in pixels.
        merge: side of a token in patches.
        side: side of the image that the tower has positions for.
    """
    _expect(file, given, {"do_resize": True, "do_rescale": True, "do_normalize": True, "resample": BILINEAR})
    if given.get("do_pan_and_scan"):
        raise ModelFormatError(file, "do_pan_and_scan", None, "is true; crops of an image are not supported")
    size = given.get("size", {"height": side, "width": side})
    if not isinstance(size, dict) or size.get("height") != side or size.get("width") != side:
        raise ModelFormatError(file, "size", None, f"is {size!r}; the tower reads {side} x {side} pixels")
    return _normalized(file, given, Square(side), patch, merge, BILINEAR)


def idefics3(file: str, given: Mapping[str, Any], patch: int, merge: int, side: int) -> Preparation:
    """Return the preparation of Idefics 3 and SmolVLM. Raises ModelFormatError for settings that they cannot have.

    The arguments are those of :func:`gemma3`.
    """
    _expect(file, given, {"do_resize": True, "do_rescale": True, "do_normalize": True, "resample": LANCZOS})
    longest = _edge(file, given, "size", 4 * side)
    tile = _edge(file, given, "max_image_size", side)
    if tile // patch % merge:
        raise ModelFormatError(
            file, "max_image_size", None, f"is {tile}: {tile // patch} patches, which are not in blocks of {merge}"
        )
    splits = given.get("do_image_splitting", True)
    if not isinstance(splits, bool):
        raise ModelFormatError(file, "do_image_splitting", None, f"is {splits!r}; it must be true or false")
    return _normalized(file, given, LongestSide(longest, tile, splits), patch, merge, LANCZOS)


def lfm2_vl(file: str, given: Mapping[str, Any], patch: int, merge: int) -> Preparation:
    """Return LFM2-VL's preparation. Raises ModelFormatError for settings that it cannot have."""
    wanted = {"do_resize": True, "do_rescale": True, "do_normalize": True, "resample": BILINEAR}
    _expect(file, given, {**wanted, "encoder_patch_size": patch, "downsample_factor": merge})
    defaults = {"min_image_tokens": 64, "max_image_tokens": 256, "tile_size": 512, "min_tiles": 2, "max_tiles": 10}
    found = {key: given.get(key, default) for key, default in defaults.items()}
    for key, value in found.items():
        if not isinstance(value, int) or not 1 <= value <= 4096:
            raise ModelFormatError(file, key, None, f"is {value!r}; it must be an integer from 1 to 4,096")
    for low, high in (("min_image_tokens", "max_image_tokens"), ("min_tiles", "max_tiles")):
        if found[low] > found[high]:
            raise ModelFormatError(file, low, None, f"is {found[low]}, and {high} is {found[high]}")
    if found["tile_size"] % (patch * merge):
        raise ModelFormatError(
            file, "tile_size", None, f"is {found['tile_size']}; it must be a multiple of {patch * merge}"
        )
    if found["max_tiles"] > MAX_TILES:
        raise ModelFormatError(file, "max_tiles", None, f"is {found['max_tiles']}; it must be at most {MAX_TILES}")
    tolerance = given.get("max_pixels_tolerance", 2.0)
    if not isinstance(tolerance, int | float) or not 0 < tolerance <= 1e6:
        raise ModelFormatError(file, "max_pixels_tolerance", None, f"is {tolerance!r}; it must be a positive number")
    for key in ("do_image_splitting", "use_thumbnail"):
        if not isinstance(given.get(key, True), bool):
            raise ModelFormatError(file, key, None, f"is {given[key]!r}; it must be true or false")
    split = given.get("do_image_splitting", True)
    sizing = TilesAndOverview(
        least=found["min_image_tokens"],
        most=found["max_image_tokens"],
        tile=found["tile_size"],
        least_tiles=found["min_tiles"] if split else 1,
        most_tiles=found["max_tiles"] if split else 1,
        tolerance=float(tolerance),
        overview=given.get("use_thumbnail", True),
    )
    return replace(_normalized(file, given, sizing, patch, merge, BILINEAR), channels_first=False)


def _normalized(
    file: str, given: Mapping[str, Any], sizing: Sizing, patch: int, merge: int, resample: int
) -> Preparation:
    """Return a preparation with mean and standard deviation and patches [channel, y, x]."""
    mean, std = (_channels(file, given, key) for key in ("image_mean", "image_std"))
    return Preparation(
        sizing=sizing, patch=patch, merge=merge, resample=resample, mean=mean, std=std, channels_first=True
    )


def _edge(file: str, given: Mapping[str, Any], key: str, default: int) -> int:
    """Return the ``longest_edge`` of a setting."""
    value = given.get(key, {"longest_edge": default})
    edge = value.get("longest_edge") if isinstance(value, dict) else None
    if not isinstance(edge, int) or not 1 <= edge <= 8192:
        raise ModelFormatError(file, key, None, f"is {value!r}; its longest_edge must be an integer from 1 to 8,192")
    return edge


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
