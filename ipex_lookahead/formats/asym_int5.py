"""Five bits, asymmetric: w = scale * code + minimum for groups of 32, GGUF's Q5_1.

Scale and minimum are searched for the least squared error.
"""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.blocks import BlockFormat, Parts, Plane
from ipex_lookahead.formats.search import Floats, best_scale_and_minimum, half, inverse_of


def quantize_blocks(values: Floats, inputs: Floats) -> Parts:
    """The definition; see ``BlockFormat.quantizer``."""
    found = best_scale_and_minimum(values, inputs, 31, 0.2, 5, never_positive=False)
    (bits, scale), (minimum_bits, minimum) = half(found[0]), half(found[1])
    codes = np.clip(np.rint((values - minimum[..., None]) * inverse_of(scale)[..., None]), 0, 31)
    return Parts(codes.astype(np.uint8), bits, minimum_bits)


FORMAT = BlockFormat(
    "asym_int5",
    bits=5,
    number=7,
    gguf_name="Q5_1",
    inputs=32,
    record=np.dtype([("scale", "<u2"), ("minimum", "<u2"), ("fifth", "u1", 4), ("nibbles", "u1", 16)]),
    planes=(Plane("nibbles", 4, 16), Plane("fifth", 1, 1, up=4)),
    quantizer=quantize_blocks,
)
