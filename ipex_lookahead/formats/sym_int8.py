"""Eight bits, symmetric: w = scale * code with codes -127..127, the arithmetic of GGUF's Q8_0.

The scale is searched for the least weighted squared error, near the largest magnitude over 127.
"""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.base import SCALES, GgufType, Stream
from ipex_lookahead.formats.groups import GroupFormat
from ipex_lookahead.formats.search import Numbers, ScaleSearch, around

FORMAT = GroupFormat(
    "sym_int8",
    bits=8,
    zero=0,
    streams=(Stream("codes", np.int8, 32, 32, "I8", "code i of a block in byte i"), SCALES),
    gguf=GgufType(8, "Q8_0", 32, np.dtype([("scales", "<u2"), ("codes", "i1", 32)])),
    search=ScaleSearch(Numbers(range(-127, 128)), 32, around(127, 1, 4)),
)
