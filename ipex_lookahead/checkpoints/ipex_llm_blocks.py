"""ipex-llm's blocks of weights, and what they are here: the same values to the last bit.

Its rows are sequences of blocks, of 64 inputs in its own formats and of 256 in llama.cpp's K formats. Codes and scales
stay what they are and move to where a format of this package has them; a scale of 64 inputs is written twice where ours
is for 32. Read off what its ``save_low_bit`` wrote (2.2.0) and checked against its own functions in ``tests/ipex_llm``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats import FORMATS
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.blocks import BlockFormat
from ipex_lookahead.formats.float_base import to_binary16
from ipex_lookahead.formats.search import Parts

Bytes = npt.NDArray[np.uint8]
Arrays = Mapping[str, npt.NDArray[Any]]

_SCALE, _MINIMUM, _SINGLE = ("scale", "<u2"), ("minimum", "<u2"), ("scale", "<f4")
_NIBBLES, _BYTES = ("nibbles", "u1", 32), ("bytes", "u1", 64)
_QUARTET = (2, 0, 3, 1)
"""Which input of a four each of four bytes of fp6 belongs to."""


class Block(NamedTuple):
    """One of ipex-llm's formats.

    Attributes:
        inputs: weights in a block.
        record: its bytes; ``scale`` and ``minimum`` are numbers, and finite.
        format: the format here whose values are the same.
        group_size: its group size.
        convert: blocks [rows, n] and how many inputs of a row are wanted -> the streams of that format.
        problem: what is wrong with blocks whose values that format does not hold; "" for none.
    """

    inputs: int
    record: np.dtype[np.void]
    format: str
    group_size: int
    convert: Callable[[npt.NDArray[np.void], int], Arrays]
    problem: Callable[[npt.NDArray[np.void]], str] = lambda blocks: ""

    def row_bytes(self, n_in: int) -> int:
        """Bytes of a row of ``n_in`` inputs; 0 where they are no whole blocks."""
        return 0 if n_in % self.inputs else n_in // self.inputs * self.record.itemsize

    def weight(self, blocks: npt.NDArray[np.void], n_in: int) -> PackedWeight:
        """Rows of blocks as a weight of ``n_in`` inputs, which may be fewer than the blocks hold."""
        arrays: dict[str, Any] = dict(self.convert(blocks, n_in))
        return PackedWeight(self.format, (len(blocks), n_in), group_size=self.group_size, **arrays)

    def first_bad(self, blocks: npt.NDArray[np.void]) -> tuple[int, str] | None:
        """Byte offset and name of the first scale or minimum that is no number; None where all are."""
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
    """Nibbles 32 inputs apart -> 16 apart, with one scale for 64."""
    low, high = blocks["nibbles"] & 15, blocks["nibbles"] >> 4
    codes = np.stack([half[..., :16] | half[..., 16:] << 4 for half in (low, high)], axis=2)
    groups = -(-n_in // 64)
    arrays = {"codes": np.ascontiguousarray(codes.reshape(len(blocks), -1)[:, : -(-n_in // 32) * 16])}
    for name in ("scale", "minimum"):
        if name in (blocks.dtype.names or ()):
            arrays[f"{name}s"] = np.ascontiguousarray(blocks[name][:, :groups])
    return arrays


def _in_32s(target: str, codes_of: Callable[[npt.NDArray[np.void]], Bytes]) -> Callable[..., Arrays]:
    """Codes [rows, blocks, 64] -> blocks of 32 of a format of ours, each with the scale of its 64."""

    def convert(blocks: npt.NDArray[np.void], n_in: int) -> Arrays:
        ours = _block_format(target)
        rows, count = len(blocks), -(-n_in // 32)
        codes = codes_of(blocks).reshape(rows, -1, 32)[:, :count]
        there = [name for name in ("scale", "minimum") if name in (blocks.dtype.names or ())]
        halves: dict[str, Any] = {name: np.repeat(_half(blocks[name]), 2, axis=1)[:, :count] for name in there}
        return {"codes": ours.pack(Parts(codes, **halves), n_in).view(np.uint8).reshape(rows, -1)}

    return convert


def _half(numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    return to_binary16(numbers) if numbers.dtype == np.float32 else numbers


def _as_they_are(target: str) -> Callable[..., Arrays]:
    """Blocks that a format of ours has too."""

    def convert(blocks: npt.NDArray[np.void], n_in: int) -> Arrays:
        ours = _block_format(target)
        wanted = np.ascontiguousarray(blocks[:, : -(-n_in // ours.inputs)]).view(ours.record)
        if n_in % ours.inputs:
            wanted = ours.pack(ours.unpack(wanted), n_in)
        return {"codes": wanted.view(np.uint8).reshape(len(blocks), -1)}

    return convert


def _q4_k(blocks: npt.NDArray[np.void], n_in: int) -> Arrays:
    """Steps and minimum steps a byte each, by turns, and nibbles 16 inputs apart -> llama.cpp's own block."""
    ours = _block_format("q4_k")
    nibbles = blocks["nibbles"].reshape(*blocks.shape, 8, 16)
    codes = np.concatenate((nibbles & 15, nibbles >> 4), axis=-1).reshape(*blocks.shape, 256)
    steps = blocks["steps"].astype(np.int16)
    parts = Parts(codes, blocks["scale"], blocks["minimum"], steps[..., ::2], steps[..., 1::2])
    return {"codes": ours.pack(parts, n_in).view(np.uint8).reshape(len(blocks), -1)}


def _halves(blocks: npt.NDArray[np.void]) -> Bytes:
    """Inputs 0 to 31 in the low nibbles, 32 to 63 in the high."""
    found: Bytes = np.concatenate((blocks["nibbles"] & 15, blocks["nibbles"] >> 4), axis=-1)
    return found


def _halves_of_nf4(blocks: npt.NDArray[np.void]) -> Bytes:
    found: Bytes = np.concatenate((blocks["nibbles"] >> 4, blocks["nibbles"] & 15), axis=-1)
    return found


def _with_fifth(blocks: npt.NDArray[np.void]) -> Bytes:
    found: Bytes = _halves(blocks) | _bits(blocks["fifth"]) << np.uint8(4)
    return found


def _nf3(blocks: npt.NDArray[np.void]) -> Bytes:
    """A bit of each input, then two of each, the first of four in a byte's highest."""
    shifts = np.arange(6, -1, -2, dtype=np.uint8)
    crumbs = (blocks["crumbs"][..., None] >> shifts & np.uint8(3)).reshape(*blocks.shape, 64)
    found: Bytes = crumbs | _bits(blocks["third"]) << np.uint8(2)
    return found


def _fp6(blocks: npt.NDArray[np.void]) -> Bytes:
    """Four bytes hold a nibble of each of two fours of inputs, or the two top bits of each of four fours."""
    lower = blocks["nibbles"].reshape(*blocks.shape, 8, 4)
    upper = blocks["upper"].reshape(*blocks.shape, 4, 4)
    nibbles = np.stack((lower >> 4, lower & 15), axis=-2).reshape(*blocks.shape, 16, 4)
    crumbs = (upper[..., None, :] >> np.arange(6, -1, -2, dtype=np.uint8)[:, None] & 3).reshape(*blocks.shape, 16, 4)
    codes: Bytes = (nibbles | crumbs << 4)[..., np.argsort(_QUARTET)]
    return codes.reshape(*blocks.shape, 64)


def _bits(packed: Bytes) -> Bytes:
    return np.unpackbits(packed, axis=-1, bitorder="little")


def _no_e5m2(blocks: npt.NDArray[np.void]) -> str:
    """It is written with a scale of 1; one that binary16 cannot hold would be rounded."""
    scales = blocks["scale"]
    with np.errstate(over="ignore"):
        wrong = scales != scales.astype(np.float16)
    if wrong.any():
        return f"has the scale {scales[wrong][0]:g}, which is no binary16 number"
    return "has a code that stands for NaN or infinity" if ((blocks["bytes"] & 0x7C) == 0x7C).any() else ""


def _too_large(blocks: npt.NDArray[np.void]) -> str:
    scales = blocks["scale"]
    wrong = np.abs(scales) > 65504
    return f"has the scale {scales[wrong][0]:g}; at most 65504 is read" if wrong.any() else ""


def _steps_of_six_bits(blocks: npt.NDArray[np.void]) -> str:
    most = blocks["steps"].max(initial=0)
    return f"has a step of {most}; steps are six bits" if most > 63 else ""


def _record(*fields: Any) -> np.dtype[np.void]:
    return np.dtype(list(fields))


def _k(name: str) -> Block:
    ours = _block_format(name)
    return Block(ours.inputs, ours.record, name, 0, _as_they_are(name))


def _block_format(name: str) -> BlockFormat:
    found = FORMATS[name]
    assert isinstance(found, BlockFormat)
    return found


_FOUR = _record(_SCALE, _NIBBLES)
_EIGHT = _record(_SINGLE, _BYTES)

BLOCKS: dict[str, Block] = {
    "sym_int4": Block(64, _FOUR, "sym_int4", 64, _groups),
    "asym_int4": Block(64, _record(_SCALE, _MINIMUM, _NIBBLES), "asym_int4", 64, _groups),
    "sym_int5": Block(
        64, _record(_SCALE, ("fifth", "u1", 8), _NIBBLES), "sym_int5", 0, _in_32s("sym_int5", _with_fifth)
    ),
    "asym_int5": Block(
        64, _record(_SCALE, _MINIMUM, ("fifth", "u1", 8), _NIBBLES), "asym_int5", 0, _in_32s("asym_int5", _with_fifth)
    ),
    "sym_int8": Block(64, _EIGHT, "sym_int8_fp32", 0, _as_they_are("sym_int8_fp32"), _too_large),
    "nf4": Block(64, _FOUR, "nf4", 0, _in_32s("nf4", _halves_of_nf4)),
    "nf3": Block(64, _record(_SCALE, ("third", "u1", 8), ("crumbs", "u1", 16)), "nf3", 0, _in_32s("nf3", _nf3)),
    "fp4": Block(64, _FOUR, "fp4", 0, _in_32s("fp4", _halves)),
    "fp6": Block(64, _record(_NIBBLES, ("upper", "u1", 16), _SCALE), "fp6", 0, _in_32s("fp6", _fp6)),
    "fp8_e4m3": Block(64, _EIGHT, "fp8_e4m3_fp32", 0, _as_they_are("fp8_e4m3_fp32"), _too_large),
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
