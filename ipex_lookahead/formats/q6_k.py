"""Six bits in blocks of 256: w = scale * step * (code - 32), GGUF's Q6_K.

Sixteen parts of 16 inputs have a signed step of eight bits each; the block has a scale in binary16.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.blocks import BlockFormat, Plane, Steps
from ipex_lookahead.formats.search import Numbers, ScaleSearch, around


def unpack_steps(packed: npt.NDArray[np.int8]) -> tuple[npt.NDArray[np.int16], None]:
    """A byte is a step."""
    return packed.astype(np.int16), None


def pack_steps(steps: npt.NDArray[np.int16], _: npt.NDArray[np.int16] | None) -> npt.NDArray[np.int8]:
    """The inverse of ``unpack_steps``."""
    return steps.astype(np.int8)


FORMAT = BlockFormat(
    "q6_k",
    number=14,
    gguf_name="Q6_K",
    inputs=256,
    record=np.dtype([("nibbles", "u1", 128), ("upper", "u1", 64), ("steps", "i1", 16), ("scale", "<u2")]),
    planes=(Plane("nibbles", 4, 64), Plane("upper", 2, 32, up=4)),
    quantizer=ScaleSearch(Numbers(range(-32, 32)), 16, around(-32, 1, 4), -128),
    zero=32,
    steps=Steps(unpack_steps, pack_steps),
)
