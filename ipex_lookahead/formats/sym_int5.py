"""Five bits, symmetric: w = scale * (code - 16) for groups of 32, GGUF's Q5_0.

The scale is searched for the least weighted squared error.
"""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.blocks import BlockFormat, Plane
from ipex_lookahead.formats.search import Numbers, ScaleSearch, around

FORMAT = BlockFormat(
    "sym_int5",
    number=6,
    gguf_name="Q5_0",
    inputs=32,
    record=np.dtype([("scale", "<u2"), ("fifth", "u1", 4), ("nibbles", "u1", 16)]),
    planes=(Plane("nibbles", 4, 16), Plane("fifth", 1, 1, up=4)),
    quantizer=ScaleSearch(Numbers(range(-16, 16)), 32, around(-16, 0.5, 4)),
    zero=16,
)
