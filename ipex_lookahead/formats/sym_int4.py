"""Four bits, symmetric: w = scale * (code - 8), the layout of GGUF's Q4_0 and ipex-llm's default format.

The value of largest magnitude, sign included, becomes code 0 exactly (up to the rounding of the scale), so the range
is -8..7 times a scale that may be negative. A value of the opposite sign beyond 7.5 scales is clamped to 7; its error
is at most one scale, every other value's at most half a scale (plus what rounding the scale to binary16 adds).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.base import NIBBLES, SCALES, GgufType
from ipex_lookahead.formats.groups import Floats, GroupFormat, rounded


def quantize_values(values: Floats, real: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.uint8], Floats, None]:
    """The definition (``GroupQuantizer``): d = extreme / -8; code = clamp(rint(x / d) + 8, 0, 15), padding 8."""
    first_extreme = np.abs(values).argmax(axis=2, keepdims=True)
    scale = np.take_along_axis(values, first_extreme, axis=2)[..., 0] / np.float32(-8)
    _, inverse = rounded(scale)
    codes = np.clip(np.rint(values * inverse[..., None]) + np.float32(8), 0, 15)
    return np.where(real, codes, np.float32(8)).astype(np.uint8), scale, None


FORMAT = GroupFormat(
    "sym_int4",
    bits=4,
    zero=8,
    streams=(NIBBLES, SCALES),
    gguf=GgufType(2, "Q4_0", 32, np.dtype([("scales", "<u2"), ("codes", "u1", 16)])),
    quantizer=quantize_values,
)
