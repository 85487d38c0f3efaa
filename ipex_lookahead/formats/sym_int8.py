"""Eight bits, symmetric: w = scale * code with codes -127..127, the arithmetic of GGUF's Q8_0.

Errors are at most half a scale (plus what rounding the scale to binary16 adds).
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
)


@dataclass(frozen=True, slots=True)
class SymInt8:
    """The format ``sym_int8``; see ``LowBitFormat``."""

    name: str = "sym_int8"
    bits: int = 8
    group_sizes: tuple[int, ...] = GROUP_SIZES

    def quantize(self, weight: PackedWeight, group_size: int = 32, threads: int | None = None) -> PackedWeight:
        """A float matrix [n_out, n_in] with one scale for every ``group_size`` inputs of a row.

        Raises:
            LowBitFormatError: not a float matrix, unknown group size, NaN or infinity, a scale beyond binary16.
        """
        return quantize_groups(weight, self.name, group_size, threads, quantize_values, nibbles=False)

    def dequantize(self, weight: PackedWeight) -> npt.NDArray[np.float32]:
        """``scale * code``, float32 [n_out, n_in]."""
        check_packed(weight, self.name, np.int8, codes_a_byte=1)
        return dequantize_rows(weight, lambda codes: codes)


def quantize_values(values: Floats, real: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.int8], Floats, None]:
    """The definition (``GroupQuantizer``): d = max|x| / 127; code = clamp(rint(x / d), -127, 127), padding 0."""
    scale = np.abs(values).max(axis=2) / np.float32(127)
    _, inverse = rounded(scale)
    codes = np.clip(np.rint(values * inverse[..., None]), -127, 127)
    return np.where(real, codes, np.float32(0)).astype(np.int8), scale, None


FORMAT = SymInt8()
