"""How much a packed tensor takes, from its shape alone."""

from __future__ import annotations

from math import prod

from ipex_lookahead.checkpoints.base import TensorInfo

_WIDTHS = {"fp32": 4, "fp16": 2, "bf16": 2, "f64": 8, "i64": 8, "i32": 4, "i16": 2, "u8": 1, "i8": 1, "bool": 1}


def packed_bytes(info: TensorInfo) -> int:
    """Bytes of a packed tensor, as ``PackedWeight.nbytes`` would say."""
    if info.format in _WIDTHS:
        return prod(info.shape) * _WIDTHS[info.format]
    rows, inputs = prod(info.shape[:-1]), info.shape[-1]
    codes = -(-inputs // 32) * (32 if info.format == "sym_int8" else 16)
    streams = 2 if info.format.startswith("asym") else 1
    return rows * (codes + 2 * streams * -(-inputs // max(info.group_size, 1)))
