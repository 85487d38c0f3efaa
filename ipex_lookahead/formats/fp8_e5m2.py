"""Eight-bit floats (e5m2) with a binary16 scale for 32 inputs: w = scale * float, numbers up to 57344.

``scale * float`` is exact in float32. The largest value of a block becomes 14, so that the scale is seldom a subnormal.
The codes of infinity and NaN are never made.
"""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.blocks import BlockFormat, Plane
from ipex_lookahead.formats.codebooks import SCALE, minifloats, quantizer_of

TABLE = minifloats(5, 2)

FORMAT = BlockFormat(
    "fp8_e5m2",
    inputs=32,
    record=np.dtype([SCALE, ("bytes", "u1", 32)]),
    planes=(Plane("bytes", 8, 32),),
    quantizer=quantizer_of(TABLE, 14.0),
    table=TABLE,
)
