"""Eight bits around zero with a float32 scale for 64 inputs, ipex-llm's ``sym_int8``: w = scale * code."""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.blocks import BlockFormat, Parts, Plane
from ipex_lookahead.formats.search import Floats, inverse_of, single_scale

TABLE = (*range(128), *range(-128, 0))


def quantize_blocks(values: Floats, inputs: Floats) -> Parts:
    """The definition; see ``BlockFormat.quantizer``. The largest value becomes 127 or -127."""
    stored, scale = single_scale(np.abs(values).max(axis=-1) / np.float32(127))
    codes = np.clip(np.rint(values * inverse_of(scale)[..., None]), -127, 127)
    return Parts(codes.astype(np.int8).view(np.uint8), stored)


FORMAT = BlockFormat(
    "sym_int8_fp32",
    bits=8,
    inputs=64,
    record=np.dtype([("scale", "<f4"), ("bytes", "u1", 64)]),
    planes=(Plane("bytes", 8, 64),),
    quantizer=quantize_blocks,
    table=TABLE,
)
