"""GGUF types without an equivalent format here: their blocks are converted to another format.

The ``gguf`` package decodes all but Q1_0 and Q2_0.

- TQ1_0, TQ2_0: a scale times -1, 0 or 1; TQ2_0's fourth code, unused in valid files, represents 2. ``sym_int2`` holds
  them exactly, in 2.5 bits.
- NVFP4: six bits of mantissa within binary16's range. ``fp16`` holds them exactly.
- IQ1 and IQ3: the scale, or an eighth or half of it, times an odd step, times a whole number up to 31. ``q6_k`` holds
  them in 6.6 bits if binary16 represents that fraction of the scale, which is the case above 0.0005.
- IQ2: numbers up to 43, with up to 22 bits per value. ``fp16`` is the nearest of fp16, bf16 and sym_int8, with an error
  of 2e-4 relative to the root mean square (bf16 1.7e-3, sym_int8 1.6e-3 to 5e-3).
- Q1_0: a scale per 128 inputs and one bit each: d if set, else -d. Q2_0: a scale per 64 inputs (128 in the first
  published files) and two bits each: (code - 1) * d. Both store the lowest bits first. ``sym_int2``, which is
  scale * (code - 2) for 32 inputs, represents d and -d, and -1, 0, 1 and 2 times d as 1, 0, -1 and -2 times -d.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.checkpoints.gguf_reader import GgufTensor
from ipex_lookahead.checkpoints.placed import Run
from ipex_lookahead.formats import FORMATS
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.blocks import split
from ipex_lookahead.formats.float_base import from_binary16, narrow, to_binary16
from ipex_lookahead.formats.groups import first_bad_half
from ipex_lookahead.formats.search import Parts
from ipex_lookahead.formats.table import BLOCK_FORMATS

Blocks = npt.NDArray[np.uint8]


def _twice(steps: npt.NDArray[Any]) -> npt.NDArray[np.int16]:
    """Return 2 n + 1 per part of 16 inputs, from one n per 32 inputs."""
    twice: npt.NDArray[np.int16] = np.repeat(2 * steps.astype(np.int16) + 1, 2, axis=-1)
    return twice


def _iq1_m_scale(blocks: Blocks) -> npt.NDArray[np.uint16]:
    """Return the scale, of which each of four words has four bits at the top, lowest word first."""
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
    """A type with the values scale / divisor * step * whole number.

    ``scale`` and ``steps`` take blocks [n, bytes] and return binary16 bits [n] and the steps of 16 parts [n, 16].
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


def stored_format(source: GgufTensor) -> str:
    """Return the format that a tensor of a decoded type is stored in; for some types this reads the tensor."""
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
    """Read the rows ``run`` of a matrix in the format ``form``, reordered by ``order``; takes 30 MB of temporaries.

    Raises:
        ModelFormatError: if the file was truncated, or a value is NaN, infinite or beyond the format.
    """
    stream, group_size = FORMATS[form].streams[0], FORMATS[form].group_sizes[0]
    codes = np.empty(stream.shape(shape, group_size), stream.dtype)
    convert = _repacked if source.type.name in ("Q1_0", "Q2_0") else _decoded
    for start, at, rows in source.pieces(run.first, shape[0]):
        stop = start + len(rows)
        codes[slice(start, stop) if order is None else order[start:stop]] = convert(source, at, rows, form)
    return PackedWeight(form, shape, codes, group_size)


def _repacked(source: GgufTensor, at: int, rows: Blocks, form: str) -> npt.NDArray[Any]:
    """Convert rows of Q1_0 or Q2_0 blocks, which begin at byte ``at``, without decoding them to floats."""
    target = BLOCK_FORMATS[form]
    blocks = rows.reshape(-1, source.type.nbytes)
    scales = _first_half(blocks)
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
    halves = np.repeat(scales, source.type.block // target.inputs).reshape(len(rows), -1)
    return target.matrix(counts.reshape(len(rows), -1), halves).codes


def _decoded(source: GgufTensor, at: int, rows: Blocks, form: str) -> npt.NDArray[Any]:
    """Decode rows of blocks that begin at byte ``at`` and convert them to the format ``form``."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    with np.errstate(all="ignore"):  # invalid values are reported below
        values = np.ascontiguousarray(dequantize(rows, GGMLQuantizationType[source.type.name]), np.float32)
        wrong = ~np.isfinite(values) | (to_binary16(np.abs(values)) == 0x7C00)
    if wrong.any():
        first = int(wrong.argmax())
        raise source.error(
            at + first // source.type.block * source.type.nbytes,
            f"a value of this block is {values.reshape(-1)[first]:g}; {form} holds finite numbers up to 65504",
            hint="the file is damaged: download or convert it again",
        )
    if form == "q6_k":
        return _six_bits(rows, values, source)
    return _ternary(values) if form == "sym_int2" else narrow(values, form)


def _six_bits(rows: Blocks, values: npt.NDArray[np.float32], source: GgufTensor) -> Blocks:
    """Convert rows of blocks with the given values to rows of q6_k exactly, without a search for scales."""
    kind, target = _SIX_BITS[source.type.name], BLOCK_FORMATS["q6_k"]
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


def _ternary(values: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """Convert rows of blocks with values of one magnitude, or 0, to rows of sym_int2 exactly.

    The codes of sym_int2 are -2 to 1. If a block has values of twice the magnitude, which share a sign, these become
    code -2 and the scale gets the opposite sign.
    """
    target = BLOCK_FORMATS["sym_int2"]
    blocks = values.reshape(len(values), -1, target.inputs)
    sizes = np.abs(blocks)
    largest = sizes.max(axis=-1, keepdims=True)
    twice = ((sizes > 0) & (sizes < largest)).any(axis=-1, keepdims=True)
    sign = np.where((blocks == largest).any(axis=-1, keepdims=True), np.float32(-1), np.float32(1))
    scales = np.where(twice, largest / 2 * sign, largest)
    counts = np.sign(blocks) * np.sign(scales) * np.where(twice & (sizes == largest), 2, 1)
    codes = (counts + target.zero).astype(np.uint8).reshape(values.shape)
    return target.matrix(codes, to_binary16(scales[..., 0])).codes
