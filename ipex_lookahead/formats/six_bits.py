"""Steps of scale and minimum in six bits each, eight of both in twelve bytes, as Q4_K and Q5_K have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.blocks import Steps


def unpack(packed: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int16]]:
    """Bytes [..., 12] to steps and minimum steps [..., 8].

    The first four of each are the low bits of bytes 0-3 and 4-7; the others have their low nibbles in bytes 8-11 and
    their top bits in those of the earlier bytes.
    """
    first, second, nibbles = (packed[..., at : at + 4] for at in (0, 4, 8))
    steps = np.concatenate((first & 63, nibbles & 15 | first >> 6 << 4), axis=-1)
    minimum_steps = np.concatenate((second & 63, nibbles >> 4 | second >> 6 << 4), axis=-1)
    return steps.astype(np.int16), minimum_steps.astype(np.int16)


def pack(steps: npt.NDArray[np.int16], minimum_steps: npt.NDArray[np.int16] | None) -> npt.NDArray[np.uint8]:
    """The inverse of ``unpack``."""
    assert minimum_steps is not None
    low, high, low_minimum, high_minimum = (
        part[..., at : at + 4].astype(np.uint8) for part in (steps, minimum_steps) for at in (0, 4)
    )
    parts = (low | high >> 4 << 6, low_minimum | high_minimum >> 4 << 6, high & 15 | (high_minimum & 15) << 4)
    return np.concatenate(parts, axis=-1)


SIX_BITS = Steps(unpack, pack)
