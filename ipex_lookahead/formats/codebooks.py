"""Code tables of the low-bit floats, and the scale searches for formats that look their codes up in a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.columns import Floats, columns, in_blocks, inverse_of, weights_of
from ipex_lookahead.formats.float_base import half_powers
from ipex_lookahead.formats.search import CoreSearch, Numbers, Parts, ScaleSearch, count_below, steps_around


def minifloats(exponent: int, mantissa: int, bias: int | None = None) -> tuple[float, ...]:
    """Return the value of every code of a small float format.

    Subnormals follow IEEE 754. The largest exponent encodes ordinary numbers, not infinity or NaN.

    Args:
        exponent: number of exponent bits.
        mantissa: number of mantissa bits.
        bias: exponent bias; None selects the IEEE 754 bias.
    """
    bias = 2 ** (exponent - 1) - 1 if bias is None else bias
    values = []
    for code in range(1 << (1 + exponent + mantissa)):
        power, part = divmod(code & ((1 << (exponent + mantissa)) - 1), 1 << mantissa)
        number = (part + (power > 0) * 2**mantissa) * 2.0 ** (max(power, 1) - bias - mantissa)
        values.append(-number if code >> (exponent + mantissa) else number)
    return tuple(values)


E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the values of e2m1 (sign, 2 exponent bits, 1 mantissa bit): whole numbers, so integer kernels apply."""
E2M1 = tuple(number / 2 for number in E2M1_DOUBLED)
E3M2 = minifloats(3, 2, bias=15)
"""Six-bit floats with binary16's exponent bias, as in ipex-llm: typical scales are near 1 instead of subnormal."""
E4M3 = minifloats(4, 3)
E4M3_HALF = minifloats(4, 3, bias=15)
"""ipex-llm's e4m3: a code is the upper byte of a binary16 without its top exponent bit; values end at 1.875."""
E5M2 = minifloats(5, 2)

NORMAL_16 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""16 quantiles of a normal distribution (NF4, QLoRA, arXiv 2305.14314): bitsandbytes' table in float32."""
NORMAL_8 = (-1.0, -0.4786292016506195, -0.2171417921781540, 0.0, 0.16093020141124725, 0.33791524171829224,
            0.5626170039176941, 1.0)  # fmt: skip
"""8 quantiles of a normal distribution (NF3), recovered from the rounding thresholds in ipex-llm's CPU library."""
SPACED_16 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""llama.cpp's IQ4_NL table: 16 whole numbers that are denser near zero."""
_BNB_MAGNITUDES = (0.0, 0.005208333333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
BNB_FP4 = (*_BNB_MAGNITUDES, *(-number for number in _BNB_MAGNITUDES))
"""bitsandbytes' own four-bit float."""

MIN_SCALE = np.float32(1e-30)
"""Smaller float32 scales are stored as 0, because their inverse may overflow float32."""


@dataclass(frozen=True, slots=True)
class TableSearch:
    """Scale search for a table in any order, possibly with duplicate or unused entries.

    Attributes:
        search: the search over the ascending usable entries of the table.
        codes: uint8 [256]; the code of each of these entries.
        float_scale: True if the scale is stored as float32; scales below ``MIN_SCALE`` are then stored as 0.
    """

    search: ScaleSearch
    codes: npt.NDArray[np.uint8]
    float_scale: bool = False

    @classmethod
    def of(
        cls, table: Sequence[float], size: int, extreme: float, width: float, tries: int, *, float_scale: bool = False
    ) -> TableSearch:
        """Create the search for groups of ``size`` inputs.

        Args:
            table: value of each code. The first of several equal values is used; NaN is never used.
            size: inputs that share a scale.
            extreme: number that the largest magnitude is mapped to; entries beyond it are not used.
            width: distance between the alternatives to ``extreme`` that are tried.
            tries: number of alternatives on each side of ``extreme``.
            float_scale: see the class.
        """
        numbers, codes = np.unique(np.array(table, np.float32), return_index=True)
        used = np.isfinite(numbers) & (np.abs(numbers) <= abs(extreme))
        stored = np.zeros(256, np.uint8)
        stored[: used.sum()] = codes[used]
        search = ScaleSearch(Numbers(numbers[used].tolist()), size, steps_around(extreme, width, tries))
        return cls(search, stored, float_scale)

    def __call__(self, values: Floats, importance: Floats) -> Parts:
        if not self.float_scale:
            found = self.search(values, importance)
            return found._replace(codes=self.codes[found.codes])
        x = columns(values, self.search.size)
        scale = self.search.fitted(x, weights_of(x, importance))
        scale = np.where(np.abs(scale) < MIN_SCALE, np.float32(0), scale)
        return Parts(self.codes[in_blocks(self.search.numbers.codes(x * inverse_of(scale)), values)], scale)

    @property
    def core(self) -> CoreSearch:
        kind = "float_scale" if self.float_scale else "scale"
        return self.search.core._replace(kind=kind, codes=self.codes)


class ExponentSearch:
    """MXFP4's rule: exponent floor(log2(max magnitude)) - 2 + 127, nearest code, ties to the smaller magnitude."""

    middles = np.array([0.5, 1.5, 2.5, 3.5, 5, 7, 10], np.float32)
    core = CoreSearch("exponent", 32, middles, whole=False)

    def __call__(self, values: Floats, importance: Floats) -> Parts:
        largest = np.abs(values).max(axis=-1)
        exponent = np.where(largest > 0, np.frexp(largest)[1] + 124, 0).clip(0, 252).astype(np.uint8)
        halves = np.abs(values) / half_powers(exponent)[..., None]
        codes = count_below(halves, self.middles).astype(np.uint8)
        return Parts(np.where((values < 0) & (codes > 0), codes + np.uint8(8), codes), exponent)
