"""The unquantized float formats: conversion to and from float32, and checks for NaN and infinity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.errors import LowBitFormatError
from ipex_lookahead.formats.base import GgufType, PackedWeight, Stream

FLOAT_DTYPES: dict[str, type[np.generic]] = {"fp32": np.float32, "fp16": np.uint16, "bf16": np.uint16}
"""Float format -> dtype of its codes."""

_AT_ONCE = 1 << 16
CHUNK = 1 << 22
"""Values converted at a time, so that temporaries are small compared with the weight."""


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A format with codes that are the values themselves, without groups or scales.

    Attributes:
        name: ``fp32``, ``fp16`` or ``bf16``.
        bits: bits per value.
        stored: dtype in a safetensors file; also the type's name in GGUF.
        number: the type's number in a GGUF file.
        meaning: description of a code.
    """

    name: str
    bits: float
    stored: str
    number: int
    meaning: str

    @property
    def group_sizes(self) -> tuple[int, ...]:
        return (0,)

    @property
    def streams(self) -> tuple[Stream, ...]:
        return (Stream("codes", FLOAT_DTYPES[self.name], 1, 1, self.stored, self.meaning),)

    @property
    def gguf(self) -> GgufType:
        return GgufType(self.number, self.stored, 1, np.dtype([("codes", FLOAT_DTYPES[self.name])]))

    def quantize(
        self,
        weight: PackedWeight,
        group_size: int = 32,
        threads: int | None = None,
        importance: npt.NDArray[np.float32] | None = None,
    ) -> PackedWeight:
        """Round a float weight of any shape to nearest even; return the same object if it has this format already.

        Raises:
            LowBitFormatError: if the weight is not a float weight, or a value is NaN, infinite or out of range.
        """
        check_float(weight)
        check_finite(weight)
        if weight.format == self.name:
            return weight
        codes = np.empty(weight.shape, FLOAT_DTYPES[self.name])
        flat, source = codes.reshape(-1), weight.codes.reshape(-1)
        for start in range(0, flat.size, CHUNK):
            part = slice(start, start + CHUNK)
            flat[part] = narrow(widen(source[part], weight.format), self.name)
        result = PackedWeight(self.name, weight.shape, codes)
        check_finite(result, overflow_from=weight)
        return result

    def dequantize(self, weight: PackedWeight) -> npt.NDArray[np.float32]:
        """Return a float32 copy of the values [*shape], exact."""
        check_float(weight, self.name)
        return widen(weight.codes, weight.format)

    def random(self, shape: tuple[int, int], group_size: int, rng: np.random.Generator) -> PackedWeight:
        values = rng.standard_normal(shape, dtype=np.float32) * np.float32(shape[1] ** -0.5)
        return self.quantize(PackedWeight("fp32", shape, values))

    def bad_scale(self, name: str, array: npt.NDArray[Any]) -> None:
        """Return None: the format has no scales."""


def widen(codes: npt.NDArray[Any], kind: str) -> npt.NDArray[np.float32]:
    """Return codes of a float format as a float32 copy of the same shape, exact."""
    if kind == "fp16":
        return codes.view(np.float16).astype(np.float32)
    if kind == "bf16":
        return (codes.astype(np.uint32) << 16).view(np.float32)
    return codes.astype(np.float32)


def narrow(values: npt.NDArray[np.float32], kind: str) -> npt.NDArray[Any]:
    """Round finite float32 values to codes of a float format, to nearest even; overflow becomes infinity."""
    if kind == "fp16":
        return to_binary16(values)
    if kind == "bf16":
        bits = values.view(np.uint32)
        return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    return values


def to_binary16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Return the bits of the nearest binary16 (ties to even, subnormals preserved, infinity above 65519.99)."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return values.astype(np.float16).view(np.uint16)


def from_binary16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Return binary16 bit patterns as float32, exact."""
    return bits.view(np.float16).astype(np.float32)


def half_powers(exponents: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return 2^(e - 128), exact including subnormals: the scale of MXFP4's doubled values."""
    wide = exponents.astype(np.uint32)
    bits = np.where(wide < 2, np.uint32(0x00200000) << np.minimum(wide, 1), (np.maximum(wide, 1) - 1) << np.uint32(23))
    powers: npt.NDArray[np.float32] = bits.astype(np.uint32).view(np.float32)
    return powers


def check_float(weight: PackedWeight, name: str | None = None) -> None:
    """Raise LowBitFormatError unless the weight is in a float format (in ``name``) and its codes have its shape."""
    if weight.format not in FLOAT_DTYPES or (name is not None and weight.format != name):
        allowed = name or ", ".join(sorted(FLOAT_DTYPES))
        raise LowBitFormatError(f"the weight is in {weight.format!r}; expected a weight in {allowed}")
    dtype = np.dtype(FLOAT_DTYPES[weight.format])
    if weight.codes.shape != tuple(weight.shape) or weight.codes.dtype != dtype:
        raise LowBitFormatError(
            f"{weight.format} codes are {weight.codes.dtype} {list(weight.codes.shape)}; "
            f"expected {dtype} {list(weight.shape)}"
        )


def check_finite(weight: PackedWeight, overflow_from: PackedWeight | None = None) -> None:
    """Raise LowBitFormatError that names the first NaN or infinite value of a float weight.

    With ``overflow_from``, the weight before conversion, the message gives the value that overflowed.
    """
    if (at := first_not_finite(weight.codes, weight.format)) is None:
        return
    index = tuple(int(i) for i in np.unravel_index(at, weight.shape))
    if overflow_from is None:
        raise not_finite(index, value_at(weight, index))
    raise LowBitFormatError(
        f"{place(index)} is {value_at(overflow_from, index):g}, beyond the range of {weight.format}",
        hint="load the model in bf16 or fp32, or in a format with a scale such as sym_int8",
    )


_EXPONENTS: dict[str, tuple[type[np.unsignedinteger], int]] = {
    "fp32": (np.uint32, 0x7F800000),
    "fp16": (np.uint16, 0x7C00),
    "bf16": (np.uint16, 0x7F80),
}
"""Exponent bits of each float format; all of them set means NaN or infinity."""


def finite(codes: npt.NDArray[Any], kind: str) -> npt.NDArray[np.bool_]:
    """Return which codes of a float format are finite numbers."""
    dtype, exponent = _EXPONENTS[kind]
    ordinary: npt.NDArray[np.bool_] = (codes.view(dtype) & dtype(exponent)) != exponent
    return ordinary


def first_not_finite(values: npt.NDArray[np.generic], kind: str) -> int | None:
    """Return the index of the first NaN or infinity of a C-contiguous array in memory order, or None.

    The array is processed in chunks that fit the cache, so that the check costs little compared with reading.
    """
    dtype, exponent = _EXPONENTS[kind]
    bits = values.reshape(-1).view(dtype)
    masked = np.empty(min(bits.size, _AT_ONCE), dtype)
    for start in range(0, bits.size, _AT_ONCE):
        piece = bits[start : start + _AT_ONCE]
        found = np.bitwise_and(piece, dtype(exponent), out=masked[: piece.size])
        if int(found.max()) == exponent:
            return start + int(np.argmax(found == exponent))
    return None


def value_at(weight: PackedWeight, index: tuple[int, ...]) -> float:
    """Return one value of a float weight."""
    return float(widen(weight.codes[index].reshape(1), weight.format)[0])


def not_finite(index: tuple[int, ...], value: float) -> LowBitFormatError:
    """Return the error for a NaN or infinite value."""
    return LowBitFormatError(
        f"{place(index)} is {value}; weights must be finite numbers",
        hint="the checkpoint is damaged or its training diverged; download it again",
    )


def place(index: tuple[int, ...]) -> str:
    """Return the position of a value in words."""
    return f"the value in row {index[0]}, column {index[1]}" if len(index) == 2 else f"the value at {list(index)}"
