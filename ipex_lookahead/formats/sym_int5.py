"""Five bits, symmetric: w = scale * (code - 16) for groups of 32, GGUF's Q5_0.

The scale is searched for the least squared error, weighted with the values' own squares.
"""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.blocks import BlockFormat, Parts, Plane
from ipex_lookahead.formats.search import Floats, best_scale, clipped, half, inverse_of


def quantize_blocks(values: Floats, inputs: Floats) -> Parts:
    """The definition; see ``BlockFormat.quantizer``."""
    nearest = clipped(-16, 15)
    bits, scale = half(best_scale(values, inputs * values * values, nearest, -16, 0.2, 5))
    codes = nearest(values * inverse_of(scale)[..., None]) + 16
    return Parts(codes.astype(np.uint8), bits)


FORMAT = BlockFormat(
    "sym_int5",
    bits=5,
    number=6,
    gguf_name="Q5_0",
    inputs=32,
    record=np.dtype([("scale", "<u2"), ("fifth", "u1", 4), ("nibbles", "u1", 16)]),
    planes=(Plane("nibbles", 4, 16), Plane("fifth", 1, 1, up=4)),
    quantizer=quantize_blocks,
    zero=16,
)
