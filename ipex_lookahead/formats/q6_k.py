"""Six bits in blocks of 256: w = scale * step * (code - 32), GGUF's Q6_K.

Sixteen parts of 16 inputs have a signed step of eight bits each; the block has a scale in binary16.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.blocks import BlockFormat, Parts, Plane, Steps
from ipex_lookahead.formats.search import Floats, clipped
from ipex_lookahead.formats.signed_steps import quantize_signed_steps


def unpack_steps(packed: npt.NDArray[np.int8]) -> tuple[npt.NDArray[np.int16], None]:
    """A byte is a step."""
    return packed.astype(np.int16), None


def pack_steps(steps: npt.NDArray[np.int16], _: npt.NDArray[np.int16] | None) -> npt.NDArray[np.int8]:
    """The inverse of ``unpack_steps``."""
    return steps.astype(np.int8)


def quantize_blocks(values: Floats, inputs: Floats) -> Parts:
    """The definition; see ``BlockFormat.quantizer``."""
    parts, whole = quantize_signed_steps(
        values, inputs, nearest=clipped(-32, 31), extreme=-32, width=0.1, tries=9, size=16, least_step=-128
    )
    return parts._replace(codes=(whole + 32).astype(np.uint8))


FORMAT = BlockFormat(
    "q6_k",
    bits=6,
    number=14,
    gguf_name="Q6_K",
    inputs=256,
    record=np.dtype([("nibbles", "u1", 128), ("upper", "u1", 64), ("steps", "i1", 16), ("scale", "<u2")]),
    planes=(Plane("nibbles", 4, 64), Plane("upper", 2, 32, up=4)),
    quantizer=quantize_blocks,
    zero=32,
    steps=Steps(unpack_steps, pack_steps),
)
