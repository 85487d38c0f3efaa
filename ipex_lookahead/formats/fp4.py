"""Four-bit floats (e2m1) with a binary16 scale for 32 inputs: w = scale * table[code].

The numbers are ``mxfp4``'s, 0, 0.5, 1, 1.5, 2, 3, 4, 6; a scale of any size loses less than a power of two.
"""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.blocks import BlockFormat
from ipex_lookahead.formats.codebooks import NIBBLE_PLANE, NIBBLES, SCALE, quantizer_of
from ipex_lookahead.formats.mxfp4 import TABLE as DOUBLED

TABLE = tuple(number / 2 for number in DOUBLED)

FORMAT = BlockFormat(
    "fp4",
    inputs=32,
    record=np.dtype([SCALE, NIBBLES]),
    planes=(NIBBLE_PLANE,),
    quantizer=quantizer_of(TABLE, 6.0, width=0.25, tries=7),
    table=TABLE,
)
