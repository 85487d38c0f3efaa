"""Four bits, asymmetric: w = scale * code + minimum, the layout of GGUF's Q4_1.

Scale and minimum, both binary16, are searched for the least weighted squared error.
"""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.base import MINIMUMS, NIBBLES, SCALES, GgufType
from ipex_lookahead.formats.groups import GroupFormat
from ipex_lookahead.formats.search import MinimumSearch, around

FORMAT = GroupFormat(
    "asym_int4",
    bits=4,
    zero=0,
    streams=(NIBBLES, SCALES, MINIMUMS),
    gguf=GgufType(3, "Q4_1", 32, np.dtype([("scales", "<u2"), ("minimums", "<u2"), ("codes", "u1", 16)])),
    search=MinimumSearch(15, 32, around(15, 0.4, 4)),
)
