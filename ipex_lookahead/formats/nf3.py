"""Three bits that count eight quantiles of a normal distribution, as ``nf4`` does: w = scale * table[code].

A block is 32 inputs; the table is the one in common use, in float32.
"""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.blocks import BlockFormat, Plane
from ipex_lookahead.formats.codebooks import CRUMB_PLANE, CRUMBS, SCALE, quantizer_of

TABLE = (-1.0, -0.5350227355957031, -0.2469314038753510, 0.0, 0.1833375245332718, 0.3819939494132996,
         0.6229856610298157, 1.0)  # fmt: skip

FORMAT = BlockFormat(
    "nf3",
    bits=3,
    inputs=32,
    record=np.dtype([SCALE, CRUMBS, ("third", "u1", 4)]),
    planes=(CRUMB_PLANE, Plane("third", 1, 1, up=2)),
    quantizer=quantizer_of(TABLE, -1.0, width=0.04, tries=7),
    table=TABLE,
)
