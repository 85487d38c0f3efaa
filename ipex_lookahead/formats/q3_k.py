"""Three bits in blocks of 256: w = scale * step * (code - 4), GGUF's Q3_K.

Sixteen parts of 16 inputs have a signed step of six bits each; the block has a scale in binary16.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.blocks import BlockFormat, Plane, Steps, join, split
from ipex_lookahead.formats.search import Numbers, ScaleSearch, around


def unpack_steps(packed: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int16], None]:
    """Bytes [..., 12] to steps [..., 16]: eight bytes of low nibbles, then four of two upper bits; 32 stands for 0."""
    stored = split(packed[..., :8], 4, 8) | split(packed[..., 8:], 2, 4) << np.uint8(4)
    return stored.astype(np.int16) - np.int16(32), None


def pack_steps(steps: npt.NDArray[np.int16], _: npt.NDArray[np.int16] | None) -> npt.NDArray[np.uint8]:
    """The inverse of ``unpack_steps``."""
    stored = (steps + np.int16(32)).astype(np.uint8)
    return np.concatenate((join(stored & 15, 4, 8), join(stored >> 4, 2, 4)), axis=-1)


FORMAT = BlockFormat(
    "q3_k",
    number=11,
    gguf_name="Q3_K",
    inputs=256,
    record=np.dtype([("third", "u1", 32), ("crumbs", "u1", 64), ("steps", "u1", 12), ("scale", "<u2")]),
    planes=(Plane("crumbs", 2, 32), Plane("third", 1, 32, up=2)),
    quantizer=ScaleSearch(Numbers(range(-4, 4)), 16, around(-4, 0.25, 4) + around(3.6, 0.25, 3), -32),
    zero=4,
    steps=Steps(unpack_steps, pack_steps, least=-32),
)
