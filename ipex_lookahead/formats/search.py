"""Scales that make a weighted squared error small: what the block formats' quantisers have in common.

A scale is tried somewhat smaller and larger than the one that fits the largest value; for each, codes are the nearest
ones, and the scale that fits these codes best follows in closed form (least squares). The best of all wins, the first
of equals. (The idea is that of llama.cpp's reference quantisers, written anew; float32 throughout.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.float_base import from_binary16, to_binary16

Floats = npt.NDArray[np.float32]
LEAST_SCALE = np.float32(1e-30)
Nearest = Callable[[Floats], Floats]
"""Numbers in units of the scale -> the whole numbers (as floats) that codes can stand for."""


def clipped(least: int, most: int) -> Nearest:
    """The nearest whole number from ``least`` to ``most``."""
    return lambda values: np.clip(np.rint(values), least, most)


def in_table(table: tuple[float, ...]) -> Nearest:
    """The nearest number of an ascending table, of two as near the first."""
    numbers = np.array(table, np.float32)
    middles = (numbers[1:] + numbers[:-1]) / 2
    return lambda values: numbers[count_below(values, middles)]


def count_below(values: npt.NDArray[Any], middles: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """How many of ascending numbers are less than each value; few of them one by one, which is much faster."""
    if len(middles) > 16:
        return np.searchsorted(middles, values)
    count = np.zeros(values.shape, np.intp)
    for middle in middles:
        count += values > middle
    return count


def best_scale(values: Floats, weights: Floats, nearest: Nearest, extreme: float, width: float, steps: int) -> Floats:
    """A scale [...] for each group [..., n]: values are about ``scale * whole``.

    Args:
        values: [..., n].
        weights: of the squared errors, [..., n].
        nearest: what codes can stand for.
        extreme: the whole number that the value of largest magnitude is tried at first (negative: it may be -8 where
            +8 does not exist).
        width: it is tried at ``extreme`` + i * ``width`` as well.
        steps: i goes from -``steps`` to ``steps``.
    """
    first = np.abs(values).argmax(axis=-1, keepdims=True)
    largest = np.take_along_axis(values, first, axis=-1)
    best = np.zeros(values.shape[:-1], np.float32)
    score = np.zeros(values.shape[:-1], np.float32)
    weighted = weights * values
    inverse = np.where(largest != 0, np.float32(1) / largest, np.float32(0))
    inverse = np.where(np.isfinite(inverse), inverse, np.float32(0))
    for i in range(-steps, steps + 1):
        whole = nearest(values * (inverse * np.float32(extreme + i * width)))
        product = (weighted * whole).sum(axis=-1)
        square = (weights * whole * whole).sum(axis=-1)
        gain = np.where(square > 0, product * product / np.maximum(square, np.float32(1e-38)), np.float32(0))
        better = gain > score
        score = np.where(better, gain, score)
        best = np.where(better, product / np.maximum(square, np.float32(1e-38)), best)
    return best


def best_scale_and_minimum(
    values: Floats, weights: Floats, most: int, width: float, steps: int, *, never_positive: bool
) -> tuple[Floats, Floats]:
    """Scale and minimum [...] for each group [..., n]: values are about ``scale * whole + minimum``, whole 0 ... most.

    Args:
        values: [..., n].
        weights: of the squared errors, [..., n].
        most: the largest whole number.
        width: the range is tried as ``most`` + i * ``width`` steps.
        steps: i goes from -``steps`` to ``steps``.
        never_positive: a minimum is at most 0, as the K formats have it.
    """
    low = values.min(axis=-1)
    low = np.minimum(low, 0) if never_positive else low
    spread = values.max(axis=-1) - low
    scale, minimum = spread / np.float32(most), low
    total, sum_x = weights.sum(axis=-1), (weights * values).sum(axis=-1)

    def error(scale: Floats, minimum: Floats, whole: Floats) -> Floats:
        rest = scale[..., None] * whole + minimum[..., None] - values
        return (weights * rest * rest).sum(axis=-1)  # type: ignore[no-any-return]

    inverse = np.where(spread > 0, np.float32(1) / spread, np.float32(0))
    inverse = np.where(np.isfinite(inverse), inverse, np.float32(0))
    shifted = values - low[..., None]
    best = error(scale, minimum, np.clip(np.rint(shifted * (inverse * np.float32(most))[..., None]), 0, most))
    for i in range(-steps, steps + 1):
        whole = np.clip(np.rint(shifted * (inverse * np.float32(most + i * width))[..., None]), 0, most)
        weighted = weights * whole
        sum_q, sum_qq, sum_qx = weighted.sum(axis=-1), (weighted * whole).sum(axis=-1), (weighted * values).sum(axis=-1)
        determinant = total * sum_qq - sum_q * sum_q
        safe = np.where(determinant > 0, determinant, np.float32(1))
        tried_scale = (total * sum_qx - sum_x * sum_q) / safe
        tried_minimum = (sum_qq * sum_x - sum_q * sum_qx) / safe
        if never_positive:
            above = tried_minimum > 0
            tried_minimum = np.where(above, np.float32(0), tried_minimum)
            tried_scale = np.where(above, sum_qx / np.where(sum_qq > 0, sum_qq, np.float32(1)), tried_scale)
        found = error(tried_scale, tried_minimum, whole)
        better = (determinant > 0) & (found < best)
        best = np.where(better, found, best)
        scale, minimum = np.where(better, tried_scale, scale), np.where(better, tried_minimum, minimum)
    return scale, minimum


def half(values: Floats) -> tuple[npt.NDArray[np.uint16], Floats]:
    """Binary16 bits, and the numbers they are."""
    bits = to_binary16(values.astype(np.float32))
    return bits, from_binary16(bits)


def single_scale(values: Floats) -> tuple[Floats, Floats]:
    """A scale stored in float32, and the number that it is: 0 for one whose inverse is no float32."""
    scale = np.where(np.abs(values) < LEAST_SCALE, np.float32(0), values.astype(np.float32))
    return scale, scale


def inverse_of(scale: Floats) -> Floats:
    """1 / scale; 0 for 0."""
    inverse: Floats = np.where(scale != 0, np.float32(1) / np.where(scale != 0, scale, np.float32(1)), np.float32(0))
    return inverse


def grouped(values: Floats, size: int) -> Floats:
    """[..., inputs] as [..., inputs / size, size]."""
    return values.reshape(*values.shape[:-1], -1, size)


def attention_to_large(values: Floats, inputs: Floats) -> Floats:
    """Weights of the formats with minimums: magnitude plus its root mean square over the block; 0 where is no input."""
    mean = np.sqrt((values * values).mean(axis=-1, keepdims=True))
    weights: Floats = inputs * (mean + np.abs(values))
    return weights
