"""Formats with scales per group of inputs, and the quantization of any float matrix by the native core or numpy.

A format supplies the search for a block's scale (``search.py``) and the packing of its result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.errors import LowBitFormatError, arg
from ipex_lookahead.formats.base import (
    GROUP,
    NIBBLES,
    BadScale,
    GgufType,
    PackedWeight,
    Stream,
    check_streams,
)
from ipex_lookahead.formats.columns import Floats
from ipex_lookahead.formats.float_base import (
    CHUNK,
    check_float,
    finite,
    from_binary16,
    not_finite,
    value_at,
    widen,
)
from ipex_lookahead.formats.search import (
    CoreSearch,
    MinimumSearch,
    Parts,
    Quantizer,
    ScaleSearch,
    ZeroSearch,
)
from ipex_lookahead.system.cgroups import cpu_quota

GROUP_SIZES = (32, 64)

MAX_THREADS = 1024
"""Limit of the native core."""

SEARCH_CHUNK = 1 << 17
"""Values per chunk of a scale search, so that temporaries fit a core's cache."""
MAX_MAGNITUDE = 1e10
"""Larger values are refused: no binary16 scale reaches them. Below it nothing overflows during the search."""
EVERY_CODE = np.arange(256, dtype=np.uint8)[None]
MIN_IMPORTANCE = np.float32(1e-6)
"""Smallest importance relative to the largest one, so that inputs without calibration data stay close as well."""


def blocks_of(n_in: int) -> int:
    """Return the number of blocks of 32 inputs in a row."""
    return -(-n_in // GROUP)


def groups_of(n_in: int, group_size: int) -> int:
    """Return the number of groups (scales) in a row."""
    return -(-n_in // group_size)


def check_quantizable(weight: PackedWeight, name: str, group_size: int, sizes: tuple[int, ...] = GROUP_SIZES) -> None:
    """Raise LowBitFormatError unless a float matrix can be quantized to format ``name`` with this group size."""
    if group_size not in sizes:
        known = ", ".join(map(str, sizes))
        raise LowBitFormatError(argument="group_size", got=group_size, allowed=f"{known} in {name}")
    check_matrix(weight, name)


def check_threads(threads: int | None) -> int:
    """Return the number of threads, by default one per CPU available to this process.

    Raises:
        LowBitFormatError: if the number is not from 1 to ``MAX_THREADS``.
    """
    count = threads if threads is not None else min(_usable_cpus(), MAX_THREADS)
    if not isinstance(count, int) or not 1 <= count <= MAX_THREADS:
        raise LowBitFormatError(f"threads is {count!r}; it must be from 1 to {MAX_THREADS}")
    return count


def check_matrix(weight: PackedWeight, name: str) -> None:
    """Raise LowBitFormatError unless the weight is a float matrix."""
    check_float(weight)
    if len(weight.shape) != 2 or 0 in weight.shape:
        raise LowBitFormatError(
            f"a weight of shape {list(weight.shape)} cannot be in {name}; it takes matrices [n_out, n_in] only"
        )


@dataclass(frozen=True, slots=True)
class GroupFormat:
    """A format of whole-number codes with a scale, and optionally a minimum, per group of inputs.

    Attributes:
        zero: number subtracted from a code before it is multiplied.
        search: the scale search for groups of 32 inputs.
    """

    name: str
    bits: float
    zero: int
    streams: tuple[Stream, ...]
    gguf: GgufType | None
    search: ScaleSearch | MinimumSearch | ZeroSearch
    group_sizes: tuple[int, ...] = GROUP_SIZES

    def quantize(
        self,
        weight: PackedWeight,
        group_size: int = 32,
        threads: int | None = None,
        importance: Floats | None = None,
    ) -> PackedWeight:
        check_quantizable(weight, self.name, group_size, self.group_sizes)
        n_in, kinds = weight.shape[1], {stream.name: stream for stream in self.streams}
        stored = {name: np.zeros(kind.shape(weight.shape, group_size), kind.dtype) for name, kind in kinds.items()}
        padded = groups_of(n_in, group_size) * group_size

        def put(rows: slice, parts: Parts) -> None:
            codes = parts.codes.reshape(-1, padded)
            codes[:, n_in:] = self.padding(parts, padded // group_size)
            stored["codes"][rows] = self.packed(codes[:, : blocks_of(n_in) * GROUP])
            for name, bits in (("scales", parts.scale), ("minimums", parts.minimum)):
                if name in stored and bits is not None:
                    stored[name][rows] = bits.reshape(len(codes), -1)

        search = replace(self.search, size=group_size)
        core = search.core if self.streams[0] == NIBBLES else search.core._replace(codes=self.packed(EVERY_CODE)[0])
        quantize_rows(weight, stored, Rows(self.name, group_size, search, put, core), importance, threads)
        return PackedWeight(self.name, weight.shape, group_size=group_size, **stored)

    def padding(self, parts: Parts, groups: int) -> Any:
        """Return the code, or codes [rows, 1], that represents 0 in the last group of a row."""
        return np.uint8(self.zero if self.streams[0] == NIBBLES else 127)

    def packed(self, codes: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Convert codes [rows, blocks * 32] from the numbering of the search to that of the stream."""
        return pack_nibbles(codes) if self.streams[0] == NIBBLES else (codes - np.uint8(127)).view(np.int8)

    def dequantize(self, weight: PackedWeight) -> npt.NDArray[np.float32]:
        """Return ``scale * (code - zero) + minimum``, float32 [n_out, n_in], each operation rounded on its own."""
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
        """Return the whole numbers [rows, blocks * 32] that packed codes represent."""
        if self.streams[0] != NIBBLES:
            return codes
        unpacked: npt.NDArray[np.int8] = unpack_nibbles(codes).view(np.int8)
        return unpacked - np.int8(self.zero) if self.zero else unpacked

    def random(self, shape: tuple[int, int], group_size: int, rng: np.random.Generator) -> PackedWeight:
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
        return None if name == "codes" else first_bad_half(array, name.removesuffix("s"))


def first_bad_half(array: npt.NDArray[Any], what: str) -> BadScale | None:
    """Return the first NaN or infinity among binary16 bit patterns."""
    bad = (array & 0x7C00) == 0x7C00
    return BadScale(int(bad.argmax()), what) if bad.any() else None


@dataclass(frozen=True, slots=True)
class Rows:
    """How rows of a matrix are quantized.

    Attributes:
        name: name of the format.
        inputs: inputs per block.
        quantizer: finds the scales and codes of blocks.
        put: stores the result for a slice of rows; called from any thread with parts [rows * blocks per row, ...].
        core: the parameters of the quantizer for the native core, with the codes that the streams hold.
        largest: larger magnitudes are refused.
    """

    name: str
    inputs: int
    quantizer: Quantizer
    put: Callable[[slice, Parts], None]
    core: CoreSearch
    largest: float = MAX_MAGNITUDE


def quantize_rows(
    weight: PackedWeight, stored: dict[str, Any], how: Rows, importance: Floats | None, threads: int | None
) -> None:
    """Fill a format's streams by the native core or, where it is not built, by numpy.

    A ragged last block is padded with the row's last value, at importance 0.

    Args:
        weight: a float matrix [n_out, n_in].
        stored: the zero-initialized streams by name.
        how: see :class:`Rows`.
        importance: float32 [n_in], see ``LowBitFormat.quantize``.
        threads: see ``LowBitFormat.quantize``.

    Raises:
        LowBitFormatError: if a value is NaN or infinite, or a scale exceeds binary16; names the first such row.
    """
    n_out, n_in = weight.shape
    threads, core = check_threads(threads), native_core()
    of_inputs = np.zeros((-(-n_in // how.inputs), how.inputs), np.float32)
    of_inputs.reshape(-1)[:n_in] = 1 if importance is None else checked_importance(importance, n_in)
    if core is not None:
        refused = quantize_by_core(core, weight, stored, how, of_inputs, threads)
        if refused >= 0:
            _define(weight, slice(refused, refused + 1), how, of_inputs)
            raise AssertionError(f"{how.name}: the core refuses row {refused}, and the definition does not")
        return
    step = max(1, SEARCH_CHUNK // of_inputs.size)
    pieces = [slice(start, min(start + step, n_out)) for start in range(0, n_out, step)]
    with ThreadPoolExecutor(threads) as pool:  # numpy releases the GIL
        for _ in pool.map(lambda rows: _define(weight, rows, how, of_inputs), pieces):
            pass


def quantize_by_core(
    core: Any, weight: PackedWeight, stored: dict[str, Any], how: Rows, of_inputs: Floats, threads: int, lanes: int = 0
) -> int:
    """Quantize in the native core; return -1, or the first row that is refused. ``lanes`` 0 selects the fastest."""
    search = how.core
    refused: int = core.quantize(
        how.name,
        np.require(weight.codes, requirements=("C", "A")),
        weight.format,
        of_inputs.reshape(-1),
        search.kind,
        search.size,
        search.numbers,
        search.whole,
        np.array(search.tries, np.float32),
        search.step_limit,
        search.codes.view(np.uint8),
        how.largest,
        stored["codes"].view(np.uint8),
        stored.get("scales"),
        stored.get("minimums"),
        threads,
        lanes,
    )
    return refused


def _define(weight: PackedWeight, rows: slice, how: Rows, of_inputs: Floats) -> None:
    """Quantize some rows with numpy, the reference that the native core matches bit for bit."""
    blocks, inputs = of_inputs.shape
    n_in = weight.shape[1]
    values = widen(weight.codes[rows], weight.format)
    parts = None
    if np.abs(values).max() <= min(how.largest, np.finfo(np.float32).max):  # False for NaN as well
        padded = np.pad(values, ((0, 0), (0, blocks * inputs - n_in)), mode="edge")
        with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
            parts = how.quantizer(padded.reshape(-1, inputs), of_inputs)
        if all(bad is None for _, bad in _bad_scales(parts)):
            how.put(rows, parts)
            return
    if len(values) > 1:
        for row in range(rows.start, rows.stop):  # find the first bad row
            _define(weight, slice(row, row + 1), how, of_inputs)
    check_rows(weight, rows)
    if parts is None:
        column = int((np.abs(values[0]) > how.largest).argmax())
        raise _no_scale(how.name, rows.start, column // inputs, "scale", float(values[0, column]))
    what, bad = next((what, bad) for what, bad in _bad_scales(parts) if bad is not None)
    block = values[0, bad.index * inputs :][:inputs]
    raise _no_scale(how.name, rows.start, bad.index, what, float(block[np.abs(block).argmax()]))


def _bad_scales(parts: Parts) -> list[tuple[str, BadScale | None]]:
    of_parts = (("scale", parts.scale), ("minimum", parts.minimum))
    return [(w, first_bad_half(bits, w)) for w, bits in of_parts if bits is not None and bits.dtype == np.uint16]


def checked_importance(importance: Floats, n_in: int) -> Floats:
    """Return importance [n_in] relative to its maximum, at least ``MIN_IMPORTANCE``; all 1 if it is all 0.

    Raises:
        LowBitFormatError: if the shape is wrong or a value is negative, NaN or infinite.
    """
    if importance.shape != (n_in,):
        raise LowBitFormatError(f"importance has shape {list(importance.shape)}; expected [{n_in}]")
    if not (np.isfinite(importance).all() and (importance >= 0).all()):
        raise LowBitFormatError("importance must be finite and not negative")
    largest = importance.max()
    relative = importance.astype(np.float64) / largest if largest > 0 else np.ones(n_in)
    weights: Floats = np.maximum(relative.astype(np.float32), MIN_IMPORTANCE)
    return weights


def _no_scale(name: str, row: int, group: int, what: str, value: float) -> LowBitFormatError:
    return LowBitFormatError(
        f"row {row}, group {group}: the {what} would be too large with values up to {value:g}; {name} stores it in "
        "binary16, which ends at 65504",
        hint=f"keep this weight in bf16 or fp32 ({arg('modules_to_not_convert')})",
    )


def row_chunks(n_out: int, n_in: int) -> Iterator[slice]:
    """Yield slices of rows with about ``CHUNK`` values each."""
    step = max(1, CHUNK // n_in)
    return (slice(start, min(start + step, n_out)) for start in range(0, n_out, step))


def pack_nibbles(codes: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Pack codes 0..15 [rows, blocks * 32] into bytes [rows, blocks * 16], see ``base.NIBBLES``."""
    halves = codes.astype(np.uint8).reshape(codes.shape[0], -1, 2, GROUP // 2)
    packed: npt.NDArray[np.uint8] = halves[:, :, 0] | (halves[:, :, 1] << np.uint8(4))
    return packed.reshape(codes.shape[0], -1)


def unpack_nibbles(packed: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Invert ``pack_nibbles``."""
    blocks = packed.reshape(packed.shape[0], -1, 1, GROUP // 2)
    codes: npt.NDArray[np.uint8] = np.concatenate((blocks & 15, blocks >> 4), axis=2)
    return codes.reshape(packed.shape[0], -1)


def _spread(stored: npt.NDArray[np.uint16], weight: PackedWeight) -> Floats:
    """Expand one binary16 per group to one float32 per input."""
    return np.repeat(from_binary16(stored), weight.group_size, axis=1)[:, : weight.shape[1]]


def check_rows(weight: PackedWeight, rows: slice) -> None:
    """Raise LowBitFormatError for a NaN or infinite value in these rows."""
    bad = ~finite(weight.codes[rows], weight.format)
    if bad.any():
        row, column = divmod(int(bad.argmax()), weight.shape[1])
        index = (rows.start + row, column)
        raise not_finite(index, value_at(weight, index))


def native_core() -> Any | None:
    """Return the native core, or None if it is not built."""
    try:
        from ipex_lookahead import _native
    except ImportError:
        return None
    return _native


def _usable_cpus() -> int:
    """Return the CPUs in this process's affinity mask, limited by its cgroup quota; all CPUs where unknown."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return cpus if quota is None else max(1, min(cpus, int(quota)))
