"""Five bits in blocks of 256: w = scale * step * code - minimum * minimum_step, GGUF's Q5_K.

Eight parts of 32 inputs have a six-bit step of scale and of minimum each; the block has both in binary16.
"""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.blocks import BlockFormat, Plane
from ipex_lookahead.formats.q4_k import SIX_BITS
from ipex_lookahead.formats.search import MinimumSearch, around

FORMAT = BlockFormat(
    "q5_k",
    number=13,
    gguf_name="Q5_K",
    inputs=256,
    record=np.dtype(
        [("scale", "<u2"), ("minimum", "<u2"), ("steps", "u1", 12), ("fifth", "u1", 32), ("nibbles", "u1", 128)]
    ),
    planes=(Plane("nibbles", 4, 32), Plane("fifth", 1, 32, up=4)),
    quantizer=MinimumSearch(31, 32, around(31, 0.4, 4), 63),
    steps=SIX_BITS,
)
