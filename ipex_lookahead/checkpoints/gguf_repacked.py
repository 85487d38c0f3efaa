"""GGUF types of one and two bits whose codes another format's blocks hold: put there, exactly, without becoming floats.

Q1_0 is a binary16 scale d for 128 inputs, one bit each: d where it is set, else -d. Q2_0 is one for 64 inputs, two bits
each, (code - 1) * d; the first files that were published have 128. Both have the lowest bits first. ``sym_int2``,
scale * (code - 2) for 32 inputs, holds d and -d; and -1, 0, 1 and 2 times d as 1, 0, -1 and -2 times -d.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ipex_lookahead.checkpoints.gguf_reader import GgufTensor
from ipex_lookahead.checkpoints.placed import Run
from ipex_lookahead.formats import sym_int2
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.blocks import split
from ipex_lookahead.formats.groups import first_bad_half
from ipex_lookahead.formats.search import Parts

Blocks = npt.NDArray[np.uint8]


def read_repacked(
    source: GgufTensor, shape: tuple[int, ...], run: Run, order: npt.NDArray[np.intp] | None
) -> PackedWeight:
    """The rows ``run`` of a matrix of such a type, put in ``order``, as ``sym_int2``.

    Memory: the weight and some 10 MB. Raises ModelFormatError where the file has been cut, and for a scale that is NaN
    or infinite.
    """
    target = sym_int2.FORMAT
    rows, columns = shape
    codes = np.empty(target.streams[0].shape(shape, 0), np.uint8)
    for start, at, data in source.pieces(run.first, rows):
        blocks = data.reshape(-1, source.type.nbytes)
        scales = blocks[:, :2].copy().view("<u2")[:, 0]
        if (bad := first_bad_half(scales, "scale")) is not None:
            raise source.error(
                at + bad.index * source.type.nbytes,
                f"the scale of this block {bad.problem}",
                hint="the file is damaged: download or convert it again",
            )
        if source.type.name == "Q1_0":
            counts = split(blocks[:, 2:], 1, 1) << np.uint8(1) | np.uint8(1)  # 1 and 3: -1 and 1
        else:
            counts, scales = np.uint8(3) - split(blocks[:, 2:], 2, 1), scales ^ np.uint16(0x8000)
        of_32 = counts.reshape(len(data), -1, target.inputs)
        halves = np.repeat(scales, source.type.block // target.inputs).reshape(len(data), -1)
        stop = start + len(data)
        packed = target.pack(Parts(of_32, halves), columns).view(np.uint8).reshape(len(data), -1)
        codes[slice(start, stop) if order is None else order[start:stop]] = packed
    return PackedWeight("sym_int2", shape, codes)
