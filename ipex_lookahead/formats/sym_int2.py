"""Two bits, symmetric: w = scale * (code - 2) for 32 inputs."""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.blocks import BlockFormat
from ipex_lookahead.formats.codebooks import CRUMB_PLANE, CRUMBS, SCALE, quantizer_of

FORMAT = BlockFormat(
    "sym_int2",
    inputs=32,
    record=np.dtype([SCALE, CRUMBS]),
    planes=(CRUMB_PLANE,),
    quantizer=quantizer_of(range(-2, 2), -2, width=0.15, tries=9),
    zero=2,
)
