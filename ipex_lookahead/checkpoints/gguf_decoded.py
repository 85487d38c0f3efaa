"""GGUF types that no format of ours stands for: decoded by the ``gguf`` package, kept in one that holds their values.

Ternary values are a block's scale times -1, 0 or 1, and TQ2_0 has a fourth code, which no file should hold and which
stands for 2: ``sym_int2`` holds them all, in 2.5 bits. NVFP4's have six bits of
mantissa in binary16's range: ``fp16`` holds them all too. A value of IQ1 or IQ3 is the block's scale, or an eighth or
half of it, times an odd step, times a whole number of up to 31: ``q6_k`` holds it in 6.6 bits wherever binary16 holds
that part of the scale, which it does above 0.0005. IQ2's numbers go to 43, with up to 22 bits in a value: of fp16, bf16
and sym_int8 the first is nearest, with 2e-4 of their root mean square (bf16 1.7e-3, sym_int8 1.6e-3 to 5e-3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.checkpoints.gguf_reader import GgufTensor
from ipex_lookahead.checkpoints.placed import Run
from ipex_lookahead.formats import FORMATS, q6_k, sym_int2
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.float_base import from_binary16, narrow, to_binary16
from ipex_lookahead.formats.search import Parts

Blocks = npt.NDArray[np.uint8]


def _twice(steps: npt.NDArray[Any]) -> npt.NDArray[np.int16]:
    """2 n + 1 for each part of 16, of a number for each 32."""
    twice: npt.NDArray[np.int16] = np.repeat(2 * steps.astype(np.int16) + 1, 2, axis=-1)
    return twice


def _iq1_m_scale(blocks: Blocks) -> npt.NDArray[np.uint16]:
    """Four bits in the top of each of four words, the lowest first."""
    words = (blocks[:, 48:56].copy().view("<u2") >> np.uint16(12)) << np.array([0, 4, 8, 12], np.uint16)
    scale: npt.NDArray[np.uint16] = np.bitwise_or.reduce(words, axis=-1)
    return scale


def _iq1_m_steps(blocks: Blocks) -> npt.NDArray[np.int16]:
    words = blocks[:, 48:56].copy().view("<u2")[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)
    steps: npt.NDArray[np.int16] = 2 * (words & 7).reshape(len(blocks), 16).astype(np.int16) + 1
    return steps


def _first_half(blocks: Blocks) -> npt.NDArray[np.uint16]:
    scale: npt.NDArray[np.uint16] = blocks[:, :2].copy().view("<u2")[:, 0]
    return scale


@dataclass(frozen=True, slots=True)
class _SixBits:
    """A type whose values are scale / divisor * step * whole number.

    ``scale`` and ``steps`` read blocks [n, bytes]: binary16 bits [n], and the steps of 16 parts [n, 16].
    """

    divisor: int
    steps: Callable[[Blocks], npt.NDArray[np.int16]]
    scale: Callable[[Blocks], npt.NDArray[np.uint16]] = _first_half


_SIX_BITS = {
    "IQ1_S": _SixBits(8, lambda blocks: _twice(blocks[:, 34:50].copy().view("<u2") >> np.uint16(12) & np.uint16(7))),
    "IQ1_M": _SixBits(8, _iq1_m_steps, _iq1_m_scale),
    "IQ3_XXS": _SixBits(2, lambda blocks: _twice(blocks[:, 66:98].copy().view("<u4") >> np.uint32(28))),
    "IQ3_S": _SixBits(
        1, lambda blocks: _twice((blocks[:, 106:, None] >> np.array([0, 4], np.uint8) & np.uint8(15)).reshape(-1, 8))
    ),
}


def kept_in(source: GgufTensor) -> str:
    """The format that a tensor of a decoded type is kept in. Of some types it reads the tensor to find out."""
    kind = _SIX_BITS.get(source.type.name)
    if kind is None or kind.divisor == 1:
        return source.type.format
    per_row = source.shape[-1] // source.type.block
    for _, _, blocks in source.pieces(0, source.nbytes // source.type.nbytes // per_row):
        scale = kind.scale(blocks.reshape(-1, source.type.nbytes))
        part = to_binary16(from_binary16(scale) / np.float32(kind.divisor))
        with np.errstate(invalid="ignore"):
            if (from_binary16(part) * np.float32(kind.divisor) != from_binary16(scale)).any():
                return "fp16"
    return source.type.format


def read_decoded(
    source: GgufTensor, shape: tuple[int, ...], run: Run, order: npt.NDArray[np.intp] | None, form: str
) -> PackedWeight:
    """The rows ``run`` of a matrix whose type is decoded, put in ``order``, in the format that ``kept_in`` says.

    Memory: the weight and some 30 MB. Raises ModelFormatError where the file has been cut, and for a block whose values
    are NaN, infinite or beyond the format.
    """
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    kind, target = GGMLQuantizationType[source.type.name], FORMATS[form]
    rows, columns = shape
    stream, group_size = target.streams[0], target.group_sizes[0]
    codes = np.empty(stream.shape(shape, group_size), stream.dtype)
    for start, at, blocks in source.pieces(run.first, rows):
        with np.errstate(all="ignore"):  # what is no number is found below
            values = np.ascontiguousarray(dequantize(blocks, kind), np.float32)
            wrong = ~np.isfinite(values) | (to_binary16(np.abs(values)) == 0x7C00)
        if wrong.any():
            first = int(wrong.argmax())
            raise source.error(
                at + first // source.type.block * source.type.nbytes,
                f"a value of this block is {values.reshape(-1)[first]:g}; in {form} values are numbers up to 65504",
                hint="the file is damaged: download or convert it again",
            )
        if form == "q6_k":
            packed = _six_bits(blocks, values, source)
        else:
            packed = _ternary(values) if form == "sym_int2" else narrow(values, form)
        stop = start + len(blocks)
        codes[slice(start, stop) if order is None else order[start:stop]] = packed
    return PackedWeight(form, shape, codes, group_size)


def _six_bits(rows: Blocks, values: npt.NDArray[np.float32], source: GgufTensor) -> Blocks:
    """Rows of blocks that stand for ``values``, as rows of q6_k, without its search for scales."""
    kind, target = _SIX_BITS[source.type.name], q6_k.FORMAT
    blocks = rows.reshape(-1, source.type.nbytes)
    scale = to_binary16(from_binary16(kind.scale(blocks)) / np.float32(kind.divisor))
    steps = kind.steps(blocks)
    parts = values.reshape(-1, 16, 16)
    unit = from_binary16(scale)[:, None, None] * steps[:, :, None].astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = np.where(unit == 0, np.copysign(np.float32(1), parts * np.copysign(1, unit)), parts / unit)
    found = Parts((whole + target.zero).astype(np.uint8).reshape(len(blocks), -1), scale, steps=steps)
    shape = (len(rows), -1)
    by_row = found._replace(
        codes=found.codes.reshape(*shape, target.inputs), scale=scale.reshape(shape), steps=steps.reshape(*shape, 16)
    )
    return target.pack(by_row, values.shape[1]).view(np.uint8).reshape(shape)


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
