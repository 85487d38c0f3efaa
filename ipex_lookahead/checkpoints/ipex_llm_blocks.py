"""ipex-llm's weight blocks and their conversion to formats here, bit for bit.

Its rows are sequences of blocks, of 64 inputs in its own formats and of 256 in llama.cpp's K formats. Codes and scales
keep their values and are rearranged; a scale of 64 inputs is duplicated for formats with blocks of 32. The layout was
derived from the output of its ``save_low_bit`` (2.2.0) and checked against its own functions in ``tests/ipex_llm``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.float_base import to_binary16
from ipex_lookahead.formats.search import Parts
from ipex_lookahead.formats.table import BLOCK_FORMATS

Bytes = npt.NDArray[np.uint8]
Arrays = Mapping[str, npt.NDArray[Any]]

_SCALE, _MINIMUM, _SINGLE = ("scale", "<u2"), ("minimum", "<u2"), ("scale", "<f4")
_NIBBLES, _BYTES = ("nibbles", "u1", 32), ("bytes", "u1", 64)
_QUARTET = (2, 0, 3, 1)
"""Index within a group of four inputs of each of the four bytes of fp6."""


class Block(NamedTuple):
    """A format of ipex-llm.

    Attributes:
        inputs: weights per block.
        record: dtype of a block; ``scale`` and ``minimum`` must be finite numbers.
        format: the equivalent format here.
        group_size: its group size.
        convert: converts blocks [rows, n] to the streams of that format, given the number of inputs per row.
        problem: returns why blocks cannot be represented in that format, or "".
    """

    inputs: int
    record: np.dtype[np.void]
    format: str
    group_size: int
    convert: Callable[[npt.NDArray[np.void], int], Arrays]
    problem: Callable[[npt.NDArray[np.void]], str] = lambda blocks: ""

    def row_bytes(self, n_in: int) -> int:
        """Return the bytes of a row of ``n_in`` inputs; 0 if these are not whole blocks."""
        return 0 if n_in % self.inputs else n_in // self.inputs * self.record.itemsize

    def weight(self, blocks: npt.NDArray[np.void], n_in: int) -> PackedWeight:
        """Convert rows of blocks to a weight of ``n_in`` inputs, which may be fewer than the blocks hold."""
        arrays: dict[str, Any] = dict(self.convert(blocks, n_in))
        return PackedWeight(self.format, (len(blocks), n_in), group_size=self.group_size, **arrays)

    def first_bad(self, blocks: npt.NDArray[np.void]) -> tuple[int, str] | None:
        """Return byte offset and name of the first NaN or infinite scale or minimum; None if there is none."""
        fields: Any = self.record.fields
        for name in ("scale", "minimum"):
            if name in fields:
                numbers = blocks[name].reshape(-1)
                single = numbers.dtype == np.float32
                bad = ~np.isfinite(numbers) if single else (numbers & 0x7C00) == 0x7C00
                if bad.any():
                    return int(bad.argmax()) * self.record.itemsize + int(fields[name][1]), name
        return None


def _groups(blocks: npt.NDArray[np.void], n_in: int) -> Arrays:
    """Convert nibbles of inputs 32 apart to nibbles 16 apart, with one scale per 64 inputs."""
    low, high = blocks["nibbles"] & 15, blocks["nibbles"] >> 4
    codes = np.stack([half[..., :16] | half[..., 16:] << 4 for half in (low, high)], axis=2)
    groups = -(-n_in // 64)
    arrays = {"codes": np.ascontiguousarray(codes.reshape(len(blocks), -1)[:, : -(-n_in // 32) * 16])}
    for name in ("scale", "minimum"):
        if name in (blocks.dtype.names or ()):
            arrays[f"{name}s"] = np.ascontiguousarray(blocks[name][:, :groups])
    return arrays


def _in_32s(target: str, codes_of: Callable[[npt.NDArray[np.void]], Bytes]) -> Callable[..., Arrays]:
    """Return a conversion of codes [rows, blocks, 64] to blocks of 32, each with the scale of its 64 inputs."""

    def convert(blocks: npt.NDArray[np.void], n_in: int) -> Arrays:
        ours = BLOCK_FORMATS[target]
        rows, count = len(blocks), -(-n_in // 32)
        codes = codes_of(blocks).reshape(rows, -1, 32)[:, :count]
        there = [name for name in ("scale", "minimum") if name in (blocks.dtype.names or ())]
        halves: dict[str, Any] = {name: np.repeat(_half(blocks[name]), 2, axis=1)[:, :count] for name in there}
        return {"codes": ours.pack(Parts(codes, **halves), n_in).view(np.uint8).reshape(rows, -1)}

    return convert


def _half(numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    return to_binary16(numbers) if numbers.dtype == np.float32 else numbers


def _same_layout(target: str) -> Callable[..., Arrays]:
    """Return a conversion for blocks that have the same layout here."""

    def convert(blocks: npt.NDArray[np.void], n_in: int) -> Arrays:
        ours = BLOCK_FORMATS[target]
        wanted = np.ascontiguousarray(blocks[:, : -(-n_in // ours.inputs)]).view(ours.record)
        if n_in % ours.inputs:
            wanted = ours.pack(ours.unpack(wanted), n_in)
        return {"codes": wanted.view(np.uint8).reshape(len(blocks), -1)}

    return convert


def _q4_k(blocks: npt.NDArray[np.void], n_in: int) -> Arrays:
    """Convert interleaved bytes of steps and minimum steps, and nibbles 16 inputs apart, to llama.cpp's block."""
    ours = BLOCK_FORMATS["q4_k"]
    nibbles = blocks["nibbles"].reshape(*blocks.shape, 8, 16)
    codes = np.concatenate((nibbles & 15, nibbles >> 4), axis=-1).reshape(*blocks.shape, 256)
    steps = blocks["steps"].astype(np.int16)
    parts = Parts(codes, blocks["scale"], blocks["minimum"], steps[..., ::2], steps[..., 1::2])
    return {"codes": ours.pack(parts, n_in).view(np.uint8).reshape(len(blocks), -1)}


def _halves(blocks: npt.NDArray[np.void]) -> Bytes:
    """Unpack inputs 0 to 31 from the low nibbles and 32 to 63 from the high nibbles."""
    found: Bytes = np.concatenate((blocks["nibbles"] & 15, blocks["nibbles"] >> 4), axis=-1)
    return found


def _halves_of_nf4(blocks: npt.NDArray[np.void]) -> Bytes:
    found: Bytes = np.concatenate((blocks["nibbles"] >> 4, blocks["nibbles"] & 15), axis=-1)
    return found


def _five_bits(blocks: npt.NDArray[np.void]) -> Bytes:
    found: Bytes = _halves(blocks) | _bits(blocks["fifth"]) << np.uint8(4)
    return found


def _nf3(blocks: npt.NDArray[np.void]) -> Bytes:
    """Combine one bit per input with two bits per input, the first of four in a byte's highest bits."""
    shifts = np.arange(6, -1, -2, dtype=np.uint8)
    crumbs = (blocks["crumbs"][..., None] >> shifts & np.uint8(3)).reshape(*blocks.shape, 64)
    found: Bytes = crumbs | _bits(blocks["third"]) << np.uint8(2)
    return found


def _fp6(blocks: npt.NDArray[np.void]) -> Bytes:
    """Combine the lower four bits, two per byte, with the upper two bits, four per byte; four bytes form a unit."""
    lower = blocks["nibbles"].reshape(*blocks.shape, 8, 4)
    upper = blocks["upper"].reshape(*blocks.shape, 4, 4)
    nibbles = np.stack((lower >> 4, lower & 15), axis=-2).reshape(*blocks.shape, 16, 4)
    crumbs = (upper[..., None, :] >> np.arange(6, -1, -2, dtype=np.uint8)[:, None] & 3).reshape(*blocks.shape, 16, 4)
    codes: Bytes = (nibbles | crumbs << 4)[..., np.argsort(_QUARTET)]
    return codes.reshape(*blocks.shape, 64)


def _bits(packed: Bytes) -> Bytes:
    return np.unpackbits(packed, axis=-1, bitorder="little")


def _no_e5m2(blocks: npt.NDArray[np.void]) -> str:
    """Return why blocks do not fit; files have a scale of 1, and a scale beyond binary16 would be rounded."""
    scales = blocks["scale"]
    with np.errstate(over="ignore"):
        wrong = scales != scales.astype(np.float16)
    if wrong.any():
        return f"has the scale {scales[wrong][0]:g}, which binary16 cannot represent"
    return "has a code for NaN or infinity" if ((blocks["bytes"] & 0x7C) == 0x7C).any() else ""


def _too_large(blocks: npt.NDArray[np.void]) -> str:
    scales = blocks["scale"]
    wrong = np.abs(scales) > 65504
    return f"has the scale {scales[wrong][0]:g}; the maximum is 65504" if wrong.any() else ""


def _steps_of_six_bits(blocks: npt.NDArray[np.void]) -> str:
    most = blocks["steps"].max(initial=0)
    return f"has a step of {most}; the maximum is 63" if most > 63 else ""


def _record(*fields: Any) -> np.dtype[np.void]:
    return np.dtype(list(fields))


def _k(name: str) -> Block:
    ours = BLOCK_FORMATS[name]
    return Block(ours.inputs, ours.record, name, 0, _same_layout(name))


_FOUR = _record(_SCALE, _NIBBLES)
_EIGHT = _record(_SINGLE, _BYTES)

BLOCKS: dict[str, Block] = {
    "sym_int4": Block(64, _FOUR, "sym_int4", 64, _groups),
    "asym_int4": Block(64, _record(_SCALE, _MINIMUM, _NIBBLES), "asym_int4", 64, _groups),
    "sym_int5": Block(
        64, _record(_SCALE, ("fifth", "u1", 8), _NIBBLES), "sym_int5", 0, _in_32s("sym_int5", _five_bits)
    ),
    "asym_int5": Block(
        64, _record(_SCALE, _MINIMUM, ("fifth", "u1", 8), _NIBBLES), "asym_int5", 0, _in_32s("asym_int5", _five_bits)
    ),
    "sym_int8": Block(64, _EIGHT, "sym_int8_fp32", 0, _same_layout("sym_int8_fp32"), _too_large),
    "nf4": Block(64, _FOUR, "nf4", 0, _in_32s("nf4", _halves_of_nf4)),
    "nf3": Block(64, _record(_SCALE, ("third", "u1", 8), ("crumbs", "u1", 16)), "nf3", 0, _in_32s("nf3", _nf3)),
    "fp4": Block(64, _FOUR, "fp4", 0, _in_32s("fp4", _halves)),
    "fp6": Block(64, _record(_NIBBLES, ("upper", "u1", 16), _SCALE), "fp6", 0, _in_32s("fp6", _fp6)),
    "fp8_e4m3": Block(64, _EIGHT, "fp8_e4m3_fp32", 0, _same_layout("fp8_e4m3_fp32"), _too_large),
    "fp8_e5m2": Block(64, _EIGHT, "fp8_e5m2", 0, _in_32s("fp8_e5m2", lambda blocks: blocks["bytes"]), _no_e5m2),
    "q2_k": _k("q2_k"),
    "q4_k": Block(
        256,
        _record(_SCALE, _MINIMUM, ("steps", "u1", 16), ("nibbles", "u1", 128)),
        "q4_k",
        0,
        _q4_k,
        _steps_of_six_bits,
    ),
    "q5_k": _k("q5_k"),
    "q6_k": _k("q6_k"),
}
"""ipex-llm's name of a format -> its blocks."""
