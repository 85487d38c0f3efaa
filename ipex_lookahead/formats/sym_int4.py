"""Four bits, symmetric: w = scale * (code - 8), the layout of GGUF's Q4_0 and ipex-llm's default format.

The value of largest magnitude, sign included, becomes code 0 exactly (up to the rounding of the scale), so the range
is -8..7 times a scale that may be negative. A value of the opposite sign beyond 7.5 scales is clamped to 7; its error
is at most one scale, every other value's at most half a scale (plus what rounding the scale to binary16 adds).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.base import PackedWeight
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
class SymInt4:
    """The format ``sym_int4``; see ``LowBitFormat``."""

    name: str = "sym_int4"
    bits: int = 4
    group_sizes: tuple[int, ...] = GROUP_SIZES

    def quantize(self, weight: PackedWeight, group_size: int = 32, threads: int | None = None) -> PackedWeight:
        """A float matrix [n_out, n_in] with one scale for every ``group_size`` inputs of a row.

        Raises:
            LowBitFormatError: not a float matrix, unknown group size, NaN or infinity, a scale beyond binary16.
        """
        return quantize_groups(weight, self.name, group_size, threads, quantize_values, nibbles=True)

    def dequantize(self, weight: PackedWeight) -> npt.NDArray[np.float32]:
        """``scale * (code - 8)``, float32 [n_out, n_in]."""
        check_packed(weight, self.name, np.uint8, codes_a_byte=2)
        return dequantize_rows(weight, lambda packed: unpack_nibbles(packed).astype(np.int8) - 8)


def quantize_values(values: Floats, real: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.uint8], Floats, None]:
    """The definition (``GroupQuantizer``): d = extreme / -8; code = clamp(rint(x / d) + 8, 0, 15), padding 8."""
    first_extreme = np.abs(values).argmax(axis=2, keepdims=True)
    scale = np.take_along_axis(values, first_extreme, axis=2)[..., 0] / np.float32(-8)
    _, inverse = rounded(scale)
    codes = np.clip(np.rint(values * inverse[..., None]) + np.float32(8), 0, 15)
    return np.where(real, codes, np.float32(8)).astype(np.uint8), scale, None


FORMAT = SymInt4()
