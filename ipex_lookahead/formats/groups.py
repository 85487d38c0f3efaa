"""What the integer formats share: values in groups, nibbles in blocks, checks, and the compiled twin.

The numpy arithmetic in this package *is* the definition of each format; ``csrc/weights/quantize.cc`` must agree bit for
bit and is used where the compiled core can be imported, because it is many times faster. All arithmetic is float32 in
the order written, rounding half to even.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.errors import LowBitFormatError
from ipex_lookahead.formats.base import (
    GROUP,
    NIBBLES,
    BadScale,
    GgufType,
    PackedWeight,
    Stream,
    check_streams,
)
from ipex_lookahead.formats.float_base import (
    CHUNK,
    check_float,
    finite,
    from_binary16,
    not_finite,
    to_binary16,
    value_at,
    widen,
)

GROUP_SIZES = (32, 64)

MOST_THREADS = 1024
"""What the core takes."""

Floats = npt.NDArray[np.float32]
GroupQuantizer = Callable[[Floats, npt.NDArray[np.bool_]], tuple[npt.NDArray[Any], Floats, Floats | None]]
"""From values [rows, groups, group_size], and which columns [groups, group_size] are real inputs (the others repeat the
last real one), to codes of the same shape, and float32 scales and minimums [rows, groups] before their rounding."""


def blocks_of(n_in: int) -> int:
    """Blocks of 32 inputs in a row."""
    return -(-n_in // GROUP)


def groups_of(n_in: int, group_size: int) -> int:
    """Groups (scales) in a row."""
    return -(-n_in // group_size)


def check_quantizable(weight: PackedWeight, name: str, group_size: int) -> None:
    """Raise LowBitFormatError unless a float matrix can be given in integer format ``name`` with this group size."""
    if group_size not in GROUP_SIZES:
        raise LowBitFormatError(f"group_size is {group_size!r}; {name} knows {', '.join(map(str, GROUP_SIZES))}")
    check_matrix(weight, name)


def check_threads(threads: int | None) -> int:
    """A number of threads, None for one on each CPU that this process may use; LowBitFormatError beyond the core's."""
    count = threads if threads is not None else min(_usable_cpus(), MOST_THREADS)
    if not isinstance(count, int) or not 1 <= count <= MOST_THREADS:
        raise LowBitFormatError(f"threads is {count!r}; it must be from 1 to {MOST_THREADS}")
    return count


def check_matrix(weight: PackedWeight, name: str) -> None:
    """Raise LowBitFormatError for what is no float matrix."""
    check_float(weight)
    if len(weight.shape) != 2 or 0 in weight.shape:
        raise LowBitFormatError(
            f"a weight of shape {list(weight.shape)} cannot be in {name}; it takes matrices [n_out, n_in] only"
        )


@dataclass(frozen=True, slots=True)
class GroupFormat:
    """A format of whole-number codes with a scale, and perhaps a minimum, for each group; see ``LowBitFormat``.

    Attributes:
        zero: what is taken from a code before it is multiplied.
        quantizer: its definition.
    """

    name: str
    bits: float
    zero: int
    streams: tuple[Stream, ...]
    gguf: GgufType | None
    quantizer: GroupQuantizer
    group_sizes: tuple[int, ...] = GROUP_SIZES

    def quantize(self, weight: PackedWeight, group_size: int = 32, threads: int | None = None) -> PackedWeight:
        """A float matrix [n_out, n_in] with one scale (and minimum) for every ``group_size`` inputs of a row.

        By the compiled core where there is one, else with numpy; both give the same bits.

        Raises:
            LowBitFormatError: not a float matrix, unknown group size, NaN or infinity, a scale or minimum beyond
                binary16.
        """
        check_quantizable(weight, self.name, group_size)
        core = _native_core()
        if core is None:
            return numpy_quantize(weight, self, group_size)
        count = check_threads(threads)
        try:
            codes, scales, minimums = core.quantize(
                self.name, weight.format, np.require(weight.codes, requirements=("C", "A")), group_size, count
            )
        except ValueError:
            numpy_quantize(weight, self, group_size)  # raises, and says which value is at fault
            raise  # or it does not: then the two disagree, and that is not to be hidden
        return PackedWeight(self.name, weight.shape, codes.view(self.streams[0].dtype), group_size, scales, minimums)

    def dequantize(self, weight: PackedWeight) -> npt.NDArray[np.float32]:
        """``scale * (code - zero) + minimum``, float32 [n_out, n_in], each operation rounded by itself."""
        check_streams(weight, self)
        assert weight.scales is not None
        n_out, n_in = weight.shape
        values = np.empty((n_out, n_in), np.float32)
        for rows in row_chunks(n_out, n_in):
            part = self.whole(weight.codes[rows])[:, :n_in].astype(np.float32)
            part *= _spread(weight.scales[rows], weight)
            if weight.minimums is not None:
                part += _spread(weight.minimums[rows], weight)
            values[rows] = part
        return values

    def whole(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
        """The whole numbers [rows, blocks * 32] that packed codes stand for."""
        if self.streams[0] != NIBBLES:
            return codes
        unpacked: npt.NDArray[np.int8] = unpack_nibbles(codes).view(np.int8)
        return unpacked - np.int8(self.zero) if self.zero else unpacked

    def random(self, shape: tuple[int, int], group_size: int, rng: np.random.Generator) -> PackedWeight:
        """See ``LowBitFormat.random``. Codes are uniform, all groups have one scale."""
        n_out, n_in = shape
        codes = rng.integers(0, 256, (n_out, self.streams[0].shape(shape, group_size)[1]), np.uint8)
        codes = codes.view(self.streams[0].dtype)
        if self.bits == 8:
            codes = np.maximum(codes, -127)
        some = self.whole(codes[:1, : 4 * GROUP])
        scale = n_in**-0.5 / float(some.std())
        groups = (n_out, groups_of(n_in, group_size))
        half = [np.full(groups, value, np.float16).view(np.uint16) for value in (scale, -scale * float(some.mean()))]
        minimums = half[1] if len(self.streams) == 3 else None
        return PackedWeight(self.name, shape, codes, group_size, half[0], minimums)

    def bad_scale(self, name: str, array: npt.NDArray[Any]) -> BadScale | None:
        """See ``LowBitFormat.bad_scale``."""
        return None if name == "codes" else first_bad_half(array, name.removesuffix("s"))


def first_bad_half(array: npt.NDArray[Any], what: str) -> BadScale | None:
    """The first NaN or infinity among binary16 bits."""
    bad = (array & 0x7C00) == 0x7C00
    return BadScale(int(bad.argmax()), what) if bad.any() else None


def numpy_quantize(weight: PackedWeight, target: GroupFormat, group_size: int) -> PackedWeight:
    """The definition.

    Raises:
        LowBitFormatError: a NaN or infinite value, or a scale beyond binary16.
    """
    n_out, n_in = weight.shape
    blocks, groups = blocks_of(n_in), groups_of(n_in, group_size)
    stored = {stream.name: np.empty(stream.shape(weight.shape, group_size), stream.dtype) for stream in target.streams}
    real = (np.arange(groups * group_size) < n_in).reshape(groups, group_size)
    for rows in row_chunks(n_out, n_in):
        check_rows(weight, rows)
        values = np.pad(widen(weight.codes[rows], weight.format), ((0, 0), (0, real.size - n_in)), mode="edge")
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            part, scale, minimum = target.quantizer(values.reshape(-1, groups, group_size), real)
        part = part.reshape(-1, groups * group_size)[:, : blocks * GROUP]
        stored["codes"][rows] = pack_nibbles(part) if target.streams[0] == NIBBLES else part
        stored["scales"][rows] = stored_half(scale, "scale", rows.start, target.name)
        if minimum is not None:
            stored["minimums"][rows] = stored_half(minimum, "minimum", rows.start, target.name)
    return PackedWeight(target.name, weight.shape, group_size=group_size, **stored)


def row_chunks(n_out: int, n_in: int) -> Iterator[slice]:
    """Slices of rows of about ``CHUNK`` values."""
    step = max(1, CHUNK // n_in)
    return (slice(start, min(start + step, n_out)) for start in range(0, n_out, step))


def rounded(scale: Floats) -> tuple[Floats, Floats]:
    """A scale as it will be stored (binary16, widened again), and its inverse; 0 where the stored scale is 0."""
    stored = from_binary16(to_binary16(scale))
    with np.errstate(divide="ignore"):
        inverse = np.where(stored != 0, np.float32(1) / stored, np.float32(0))
    return stored, inverse


def pack_nibbles(codes: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Codes 0..15 [rows, blocks * 32] to bytes [rows, blocks * 16]: code i low, code i + 16 high, in each block."""
    halves = codes.astype(np.uint8).reshape(codes.shape[0], -1, 2, GROUP // 2)
    packed: npt.NDArray[np.uint8] = halves[:, :, 0] | (halves[:, :, 1] << np.uint8(4))
    return packed.reshape(codes.shape[0], -1)


def unpack_nibbles(packed: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The inverse of ``pack_nibbles``."""
    blocks = packed.reshape(packed.shape[0], -1, 1, GROUP // 2)
    codes: npt.NDArray[np.uint8] = np.concatenate((blocks & 15, blocks >> 4), axis=2)
    return codes.reshape(packed.shape[0], -1)


def _spread(stored: npt.NDArray[np.uint16], weight: PackedWeight) -> Floats:
    """One binary16 a group -> one float32 an input."""
    return np.repeat(from_binary16(stored), weight.group_size, axis=1)[:, : weight.shape[1]]


def check_rows(weight: PackedWeight, rows: slice) -> None:
    """Raise LowBitFormatError for a NaN or infinite value in these rows."""
    bad = ~finite(weight.codes[rows], weight.format)
    if bad.any():
        row, column = divmod(int(bad.argmax()), weight.shape[1])
        index = (rows.start + row, column)
        raise not_finite(index, value_at(weight, index))


def stored_half(values: Floats, what: str, first_row: int, name: str) -> npt.NDArray[np.uint16]:
    """Scales or minimums as binary16 bits; LowBitFormatError where binary16 cannot hold one."""
    bits = to_binary16(values)
    bad = (bits & 0x7C00) == 0x7C00
    if bad.any():
        row, group = divmod(int(bad.argmax()), bits.shape[1])
        raise LowBitFormatError(
            f"row {first_row + row}, group {group}: the {what} would be {values[row, group]:g}; "
            f"{name} stores it in binary16, which ends at 65504",
            hint="keep this weight in bf16 or fp32 (modules_to_not_convert)",
        )
    return bits


def _usable_cpus() -> int:
    """CPUs this process may run on, where the system tells; else all of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _native_core() -> Any | None:
    """The compiled core, or None where it was not built."""
    try:
        from ipex_lookahead import _native
    except ImportError:
        return None
    return _native
