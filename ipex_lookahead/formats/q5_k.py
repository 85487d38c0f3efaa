"""Five bits in blocks of 256: w = scale * step * code - minimum * minimum_step, GGUF's Q5_K.

Eight parts of 32 inputs have a six-bit step of scale and of minimum each; the block has both in binary16.
"""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.blocks import BlockFormat, Parts, Plane
from ipex_lookahead.formats.search import Floats
from ipex_lookahead.formats.six_bits import SIX_BITS, quantize_steps


def quantize_blocks(values: Floats, inputs: Floats) -> Parts:
    """The definition; see ``BlockFormat.quantizer``."""
    return quantize_steps(values, inputs, most=31, size=32, most_step=63)


FORMAT = BlockFormat(
    "q5_k",
    bits=5,
    number=13,
    gguf_name="Q5_K",
    inputs=256,
    record=np.dtype(
        [("scale", "<u2"), ("minimum", "<u2"), ("steps", "u1", 12), ("fifth", "u1", 32), ("nibbles", "u1", 128)]
    ),
    planes=(Plane("nibbles", 4, 32), Plane("fifth", 1, 32, up=4)),
    quantizer=quantize_blocks,
    steps=SIX_BITS,
)
