"""Scale searches of the low-bit quantizers: they minimize a weighted squared error.

A search maps the largest value of a group to each of several numbers. For each, it rounds to the nearest codes and
computes the best scale for these codes in closed form (least squares). The best scale wins, the first one on a tie.
For formats with small integer steps per part of a block, the neighbors of each step are tried as well, and the block's
scale is fitted again. The first half follows the idea of llama.cpp's reference quantizers; the code is new.

``csrc/weights/search.cc`` is the same arithmetic, bit for bit, and is used where the native core is available
(``groups.py``). All operations are float32 in the order written. Values are [size, parts]: a column shares a scale and
sums run down a column in order, because the native core uses columns as vector lanes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.columns import Floats, Halves, columns, half, in_blocks, inverse_of, total, weights_of
from ipex_lookahead.formats.float_base import from_binary16

Steps = npt.NDArray[np.int16]

_TINY = np.float32(1e-38)
_SINGULAR = np.float32(4e-6)
"""Groups of codes with less relative variance than this are considered constant: the rest is rounding error."""
_CLEARLY = np.float32(1 + 2.0**-22)
"""Factor by which a gain must exceed the best one: ties differ in their last bits, and the first one must win."""
_NEAR = (0, -1, 1)
"""Offsets from the rounded step that are tried; the first one wins a tie."""


class Parts(NamedTuple):
    """Unpacked blocks; the leading dimensions are those of the blocks.

    Attributes:
        codes: uint8 [..., inputs], unsigned as stored; a search numbers them from the smallest value.
        scale: binary16 bits, exponent bytes or float32 values [...].
        minimum: binary16 bits [...], or None.
        steps, minimum_steps: int16 [..., parts of a block], or None.
    """

    codes: npt.NDArray[np.uint8]
    scale: npt.NDArray[Any]
    minimum: Halves | None = None
    steps: Steps | None = None
    minimum_steps: Steps | None = None


class CoreSearch(NamedTuple):
    """Parameters of a search for the native core.

    Attributes:
        kind: ``scale``, ``float_scale``, ``minimum``, ``zero`` or ``exponent``.
        size: inputs that share a scale.
        numbers: the ascending values of codes; for ``exponent`` the midpoints between them.
        whole: True if the values are consecutive whole numbers, given by the first and the last.
        tries: see the search classes.
        step_limit: ``least_step`` or ``most_step``.
        codes: uint8 [256], the stored code of each value, numbered from the smallest.
    """

    kind: str
    size: int
    numbers: Floats
    whole: bool
    tries: tuple[float, ...] = ()
    step_limit: int = 0
    codes: npt.NDArray[np.uint8] = np.arange(256, dtype=np.uint8)


class Quantizer(Protocol):
    """Finds the scales and codes of blocks."""

    def __call__(self, values: Floats, importance: Floats) -> Parts:
        """Quantize blocks [blocks, inputs]; ``importance`` as in :func:`weights_of`."""
        ...

    @property
    def core(self) -> CoreSearch:
        """Equivalent parameters for the native core."""
        ...


class Numbers:
    """The values of codes: consecutive whole numbers, or an ascending table."""

    def __init__(self, numbers: Iterable[float]) -> None:
        self.table = np.array(list(numbers), np.float32)
        self.whole = bool((np.diff(self.table) == 1).all())
        self.middles = (self.table[1:] + self.table[:-1]) / 2

    def nearest(self, values: Floats) -> Floats:
        """Return the nearest number for each value, in units of the scale; ties to even, in a table to the first."""
        if self.whole:
            return np.clip(np.rint(values), self.table[0], self.table[-1])
        return self.table[count_below(values, self.middles)]

    def codes(self, values: Floats) -> npt.NDArray[np.uint8]:
        """Return the index of the nearest number, counted from the smallest."""
        if self.whole:
            whole: npt.NDArray[np.uint8] = (self.nearest(values) - self.table[0]).astype(np.uint8)
            return whole
        codes: npt.NDArray[np.uint8] = count_below(values, self.middles).astype(np.uint8)
        return codes


def count_below(values: npt.NDArray[Any], middles: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Return how many of the ascending ``middles`` are less than each value; a loop is much faster for few of them."""
    if len(middles) > 16:
        return np.searchsorted(middles, values)
    count = np.zeros(values.shape, np.intp)
    for middle in middles:
        count += values > middle
    return count


@dataclass(frozen=True, slots=True)
class ScaleSearch:
    """Search for value = scale * number, or scale * step * number.

    Attributes:
        numbers: the values of codes.
        size: inputs that share a scale.
        tries: numbers that the largest magnitude is mapped to; negative ones for formats with -8 but not +8.
        least_step: smallest step; steps range from it to ``-least_step - 1``. 0: the format has no steps.
    """

    numbers: Numbers
    size: int
    tries: tuple[float, ...]
    least_step: int = 0

    def __call__(self, values: Floats, importance: Floats) -> Parts:
        x = columns(values, self.size)
        w = weights_of(x, importance)
        scale = self.fitted(x, w)
        if not self.least_step:
            bits, scale = half(scale)
            return Parts(in_blocks(self.numbers.codes(x * inverse_of(scale)), values), bits)
        scale = scale.reshape(len(values), -1)
        first = np.abs(scale).argmax(axis=1)[:, None]
        bits, of_block = half(np.take_along_axis(scale, first, axis=1)[:, 0] / np.float32(self.least_step))
        found = self._stepped(x, w, bits, self._limited(np.rint(scale * inverse_of(of_block)[:, None])))
        found = _better(found, self._stepped(x, w, self._refitted(x, w, found), found.steps))
        codes = self.numbers.codes(x * inverse_of(found.stored()))
        return Parts(in_blocks(codes, values), found.scale, steps=found.steps.astype(np.int16))

    @property
    def core(self) -> CoreSearch:
        return CoreSearch("scale", self.size, self.numbers.table, self.numbers.whole, self.tries, self.least_step)

    def fitted(self, x: Floats, w: Floats) -> Floats:
        """Return the best scale [parts] of all tries, not yet rounded for storage."""
        first = np.abs(x).argmax(axis=0)[None]
        inverse = inverse_of(np.take_along_axis(x, first, axis=0)[0])
        best = np.zeros(x.shape[1], np.float32)
        score = np.zeros_like(best)
        for extreme in self.tries:
            number = self.numbers.nearest(x * (inverse * np.float32(extreme)))
            weighted = w * number
            product, square = total(weighted * x), total(weighted * number)
            scale = product / np.maximum(square, _TINY)
            gain = scale * product
            better = gain > score * _CLEARLY
            best, score = np.where(better, scale, best), np.where(better, gain, score)
        return best

    def _limited(self, steps: Floats) -> Floats:
        return np.clip(steps, self.least_step, -self.least_step - 1)

    def _stepped(self, x: Floats, w: Floats, scale: Halves, rounded: Floats) -> _Stepped:
        """Return blocks with the given scales and the best steps [blocks, parts] near ``rounded``."""
        best = _Stepped(scale, rounded, np.full(rounded.shape, np.inf, np.float32))
        for near in _NEAR:
            steps = self._limited(rounded + np.float32(near))
            stored = best._replace(steps=steps).stored()
            rest = x - stored * self.numbers.nearest(x * inverse_of(stored))
            best = best.with_smaller_error(steps, total(w * rest * rest))
        return best.of_blocks()

    def _refitted(self, x: Floats, w: Floats, found: _Stepped) -> Halves:
        """Return the block scales that fit the numbers and steps best."""
        multiplied = found.steps.reshape(-1) * self.numbers.nearest(x * inverse_of(found.stored()))
        weighted = w * multiplied
        product, square = (sum_parts(total(weighted * one), found.steps) for one in (x, multiplied))
        return np.where(square > 0, half(product / np.maximum(square, _TINY))[0], found.scale)


@dataclass(frozen=True, slots=True)
class MinimumSearch:
    """Search for value = scale * number + minimum, or scale * step * number - minimum * minimum_step.

    Attributes:
        most: the largest number; numbers start at 0.
        size: inputs that share a scale and a minimum.
        tries: numbers of steps that the range of values is divided into.
        most_step: largest step of scale and minimum, in which case minimums are not positive. 0: no steps.
    """

    most: int
    size: int
    tries: tuple[float, ...]
    most_step: int = 0

    def __call__(self, values: Floats, importance: Floats) -> Parts:
        x = columns(values, self.size)
        w = weights_of(x, importance)
        scale, minimum = self._fitted(x, w)
        if not self.most_step:
            (bits, scale), (minimum_bits, minimum) = half(scale), half(minimum)
            codes = self._nearest((x - minimum) * inverse_of(scale)).astype(np.uint8)
            return Parts(in_blocks(codes, values), bits, minimum_bits)
        (of_scale, steps), (of_minimum, minimum_steps) = (
            self._first_steps(one.reshape(len(values), -1)) for one in (scale, np.float32(0) - minimum)
        )
        found = self._stepped(x, w, of_scale, of_minimum, steps, minimum_steps)
        again = self._stepped(x, w, *self._refitted(x, w, found), found.steps, found.minimum_steps)
        found = _better(found, again)
        codes = in_blocks(self._numbers(x, found).astype(np.uint8), values)
        both = (one.astype(np.int16) for one in (found.steps, found.minimum_steps))
        return Parts(codes, found.scale, found.minimum, *both)

    @property
    def core(self) -> CoreSearch:
        return CoreSearch("minimum", self.size, np.array((0, self.most), np.float32), True, self.tries, self.most_step)

    def _nearest(self, values: Floats) -> Floats:
        return np.clip(np.rint(values), np.float32(0), np.float32(self.most))

    def _fitted(self, x: Floats, w: Floats) -> tuple[Floats, Floats]:
        """Return the best scale and minimum [parts] of all tries."""
        low = x.min(axis=0) + np.float32(0)  # adding 0 turns -0 into +0, so that the order of equal values does not
        high = x.max(axis=0) + np.float32(0)  # matter
        if self.most_step:
            low = np.minimum(low, np.float32(0))
        spread = high - low
        above = x - low
        weight, sum_y = total(w), total(w * above)
        scale = np.where(weight > 0, spread / np.float32(self.most), np.float32(0))
        offset = np.zeros_like(scale)
        score = np.full(scale.shape, -np.inf, np.float32)
        inverse = inverse_of(spread)
        for steps in self.tries:
            number = self._nearest(above * (inverse * np.float32(steps)))
            weighted = w * number
            sum_q, sum_qq, sum_qy = total(weighted), total(weighted * number), total(weighted * above)
            products = weight * sum_qq
            determinant = products - sum_q * sum_q
            safe = np.where(determinant > _SINGULAR * products, determinant, np.float32(1))
            tried = (weight * sum_qy - sum_y * sum_q) / safe
            start = (sum_qq * sum_y - sum_q * sum_qy) / safe
            if self.most_step:
                positive = low + start > 0
                start = np.where(positive, -low, start)
                tried = np.where(positive, (sum_qy + low * sum_q) / np.maximum(sum_qq, _TINY), tried)
            gain = tried * (np.float32(2) * sum_qy - tried * sum_qq - np.float32(2) * start * sum_q)
            gain = gain + start * (np.float32(2) * sum_y - start * weight)
            better = (determinant > _SINGULAR * products) & (tried > 0) & (gain > score * _CLEARLY)
            score = np.where(better, gain, score)
            scale, offset = np.where(better, tried, scale), np.where(better, start, offset)
        return scale, np.where(weight > 0, low + offset, np.float32(0))

    def _first_steps(self, of_parts: Floats) -> tuple[Halves, Floats]:
        """Split scales or minimums [blocks, parts] into binary16 bits [blocks] and whole steps [blocks, parts]."""
        most_step = np.float32(self.most_step)
        bits, of_blocks = half(of_parts.max(axis=1) / most_step)
        return bits, np.clip(np.rint(of_parts * inverse_of(of_blocks)[:, None]), np.float32(0), most_step)

    def _numbers(self, x: Floats, found: _Stepped) -> Floats:
        """Return the nearest numbers [size, parts]."""
        return self._nearest((x + found.taken()) * inverse_of(found.stored()))

    def _stepped(
        self, x: Floats, w: Floats, scale: Halves, minimum: Halves, rounded: Floats, rounded_minimum: Floats
    ) -> _Stepped:
        """Return blocks with the given scales and minimums and the best steps [blocks, parts] near the rounded ones."""
        most_step = np.float32(self.most_step)
        best = _Stepped(scale, rounded, np.full(rounded.shape, np.inf, np.float32), minimum, rounded_minimum)
        for near in _NEAR:
            steps = np.clip(rounded + np.float32(near), np.float32(0), most_step)
            for near_minimum in _NEAR:
                minimum_steps = np.clip(rounded_minimum + np.float32(near_minimum), np.float32(0), most_step)
                tried = best._replace(steps=steps, minimum_steps=minimum_steps)
                rest = x - (tried.stored() * self._numbers(x, tried) - tried.taken())
                best = best.with_smaller_error(steps, total(w * rest * rest), minimum_steps)
        return best.of_blocks()

    def _refitted(self, x: Floats, w: Floats, found: _Stepped) -> tuple[Halves, Halves]:
        """Return the block scales and minimums that fit the numbers and steps best."""
        a, b = found.steps.reshape(-1) * self._numbers(x, found), found.minimum_steps.reshape(-1)
        wa = w * a
        weight = total(w)
        sums = (total(wa * a), total(wa) * b, weight * b * b, total(wa * x), total(w * x) * b)
        aa, ab, bb, ax, bx = (sum_parts(one, found.steps) for one in sums)
        products = aa * bb
        determinant = products - ab * ab
        both = determinant > _SINGULAR * products
        safe = np.where(both, determinant, np.float32(1))
        scale = np.where(both, (ax * bb - bx * ab) / safe, ax / np.maximum(aa, _TINY))
        minimum = np.where(both, (ab * ax - aa * bx) / safe, np.float32(0))
        good = (both | (bb == 0)) & (scale > 0) & (minimum >= 0)
        return np.where(good, half(scale)[0], found.scale), np.where(good, half(minimum)[0], found.minimum)


@dataclass(frozen=True, slots=True)
class ZeroSearch:
    """Search for value = scale * (number - zero), with numbers and zero in 0 ... ``most``.

    Attributes:
        most: the largest number.
        size: inputs that share a scale and a zero point; ``Parts.minimum`` holds the zero point in binary16.
        tries: fractions of the range of values, extended to include 0, that the numbers cover.
    """

    most: int
    size: int
    tries: tuple[float, ...]

    def __call__(self, values: Floats, importance: Floats) -> Parts:
        x = columns(values, self.size)
        w = weights_of(x, importance)
        low, high = np.minimum(x.min(axis=0), np.float32(0)), np.maximum(x.max(axis=0), np.float32(0))
        best = np.zeros(x.shape[1], np.uint16), np.zeros(x.shape[1], np.float32), np.zeros(x.shape, np.uint8)
        least = np.full(x.shape[1], np.inf, np.float32)
        for part in self.tries:
            scale = (high - low) * (np.float32(part) / np.float32(self.most))
            zero = self._limited(np.rint(-low * np.float32(part) * inverse_of(scale))) + np.float32(0)  # not -0
            steps = self._limited(np.rint(x * inverse_of(scale)) + zero) - zero
            square = total(w * steps * steps)
            bits, scale = half(np.where(square > 0, total(w * x * steps) / np.maximum(square, _TINY), scale))
            codes = self._limited(np.rint(x * inverse_of(scale)) + zero)
            rest = x - scale * (codes - zero)
            error = total(w * rest * rest)
            better = (error < least) | (part == self.tries[0])  # the first try remains if a scale exceeds binary16
            least = np.where(better, error, least)
            best = (
                np.where(better, bits, best[0]),
                np.where(better, zero, best[1]),
                np.where(better, codes.astype(np.uint8), best[2]),
            )
        return Parts(in_blocks(best[2], values), best[0], half(best[1])[0])

    @property
    def core(self) -> CoreSearch:
        return CoreSearch("zero", self.size, np.array((0, self.most), np.float32), True, self.tries)

    def _limited(self, numbers: Floats) -> Floats:
        return np.clip(numbers, np.float32(0), np.float32(self.most))


class _Stepped(NamedTuple):
    """Candidate blocks with steps per part.

    Attributes:
        scale, minimum: binary16 bits [blocks].
        steps, minimum_steps: whole numbers [blocks, parts].
        error: weighted squared error, [blocks, parts] during the search and [blocks] at its end.
    """

    scale: Halves
    steps: Floats
    error: Floats
    minimum: Halves = np.zeros(0, np.uint16)
    minimum_steps: Floats = np.zeros(0, np.float32)

    def stored(self) -> Floats:
        """Return the factors of the numbers, [parts]."""
        return (from_binary16(self.scale)[:, None] * self.steps).reshape(-1)

    def taken(self) -> Floats:
        """Return the offsets subtracted from the products, [parts]."""
        return (from_binary16(self.minimum)[:, None] * self.minimum_steps).reshape(-1)

    def with_smaller_error(self, steps: Floats, error: Floats, minimum_steps: Floats | None = None) -> _Stepped:
        """Replace the steps of parts for which ``error`` [parts] is smaller."""
        error = error.reshape(steps.shape)
        better = error < self.error
        found = self._replace(steps=np.where(better, steps, self.steps), error=np.where(better, error, self.error))
        if minimum_steps is None:
            return found
        return found._replace(minimum_steps=np.where(better, minimum_steps, self.minimum_steps))

    def of_blocks(self) -> _Stepped:
        """Sum the errors over the parts of each block."""
        return self._replace(error=total(self.error.T))


def _better(one: _Stepped, other: _Stepped) -> _Stepped:
    """Return the block with the smaller error, the first on a tie, for each block."""
    less = other.error < one.error
    return _Stepped(
        np.where(less, other.scale, one.scale),
        np.where(less[:, None], other.steps, one.steps),
        np.where(less, other.error, one.error),
        np.where(less, other.minimum, one.minimum) if one.minimum.size else one.minimum,
        np.where(less[:, None], other.minimum_steps, one.minimum_steps)
        if one.minimum_steps.size
        else one.minimum_steps,
    )


def sum_parts(sums: Floats, like: Floats) -> Floats:
    """Sum over the parts of each block; ``like`` has the shape [blocks, parts]."""
    return total(sums.reshape(like.shape).T)


def steps_around(middle: float, width: float, steps: int) -> tuple[float, ...]:
    """Return ``2 * steps + 1`` tries, ``width`` apart, from the middle outward."""
    return tuple(sorted((middle + width * i for i in range(-steps, steps + 1)), key=lambda one: abs(one - middle)))
