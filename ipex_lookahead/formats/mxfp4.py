"""Four-bit floats with a shared power of two (OCP Microscaling, MXFP4): gpt-oss's weights, GGUF's MXFP4.

A code is a sign, two bits of exponent and one of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6. Doubled they are whole numbers,
and w = table[code] * 2^(e - 128) is exact, so kernels take them as such. A block is 32 inputs and a byte of exponent.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ipex_lookahead.errors import LowBitFormatError
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.blocks import BlockFormat, Plane, half_powers
from ipex_lookahead.formats.columns import Floats
from ipex_lookahead.formats.search import CoreSearch, Parts, count_below

TABLE = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
MIDDLES = np.array([0.5, 1.5, 2.5, 3.5, 5, 7, 10], np.float32)


class ExponentRule:
    """The definition: e = floor(log2(largest)) - 2 + 127; the nearest code, of two as near that of less magnitude."""

    core = CoreSearch("exponent", 32, MIDDLES, whole=False)

    def __call__(self, values: Floats, importance: Floats) -> Parts:
        """Blocks [blocks, 32] taken apart; importance has no say."""
        largest = np.abs(values).max(axis=-1)
        exponent = np.where(largest > 0, np.frexp(largest)[1] + 124, 0).clip(0, 252).astype(np.uint8)
        halves = np.abs(values) / half_powers(exponent)[..., None]
        codes = count_below(halves, MIDDLES).astype(np.uint8)
        return Parts(np.where((values < 0) & (codes > 0), codes + np.uint8(8), codes), exponent)


def from_blocks_and_scales(blocks: npt.NDArray[np.uint8], scales: npt.NDArray[np.uint8]) -> PackedWeight:
    """A weight as gpt-oss's safetensors hold it: neighbours share a byte there, here inputs 16 apart do.

    Args:
        blocks: uint8 [n_out, n_in / 32, 16]; byte i of a block holds code 2 i in its low, 2 i + 1 in its high nibble.
        scales: uint8 [n_out, n_in / 32], the exponents.

    Raises:
        LowBitFormatError: other shapes or dtypes.
    """
    if blocks.ndim != 3 or blocks.shape[2] != 16 or blocks.dtype != np.uint8 or 0 in blocks.shape:
        raise LowBitFormatError(
            f"blocks are {blocks.dtype} {list(blocks.shape)}; expected uint8 [n_out, n_in / 32, 16]"
        )
    if scales.shape != blocks.shape[:2] or scales.dtype != np.uint8:
        raise LowBitFormatError(
            f"scales are {scales.dtype} {list(scales.shape)}; expected uint8 {list(blocks.shape[:2])}"
        )
    codes = np.stack((blocks & 15, blocks >> 4), axis=-1).reshape(*scales.shape, 32)
    n_out, n_in = scales.shape[0], scales.shape[1] * 32
    records = FORMAT.pack(Parts(codes, scales), n_in)
    return PackedWeight(FORMAT.name, (n_out, n_in), records.view(np.uint8).reshape(n_out, -1))


FORMAT = BlockFormat(
    "mxfp4",
    number=39,
    gguf_name="MXFP4",
    inputs=32,
    record=np.dtype([("scale", "u1"), ("nibbles", "u1", 16)]),
    planes=(Plane("nibbles", 4, 16),),
    quantizer=ExponentRule(),
    table=TABLE,
)
