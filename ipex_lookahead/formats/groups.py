"""What the integer formats share: values in groups, nibbles in blocks, checks, and the compiled twin.

The numpy arithmetic in this package *is* the definition of each format; ``csrc/weights/quantize.cc`` must agree bit for
bit and is used where the compiled core can be imported, because it is many times faster. All arithmetic is float32 in
the order written, rounding half to even.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.errors import LowBitFormatError
from ipex_lookahead.formats.base import GROUP, PackedWeight
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
    check_float(weight)
    if len(weight.shape) != 2 or 0 in weight.shape:
        raise LowBitFormatError(
            f"a weight of shape {list(weight.shape)} cannot be in {name}; it takes matrices [n_out, n_in] only"
        )


def check_packed(weight: PackedWeight, name: str, code_dtype: type[np.generic], codes_a_byte: int) -> None:
    """Raise LowBitFormatError unless every stream of an integer weight has the dtype and shape of the layout."""
    if weight.format != name:
        raise LowBitFormatError(f"the weight is in {weight.format!r}, not in {name!r}")
    if weight.group_size not in GROUP_SIZES or len(weight.shape) != 2 or 0 in weight.shape:
        raise LowBitFormatError(
            f"{name} weight of shape {list(weight.shape)} with group_size {weight.group_size}; "
            f"allowed are matrices with group_size {', '.join(map(str, GROUP_SIZES))}"
        )
    n_out, n_in = weight.shape
    scales = (n_out, groups_of(n_in, weight.group_size))
    expected: list[tuple[str, Any, tuple[int, int], type[np.generic]]] = [
        ("codes", weight.codes, (n_out, blocks_of(n_in) * GROUP // codes_a_byte), code_dtype),
        ("scales", weight.scales, scales, np.uint16),
    ]
    if name == "asym_int4":
        expected.append(("minimums", weight.minimums, scales, np.uint16))
    for stream, array, shape, dtype in expected:
        if array is None or array.shape != shape or array.dtype != np.dtype(dtype):
            got = "missing" if array is None else f"{array.dtype} {list(array.shape)}"
            raise LowBitFormatError(f"{name} {stream}: {got}; expected {np.dtype(dtype)} {list(shape)}")


def quantize_groups(
    weight: PackedWeight, name: str, group_size: int, threads: int | None, quantizer: GroupQuantizer, *, nibbles: bool
) -> PackedWeight:
    """Quantise with the compiled core where there is one, else with numpy; both give the same bits.

    Raises:
        LowBitFormatError: what ``check_quantizable`` refuses, a NaN or infinite value, or a scale beyond binary16.
    """
    check_quantizable(weight, name, group_size)
    core = _native_core()
    if core is None:
        return numpy_quantize(weight, name, group_size, quantizer, nibbles=nibbles)
    count = threads if threads is not None else min(_usable_cpus(), MOST_THREADS)
    if not isinstance(count, int) or not 1 <= count <= MOST_THREADS:
        raise LowBitFormatError(f"threads is {count!r}; it must be from 1 to {MOST_THREADS}")
    try:
        codes, scales, minimums = core.quantize(
            name, weight.format, np.require(weight.codes, requirements=("C", "A")), group_size, count
        )
    except ValueError:
        numpy_quantize(weight, name, group_size, quantizer, nibbles=nibbles)  # raises, and says which value is at fault
        raise  # or it does not: then the two disagree, and that is not to be hidden
    return PackedWeight(name, weight.shape, codes, group_size, scales, minimums)


def numpy_quantize(
    weight: PackedWeight, name: str, group_size: int, quantizer: GroupQuantizer, *, nibbles: bool
) -> PackedWeight:
    """The definition. ``nibbles``: two unsigned codes a byte, else one signed code a byte."""
    n_out, n_in = weight.shape
    blocks, groups = blocks_of(n_in), groups_of(n_in, group_size)
    codes: npt.NDArray[Any] = np.empty((n_out, blocks * (16 if nibbles else 32)), np.uint8 if nibbles else np.int8)
    scales = np.empty((n_out, groups), np.uint16)
    minimums = np.empty((n_out, groups), np.uint16) if name == "asym_int4" else None
    real = (np.arange(groups * group_size) < n_in).reshape(groups, group_size)
    for rows in row_chunks(n_out, n_in):
        _check_rows(weight, rows)
        values = np.pad(widen(weight.codes[rows], weight.format), ((0, 0), (0, real.size - n_in)), mode="edge")
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            part, scale, minimum = quantizer(values.reshape(-1, groups, group_size), real)
        part = part.reshape(-1, groups * group_size)[:, : blocks * GROUP]
        codes[rows] = pack_nibbles(part) if nibbles else part
        scales[rows] = _stored(scale, "scale", rows.start, name)
        if minimums is not None and minimum is not None:
            minimums[rows] = _stored(minimum, "minimum", rows.start, name)
    return PackedWeight(name, weight.shape, codes, group_size, scales, minimums)


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


def dequantize_rows(
    weight: PackedWeight, unpack: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
) -> npt.NDArray[np.float32]:
    """``scale * unpack(codes) + minimum``, float32 [n_out, n_in], each operation rounded by itself."""
    assert weight.scales is not None
    n_out, n_in = weight.shape
    values = np.empty((n_out, n_in), np.float32)
    for rows in row_chunks(n_out, n_in):
        part = unpack(weight.codes[rows])[:, :n_in].astype(np.float32)
        part *= _spread(weight.scales[rows], weight)
        if weight.minimums is not None:
            part += _spread(weight.minimums[rows], weight)
        values[rows] = part
    return values


def _spread(stored: npt.NDArray[np.uint16], weight: PackedWeight) -> Floats:
    """One binary16 a group -> one float32 an input."""
    return np.repeat(from_binary16(stored), weight.group_size, axis=1)[:, : weight.shape[1]]


def _check_rows(weight: PackedWeight, rows: slice) -> None:
    bad = ~finite(weight.codes[rows], weight.format)
    if bad.any():
        row, column = divmod(int(bad.argmax()), weight.shape[1])
        index = (rows.start + row, column)
        raise not_finite(index, value_at(weight, index))


def _stored(values: Floats, what: str, first_row: int, name: str) -> npt.NDArray[np.uint16]:
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
