"""Four bits, symmetric: w = scale * (code - 8), the layout of GGUF's Q4_0 and ipex-llm's default format.

The scale is searched for the least weighted squared error; it may be negative, so that the value of largest magnitude
can be the -8 to which there is no +8.
"""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.base import NIBBLES, SCALES, GgufType
from ipex_lookahead.formats.groups import GroupFormat
from ipex_lookahead.formats.search import Numbers, ScaleSearch, around

FORMAT = GroupFormat(
    "sym_int4",
    bits=4,
    zero=8,
    streams=(NIBBLES, SCALES),
    gguf=GgufType(2, "Q4_0", 32, np.dtype([("scales", "<u2"), ("codes", "u1", 16)])),
    search=ScaleSearch(Numbers(range(-8, 8)), 32, around(-8, 0.25, 6)),
)
