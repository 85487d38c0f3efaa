"""Two bits in blocks of 256: w = scale * step * code - minimum * minimum_step, GGUF's Q2_K.

Sixteen parts of 16 inputs have a four-bit step of scale and of minimum each; the block has both in binary16.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.blocks import BlockFormat, Plane, Steps
from ipex_lookahead.formats.search import MinimumSearch, around


def unpack_steps(packed: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int16]]:
    """The step of scale is the low nibble, that of the minimum the high one."""
    return (packed & 15).astype(np.int16), (packed >> 4).astype(np.int16)


def pack_steps(steps: npt.NDArray[np.int16], minimum_steps: npt.NDArray[np.int16] | None) -> npt.NDArray[np.uint8]:
    """The inverse of ``unpack_steps``."""
    assert minimum_steps is not None
    return (steps | minimum_steps << 4).astype(np.uint8)


FORMAT = BlockFormat(
    "q2_k",
    number=10,
    gguf_name="Q2_K",
    inputs=256,
    record=np.dtype([("steps", "u1", 16), ("crumbs", "u1", 64), ("scale", "<u2"), ("minimum", "<u2")]),
    planes=(Plane("crumbs", 2, 32),),
    quantizer=MinimumSearch(3, 16, around(3, 0.1, 8), 15),
    steps=Steps(unpack_steps, pack_steps),
)
