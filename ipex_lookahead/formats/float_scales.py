"""What formats of bitsandbytes and ipex-llm share: w = scale * table[code], with a float32 scale for 64 inputs.

bitsandbytes' scale is the largest magnitude of its inputs (``absmax``), which files give as float32, or as eight bits
and a float32 for many of them; either is a float32 that binary16 would round. Blocks of more than 64 have their scale
repeated.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.blocks import BlockFormat, Plane
from ipex_lookahead.formats.columns import Floats
from ipex_lookahead.formats.search import Parts, TableSearch

INPUTS = 64
"""Inputs that share a scale."""


def float_scale_format(
    name: str, bits: int, table: tuple[float, ...], extreme: float = 1.0, *, width: float = 0.0, tries: int = 0
) -> BlockFormat:
    """The format whose codes count ``table``.

    Args:
        name: the format's.
        bits: of a code, 4 or 8.
        table: what codes stand for.
        extreme: the number that the value of largest magnitude is tried at,
        width: and others so far from each other,
        tries: so many on either side of it.
    """
    field, run = ("nibbles", 16) if bits == 4 else ("bytes", 32)
    return BlockFormat(
        name,
        inputs=INPUTS,
        record=np.dtype([("scale", "<f4"), (field, "u1", INPUTS * bits // 8)]),
        planes=(Plane(field, bits, run),),
        quantizer=TableSearch.of(table, INPUTS, extreme, width, tries, float_scale=True),
        table=table,
    )


def packed(target: BlockFormat, codes: npt.NDArray[np.uint8], scales: Floats) -> PackedWeight:
    """A weight [n_out, n_in] in the format: codes uint8 [n_out, n_in], float32 scales [n_out, ceil(n_in / 64)]."""
    n_out, n_in = codes.shape
    blocks = np.pad(codes, ((0, 0), (0, -n_in % INPUTS))).reshape(n_out, -1, INPUTS)
    records = target.pack(Parts(blocks, scales), n_in)
    return PackedWeight(target.name, (n_out, n_in), records.view(np.uint8).reshape(n_out, -1))
