"""GGUF types that no format of ours stands for: decoded by the ``gguf`` package, kept in one that holds their values.

Ternary values are a block's scale times -1, 0 or 1, and TQ2_0 has a fourth code, which no file should hold and which
stands for 2: ``sym_int2`` holds them all, in 2.5 bits. NVFP4's have six bits of
mantissa in binary16's range: ``fp16`` holds them all too. The values of IQ1, IQ2 and IQ3 have up to 22 bits: of fp16,
bf16 and sym_int8 the first is nearest, with 2e-4 of their root mean square (bf16 1.7e-3, sym_int8 1.6e-3 to 5e-3).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ipex_lookahead.checkpoints.gguf_reader import GgufTensor
from ipex_lookahead.checkpoints.placed import Run
from ipex_lookahead.formats import FORMATS, sym_int2
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.float_base import narrow, to_binary16
from ipex_lookahead.formats.search import Parts

_VALUES_AT_ONCE = 1 << 20


def read_decoded(
    source: GgufTensor, shape: tuple[int, ...], run: Run, order: npt.NDArray[np.intp] | None
) -> PackedWeight:
    """The rows ``run`` of a matrix whose type is decoded, put in ``order``, in the format that its type names.

    Memory: the weight and some 30 MB. Raises ModelFormatError where the file has been cut, and for a block whose values
    are NaN, infinite or beyond the format.
    """
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    kind, target = GGMLQuantizationType[source.type.name], FORMATS[source.type.format]
    rows, columns = shape
    row_bytes = columns // source.type.block * source.type.nbytes
    stream, group_size = target.streams[0], target.group_sizes[0]
    codes = np.empty(stream.shape(shape, group_size), stream.dtype)
    step = max(1, _VALUES_AT_ONCE // columns)
    for start in range(0, rows, step):
        stop = min(rows, start + step)
        first = source.offset + (run.first + start) * row_bytes
        blocks = np.empty((stop - start, row_bytes), np.uint8)
        source.file.read_into(first, blocks, source.name)
        with np.errstate(all="ignore"):  # what is no number is found below
            values = np.ascontiguousarray(dequantize(blocks, kind), np.float32)
            packed = _ternary(values) if source.type.format == "sym_int2" else narrow(values, source.type.format)
            wrong = ~np.isfinite(values) | (to_binary16(np.abs(values)) == 0x7C00)
        if wrong.any():
            at = int(wrong.argmax())
            block = at // source.type.block
            raise source.error(
                first + block * source.type.nbytes,
                f"a value of this block is {values.reshape(-1)[at]:g}; in {source.type.format} values are numbers "
                "up to 65504",
                hint="the file is damaged: download or convert it again",
            )
        codes[slice(start, stop) if order is None else order[start:stop]] = packed
    return PackedWeight(source.type.format, shape, codes, group_size)


def _ternary(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Rows whose blocks have values of one size, or 0, as rows of sym_int2: exactly, without its search for a scale.

    The codes of sym_int2 are -2 to 1: where there are values of twice the size, which have one sign, it is they that
    stand for -2, and the scale has the other sign.
    """
    target = sym_int2.FORMAT
    blocks = values.reshape(len(values), -1, target.inputs)
    sizes = np.abs(blocks)
    largest = sizes.max(axis=-1, keepdims=True)
    twice = ((sizes > 0) & (sizes < largest)).any(axis=-1, keepdims=True)
    sign = np.where((blocks == largest).any(axis=-1, keepdims=True), np.float32(-1), np.float32(1))
    scales = np.where(twice, largest / 2 * sign, largest)
    counts = np.sign(blocks) * np.sign(scales) * np.where(twice & (sizes == largest), 2, 1)
    records = target.pack(Parts((counts + target.zero).astype(np.uint8), to_binary16(scales[..., 0])), values.shape[1])
    return np.ascontiguousarray(records).view(np.uint8).reshape(len(values), -1)
