"""Buffers of a step: values that pass between kernels, and the tables of ropes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipex_lookahead.architectures.spec import ModelSpec, Rope
from ipex_lookahead.engines.native.decoder import rope_tables
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.linear import Rows
from ipex_lookahead.engines.opencl.operations import operation_of
from ipex_lookahead.engines.opencl.operations.base import Needs
from ipex_lookahead.engines.opencl.operations.per_layer import PerLayerInputs

i32, f32 = np.int32, np.float32

PIECE = 4096
"""Logits that one work-group looks through for the largest."""


def ropes_of(spec: ModelSpec) -> list[Rope]:
    """Return the ropes of a model's mixers, each once."""
    found = (getattr(block.mixer, "rope", None) for block in spec.layers)
    return list({id(rope): rope for rope in found if rope is not None}.values())


class RopeTable:
    """Cosines and sines of one rope, [positions][half], and the factors of queries. Tables grow with the positions.

    Args:
        device: where they are.
        rope: the description.
        first: the position of the tables' first entry.
    """

    def __init__(self, device: Device, rope: Rope, first: int = 0) -> None:
        self._device, self._rope, self._first = device, rope, first
        self.positions = 0
        self.buffers: tuple[Any, Any, Any] = (None, None, None)

    def reserve(self, positions: int, most: int) -> bool:
        """Make the tables hold at least ``positions``, at most ``most``. Return True if the buffers have changed."""
        if positions <= self.positions:
            return False
        self.positions = min(max(positions, 2 * self.positions, 1024), most)
        tables = rope_tables(self._rope, self._first + self.positions)
        cos, sin, query = (self._device.upload(table[self._first :]) for table in tables)
        self.buffers = (cos, sin, query if self._rope.query_beta else None)
        return True


class Scratch:
    """The buffers of a step. Each is as large as the layer that needs most; operations ask for it by name.

    Args:
        device: where they are allocated.
        spec: the model.
        rows: most rows of a step.
        wanted: most rows with outputs.
        partials: most partial results of attention for a head.
        top: number of largest logits that are returned for a row.
        cpu_moe: number of first layers with their routed experts on the CPU.

    Attributes:
        hidden, branch: float32 [rows][hidden]: the rows, and what is to be added to them.
        x: the rows that an operation's first product reads.
        partials, arrivals: see ``Needs``; arrivals are 0 between steps.
        experts: int32 [layers][pairs]: the experts of each row.
        head_x, logits, tops: of the wanted rows.
    """

    def __init__(
        self, device: Device, spec: ModelSpec, rows: int, wanted: int, partials: int, top: int, cpu_moe: int = 0
    ) -> None:
        needs = [
            operation_of(part, number < cpu_moe).needs(part, spec)
            for number, block in enumerate(spec.layers)
            for part in (block.mixer, block.feed_forward, block.per_layer)
            if part is not None
        ]
        needs += [] if spec.per_layer is None else [PerLayerInputs.needs(spec.per_layer)]
        self.sizes, self.top = (rows, wanted, partials, top), top
        self.hidden, self.branch = (device.empty(4 * rows * spec.hidden) for _ in range(2))
        self.x = Rows.empty(device, rows, spec.hidden)

        def count(name: str, each: int) -> int:
            """Return the number of values, or of rows, for ``each`` per row of the step."""
            spare = [one.spare[name] for one in needs if name in one.spare]
            if all(rows < least for _, least in spare) and spare:
                return 0
            return rows * each + max((more for more, _ in spare), default=0)

        self._floats = {name: device.empty(4 * count(name, most)) for name, most in _most_floats(needs).items()}
        self._rows = {
            name: Rows.empty(device, count(name, each), n).buffers
            for name, (n, each) in _widest_rows(needs, rows).items()
        }
        self.partials = device.empty(4 * partials * max((one.partials for one in needs), default=0))
        counters = rows * max(1, *(one.arrivals for one in needs))
        self.arrivals = device.upload(np.zeros(counters, i32))  # as every step leaves them
        self.pairs = rows * max((mixture.used for mixture in spec.mixtures), default=0)  # of a layer
        self.experts = device.empty(4 * len(spec.layers) * self.pairs)
        self.head_x = Rows.empty(device, wanted, spec.hidden)
        self.logits = device.empty(4 * wanted * spec.vocab)
        self.pieces = -(-spec.vocab // PIECE)
        self.tops = [(device.empty(4 * n), device.empty(4 * n)) for n in (wanted * self.pieces * top, wanted * top)]

    def floats(self, name: str) -> Any:
        """Return a buffer of float32 values."""
        return self._floats[name]

    def rows(self, name: str, n: int) -> Rows:
        """Return buffers for rows of ``n`` values that linear layers read."""
        return Rows(n, self._rows[name])

    def holds(self, sizes: tuple[int, int, int, int]) -> bool:
        """Return True if a step of these sizes fits. ``top`` must be equal: the layout of the ids depends on it."""
        return (
            all(have >= need for have, need in zip(self.sizes[:3], sizes[:3], strict=True))
            and self.sizes[3] == sizes[3]
        )


def _most_floats(needs: list[Needs]) -> dict[str, int]:
    most: dict[str, int] = {}
    for name, count in (item for one in needs for item in one.floats.items()):
        most[name] = max(count, most.get(name, 0))
    return most


def _widest_rows(needs: list[Needs], rows: int) -> dict[str, tuple[int, int]]:
    """Return width and number of rows of the largest buffers of each name."""
    widest: dict[str, tuple[int, int]] = {}
    for name, of in (item for one in needs for item in one.rows.items()):
        widest[name] = max(of, widest.get(name, (0, 0)), key=lambda one: Rows.blocks_for(rows * one[1], one[0]))
    return widest
