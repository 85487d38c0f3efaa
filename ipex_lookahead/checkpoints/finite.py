"""Finding NaN and infinity while a tensor is read, when the place in the file is still known."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_EXPONENT: dict[str, tuple[type[np.unsignedinteger], int]] = {
    "fp32": (np.uint32, 0x7F800000),
    "fp16": (np.uint16, 0x7C00),
    "bf16": (np.uint16, 0x7F80),
}
"""The exponent's bits. All of them set means NaN or infinity."""

_AT_ONCE = 1 << 16


def first_not_finite(values: npt.NDArray[np.generic], format: str) -> int | None:
    """Index of the first NaN or infinity of a C-contiguous array in memory order, or None.

    ``format`` is fp32, fp16 or bf16, laid out as :class:`ipex_lookahead.formats.base.PackedWeight` says. Works through
    the array in pieces that stay in the cache, on bits, so that a checkpoint is not read much slower for it.
    """
    kind, exponent = _EXPONENT[format]
    bits = values.reshape(-1).view(kind)
    masked = np.empty(min(bits.size, _AT_ONCE), kind)
    for start in range(0, bits.size, _AT_ONCE):
        piece = bits[start : start + _AT_ONCE]
        found = np.bitwise_and(piece, kind(exponent), out=masked[: piece.size])
        if int(found.max()) == exponent:
            return start + int(np.argmax(found == exponent))
    return None
