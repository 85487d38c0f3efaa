"""Scales that make a weighted squared error small: what the quantisers of the low-bit formats have in common.

A scale is tried at which the largest value becomes each of several numbers; for each, codes are the nearest ones, and
the scale that fits these codes best follows in closed form (least squares). The best of all wins, the first of equals.
Where a block keeps its parts' scales as small steps, the neighbours of each step are tried too, and the block's scale
is fitted once more. (The first half is the idea of llama.cpp's reference quantisers, written anew.)

This is the definition; ``csrc/weights/search.cc`` is the same arithmetic, bit for bit, and is used where the compiled
core can be imported (``groups.py``). All of it is float32 in the order written, and values are [size, parts]: a column
shares a scale, and sums run down a column one after the other, because the compiled twin has columns as the lanes of
its vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.columns import Floats, Halves, columns, half, in_blocks, inverse_of, total, weights_of
from ipex_lookahead.formats.float_base import from_binary16

Steps = npt.NDArray[np.int16]

_TINY = np.float32(1e-38)
_SINGULAR = np.float32(4e-6)
"""Codes that vary less about their mean than this have no scale of their own: what is left of their variance is
rounding."""
_CLEARLY = np.float32(1 + 2.0**-22)
"""What a gain must be more by: equals differ in their last bits, and of them the first is wanted."""
_NEAR = (0, -1, 1)
"""Steps that are tried beside the rounded one; of equals the first."""


class Parts(NamedTuple):
    """Blocks taken apart; the leading dimensions are those of the blocks.

    Attributes:
        codes: uint8 [..., inputs], unsigned as stored; a search counts its numbers from the least.
        scale: binary16 bits [...]; or the bytes of exponents; or float32.
        minimum: binary16 bits [...], or None.
        steps, minimum_steps: int16 [..., parts of a block], or None.
    """

    codes: npt.NDArray[np.uint8]
    scale: npt.NDArray[Any]
    minimum: Halves | None = None
    steps: Steps | None = None
    minimum_steps: Steps | None = None


class CoreSearch(NamedTuple):
    """A search in the words of the compiled core.

    Attributes:
        kind: what is found for a block: ``scale``, ``float_scale``, ``minimum``, ``zero`` or ``exponent``.
        size: inputs that share it.
        numbers: what codes can stand for, of an exponent what lies between them.
        whole: they are whole numbers, all from the first to the last.
        tries: see the classes below.
        step_limit: ``least_step`` or ``most_step``.
        codes: uint8 [256], the code that is stored for each number, counted from the least.
    """

    kind: str
    size: int
    numbers: Floats
    whole: bool
    tries: tuple[float, ...] = ()
    step_limit: int = 0
    codes: npt.NDArray[np.uint8] = np.arange(256, dtype=np.uint8)


class Quantizer(Protocol):
    """What finds a block's scale and codes."""

    def __call__(self, values: Floats, importance: Floats) -> Parts:
        """Blocks [blocks, inputs] taken apart; ``importance`` as in :func:`weights_of`."""
        ...

    @property
    def core(self) -> CoreSearch:
        """The same for the compiled core."""
        ...


class Numbers:
    """What codes can stand for: whole numbers from the least to the most, or an ascending table."""

    def __init__(self, numbers: Iterable[float]) -> None:
        self.table = np.array(list(numbers), np.float32)
        self.whole = bool((np.diff(self.table) == 1).all())
        self.middles = (self.table[1:] + self.table[:-1]) / 2

    def nearest(self, values: Floats) -> Floats:
        """The number nearest to each value, in units of the scale; of two as near the even one, or a table's first."""
        if self.whole:
            return np.clip(np.rint(values), self.table[0], self.table[-1])
        return self.table[count_below(values, self.middles)]

    def codes(self, values: Floats) -> npt.NDArray[np.uint8]:
        """Which number is the nearest, counted from the least."""
        if self.whole:
            whole: npt.NDArray[np.uint8] = (self.nearest(values) - self.table[0]).astype(np.uint8)
            return whole
        codes: npt.NDArray[np.uint8] = count_below(values, self.middles).astype(np.uint8)
        return codes


def count_below(values: npt.NDArray[Any], middles: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """How many of ascending numbers are less than each value; few of them one by one, which is much faster."""
    if len(middles) > 16:
        return np.searchsorted(middles, values)
    count = np.zeros(values.shape, np.intp)
    for middle in middles:
        count += values > middle
    return count


@dataclass(frozen=True, slots=True)
class ScaleSearch:
    """value = scale * number, or scale * step * number.

    Attributes:
        numbers: what codes can stand for.
        size: inputs that share a scale.
        tries: what the value of largest magnitude is tried at (negative: it may be -8 where +8 does not exist).
        least_step: a block's parts have steps from this to ``-least_step - 1``; 0: a block is one part, without steps.
    """

    numbers: Numbers
    size: int
    tries: tuple[float, ...]
    least_step: int = 0

    def __call__(self, values: Floats, importance: Floats) -> Parts:
        """Blocks [blocks, inputs] taken apart; ``importance`` as in :func:`weights_of`."""
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
        """See ``Quantizer``."""
        return CoreSearch("scale", self.size, self.numbers.table, self.numbers.whole, self.tries, self.least_step)

    def fitted(self, x: Floats, w: Floats) -> Floats:
        """The best scale [parts] of all that are tried, before it is rounded to be stored."""
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
        """Blocks of those scales with the best steps [blocks, parts] near those."""
        best = _Stepped(scale, rounded, np.full(rounded.shape, np.inf, np.float32))
        for near in _NEAR:
            steps = self._limited(rounded + np.float32(near))
            stored = best._replace(steps=steps).stored()
            rest = x - stored * self.numbers.nearest(x * inverse_of(stored))
            best = best.with_less(steps, total(w * rest * rest))
        return best.of_blocks()

    def _refitted(self, x: Floats, w: Floats, found: _Stepped) -> Halves:
        """The scales of blocks that fit their numbers and steps best."""
        multiplied = found.steps.reshape(-1) * self.numbers.nearest(x * inverse_of(found.stored()))
        weighted = w * multiplied
        product, square = (in_all(total(weighted * one), found.steps) for one in (x, multiplied))
        return np.where(square > 0, half(product / np.maximum(square, _TINY))[0], found.scale)


@dataclass(frozen=True, slots=True)
class MinimumSearch:
    """value = scale * number + minimum, or scale * step * number - minimum * minimum_step; numbers 0 ... ``most``.

    Attributes:
        most: the largest number.
        size: inputs that share a scale and a minimum.
        tries: how many steps the range of values is tried as.
        most_step: a block's parts have both steps from 0 to this, and no minimum is positive; 0: a block is one part.
    """

    most: int
    size: int
    tries: tuple[float, ...]
    most_step: int = 0

    def __call__(self, values: Floats, importance: Floats) -> Parts:
        """Blocks [blocks, inputs] taken apart; ``importance`` as in :func:`weights_of`."""
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
        """See ``Quantizer``."""
        return CoreSearch("minimum", self.size, np.array((0, self.most), np.float32), True, self.tries, self.most_step)

    def _nearest(self, values: Floats) -> Floats:
        return np.clip(np.rint(values), np.float32(0), np.float32(self.most))

    def _fitted(self, x: Floats, w: Floats) -> tuple[Floats, Floats]:
        """The best scale and minimum [parts] of all that are tried."""
        low = x.min(axis=0) + np.float32(0)  # adding 0 makes a negative zero positive: which of two was found must not
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
        """Scales or minimums [blocks, parts] as binary16 bits [blocks] times whole steps [blocks, parts]."""
        most_step = np.float32(self.most_step)
        bits, of_blocks = half(of_parts.max(axis=1) / most_step)
        return bits, np.clip(np.rint(of_parts * inverse_of(of_blocks)[:, None]), np.float32(0), most_step)

    def _numbers(self, x: Floats, found: _Stepped) -> Floats:
        """The nearest numbers [size, parts]."""
        return self._nearest((x + found.taken()) * inverse_of(found.stored()))

    def _stepped(
        self, x: Floats, w: Floats, scale: Halves, minimum: Halves, rounded: Floats, rounded_minimum: Floats
    ) -> _Stepped:
        """Blocks of those scales and minimums with the best steps [blocks, parts] near those."""
        most_step = np.float32(self.most_step)
        best = _Stepped(scale, rounded, np.full(rounded.shape, np.inf, np.float32), minimum, rounded_minimum)
        for near in _NEAR:
            steps = np.clip(rounded + np.float32(near), np.float32(0), most_step)
            for near_minimum in _NEAR:
                minimum_steps = np.clip(rounded_minimum + np.float32(near_minimum), np.float32(0), most_step)
                tried = best._replace(steps=steps, minimum_steps=minimum_steps)
                rest = x - (tried.stored() * self._numbers(x, tried) - tried.taken())
                best = best.with_less(steps, total(w * rest * rest), minimum_steps)
        return best.of_blocks()

    def _refitted(self, x: Floats, w: Floats, found: _Stepped) -> tuple[Halves, Halves]:
        """The scales and minimums of blocks that fit their numbers and steps best."""
        a, b = found.steps.reshape(-1) * self._numbers(x, found), found.minimum_steps.reshape(-1)
        wa = w * a
        weight = total(w)
        sums = (total(wa * a), total(wa) * b, weight * b * b, total(wa * x), total(w * x) * b)
        aa, ab, bb, ax, bx = (in_all(one, found.steps) for one in sums)
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
    """value = scale * (number - zero), numbers and zero 0 ... ``most``.

    Attributes:
        most: the largest number.
        size: inputs that share a scale and a zero point, which ``Parts.minimum`` holds as binary16.
        tries: which parts of the range of values, 0 always in it, the numbers are to reach over.
    """

    most: int
    size: int
    tries: tuple[float, ...]

    def __call__(self, values: Floats, importance: Floats) -> Parts:
        """Blocks [blocks, inputs] taken apart; ``importance`` as in :func:`weights_of`."""
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
            better = (error < least) | (part == self.tries[0])  # which stays where a scale is beyond binary16
            least = np.where(better, error, least)
            best = (
                np.where(better, bits, best[0]),
                np.where(better, zero, best[1]),
                np.where(better, codes.astype(np.uint8), best[2]),
            )
        return Parts(in_blocks(best[2], values), best[0], half(best[1])[0])

    @property
    def core(self) -> CoreSearch:
        """See ``Quantizer``."""
        return CoreSearch("zero", self.size, np.array((0, self.most), np.float32), True, self.tries)

    def _limited(self, numbers: Floats) -> Floats:
        return np.clip(numbers, np.float32(0), np.float32(self.most))


@dataclass(frozen=True, slots=True)
class TableSearch:
    """A scale for a table in any order, in which numbers may come twice or be left out.

    Attributes:
        search: for the ``numbers`` of the table that are used.
        codes: uint8 [256]; the code of each of them.
        float_scale: the scale is kept as float32; one below ``LEAST_SCALE`` is 0 then.
    """

    search: ScaleSearch
    codes: npt.NDArray[np.uint8]
    float_scale: bool = False

    @classmethod
    def of(
        cls, table: Sequence[float], size: int, extreme: float, width: float, tries: int, *, float_scale: bool = False
    ) -> TableSearch:
        """The search for ``size`` inputs that share a scale.

        Args:
            table: what codes stand for; of equal numbers the first is used, and NaN is never used.
            size: inputs that share a scale.
            extreme: the number that the value of largest magnitude is tried at.
            width: it is tried at so far from each other,
            tries: so many on either side of ``extreme``.
            float_scale: see the class.
        """
        numbers, codes = np.unique(np.array(table, np.float32), return_index=True)
        used = np.isfinite(numbers) & (np.abs(numbers) <= abs(extreme))
        stored = np.zeros(256, np.uint8)
        stored[: used.sum()] = codes[used]
        search = ScaleSearch(Numbers(numbers[used].tolist()), size, around(extreme, width, tries))
        return cls(search, stored, float_scale)

    def __call__(self, values: Floats, importance: Floats) -> Parts:
        """Blocks [blocks, inputs] taken apart; ``importance`` as in :func:`weights_of`."""
        if not self.float_scale:
            found = self.search(values, importance)
            return found._replace(codes=self.codes[found.codes])
        x = columns(values, self.search.size)
        scale = self.search.fitted(x, weights_of(x, importance))
        scale = np.where(np.abs(scale) < LEAST_SCALE, np.float32(0), scale)
        return Parts(self.codes[in_blocks(self.search.numbers.codes(x * inverse_of(scale)), values)], scale)

    @property
    def core(self) -> CoreSearch:
        """See ``Quantizer``."""
        kind = "float_scale" if self.float_scale else "scale"
        return self.search.core._replace(kind=kind, codes=self.codes)


LEAST_SCALE = np.float32(1e-30)
"""A float32 scale below this is 0: its inverse may be no float32."""


class _Stepped(NamedTuple):
    """Blocks whose parts have steps.

    Attributes:
        scale, minimum: binary16 bits [blocks].
        steps, minimum_steps: whole numbers [blocks, parts].
        error: weighted squared error, [blocks, parts] and in the end [blocks].
    """

    scale: Halves
    steps: Floats
    error: Floats
    minimum: Halves = np.zeros(0, np.uint16)
    minimum_steps: Floats = np.zeros(0, np.float32)

    def stored(self) -> Floats:
        """What numbers are multiplied by, [parts]."""
        return (from_binary16(self.scale)[:, None] * self.steps).reshape(-1)

    def taken(self) -> Floats:
        """What is taken away from the products, [parts]."""
        return (from_binary16(self.minimum)[:, None] * self.minimum_steps).reshape(-1)

    def with_less(self, steps: Floats, error: Floats, minimum_steps: Floats | None = None) -> _Stepped:
        """These steps where their error [parts] is less."""
        error = error.reshape(steps.shape)
        better = error < self.error
        found = self._replace(steps=np.where(better, steps, self.steps), error=np.where(better, error, self.error))
        if minimum_steps is None:
            return found
        return found._replace(minimum_steps=np.where(better, minimum_steps, self.minimum_steps))

    def of_blocks(self) -> _Stepped:
        """With the errors of blocks."""
        return self._replace(error=total(self.error.T))


def _better(one: _Stepped, other: _Stepped) -> _Stepped:
    """Of each block the one with less error, the first of equals."""
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


def in_all(sums: Floats, like: Floats) -> Floats:
    """Sums of parts as sums of blocks; ``like`` has the shape [blocks, parts]."""
    return total(sums.reshape(like.shape).T)


def around(middle: float, width: float, steps: int) -> tuple[float, ...]:
    """``2 * steps + 1`` tries, ``width`` apart, from the middle outwards."""
    return tuple(sorted((middle + width * i for i in range(-steps, steps + 1)), key=lambda one: abs(one - middle)))
