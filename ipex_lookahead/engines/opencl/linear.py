"""Weights and rows on a device, and the kernels that multiply them: those over ``kernels/tiles.cl``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.engines.native.linear import prepacked, unpacked
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.programs import (
    JOBS,
    ROWS,
    files_of,
    over_weights,
    rows_of,
    split_for,
    units_for,
)
from ipex_lookahead.engines.weights import random_matrix
from ipex_lookahead.formats import FORMATS
from ipex_lookahead.formats.base import PackedWeight

GROUP, LANES, EIGHT = 32, 16, 8
STEP_ROWS, STEP_WANTED = 0, 1
"""Indices of a step's number of rows and of wanted rows in its buffer (``kernels/device.cl``)."""

STEPS = (*ROWS, 128)
"""Numbers of rows of a step for which kernels are chosen; the last one includes all larger numbers."""
NORMERS = 16
"""Lane groups of a work-group that norms a row (``kernels/rows.cl``); each writes one block."""

i32 = np.int32
Floats = npt.NDArray[np.float32]


def rows_at_once(rows: int, counts: Sequence[int] = ROWS) -> int:
    """Return the smallest of ``counts`` that is at least ``rows``, or the largest."""
    return next((most for most in counts if most >= rows), counts[-1])


def blocks_of(n: int) -> int:
    """Return the number of blocks of 32 values in ``n`` values."""
    return -(-n // GROUP)


@cache
def _tile_bytes(low_bit: str, n_in: int, group_size: int) -> tuple[int, ...]:
    """Return the packed bytes of each stream of 16 outputs."""
    weight = random_matrix((LANES, n_in), low_bit, group_size, np.random.default_rng(0))
    return tuple(0 if stream is None else stream.nbytes for stream in prepacked(weight, 1))


def stream_bytes(low_bit: str, shape: tuple[int, ...], group_size: int) -> list[int]:
    """Return the bytes of each stream of a matrix [n_out, n_in] on a device; 0 for a stream the format lacks."""
    return [-(-shape[0] // LANES) * size for size in _tile_bytes(low_bit, shape[1], group_size)]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weight matrices [n_out, n_in] of one format in tiles on a device, concatenated along their outputs.

    Attributes:
        device: the device.
        format: a key of ``FORMATS``.
        n_out, n_in: sizes of the concatenation. All parts but the last are padded to a multiple of 16 outputs.
        parts: number of outputs of each matrix.
        group_size: as in ``PackedWeight``.
        buffers: codes, scales, minimums, steps and bias; None for a stream that the format lacks.
        nbytes: bytes of all buffers.
    """

    device: Device
    format: str
    n_out: int
    n_in: int
    parts: tuple[int, ...]
    group_size: int
    buffers: tuple[Any, ...]
    nbytes: int

    @classmethod
    def upload(
        cls,
        device: Device,
        weights: Sequence[PackedWeight],
        biases: Sequence[npt.NDArray[np.float32] | None],
        threads: int | None = None,
    ) -> Matrix:
        """Prepack matrices of one format and width, and copy them to the device."""
        packed = [prepacked(weight, threads) for weight in weights]
        streams = [None if parts[0] is None else np.concatenate(parts) for parts in zip(*packed, strict=True)]
        parts = [weight.shape[0] for weight in weights]
        padded = [*(-(-n // LANES) * LANES for n in parts[:-1]), parts[-1]]
        if any(bias is not None for bias in biases):
            bias = np.zeros(sum(-(-n // LANES) * LANES for n in parts), np.float32)
            for first, n, values in zip(np.cumsum([0, *padded]), parts, biases, strict=False):
                bias[first : first + n] = 0 if values is None else values
            streams.append(bias)
        else:
            streams.append(None)
        return cls(
            device, weights[0].format, sum(padded), weights[0].shape[1], tuple(parts), weights[0].group_size,
            tuple(map(device.upload, streams)), sum(0 if s is None else s.nbytes for s in streams),
        )  # fmt: skip

    @property
    def tiles(self) -> int:
        """The number of tiles of 16 outputs."""
        return -(-self.n_out // LANES)

    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments that kernels take for a matrix."""
        inputs = FORMATS[self.format].streams[0].inputs
        share = self.group_size if self.group_size else max(inputs, GROUP)
        shift = (share // GROUP).bit_length() - 1
        return (*self.buffers, i32(self.n_out), i32(self.n_in), i32(blocks_of(self.n_in)), i32(shift))

    def at_once(self, rows: int) -> int:
        """Return the number of rows that kernels read a weight for once, in a step of ``rows`` rows."""
        return rows_at_once(rows, rows_of(self.format, self.device.units))

    def split(self, name: str, rows: int, tiles: int) -> int:
        """Return the number of lane groups that share a tile in the kernel of a name, so that the device is busy.

        ``rows``: of the step, one of ``STEPS``; ``tiles``: as in ``items``, times the experts of a row.
        """
        groups = tiles * -(-rows // self.at_once(rows)) * (2 if name == "gate_up" else 1)
        return split_for(name, self.format, groups, self.device.concurrency)

    def items(self, name: str, rows: int, tiles: int, split: int) -> tuple[int, tuple[int, int]]:
        """Return the number of work-items for ``tiles`` tiles, and the work-items of a work-group in two dimensions.

        The second dimension, lane groups that work together, is the same for all work-items. ``gate_up`` computes
        ``tiles`` tiles of gate and ``tiles`` of up.
        """
        if name == "gate_up":
            return -(-tiles // 2) * LANES, (LANES, JOBS * split)
        if split > 1:
            return tiles * LANES, (LANES, split)
        width = self.width(rows)
        return -(-tiles * LANES // width) * width, (width, 1)

    def kernel(self, name: str, rows: int, *arguments: Any, options: Sequence[str] = (), split: int = 1) -> Any:
        """Make the kernel of a name for this format and ``rows`` rows at once, with its arguments.

        ``options``: more options of the compiler; ``split``: see the method.
        """
        own, spelling = over_weights(self.format, rows, self.device.units, self.device.spelling, split)
        program = self.device.program(*files_of(name), options=[*own, *options], spelling=spelling)
        return self.device.kernel(program, name, *arguments)

    def width(self, rows: int) -> int:
        """Return the number of work-items of a work-group of independent tiles, for ``rows`` rows at once."""
        return LANES if units_for(self.format, rows, self.device.units).width == 8 else self.device.width

    def weights(self) -> list[PackedWeight]:
        """Return the matrices in plain layout, bit for bit as uploaded."""
        kinds = (np.uint8, np.uint16, np.uint16, np.uint8)
        streams = [
            None if buffer is None else self.device.read(buffer, (buffer.size // np.dtype(kind).itemsize,), kind)
            for buffer, kind in zip(self.buffers, kinds, strict=False)
        ]
        tiles, first, found = [-(-n // LANES) for n in self.parts], 0, []
        for n, count in zip(self.parts, tiles, strict=True):
            codes, *others = (
                None if s is None else s[len(s) // sum(tiles) * first : len(s) // sum(tiles) * (first + count)]
                for s in streams
            )
            scales, minimums, steps = others
            found.append(unpacked(self.format, (n, self.n_in), self.group_size, (codes, scales, minimums, steps)))
            first += count
        return found


@dataclass(frozen=True, slots=True)
class Rows:
    """Buffers on a device for rows of activations that linear layers read (``Rows`` of ``kernels/device.cl``)."""

    n: int
    buffers: tuple[Any, ...]

    @classmethod
    def empty(cls, device: Device, rows: int, n: int) -> Rows:
        """Allocate buffers for ``rows`` rows of ``n`` values."""
        filled = cls.blocks_for(rows, n)
        sizes = (4 * GROUP * filled, *(filled * size for size in (GROUP, 4, 8)))
        return cls(n, tuple(map(device.empty, sizes)))

    @staticmethod
    def blocks_for(rows: int, n: int) -> int:
        """Return the number of blocks that ``rows`` rows of ``n`` values need."""
        return -(-rows // EIGHT) * EIGHT * blocks_of(n) + ROWS[-1]  # with what kernels read beyond the last row

    @property
    def blocks(self) -> int:
        """The number of blocks of a row."""
        return blocks_of(self.n)

    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments that kernels take for rows."""
        return (*self.buffers, i32(self.blocks))


class Product:
    """x W^T + bias as a single operation, with a step's kernels: for tests, self-tests and timings.

    Args:
        matrix: W.
        x: float32 [rows, n_in].
        start: float32 [rows, n_out], which the product is added to; None: zeros.
        at_once: one of ``rows_of``; None: a step's choice.
        split: one of ``splits_of``; None: a step's choice.
    """

    def __init__(
        self,
        matrix: Matrix,
        x: Floats,
        start: Floats | None = None,
        at_once: int | None = None,
        split: int | None = None,
    ) -> None:
        device, rows, n = matrix.device, len(x), i32(matrix.n_in)
        self._device, self._shape = device, (rows, matrix.n_out)
        values, step = device.upload(x), device.upload(np.array([rows, rows, 0, 1], i32))
        made = Rows.empty(device, rows, matrix.n_in)
        arguments = (values, n, n, None, np.float32(0), None, *made.arguments(), step, i32(STEP_ROWS))
        size = (-(-made.blocks // NORMERS) * LANES, rows * NORMERS)
        device.enqueue_plain(device.kernel(device.program("rows"), "norm", *arguments), size, (LANES, NORMERS))
        self._out = device.upload(np.full(self._shape, np.nan, np.float32) if start is None else start)
        at_once = at_once or matrix.at_once(rows)
        split = split or matrix.split("linear", rows_at_once(rows, STEPS), matrix.tiles)
        arguments = (*matrix.arguments(), *made.arguments(), step, i32(STEP_ROWS), self._out, i32(matrix.n_out), i32(0))
        self._held = (matrix, values, made, step)  # a kernel does not hold its buffers
        self._kernel = matrix.kernel("linear", at_once, *arguments, i32(start is not None), split=split)
        items, self._local = matrix.items("linear", at_once, matrix.tiles, split)
        self._size = (items, -(-rows // at_once) * self._local[1])

    def enqueue(self) -> None:
        """Enqueue the product once; with ``start``, every call adds again."""
        self._device.enqueue_plain(self._kernel, self._size, self._local)

    def result(self) -> Floats:
        """Enqueue the product and return it, float32 [rows, n_out]."""
        self.enqueue()
        return self._device.read(self._out, self._shape, np.float32)
