"""What the float formats share: widening to float32, rounding to 16 bits, and the checks on values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.errors import LowBitFormatError
from ipex_lookahead.formats.base import GgufType, PackedWeight, Stream

FLOAT_DTYPES: dict[str, type[np.generic]] = {"fp32": np.float32, "fp16": np.uint16, "bf16": np.uint16}
"""Dtype of the codes of each float format."""

_AT_ONCE = 1 << 16
CHUNK = 1 << 22
"""Values handled at a time, so that temporaries stay small beside the weight itself."""


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A format whose codes are the values themselves: no groups, no scales.

    Attributes:
        name: ``fp32``, ``fp16`` or ``bf16``.
        bits: bits of a value.
        stored: its dtype in a safetensors file.
        number: its type in a GGUF file.
        meaning: of a code, in words.
    """

    name: str
    bits: float
    stored: str
    number: int
    meaning: str

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """There are no groups; the ``group_size`` of ``quantize`` is not used."""
        return (0,)

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The values."""
        return (Stream("codes", FLOAT_DTYPES[self.name], 1, 1, self.stored, self.meaning),)

    @property
    def gguf(self) -> GgufType:
        """One value after the other."""
        return GgufType(self.number, self.stored, 1, np.dtype([("codes", FLOAT_DTYPES[self.name])]))

    def quantize(
        self,
        weight: PackedWeight,
        group_size: int = 32,
        threads: int | None = None,
        importance: npt.NDArray[np.float32] | None = None,
    ) -> PackedWeight:
        """A float weight of any shape, rounded to nearest even; the same object where it is in this format already.

        Raises:
            LowBitFormatError: not a float weight, or a value that is NaN, infinite or beyond this format's range.
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
        """The values, float32 [*shape], exactly. A copy, also for fp32."""
        check_float(weight, self.name)
        return widen(weight.codes, weight.format)

    def random(self, shape: tuple[int, int], group_size: int, rng: np.random.Generator) -> PackedWeight:
        """See ``LowBitFormat.random``; normally distributed."""
        values = rng.standard_normal(shape, dtype=np.float32) * np.float32(shape[1] ** -0.5)
        return self.quantize(PackedWeight("fp32", shape, values))

    def bad_scale(self, name: str, array: npt.NDArray[Any]) -> None:
        """There are no scales."""


def widen(codes: npt.NDArray[Any], kind: str) -> npt.NDArray[np.float32]:
    """Codes of a float format as float32 of the same shape (exact; always a copy)."""
    if kind == "fp16":
        return codes.view(np.float16).astype(np.float32)
    if kind == "bf16":
        return (codes.astype(np.uint32) << 16).view(np.float32)
    return codes.astype(np.float32)


def narrow(values: npt.NDArray[np.float32], kind: str) -> npt.NDArray[Any]:
    """Finite float32 as codes of a float format, rounded to nearest even; what is too large becomes infinity."""
    if kind == "fp16":
        return to_binary16(values)
    if kind == "bf16":
        bits = values.view(np.uint32)
        return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    return values


def to_binary16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Bit patterns of the nearest binary16 (ties to even, subnormals kept, infinity beyond 65519.99)."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return values.astype(np.float16).view(np.uint16)


def from_binary16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Binary16 bit patterns as float32 (exact)."""
    return bits.view(np.float16).astype(np.float32)


def check_float(weight: PackedWeight, name: str | None = None) -> None:
    """Raise LowBitFormatError unless the weight is a float one (of format ``name``) whose codes have its shape."""
    if weight.format not in FLOAT_DTYPES or (name is not None and weight.format != name):
        allowed = name or ", ".join(sorted(FLOAT_DTYPES))
        raise LowBitFormatError(f"the weight is in {weight.format!r}; what is needed here is a weight in {allowed}")
    dtype = np.dtype(FLOAT_DTYPES[weight.format])
    if weight.codes.shape != tuple(weight.shape) or weight.codes.dtype != dtype:
        raise LowBitFormatError(
            f"{weight.format} codes are {weight.codes.dtype} {list(weight.codes.shape)}; "
            f"the weight's shape asks for {dtype} {list(weight.shape)}"
        )


def check_finite(weight: PackedWeight, overflow_from: PackedWeight | None = None) -> None:
    """Raise LowBitFormatError naming the first NaN or infinite value of a float weight.

    With ``overflow_from`` the infinity arose in conversion, and the message gives the value that it came from.
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
"""The exponent's bits. All of them set means NaN or infinity."""


def finite(codes: npt.NDArray[Any], kind: str) -> npt.NDArray[np.bool_]:
    """Which codes of a float format are finite numbers."""
    dtype, exponent = _EXPONENTS[kind]
    ordinary: npt.NDArray[np.bool_] = (codes.view(dtype) & dtype(exponent)) != exponent
    return ordinary


def first_not_finite(values: npt.NDArray[np.generic], kind: str) -> int | None:
    """Index of the first NaN or infinity of a C-contiguous array in memory order, or None.

    Works through the array in pieces that stay in the cache, so that a checkpoint is not read much slower for it.
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
    """One value of a float weight."""
    return float(widen(weight.codes[index].reshape(1), weight.format)[0])


def not_finite(index: tuple[int, ...], value: float) -> LowBitFormatError:
    """The error for a NaN or infinite value."""
    return LowBitFormatError(
        f"{place(index)} is {value}; weights must be finite numbers",
        hint="the checkpoint is damaged, or its training diverged; fetch it again",
    )


def place(index: tuple[int, ...]) -> str:
    """Where a value is, in words."""
    return f"the value in row {index[0]}, column {index[1]}" if len(index) == 2 else f"the value at {list(index)}"
