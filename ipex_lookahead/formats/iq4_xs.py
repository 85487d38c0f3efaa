"""Four bits that count ``iq4_nl``'s table, in blocks of 256: w = scale * step * table[code], GGUF's IQ4_XS.

Eight parts of 32 inputs have a signed step of six bits each; the block has a scale in binary16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.blocks import BlockFormat, Plane, Steps, join, split
from ipex_lookahead.formats.iq4_nl import TABLE
from ipex_lookahead.formats.search import Numbers, ScaleSearch, around


def unpack_steps(packed: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int16], None]:
    """Bytes [..., 6] to steps [..., 8]: two bytes of two upper bits, then four of low nibbles; 32 stands for 0."""
    stored = split(packed[..., 2:], 4, 1) | split(packed[..., :2], 2, 1) << np.uint8(4)
    return stored.astype(np.int16) - np.int16(32), None


def pack_steps(steps: npt.NDArray[np.int16], _: npt.NDArray[np.int16] | None) -> npt.NDArray[np.uint8]:
    """The inverse of ``unpack_steps``."""
    stored = (steps + np.int16(32)).astype(np.uint8)
    return np.concatenate((join(stored >> 4, 2, 1), join(stored & 15, 4, 1)), axis=-1)


FORMAT = BlockFormat(
    "iq4_xs",
    number=23,
    gguf_name="IQ4_XS",
    inputs=256,
    record=np.dtype([("scale", "<u2"), ("steps", "u1", 6), ("nibbles", "u1", 128)]),
    planes=(Plane("nibbles", 4, 16),),
    quantizer=ScaleSearch(Numbers(TABLE), 32, around(TABLE[0], 4, 4) + around(120, 5, 2), -32),
    table=TABLE,
    steps=Steps(unpack_steps, pack_steps, least=-32),
)
