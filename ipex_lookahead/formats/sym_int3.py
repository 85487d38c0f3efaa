"""Three bits, symmetric: w = scale * (code - 4) for 32 inputs."""

from __future__ import annotations

import numpy as np

from ipex_lookahead.formats.blocks import BlockFormat, Plane
from ipex_lookahead.formats.codebooks import CRUMB_PLANE, CRUMBS, SCALE, quantizer_of

FORMAT = BlockFormat(
    "sym_int3",
    inputs=32,
    record=np.dtype([SCALE, CRUMBS, ("third", "u1", 4)]),
    planes=(CRUMB_PLANE, Plane("third", 1, 1, up=2)),
    quantizer=quantizer_of(range(-4, 4), -4, width=0.15, tries=9),
    zero=4,
)
