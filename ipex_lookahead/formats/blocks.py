"""Formats that store a row as a sequence of records, each with codes and scales, exactly as GGUF files do.

A record holds its codes in *planes*, each with some bits of every code. A code counts whole numbers from ``-zero`` on,
or indexes a table. A value is ``scale * step * number - minimum * minimum_step``, where the steps are small whole
numbers per part of a block; the smaller formats have none. ``scale * step`` is exact in float32, so a value is rounded
once or twice, as in the ``gguf`` package. ``csrc/weights/records.h`` defines the same layout for the native core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats.base import BadScale, GgufType, PackedWeight, Stream, check_streams
from ipex_lookahead.formats.columns import Floats
from ipex_lookahead.formats.float_base import from_binary16, half_powers
from ipex_lookahead.formats.groups import MAX_MAGNITUDE, Rows, check_matrix, quantize_rows, row_chunks
from ipex_lookahead.formats.search import Parts, Quantizer

Bytes = npt.NDArray[np.uint8]
SUB_BLOCK = 32
"""Inputs that the native core handles at once. Whole sub-blocks beyond the end of a row are stored as zero bits."""


class Plane(NamedTuple):
    """Location of ``bits`` of every code, from the code's bit ``up`` on, in the record's ``field``.

    Each run of ``run`` bytes holds the codes of 8 / ``bits`` runs of inputs, the first run in the lowest bits.
    """

    field: str
    bits: int
    run: int
    up: int = 0


class Steps(NamedTuple):
    """Packing of a record's steps, to and from (steps, minimum steps or None), and the smallest step."""

    unpack: Callable[[npt.NDArray[Any]], tuple[npt.NDArray[np.int16], npt.NDArray[np.int16] | None]]
    pack: Callable[[npt.NDArray[np.int16], npt.NDArray[np.int16] | None], npt.NDArray[Any]]
    least: int = 0


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A format of records, in most cases a GGUF block type.

    Attributes:
        inputs: weights per block.
        record: dtype of a block: ``scale``, optionally ``minimum`` and ``steps``, and the fields of the planes.
        planes: location of the codes.
        quantizer: finds the ``Parts`` of blocks.
        zero: number subtracted from a code.
        table: value of each code; None for whole numbers.
        steps: packing of ``record["steps"]``; None for formats without steps.
        number: the type's number in a GGUF file; None if GGUF has no such type.
        gguf_name: the type's name in llama.cpp.
    """

    name: str
    inputs: int
    record: np.dtype[np.void]
    planes: tuple[Plane, ...]
    quantizer: Quantizer
    zero: int = 0
    table: tuple[float, ...] | None = None
    steps: Steps | None = None
    number: int | None = None
    gguf_name: str = ""

    @property
    def bits(self) -> float:
        return sum(plane.bits for plane in self.planes)

    @property
    def group_sizes(self) -> tuple[int, ...]:
        return (0,)

    @property
    def streams(self) -> tuple[Stream, ...]:
        meaning = f"a block of GGUF's {self.gguf_name}" if self.gguf_name else "a block of this package's"
        return (Stream("codes", np.uint8, self.record.itemsize, self.inputs, "U8", meaning),)

    @property
    def gguf(self) -> GgufType | None:
        if self.number is None:
            return None
        return GgufType(self.number, self.gguf_name, self.inputs, np.dtype([("codes", "u1", self.record.itemsize)]))

    def quantize(
        self,
        weight: PackedWeight,
        group_size: int = 32,
        threads: int | None = None,
        importance: Floats | None = None,
    ) -> PackedWeight:
        check_matrix(weight, self.name)
        codes = np.zeros(self.streams[0].shape(weight.shape, 0), np.uint8)

        def put(rows: slice, parts: Parts) -> None:
            n_rows = rows.stop - rows.start
            of_rows = Parts(
                *(None if part is None else part.reshape(n_rows, -1, *part.shape[1:]) for part in parts)  # type: ignore[arg-type]
            )
            codes[rows] = self.pack(of_rows, weight.shape[1]).view(np.uint8).reshape(n_rows, -1)

        largest = np.inf if self.record["scale"].itemsize == 1 else MAX_MAGNITUDE  # a byte of exponent reaches all
        quantize_rows(
            weight, {"codes": codes}, Rows(self.name, self.inputs, self.quantizer, put, self.quantizer.core, largest),
            importance, threads,
        )  # fmt: skip
        return PackedWeight(self.name, weight.shape, codes)

    def dequantize(self, weight: PackedWeight) -> npt.NDArray[np.float32]:
        """Return ``scale * step * number - minimum * minimum_step``, float32 [n_out, n_in]."""
        check_streams(weight, self)
        n_out, n_in = weight.shape
        values = np.empty((n_out, n_in), np.float32)
        for rows in row_chunks(n_out, n_in):
            part = self.values(self.unpack(self.records(weight.codes[rows])))
            values[rows] = part.reshape(len(part), -1)[:, :n_in]
        return values

    def records(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.void]:
        """View rows of bytes as records [rows, blocks]."""
        return np.ascontiguousarray(codes).view(self.record)

    def unpack(self, records: npt.NDArray[np.void]) -> Parts:
        """Unpack records of any shape."""
        codes = np.zeros((*records.shape, self.inputs), np.uint8)
        for plane in self.planes:
            codes |= split(records[plane.field], plane.bits, plane.run) << np.uint8(plane.up)
        names = self.record.names or ()
        steps, minimum_steps = self.steps.unpack(records["steps"]) if self.steps else (None, None)
        return Parts(codes, records["scale"], records["minimum"] if "minimum" in names else None, steps, minimum_steps)

    def pack(self, parts: Parts, n_in: int) -> npt.NDArray[np.void]:
        """Pack parts [rows, blocks, ...] into records [rows, blocks] of rows of ``n_in`` inputs."""
        records = np.zeros(parts.codes.shape[:-1], self.record)
        reached = -(-n_in // SUB_BLOCK) * SUB_BLOCK - (parts.codes.shape[-2] - 1) * self.inputs
        codes = parts.codes
        if reached < self.inputs:
            codes = codes.copy()
            codes[..., -1, reached:] = 0
        for plane in self.planes:
            mask = np.uint8((1 << plane.bits) - 1)
            records[plane.field] = join(codes >> np.uint8(plane.up) & mask, plane.bits, plane.run)
        records["scale"] = parts.scale
        if parts.minimum is not None:
            records["minimum"] = parts.minimum
        if self.steps is not None and parts.steps is not None:
            steps = [None if part is None else part.copy() for part in (parts.steps, parts.minimum_steps)]
            first = reached * parts.steps.shape[-1] // self.inputs
            for part, least in zip(steps, (self.steps.least, 0), strict=True):
                if part is not None:
                    part[..., -1, first:] = least
            assert steps[0] is not None
            records["steps"] = self.steps.pack(steps[0], steps[1])
        return records

    def matrix(self, codes: Bytes, scales: npt.NDArray[Any]) -> PackedWeight:
        """Return a matrix with given codes and scales, without a search for scales.

        Args:
            codes: uint8 [n_out, n_in].
            scales: [n_out, blocks of a row], in the record's representation.
        """
        n_out, n_in = codes.shape
        padded = np.pad(codes, ((0, 0), (0, -n_in % self.inputs)), constant_values=self.zero)
        records = self.pack(Parts(padded.reshape(n_out, -1, self.inputs), scales), n_in)
        return PackedWeight(self.name, (n_out, n_in), records.view(np.uint8).reshape(n_out, -1))

    def values(self, parts: Parts) -> Floats:
        """Return the values of unpacked blocks, float32 [..., inputs]."""
        whole = self.whole(parts.codes)
        values: Floats = whole * self._of_inputs(_SCALES[parts.scale.dtype.itemsize](parts.scale), parts.steps)
        if parts.minimum is not None:
            minimum = self._of_inputs(from_binary16(parts.minimum), parts.minimum_steps)
            values = values - minimum if parts.minimum_steps is not None else values + minimum
        return values

    def whole(self, codes: Bytes) -> Floats:
        """Return the number that each code represents, before it is scaled."""
        numbers = (
            np.arange(256, dtype=np.float32) - self.zero if self.table is None else np.array(self.table, np.float32)
        )
        found: Floats = numbers[codes]
        return found

    def _of_inputs(self, scale: Floats, steps: npt.NDArray[np.int16] | None) -> Floats:
        if steps is None:
            return scale[..., None]
        products: Floats = scale[..., None] * steps.astype(np.float32)
        return np.repeat(products, self.inputs // steps.shape[-1], axis=-1)

    def random(self, shape: tuple[int, int], group_size: int, rng: np.random.Generator) -> PackedWeight:
        n_out, n_in = shape
        n_blocks = -(-n_in // self.inputs)
        records = rng.integers(0, 256, (n_out, n_blocks * self.record.itemsize), np.uint8).view(self.record)
        some = records[:16].copy()
        size = n_in**-0.5
        if records["scale"].dtype == np.uint8:
            records["scale"] = some["scale"] = 128
            records["scale"] += np.int8(round(np.log2(size / self.values(self.unpack(some)).std()))).view(np.uint8)
        else:
            one = self._stored(1)
            some["scale"] = one
            if "minimum" in (self.record.names or ()):
                some["minimum"] = 0
                scaled = self.values(self.unpack(some))
                some["scale"], some["minimum"] = 0, one
                ratio = -float(scaled.mean()) / float(self.values(self.unpack(some)).mean())
                some["scale"], some["minimum"] = one, np.float16(ratio).view(np.uint16)
                records["minimum"] = np.float16(ratio * size / self.values(self.unpack(some)).std()).view(np.uint16)
            records["scale"] = self._stored(size / self.values(self.unpack(some)).std())
        codes = self.pack(self.unpack(records), n_in).view(np.uint8).reshape(n_out, -1)
        return PackedWeight(self.name, shape, codes)

    def _stored(self, scale: Any) -> Any:
        return np.float16(scale).view(np.uint16) if self.record["scale"] == np.uint16 else np.float32(scale)

    def bad_scale(self, name: str, array: npt.NDArray[Any]) -> BadScale | None:
        records: Any = np.ascontiguousarray(array).reshape(-1).view(self.record)
        fields: Any = self.record.fields
        for what in ("scale", "minimum"):
            if what in (self.record.names or ()):
                field = records[what]
                bad = ~_good(field)
                if bad.any():
                    at = int(bad.argmax()) * self.record.itemsize + int(fields[what][1])
                    also = "" if field.dtype == np.uint16 else ", or makes a value so"
                    return BadScale(at, what, f"is NaN or infinite{also}")
        return None


def _good(scales: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    good: npt.NDArray[np.bool_]
    if scales.dtype == np.uint8:
        good = scales <= MAX_EXPONENT
    elif scales.dtype == np.float32:
        good = np.abs(scales) <= MAX_FLOAT_SCALE
    else:
        good = (scales & 0x7C00) != 0x7C00
    return good


MAX_EXPONENT = 252
"""Of MXFP4 scales: 6 * 2^(252 - 127) is the largest value in float32; 255 represents NaN."""

MAX_FLOAT_SCALE = np.float32(2.0**120)
"""Of float32 scales: 128 times this value is finite."""

_SCALES: dict[int, Callable[[npt.NDArray[Any]], Floats]] = {1: half_powers, 2: from_binary16, 4: lambda scale: scale}
"""Size of a record's scale in bytes -> the function that converts scales to float32."""


def split(packed: npt.NDArray[Any], bits: int, run: int) -> Bytes:
    """Unpack bytes [..., n] to codes of ``bits`` bits [..., n * 8 / bits], ``run`` bytes at a time, low bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    runs = packed.reshape(*packed.shape[:-1], -1, 1, run) >> shifts & np.uint8((1 << bits) - 1)
    return runs.reshape(*packed.shape[:-1], -1)  # type: ignore[no-any-return]


def join(codes: Bytes, bits: int, run: int) -> Bytes:
    """Invert ``split``."""
    runs = codes.reshape(*codes.shape[:-1], -1, 8 // bits, run)
    joined: Bytes = runs[..., 0, :].copy()
    for i in range(1, 8 // bits):  # much faster than a reduction over such a short axis
        joined |= runs[..., i, :] << np.uint8(i * bits)
    return joined.reshape(*codes.shape[:-1], -1)
