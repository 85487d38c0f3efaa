"""The arithmetic of a search for scales (``search.py``) on values [size, parts], of which a column shares a scale.

All of it is float32 in the order written: the compiled twin has columns as the lanes of its vectors.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.float_base import from_binary16, to_binary16

Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.uint16]


def weights_of(x: Floats, importance: Floats) -> Floats:
    """Weights of squared errors [size, parts]: the inputs' importance times magnitude plus its root mean square.

    That large values matter more than their number says is experience (llama.cpp's, and our own perplexities).

    Args:
        x: columns of values.
        importance: [some rows' blocks, inputs], of the inputs of a row, 0 where there are none; it is repeated.
    """
    size, parts = x.shape
    of_inputs = np.tile(importance.reshape(-1, size), (parts * size // importance.size, 1)).T
    mean = np.sqrt(total(x * x) / np.float32(size))
    weights: Floats = of_inputs * (mean + np.abs(x))
    return weights


def columns(values: Floats, size: int) -> Floats:
    """[blocks, inputs] as [size, parts], parts in their order."""
    return np.ascontiguousarray(values.reshape(-1, size).T)


def in_blocks(codes: npt.NDArray[np.uint8], like: Floats) -> npt.NDArray[np.uint8]:
    """The inverse of ``columns``."""
    return np.ascontiguousarray(codes.T).reshape(like.shape)


def total(values: Floats) -> Floats:
    """The sums of columns, down each in order."""
    return reduce(np.add, values)


def half(values: Floats) -> tuple[Halves, Floats]:
    """Binary16 bits, and the numbers they are."""
    bits = to_binary16(values.astype(np.float32))
    return bits, from_binary16(bits)


def inverse_of(scale: Floats) -> Floats:
    """1 / scale; 0 for 0, and where that is beyond float32."""
    inverse: Floats = np.where(scale != 0, np.float32(1) / scale, np.float32(0))
    return np.where(np.isfinite(inverse), inverse, np.float32(0))
