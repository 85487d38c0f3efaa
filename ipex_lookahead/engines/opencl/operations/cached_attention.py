"""Softmax attention over pages of keys and values, for the mixers that compute queries, keys and values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipex_lookahead.engines.opencl.cache import Layout
from ipex_lookahead.engines.opencl.linear import GROUP, Rows
from ipex_lookahead.engines.opencl.operations.base import Binder, Launch
from ipex_lookahead.engines.opencl.programs import ARRIVALS

i32, f32 = np.int32, np.float32

ATTENDERS = 256
"""Work-items of a work-group of ``attend``."""
PAIRS = 8
"""Most (row, head) pairs of a work-group of ``attend``."""


@dataclass(frozen=True, slots=True)
class CachedAttention:
    """Attention of ``heads`` query heads over a layer's pages.

    Attributes:
        heads: number of query heads.
        layout: of the pages.
        pages: index of the layer's pages.
        width: inputs of a head in the rows that are made: its values, and zeros.
        window: number of positions that a row sees; None: all.
        softcap: cap on scores; None: no cap.
        sinks: buffer, float32 [heads]: one more logit of each head; None: no such logits.
        order: buffer, int32: the order of the made rows' inputs; None: the model's.
        gate_column: column of the queries' rows from which they hold the gates; 0: there is no gate.
        gating: kind of the gates (``kernels/attention.cl``).
    """

    heads: int
    layout: Layout
    pages: int
    width: int
    window: int | None = None
    softcap: float | None = None
    sinks: Any = None
    order: Any = None
    gate_column: int = 0
    gating: int = 0

    @property
    def joint_heads(self) -> int:
        """Number of heads that a work-group computes together."""
        return min(PAIRS, self.layout.queries // self.layout.head_dim, self.heads // self.layout.kv_heads)

    @property
    def joint_rows(self) -> int:
        """Most rows that a work-group computes together."""
        return min(PAIRS, self.layout.queries // self.layout.head_dim) // self.joint_heads

    @property
    def made(self) -> int:
        """The width of the rows that are made."""
        return self.heads * self.width

    def launches(self, b: Binder, queries: Any, stride: int, out: Rows) -> Iterator[Launch]:
        """Yield the launches that write ``out``, the outputs of all heads as linear layers read them.

        ``queries``: float32 [rows][stride], in which the heads of a row are consecutive.
        """
        s, layout, heads = b.scratch, self.layout, i32(self.heads)
        window, value_dim, width = i32(self.window or 0), i32(layout.value_dim), i32(self.width)
        sizes = (i32(stride), heads, i32(layout.kv_heads), i32(layout.head_dim), value_dim, i32(self.joint_heads))
        of_pages = (b.pages.buffers[self.pages], window, f32(self.softcap or 0))
        arguments = (queries, *sizes, *of_pages, s.partials, b.step)
        merges = ARRIVALS in b.device.spelling and self.order is None  # an order is of a whole row
        gating = i32(self.gate_column), i32(self.gating)
        if ARRIVALS in b.device.spelling:
            merged = i32(GROUP // math.gcd(self.width, GROUP) if merges else 0)
            arguments += (merged, width, *gating, self.sinks, *out.arguments(), s.arrivals)
        groups = layout.kv_heads * -(-(self.heads // layout.kv_heads) // self.joint_heads)
        yield Launch(b.kernel("attend", *arguments), groups * ATTENDERS, ATTENDERS, attends=True)
        if not merges:
            gates = (queries, i32(stride), *gating)
            of_merge = (s.partials, heads, value_dim, width, window, *gates, self.sinks, self.order)
            merging = (*of_merge, *out.arguments(), b.step)
            yield b.lanes(b.kernel("merge_heads", *merging), out.blocks)
