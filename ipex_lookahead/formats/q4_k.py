"""Four bits in blocks of 256: w = scale * step * code - minimum * minimum_step, GGUF's Q4_K.

Eight parts of 32 inputs have a six-bit step of scale and of minimum each; the block has both in binary16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.blocks import BlockFormat, Plane, Steps
from ipex_lookahead.formats.search import MinimumSearch, around


def unpack_steps(packed: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int16]]:
    """Bytes [..., 12] to steps and minimum steps [..., 8].

    The first four of each are the low bits of bytes 0-3 and 4-7; the others have their low nibbles in bytes 8-11 and
    their top bits in those of the earlier bytes.
    """
    first, second, nibbles = (packed[..., at : at + 4] for at in (0, 4, 8))
    steps = np.concatenate((first & 63, nibbles & 15 | first >> 6 << 4), axis=-1)
    minimum_steps = np.concatenate((second & 63, nibbles >> 4 | second >> 6 << 4), axis=-1)
    return steps.astype(np.int16), minimum_steps.astype(np.int16)


def pack_steps(steps: npt.NDArray[np.int16], minimum_steps: npt.NDArray[np.int16] | None) -> npt.NDArray[np.uint8]:
    """The inverse of ``unpack_steps``."""
    assert minimum_steps is not None
    low, high, low_minimum, high_minimum = (
        part[..., at : at + 4].astype(np.uint8) for part in (steps, minimum_steps) for at in (0, 4)
    )
    parts = (low | high >> 4 << 6, low_minimum | high_minimum >> 4 << 6, high & 15 | (high_minimum & 15) << 4)
    return np.concatenate(parts, axis=-1)


SIX_BITS = Steps(unpack_steps, pack_steps)
"""Steps of scale and minimum in six bits each, eight of both in twelve bytes; Q5_K has them too."""

FORMAT = BlockFormat(
    "q4_k",
    number=12,
    gguf_name="Q4_K",
    inputs=256,
    record=np.dtype([("scale", "<u2"), ("minimum", "<u2"), ("steps", "u1", 12), ("nibbles", "u1", 128)]),
    planes=(Plane("nibbles", 4, 32),),
    quantizer=MinimumSearch(15, 32, around(15, 0.3, 4), 63),
    steps=SIX_BITS,
)
