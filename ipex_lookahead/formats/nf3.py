"""Three bits that count eight quantiles of a normal distribution, as ``nf4`` does: w = scale * table[code].

A block is 32 inputs. The table is ipex-llm's, made as ``nf4``'s: its CPU library holds no table of nf3, but thresholds
half-way between its numbers (``tests/ipex_llm``), which say them to a unit in the last place.
"""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.blocks import BlockFormat, Plane
from ipex_lookahead.formats.codebooks import CRUMB_PLANE, CRUMBS, SCALE, quantizer_of

TABLE = (-1.0, -0.4786292016506195, -0.2171417921781540, 0.0, 0.16093020141124725, 0.33791524171829224,
         0.5626170039176941, 1.0)  # fmt: skip

FORMAT = BlockFormat(
    "nf3",
    inputs=32,
    record=np.dtype([SCALE, CRUMBS, ("third", "u1", 4)]),
    planes=(CRUMB_PLANE, Plane("third", 1, 1, up=2)),
    quantizer=quantizer_of(TABLE, -1.0, width=0.04, tries=7),
    table=TABLE,
)
