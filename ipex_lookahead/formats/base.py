"""What a low-bit format is: the meaning of the bits of a weight, with no device and no model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ipex_lookahead.errors import LowBitFormatError

GROUP = 32
"""Inputs in one block of codes. Every integer format stores its codes in whole blocks of this many inputs."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One array of a weight [n_out, n_in]: for each row, ``elements`` of ``dtype`` for every ``inputs`` inputs.

    Attributes:
        name: the attribute of ``PackedWeight`` that holds it.
        dtype: of the elements in memory; binary16 and bfloat16 are their bit patterns.
        elements: how many there are for each block of inputs.
        inputs: inputs in a block (a ragged last block counts as one); 0 = the weight's group size.
        stored: dtype of the elements in a safetensors file.
        meaning: what they stand for.
    """

    name: str
    dtype: type[np.generic]
    elements: int
    inputs: int
    stored: str
    meaning: str

    def shape(self, shape: tuple[int, ...], group_size: int) -> tuple[int, ...]:
        """The array's shape for a weight of that shape."""
        if self.inputs == 1:
            return tuple(shape)
        n_out, n_in = shape
        return n_out, -(-n_in // (self.inputs or group_size)) * self.elements

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize


SCALES = Stream("scales", np.uint16, 1, 0, "F16", "binary16 bits: what a group's codes are multiplied by")
MINIMUMS = Stream("minimums", np.uint16, 1, 0, "F16", "binary16 bits: what is added to a group's products")
ZEROS = Stream("minimums", np.uint16, 1, 0, "F16", "binary16 bits of a whole number: the code that stands for 0")
NIBBLES = Stream("codes", np.uint8, 16, 32, "U8", "byte i: code i in its low, code i + 16 in its high nibble")


@dataclass(frozen=True, slots=True)
class GgufType:
    """How GGUF stores the format: blocks one after the other, in each the elements of every stream.

    Attributes:
        number: the type's number in the file.
        name: its name.
        inputs: weights in a block.
        record: a block; its fields are named after the streams. A single field is the block as a whole.
    """

    number: int
    name: str
    inputs: int
    record: np.dtype[np.void]


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A tensor in *plain* (serialisable) order, float or low bit; what checkpoints hand out and engines take.

    Attributes:
        format: a key of ``FORMATS``.
        shape: logical shape: ``(n,)`` or ``(n_out, n_in)``; only float formats may be one-dimensional.
        codes, scales, minimums: the streams that the format declares (``LowBitFormat.streams`` says dtype, shape and
            meaning); None for those that it has not. What a ragged last block holds beyond ``n_in`` stands for 0.
        group_size: inputs that share a scale, one of the format's ``group_sizes``; 0 where it leaves no choice.
        order: int32 [n_in], of a low-bit weight whose groups are not neighbours: its input i is the layer's input
            ``order[i]``. None: they are the same.
    """

    format: str
    shape: tuple[int, ...]
    codes: npt.NDArray[np.generic]
    group_size: int = 0
    scales: npt.NDArray[np.uint16] | None = None
    minimums: npt.NDArray[np.uint16] | None = None
    order: npt.NDArray[np.int32] | None = None

    def arrays(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """(name, array) of each stream that there is."""
        for name in STREAMS:
            array = getattr(self, name)
            if array is not None:
                yield name, array

    @property
    def nbytes(self) -> int:
        """Bytes held by all streams together, and by the order of the inputs."""
        return sum(array.nbytes for _, array in self.arrays()) + (0 if self.order is None else self.order.nbytes)


ORDER = Stream("order", np.int32, 1, 1, "I32", "the layer's input that each input of the weight is")
"""Not of a format: any low-bit weight may have one."""

STREAMS = ("codes", "scales", "minimums")
"""The attributes of ``PackedWeight`` that may be streams, in the order in which they are saved and handed on."""


@dataclass(frozen=True, slots=True)
class BadScale:
    """A scale that is no number: ``index`` of its (first) element in the array, what it is, and what is wrong."""

    index: int
    what: str
    problem: str = "is NaN or infinite"


class LowBitFormat(Protocol):
    """One format. Implementations live one to a file and are listed in ``FORMATS``."""

    @property
    def name(self) -> str:
        """The key in ``FORMATS``."""
        ...

    @property
    def bits(self) -> float:
        """Bits of a weight's code."""
        ...

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Inputs that may share a scale; ``(0,)`` where the format leaves no choice."""
        ...

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Its arrays, in the order of ``STREAMS``."""
        ...

    @property
    def gguf(self) -> GgufType | None:
        """How GGUF stores it; None where it does not."""
        ...

    def quantize(
        self,
        weight: PackedWeight,
        group_size: int = 32,
        threads: int | None = None,
        importance: npt.NDArray[np.float32] | None = None,
    ) -> PackedWeight:
        """A float weight [n_out, n_in] in this format.

        Args:
            weight: in a float format.
            group_size: inputs that share a scale, where the format leaves a choice.
            threads: to compute with, None for one on each CPU that this process may use.
            importance: float32 [n_in], what the squared error of each input's weights counts, in any unit; None: all
                alike. Float formats have no use for it.

        Raises:
            LowBitFormatError: what is no float matrix, NaN or infinite values, or a scale beyond the format.
        """
        ...

    def dequantize(self, weight: PackedWeight) -> npt.NDArray[np.float32]:
        """The values the codes stand for, float32 [*shape]."""
        ...

    def random(self, shape: tuple[int, int], group_size: int, rng: np.random.Generator) -> PackedWeight:
        """A matrix of random codes whose values have a standard deviation of about 1 / sqrt(n_in)."""
        ...

    def bad_scale(self, name: str, array: npt.NDArray[Any]) -> BadScale | None:
        """The first scale in (whole blocks of) the stream ``name`` that no weight may have; None where all are good."""
        ...


def check_streams(weight: PackedWeight, target: LowBitFormat) -> None:
    """Raise LowBitFormatError unless a weight's streams have the dtypes and shapes that its format declares."""
    name, sizes = target.name, target.group_sizes
    if weight.format != name:
        raise LowBitFormatError(f"the weight is in {weight.format!r}, not in {name!r}")
    if weight.group_size not in sizes or len(weight.shape) != 2 or 0 in weight.shape:
        raise LowBitFormatError(
            f"{name} weight of shape {list(weight.shape)} with group_size {weight.group_size}; "
            f"allowed are matrices with group_size {', '.join(map(str, sizes))}"
        )
    for stream in target.streams:
        array = getattr(weight, stream.name)
        shape, dtype = stream.shape(weight.shape, weight.group_size), np.dtype(stream.dtype)
        if array is None or array.shape != shape or array.dtype != dtype:
            got = "missing" if array is None else f"{array.dtype} {list(array.shape)}"
            raise LowBitFormatError(f"{name} {stream.name}: {got}; expected {dtype} {list(shape)}")
