"""How GGUF's formats with blocks of 256 inputs pack the scale steps of a block's parts.

Each ``Steps`` is a pair of functions: packed bytes [..., n] to (steps, minimum steps or None), and the inverse.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.blocks import Steps, join, split

_Array = npt.NDArray[Any]
_Steps = npt.NDArray[np.int16]


def _unpack_four_bits(packed: _Array) -> tuple[_Steps, _Steps]:
    """Bytes [..., 16] to 16 steps (low nibbles) and 16 minimum steps (high nibbles)."""
    return (packed & 15).astype(np.int16), (packed >> 4).astype(np.int16)


def _pack_four_bits(steps: _Steps, minimum_steps: _Steps | None) -> _Array:
    assert minimum_steps is not None
    return (steps | minimum_steps << 4).astype(np.uint8)


def _unpack_six_bits(packed: _Array) -> tuple[_Steps, _Steps]:
    """Bytes [..., 12] to 8 steps and 8 minimum steps.

    The first four of each are the low bits of bytes 0-3 and 4-7. The others have their low nibbles in bytes 8-11 and
    their top bits in the top bits of bytes 0-7.
    """
    first, second, nibbles = (packed[..., at : at + 4] for at in (0, 4, 8))
    steps = np.concatenate((first & 63, nibbles & 15 | first >> 6 << 4), axis=-1)
    minimum_steps = np.concatenate((second & 63, nibbles >> 4 | second >> 6 << 4), axis=-1)
    return steps.astype(np.int16), minimum_steps.astype(np.int16)


def _pack_six_bits(steps: _Steps, minimum_steps: _Steps | None) -> _Array:
    assert minimum_steps is not None
    low, high, low_minimum, high_minimum = (
        part[..., at : at + 4].astype(np.uint8) for part in (steps, minimum_steps) for at in (0, 4)
    )
    parts = (low | high >> 4 << 6, low_minimum | high_minimum >> 4 << 6, high & 15 | (high_minimum & 15) << 4)
    return np.concatenate(parts, axis=-1)


def _unpack_16_signed(packed: _Array) -> tuple[_Steps, None]:
    """Bytes [..., 12] to 16 steps of six bits: eight bytes of low nibbles, then four of two upper bits."""
    stored = split(packed[..., :8], 4, 8) | split(packed[..., 8:], 2, 4) << np.uint8(4)
    return stored.astype(np.int16) - np.int16(32), None


def _pack_16_signed(steps: _Steps, _: _Steps | None) -> _Array:
    stored = (steps + np.int16(32)).astype(np.uint8)
    return np.concatenate((join(stored & 15, 4, 8), join(stored >> 4, 2, 4)), axis=-1)


def _unpack_8_signed(packed: _Array) -> tuple[_Steps, None]:
    """Bytes [..., 6] to 8 steps of six bits: two bytes of two upper bits, then four of low nibbles."""
    stored = split(packed[..., 2:], 4, 1) | split(packed[..., :2], 2, 1) << np.uint8(4)
    return stored.astype(np.int16) - np.int16(32), None


def _pack_8_signed(steps: _Steps, _: _Steps | None) -> _Array:
    stored = (steps + np.int16(32)).astype(np.uint8)
    return np.concatenate((join(stored >> 4, 2, 1), join(stored & 15, 4, 1)), axis=-1)


FOUR_BITS = Steps(_unpack_four_bits, _pack_four_bits)
SIX_BITS = Steps(_unpack_six_bits, _pack_six_bits)
SIXTEEN_SIGNED = Steps(_unpack_16_signed, _pack_16_signed, least=-32)
EIGHT_SIGNED = Steps(_unpack_8_signed, _pack_8_signed, least=-32)
BYTES = Steps(lambda packed: (packed.astype(np.int16), None), lambda steps, _: steps.astype(np.int8))
