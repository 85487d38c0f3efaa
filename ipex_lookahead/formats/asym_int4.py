"""Four bits, asymmetric: w = scale * code + minimum, the layout of GGUF's Q4_1.

Sixteen levels from the smallest to the largest value of a group. Scale and minimum are binary16; errors are at most
half a scale, plus what rounding those two adds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.float_base import from_binary16, to_binary16
from ipex_lookahead.formats.groups import (
    GROUP_SIZES,
    Floats,
    check_packed,
    dequantize_rows,
    quantize_groups,
    rounded,
    unpack_nibbles,
)


@dataclass(frozen=True, slots=True)
class AsymInt4:
    """The format ``asym_int4``; see ``LowBitFormat``."""

    name: str = "asym_int4"
    bits: int = 4
    group_sizes: tuple[int, ...] = GROUP_SIZES

    def quantize(self, weight: PackedWeight, group_size: int = 32, threads: int | None = None) -> PackedWeight:
        """A float matrix [n_out, n_in] with one scale and one minimum for every ``group_size`` inputs of a row.

        Raises:
            LowBitFormatError: not a float matrix, unknown group size, NaN or infinity, a scale or minimum beyond
                binary16.
        """
        return quantize_groups(weight, self.name, group_size, threads, quantize_values, nibbles=True)

    def dequantize(self, weight: PackedWeight) -> npt.NDArray[np.float32]:
        """``scale * code + minimum``, float32 [n_out, n_in]; product and sum are rounded one after the other."""
        check_packed(weight, self.name, np.uint8, codes_a_byte=2)
        return dequantize_rows(weight, unpack_nibbles)


def quantize_values(values: Floats, real: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.uint8], Floats, Floats]:
    """The definition (``GroupQuantizer``): m = min, d = (max - min) / 15; code = clamp(rint((x - m) / d), 0, 15).

    Padding has code 0. Adding 0 to the extremes makes a negative zero positive, so that the bits do not depend on which
    of two equal zeros a search finds.
    """
    minimum = values.min(axis=2) + np.float32(0)
    scale = (values.max(axis=2) + np.float32(0) - minimum) / np.float32(15)
    _, inverse = rounded(scale)
    origin = from_binary16(to_binary16(minimum))
    codes = np.clip(np.rint((values - origin[..., None]) * inverse[..., None]), 0, 15)
    return np.where(real, codes, np.float32(0)).astype(np.uint8), scale, minimum


FORMAT = AsymInt4()
