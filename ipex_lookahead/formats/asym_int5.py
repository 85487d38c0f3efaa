"""Five bits, asymmetric: w = scale * code + minimum for groups of 32, GGUF's Q5_1.

Scale and minimum are searched for the least weighted squared error.
"""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.blocks import BlockFormat, Plane
from ipex_lookahead.formats.search import MinimumSearch, around

FORMAT = BlockFormat(
    "asym_int5",
    number=7,
    gguf_name="Q5_1",
    inputs=32,
    record=np.dtype([("scale", "<u2"), ("minimum", "<u2"), ("fifth", "u1", 4), ("nibbles", "u1", 16)]),
    planes=(Plane("nibbles", 4, 16), Plane("fifth", 1, 1, up=4)),
    quantizer=MinimumSearch(31, 32, around(31, 0.4, 4)),
)
