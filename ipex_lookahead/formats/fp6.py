"""Six-bit floats (e3m2) with a binary16 scale for 32 inputs: w = scale * float, numbers from 2^-16 to 28 / 4096.

The exponent has binary16's bias, as in ipex-llm: the scale of usual weights is about 1 and no subnormal, and weights
may be up to 447.
"""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.blocks import BlockFormat, Plane
from ipex_lookahead.formats.codebooks import NIBBLE_PLANE, NIBBLES, SCALE, minifloats, quantizer_of

TABLE = minifloats(3, 2, bias=15)

FORMAT = BlockFormat(
    "fp6",
    inputs=32,
    record=np.dtype([SCALE, NIBBLES, ("upper", "u1", 8)]),
    planes=(NIBBLE_PLANE, Plane("upper", 2, 8, up=4)),
    quantizer=quantizer_of(TABLE, TABLE[31]),
    table=TABLE,
)
