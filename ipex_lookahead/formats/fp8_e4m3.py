"""Eight-bit floats (e4m3) with a binary16 scale for 32 inputs: w = scale * float, numbers up to 448.

``scale * float`` is exact in float32. The largest value of a block becomes 28, so that the scale is seldom a subnormal;
what is below 2^-11 of it is a subnormal then. The code of NaN is never made.
"""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.blocks import BlockFormat, Plane
from ipex_lookahead.formats.codebooks import SCALE, minifloats, quantizer_of

TABLE = minifloats(4, 3)

FORMAT = BlockFormat(
    "fp8_e4m3",
    inputs=32,
    record=np.dtype([SCALE, ("bytes", "u1", 32)]),
    planes=(Plane("bytes", 8, 32),),
    quantizer=quantizer_of(TABLE, 28.0),
    table=TABLE,
)
