"""Eight-bit floats (e4m3) with a float32 scale for 64 inputs, ipex-llm's ``fp8_e4m3``: w = scale * float.

The exponent has binary16's bias, so that a code is the upper byte of a binary16 without its top bit of exponent, and
numbers go up to 1.875.
"""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.blocks import BlockFormat, Plane
from ipex_lookahead.formats.codebooks import minifloats, quantizer_of

TABLE = minifloats(4, 3, bias=15)

FORMAT = BlockFormat(
    "fp8_e4m3_fp32",
    bits=8,
    inputs=64,
    record=np.dtype([("scale", "<f4"), ("bytes", "u1", 64)]),
    planes=(Plane("bytes", 8, 64),),
    quantizer=quantizer_of(TABLE, TABLE[126], single=True),
    table=TABLE,
)
