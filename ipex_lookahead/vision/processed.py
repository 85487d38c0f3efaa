"""Outputs of transformers' image processors, ``pixel_values`` and positions, as the patches that a tower reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.errors import InputError, UnsupportedModelError
from ipex_lookahead.vision.preparation import Floats, Ints, Patches, Preparation
from ipex_lookahead.vision.towers import gemma4, gemma4_unified, qwen3_vl

MAX_SIDE = 1 << 15
"""Maximum number of patches on a side of an image."""
GRID, PLACES = "image_grid_thw", "image_position_ids"

_Integers = npt.NDArray[np.int64]


def patches_of(
    tower: Any, preparation: Preparation, values: Floats, grids: _Integers | None, places: _Integers | None
) -> list[Patches]:
    """Return the patches of images, with those of a token next to each other.

    Args:
        tower: a module of ``towers``.
        preparation: of the model's images.
        values: ``pixel_values``, float32. Qwen: [patches of all images, values]; Gemma 4: [images, patches, values].
        grids: ``image_grid_thw`` [images, 3] of Qwen: frames, rows and columns of patches.
        places: ``image_position_ids`` [images, patches, 2] of Gemma 4: column and row of each patch, -1 at padding.

    Raises:
        UnsupportedModelError: a tower of another family.
        InputError: arrays that are missing or do not fit each other or the model.
    """
    if tower is qwen3_vl:
        _absent(PLACES, places, GRID)
        return _of_grids(preparation, values, _given(GRID, grids))
    if tower in (gemma4, gemma4_unified):
        _absent(GRID, grids, PLACES)
        return _of_places(preparation, values, _given(PLACES, places))
    name = str(tower.__name__).rpartition(".")[2]
    raise UnsupportedModelError(
        f"pixel_values of {name} models are not supported",
        hint="pass image files to ipex_lookahead.LLM: llm.chat(text, images=[path])",
    )


def _given(name: str, array: _Integers | None) -> _Integers:
    if array is None:
        raise InputError(f"pixel_values need {name}; pass all outputs of the processor")
    return array


def _absent(name: str, array: _Integers | None, other: str) -> None:
    if array is not None:
        raise InputError(f"{name} is not for this model, which reads {other}; use the model's own processor")


def _of_grids(preparation: Preparation, values: Floats, grids: _Integers) -> list[Patches]:
    if grids.ndim != 2 or grids.shape[1] != 3 or not len(grids):
        raise InputError(f"{GRID} has shape {list(grids.shape)}; it must be [images, 3]")
    merge, found, first = preparation.merge, [], 0
    _check_width(preparation, values, 2)
    for number, (frames, rows, columns) in enumerate(grids.tolist()):
        if frames != 1 or not (0 < rows <= MAX_SIDE and 0 < columns <= MAX_SIDE) or rows % merge or columns % merge:
            raise InputError(
                f"{GRID} of image {number} is {[frames, rows, columns]}; it must be 1 frame, and rows and columns that"
                f" are multiples of {merge}"
            )
        places = preparation.places(rows, columns)
        found.append(Patches(values[first : first + len(places)], places, (columns, rows)))
        first += len(places)
    if first != len(values):
        raise InputError(f"pixel_values has {len(values)} patches; {GRID} describes {first}")
    return found


def _of_places(preparation: Preparation, values: Floats, places: _Integers) -> list[Patches]:
    _check_width(preparation, values, 3)
    if places.shape != (*values.shape[:2], 2):
        raise InputError(f"{PLACES} has shape {list(places.shape)}; it must be {[*values.shape[:2], 2]}")
    merge, found = preparation.merge, []
    for number, (of_image, own) in enumerate(zip(values, places, strict=True)):
        real = (own >= 0).all(axis=1)
        x, y = own[real].T
        columns, rows = (int(axis.max(initial=-1)) + 1 for axis in (x, y))
        whole = not rows % merge and not columns % merge and 0 < max(rows, columns) <= MAX_SIDE
        order = np.lexsort((x % merge, y % merge, x // merge, y // merge))
        if not whole or len(order) != rows * columns or len({*(y * columns + x).tolist()}) != len(order):
            raise InputError(
                f"{PLACES} of image {number} must have each place of a grid once, with rows and columns that are"
                f" multiples of {merge}, and -1 at padding; it has {len(order)} places in {rows} rows of {columns}"
            )
        ordered: Ints = np.stack([x, y], axis=1)[order].astype(np.int32)
        found.append(Patches(np.ascontiguousarray(of_image[real][order]), ordered, (columns, rows)))
    return found


def _check_width(preparation: Preparation, values: Floats, dimensions: int) -> None:
    """Raise InputError for values of another shape or number than the model's patches have."""
    width = 3 * preparation.frames * preparation.patch**2
    if values.ndim != dimensions or values.shape[-1] != width or not values.size:
        shape = ["images", "patches", width][3 - dimensions :]
        raise InputError(
            f"pixel_values has shape {list(values.shape)}; it must be [{', '.join(map(str, shape))}] for this model"
        )
    if not np.isfinite(values).all():
        raise InputError("pixel_values has NaN or infinity; it must be finite")
