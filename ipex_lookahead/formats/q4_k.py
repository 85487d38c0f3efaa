"""Four bits in blocks of 256: w = scale * step * code - minimum * minimum_step, GGUF's Q4_K.

Eight parts of 32 inputs have a six-bit step of scale and of minimum each; the block has both in binary16.
"""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.blocks import BlockFormat, Plane
from ipex_lookahead.formats.search import MinimumSearch, around
from ipex_lookahead.formats.six_bits import SIX_BITS

FORMAT = BlockFormat(
    "q4_k",
    number=12,
    gguf_name="Q4_K",
    inputs=256,
    record=np.dtype([("scale", "<u2"), ("minimum", "<u2"), ("steps", "u1", 12), ("nibbles", "u1", 128)]),
    planes=(Plane("nibbles", 4, 32),),
    quantizer=MinimumSearch(15, 32, around(15, 0.3, 4), 63),
    steps=SIX_BITS,
)
