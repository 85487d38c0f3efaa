"""Interface of low-bit formats, and the packed weights that checkpoints produce and engines consume."""

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
    """Layout of one array of a weight [n_out, n_in]: per row, ``elements`` of ``dtype`` for every ``inputs`` inputs.

    Attributes:
        name: the attribute of ``PackedWeight`` that holds the array.
        dtype: element type in memory; binary16 and bfloat16 are held as their bit patterns.
        elements: number of elements per block of inputs.
        inputs: inputs per block; a ragged last block counts as one. 0: the weight's group size.
        stored: element type in a safetensors file.
        meaning: description of an element.
    """

    name: str
    dtype: type[np.generic]
    elements: int
    inputs: int
    stored: str
    meaning: str

    def shape(self, shape: tuple[int, ...], group_size: int) -> tuple[int, ...]:
        """Return the shape of the array for a weight of shape ``shape``."""
        if self.inputs == 1:
            return tuple(shape)
        n_out, n_in = shape
        return n_out, -(-n_in // (self.inputs or group_size)) * self.elements

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return np.dtype(self.dtype).itemsize


SCALES = Stream("scales", np.uint16, 1, 0, "F16", "binary16 bits of a group's scale")
MINIMUMS = Stream("minimums", np.uint16, 1, 0, "F16", "binary16 bits of the offset that is added to a group's products")
ZEROS = Stream("minimums", np.uint16, 1, 0, "F16", "binary16 bits of a whole number: the code that represents 0")
NIBBLES = Stream("codes", np.uint8, 16, 32, "U8", "byte i: code i in its low, code i + 16 in its high nibble")


@dataclass(frozen=True, slots=True)
class GgufType:
    """How GGUF stores the format: a sequence of blocks, each with the elements of every stream.

    Attributes:
        number: the type's number in the file.
        name: the type's name in llama.cpp.
        inputs: weights per block.
        record: dtype of a block. Fields are named after the streams; a single field is the block as a whole.
    """

    number: int
    name: str
    inputs: int
    record: np.dtype[np.void]


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A tensor in plain (serializable) element order, in a float or low-bit format.

    Attributes:
        format: a key of ``FORMATS``.
        shape: logical shape: ``(n,)`` or ``(n_out, n_in)``; only float formats may be one-dimensional.
        codes, scales, minimums: the streams that ``LowBitFormat.streams`` declares; None for the others. Entries of a
            ragged last block beyond ``n_in`` represent 0.
        group_size: inputs that share a scale, one of the format's ``group_sizes``; 0 for formats with fixed blocks.
        order: int32 [n_in], for quantized weights with permuted inputs: column i of the weight is the layer's input
            ``order[i]``. None: the identity.
    """

    format: str
    shape: tuple[int, ...]
    codes: npt.NDArray[np.generic]
    group_size: int = 0
    scales: npt.NDArray[np.uint16] | None = None
    minimums: npt.NDArray[np.uint16] | None = None
    order: npt.NDArray[np.int32] | None = None

    def arrays(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yield (name, array) for each stream that is present."""
        for name in STREAMS:
            array = getattr(self, name)
            if array is not None:
                yield name, array

    @property
    def nbytes(self) -> int:
        """Size of all streams and of the input order in bytes."""
        return sum(array.nbytes for _, array in self.arrays()) + (0 if self.order is None else self.order.nbytes)


ORDER = Stream("order", np.int32, 1, 1, "I32", "index of the layer's input for each column of the weight")
"""Optional stream of any low-bit weight; not part of a format."""

STREAMS = ("codes", "scales", "minimums")
"""The stream attributes of ``PackedWeight``, in the order in which they are saved and passed on."""


@dataclass(frozen=True, slots=True)
class BadScale:
    """An invalid scale: ``index`` of its first element in the array, what it is, and what is wrong with it."""

    index: int
    what: str
    problem: str = "is NaN or infinite"


class LowBitFormat(Protocol):
    """A low-bit format. Implementations are rows of ``table.py``."""

    @property
    def name(self) -> str:
        """Key in ``FORMATS``."""
        ...

    @property
    def bits(self) -> float:
        """Bits per code."""
        ...

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Allowed numbers of inputs per scale; ``(0,)`` for formats with a fixed block size."""
        ...

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Arrays of a weight, in the order of ``STREAMS``."""
        ...

    @property
    def gguf(self) -> GgufType | None:
        """The corresponding GGUF type; None if there is none."""
        ...

    def quantize(
        self,
        weight: PackedWeight,
        group_size: int = 32,
        threads: int | None = None,
        importance: npt.NDArray[np.float32] | None = None,
    ) -> PackedWeight:
        """Quantize a float matrix [n_out, n_in].

        Args:
            weight: a weight in a float format.
            group_size: inputs that share a scale; ignored by formats with a fixed block size.
            threads: number of threads; None: one per CPU available to this process.
            importance: float32 [n_in], relative weight of each input's squared error; None: equal weights. Ignored by
                float formats.

        Raises:
            LowBitFormatError: if the weight is not a float matrix, has NaN or infinite values, or needs a scale that
                the format cannot represent.
        """
        ...

    def dequantize(self, weight: PackedWeight) -> npt.NDArray[np.float32]:
        """Return the values of a weight, float32 [*shape]."""
        ...

    def random(self, shape: tuple[int, int], group_size: int, rng: np.random.Generator) -> PackedWeight:
        """Return a matrix of random codes with values of a standard deviation of about 1 / sqrt(n_in)."""
        ...

    def bad_scale(self, name: str, array: npt.NDArray[Any]) -> BadScale | None:
        """Return the first invalid scale of whole blocks of the stream ``name``; None if all are valid."""
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
