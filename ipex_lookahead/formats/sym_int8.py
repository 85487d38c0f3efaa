"""Eight bits, symmetric: w = scale * code with codes -127..127, the arithmetic of GGUF's Q8_0.

Errors are at most half a scale (plus what rounding the scale to binary16 adds).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.base import SCALES, GgufType, Stream
from ipex_lookahead.formats.groups import Floats, GroupFormat, rounded


def quantize_values(values: Floats, real: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.int8], Floats, None]:
    """The definition (``GroupQuantizer``): d = max|x| / 127; code = clamp(rint(x / d), -127, 127), padding 0."""
    scale = np.abs(values).max(axis=2) / np.float32(127)
    _, inverse = rounded(scale)
    codes = np.clip(np.rint(values * inverse[..., None]), -127, 127)
    return np.where(real, codes, np.float32(0)).astype(np.int8), scale, None


FORMAT = GroupFormat(
    "sym_int8",
    bits=8,
    zero=0,
    streams=(Stream("codes", np.int8, 32, 32, "I8", "code i of a block in byte i"), SCALES),
    gguf=GgufType(8, "Q8_0", 32, np.dtype([("scales", "<u2"), ("codes", "i1", 32)])),
    quantizer=quantize_values,
)
