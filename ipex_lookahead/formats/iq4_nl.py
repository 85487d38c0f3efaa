"""Four bits that count a table of 16 whole numbers, closer together near zero: w = scale * table[code], GGUF's IQ4_NL.

A block is 32 inputs. The table is llama.cpp's; being of whole numbers within int8, it needs no floats in a kernel.
"""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.blocks import BlockFormat, Plane
from ipex_lookahead.formats.search import Numbers, ScaleSearch, around

TABLE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


FORMAT = BlockFormat(
    "iq4_nl",
    number=20,
    gguf_name="IQ4_NL",
    inputs=32,
    record=np.dtype([("scale", "<u2"), ("nibbles", "u1", 16)]),
    planes=(Plane("nibbles", 4, 16),),
    quantizer=ScaleSearch(Numbers(TABLE), 32, around(TABLE[0], 4, 4) + around(120, 5, 2)),
    table=TABLE,
)
