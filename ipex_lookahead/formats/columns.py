"""Float32 arithmetic of the scale searches (``search.py``) on values [size, parts]; a column shares a scale.

The order of all operations is fixed, because the native core does the same with columns as vector lanes.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.float_base import from_binary16, to_binary16

Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.uint16]


def weights_of(x: Floats, importance: Floats) -> Floats:
    """Return the weights of squared errors [size, parts]: importance * (root mean square + magnitude).

    The preference for large values is empirical (llama.cpp's experience, and this project's perplexities).

    Args:
        x: columns of values.
        importance: [blocks of one or more rows, inputs], tiled to the number of rows; 0 for padding.
    """
    size, parts = x.shape
    of_inputs = np.tile(importance.reshape(-1, size), (parts * size // importance.size, 1)).T
    mean = np.sqrt(total(x * x) / np.float32(size))
    weights: Floats = of_inputs * (mean + np.abs(x))
    return weights


def columns(values: Floats, size: int) -> Floats:
    """Convert [blocks, inputs] to [size, parts], keeping the order of parts."""
    return np.ascontiguousarray(values.reshape(-1, size).T)


def in_blocks(codes: npt.NDArray[np.uint8], like: Floats) -> npt.NDArray[np.uint8]:
    """Invert ``columns``."""
    return np.ascontiguousarray(codes.T).reshape(like.shape)


def total(values: Floats) -> Floats:
    """Sum each column, top to bottom."""
    return reduce(np.add, values)


def half(values: Floats) -> tuple[Halves, Floats]:
    """Round to binary16; return the bits and the rounded values."""
    bits = to_binary16(values.astype(np.float32))
    return bits, from_binary16(bits)


def inverse_of(scale: Floats) -> Floats:
    """Return 1 / scale; 0 where the scale is 0 or the inverse overflows float32."""
    inverse: Floats = np.where(scale != 0, np.float32(1) / scale, np.float32(0))
    return np.where(np.isfinite(inverse), inverse, np.float32(0))
