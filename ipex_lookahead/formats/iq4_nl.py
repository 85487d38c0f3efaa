"""Four bits that count a table of 16 whole numbers, closer together near zero: w = scale * table[code], GGUF's IQ4_NL.

A block is 32 inputs. The table is llama.cpp's; being of whole numbers within int8, it needs no floats in a kernel.
"""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.blocks import BlockFormat, Parts, Plane
from ipex_lookahead.formats.search import Floats, best_scale, half, in_table, inverse_of

TABLE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def quantize_blocks(values: Floats, inputs: Floats) -> Parts:
    """The definition; see ``BlockFormat.quantizer``."""
    bits, scale = half(best_scale(values, inputs * values * values, in_table(TABLE), TABLE[0], 1.0, 7))
    return Parts(codes_in_table(values * inverse_of(scale)[..., None]), bits)


def codes_in_table(values: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """The codes of the nearest numbers of ``TABLE``."""
    return np.searchsorted(np.array(TABLE), in_table(TABLE)(values)).astype(np.uint8)


FORMAT = BlockFormat(
    "iq4_nl",
    bits=4,
    number=20,
    gguf_name="IQ4_NL",
    inputs=32,
    record=np.dtype([("scale", "<u2"), ("nibbles", "u1", 16)]),
    planes=(Plane("nibbles", 4, 16),),
    quantizer=quantize_blocks,
    table=TABLE,
)
