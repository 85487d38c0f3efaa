"""Four bits, asymmetric: w = scale * code + minimum, the layout of GGUF's Q4_1.

Sixteen levels from the smallest to the largest value of a group. Scale and minimum are binary16; errors are at most
half a scale, plus what rounding those two adds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.base import MINIMUMS, NIBBLES, SCALES, GgufType
from ipex_lookahead.formats.float_base import from_binary16, to_binary16
from ipex_lookahead.formats.groups import Floats, GroupFormat, rounded


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


FORMAT = GroupFormat(
    "asym_int4",
    bits=4,
    zero=0,
    streams=(NIBBLES, SCALES, MINIMUMS),
    gguf=GgufType(3, "Q4_1", 32, np.dtype([("scales", "<u2"), ("minimums", "<u2"), ("codes", "u1", 16)])),
    quantizer=quantize_values,
)
