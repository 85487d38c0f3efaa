"""How much a tensor takes, from its shape and format alone."""

from __future__ import annotations

from math import prod

from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.low_bit import FLOATS, streams
from ipex_lookahead.checkpoints.safetensors_reader import DTYPE_BITS


def packed_bytes(info: TensorInfo) -> int:
    """Bytes of a packed tensor, as ``PackedWeight.nbytes`` would say; of any dtype that safetensors knows."""
    dtype = FLOATS.get(info.format, info.format.upper())
    if dtype in DTYPE_BITS:
        return -(-prod(info.shape) * DTYPE_BITS[dtype] // 8)
    return sum(part.nbytes for part in streams(info) or ())
