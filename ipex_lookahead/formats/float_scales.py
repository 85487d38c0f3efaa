"""What bitsandbytes' formats share: w = scale * table[code], rounded once, with a float32 scale for 64 inputs.

A scale is the largest magnitude of its inputs (``absmax``), which files give as float32, or as eight bits and a float32
for many of them; either is a float32 that binary16 would round. Blocks of more than 64 have their scale repeated.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.blocks import BlockFormat, Plane
from ipex_lookahead.formats.search import Floats, Parts, count_below

INPUTS = 64
"""Inputs that share a scale."""


def float_scale_format(name: str, bits: int, table: tuple[float, ...], extreme: float = 1.0) -> BlockFormat:
    """The format whose codes count ``table``; the largest magnitude of a block becomes ``extreme``."""
    field, run = ("nibbles", 16) if bits == 4 else ("bytes", 32)
    return BlockFormat(
        name,
        bits=bits,
        inputs=INPUTS,
        record=np.dtype([("scale", "<f4"), (field, "u1", INPUTS * bits // 8)]),
        planes=(Plane(field, bits, run),),
        quantizer=_quantizer(table, extreme),
        table=table,
    )


def packed(target: BlockFormat, codes: npt.NDArray[np.uint8], scales: Floats) -> PackedWeight:
    """A weight [n_out, n_in] in the format: codes uint8 [n_out, n_in], float32 scales [n_out, ceil(n_in / 64)]."""
    n_out, n_in = codes.shape
    blocks = np.pad(codes, ((0, 0), (0, -n_in % INPUTS))).reshape(n_out, -1, INPUTS)
    records = target.pack(Parts(blocks, scales), n_in)
    return PackedWeight(target.name, (n_out, n_in), records.view(np.uint8).reshape(n_out, -1))


def _quantizer(table: tuple[float, ...], extreme: float) -> Callable[[Floats, Floats], Parts]:
    numbers, codes = np.unique(np.array(table, np.float32), return_index=True)
    middles = (numbers[1:] + numbers[:-1]) / 2

    def quantize(values: Floats, inputs: Floats) -> Parts:
        """The definition; see ``BlockFormat.quantizer``: scale = max|x| / extreme, and the nearest of the table."""
        scale = np.abs(values).max(axis=-1) / np.float32(extreme)
        parts = np.divide(values, scale[..., None], out=np.zeros_like(values), where=scale[..., None] > 0)
        return Parts(codes.astype(np.uint8)[count_below(parts, middles)], scale)

    return quantize
