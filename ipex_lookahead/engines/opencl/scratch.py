"""Buffers of a step: values that pass between kernels, and the tables of ropes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipex_lookahead.architectures.spec import ModelSpec, Rope
from ipex_lookahead.engines.native.decoder import rope_tables
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.linear import Rows
from ipex_lookahead.engines.opencl.supported import attention_of, mlps_of

i32, f32 = np.int32, np.float32

PIECE = 4096
"""Logits that one work-group looks through for the largest."""


class RopeTable:
    """Cosines and sines of one rope, [positions][half], and the factors of queries. Tables grow with the positions."""

    def __init__(self, device: Device, rope: Rope) -> None:
        self._device, self._rope = device, rope
        self.positions = 0
        self.buffers: tuple[Any, Any, Any] = (None, None, None)

    def reserve(self, positions: int, most: int) -> bool:
        """Make the tables hold at least ``positions``, at most ``most``. Return True if the buffers have changed."""
        if positions <= self.positions:
            return False
        self.positions = min(max(positions, 2 * self.positions, 1024), most)
        cos, sin, query = map(self._device.upload, rope_tables(self._rope, self.positions))
        self.buffers = (cos, sin, query if self._rope.query_beta else None)
        return True


class Scratch:
    """The buffers of a step.

    Args:
        device: where they are allocated.
        spec: the model.
        rows: most rows of a step.
        wanted: most rows with outputs.
        partials: most partial results of attention for a head.
        top: number of largest logits that are returned for a row.
        reorders: whether some down projection has an order of inputs.
    """

    def __init__(
        self, device: Device, spec: ModelSpec, rows: int, wanted: int, partials: int, top: int, reorders: bool
    ) -> None:
        attention = attention_of(spec.layers[0])
        used = max((mixture.used for mixture in spec.mixtures), default=0)
        of = max((len(mixture.experts) for mixture in spec.mixtures), default=0)
        inner = max(mlp.up.weight.shape[0] for block in spec.layers for mlp in mlps_of(block))
        q, kv = (-(-n * attention.head_dim // 16) * 16 for n in (attention.heads, attention.kv_heads))
        self.sizes = (rows, wanted, partials, top)
        self.qkv_stride, self.k_column, self.v_column = q + 2 * kv, q, q + kv
        self.hidden, self.branch = (device.empty(4 * rows * spec.hidden) for _ in range(2))
        self.qkv = device.empty(4 * rows * self.qkv_stride)
        self.partials = device.empty(4 * partials * attention.heads * (2 + attention.head_dim))
        self.x, self.gated = Rows.empty(device, rows, spec.hidden), Rows.empty(device, rows * max(used, 1), inner)
        self.router, self.made = device.empty(4 * rows * of), device.empty(4 * rows * used * spec.hidden)
        self.pairs = rows * used  # of a layer
        self.experts = device.empty(4 * len(spec.layers) * self.pairs)
        self.weights = device.empty(4 * rows * used)
        self.attended = Rows.empty(device, rows, attention.heads * attention.head_dim)
        every = attention.heads + 2 * attention.kv_heads
        self.arrivals = device.upload(np.zeros(rows * every, i32))  # as every step leaves them
        self.gate, self.up = (device.empty(4 * rows * max(used, 1) * inner) for _ in range(2))
        self.ordered = Rows.empty(device, rows if reorders else 0, inner)
        self.head_x = Rows.empty(device, wanted, spec.hidden)
        self.logits = device.empty(4 * wanted * spec.vocab)
        self.pieces = -(-spec.vocab // PIECE)
        self.tops = [(device.empty(4 * n), device.empty(4 * n)) for n in (wanted * self.pieces * top, wanted * top)]

    def holds(self, sizes: tuple[int, int, int, int]) -> bool:
        """Return True if a step of these sizes fits. ``top`` must be equal: the layout of the ids depends on it."""
        return (
            all(have >= need for have, need in zip(self.sizes[:3], sizes[:3], strict=True))
            and self.sizes[3] == sizes[3]
        )
