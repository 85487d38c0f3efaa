"""Grouped-query attention on a device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipex_lookahead.architectures.spec import Attention, ModelSpec
from ipex_lookahead.engines.opencl.cache import Layout
from ipex_lookahead.engines.opencl.linear import LANES, Matrix, Rows
from ipex_lookahead.engines.opencl.operations.base import Binder, Branch, Launch, Needs, NormBefore, Operation
from ipex_lookahead.engines.opencl.operations.cached_attention import CachedAttention
from ipex_lookahead.engines.opencl.uploads import Uploads

i32, f32 = np.int32, np.float32

SOFTPLUS, GATES_OF_HEADS = 1, 2
"""Kinds of gates (``kernels/attention.cl``)."""
CENTERED, NORMED_AFTER_ROPE, INTERLEAVED, VALUES_OF_KEYS = 1, 2, 4, 8
"""Variants of finishing heads (``kernels/heads.cl``)."""


class AttentionOperation(Operation):
    """Attention over pages of keys and values.

    Attributes:
        attention: the description.
        qkv: q, k, v and gate, those that the layer has: one matrix if their formats are equal, else one each.
        o: the output projection.
        cached: the attention over the layer's pages.
    """

    reads = "q"

    def __init__(self, attention: Attention, uploads: Uploads) -> None:
        self.attention = attention
        heads = [one for one in (attention.q, attention.k, attention.v, attention.gate) if one is not None]
        groups = [heads] if uploads.alike(heads) else [(one,) for one in heads]
        self.qkv, self.o = [uploads.matrix(group) for group in groups], uploads.matrix([attention.o])
        self._columns = Columns.of(attention)
        self._q_norm, self._k_norm = (
            NormBefore(uploads.norm(norm), norm, bias=uploads.bias(norm))
            for norm in (attention.q_norm, attention.k_norm)
        )
        layout, sinks = _layout(attention), uploads.vector(attention.sinks)
        pages = uploads.pages(layout) if attention.shared is None else uploads.pages_of(attention.shared)
        sizes = (attention.heads, layout, pages, attention.head_dim)
        of = (attention.window, attention.softcap, sinks, uploads.order("o"), self._columns.gate, _gating(attention))
        self.cached = CachedAttention(*sizes, *of)

    @staticmethod
    def layout(attention: Attention) -> Layout | None:
        """See ``Operation``."""
        return _layout(attention) if attention.shared is None else None

    @staticmethod
    def needs(part: Attention, spec: ModelSpec) -> Needs:
        """See ``Operation``."""
        return Needs(
            floats={"qkv": Columns.of(part).stride},
            rows={
                "attended": (part.heads * part.head_dim, 1),
                **({"with_embedding": (2 * spec.hidden, 1)} if part.with_embedding else {}),
            },
            partials=part.heads * (2 + part.head_dim),
            arrivals=2 * (part.heads + part.kv_heads),
        )

    def launches(self, binder: Binder, branch: Branch, following: NormBefore | None) -> Iterator[Launch]:
        """See ``Operation``."""
        s, stride = binder.scratch, self._columns.stride
        attended = s.rows("attended", self.cached.made)
        yield from self._heads(binder)
        yield from self.cached.launches(binder, s.floats("qkv"), stride, attended)
        yield from binder.end_branch(self.o, attended, branch, following)

    def _input(self, b: Binder) -> Rows:
        """Return the rows that q, k and v read."""
        s = b.scratch
        x: Rows = s.rows("with_embedding", 2 * b.spec.hidden) if self.attention.with_embedding else s.x
        return x

    def _heads(self, b: Binder) -> Iterator[Launch]:
        """Yield q, k and v with rope and storing: in one kernel where a head fills whole tiles and is normed alone."""
        s, attention, at = b.scratch, self.attention, self._columns
        heads, d = attention.heads, attention.head_dim
        kv_heads = 0 if attention.k is None else attention.kv_heads  # that this layer computes
        qkv = s.floats("qkv")
        norms: list[Any] = []
        over_all = []
        for norm, column, count in ((self._q_norm, at.q, heads), (self._k_norm, at.k, kv_heads)):
            whole = norm.norm is not None and norm.norm.weight.shape != (d,)
            if whole:
                of = (i32(at.stride), i32(column), i32(count * d), norm.weight, norm.bias, norm.epsilon)
                over_all.append(b.blocks(b.kernel("norm_whole", qkv, *of, i32(norm.centered), b.step), 1))
            norms += (None, None, f32(0)) if whole else (norm.weight, norm.bias, norm.epsilon)
        rope = None if attention.rope is None else b.ropes[id(attention.rope)]
        half = 0 if attention.rope is None else len(attention.rope.frequencies)
        sizes = map(i32, (at.stride, at.q, at.k, at.v, heads, kv_heads, d, half))
        turns = (None, None, None) if rope is None else rope.buffers
        style = i32(_style(attention))
        values = f32(attention.value_norm or 0)
        pages = b.pages.buffers[self.cached.pages]
        finish = (qkv, *sizes, *turns, f32(attention.scale), *norms, values, style, pages)
        fused = b.fused and d % LANES == 0 and not over_all
        parts = ((attention.q, at.q), (attention.k, at.k), (attention.v, at.v), (attention.gate, at.gate))
        for w, column in zip(self.qkv, (column for one, column in parts if one is not None), strict=False):
            if fused:
                yield self._linear_heads(b, w, column, finish)
            else:
                yield b.linear(w, self._input(b), qkv, at.stride, column)
        if not fused:
            yield from over_all
            yield b.lanes(
                b.kernel("finish_heads", *finish, b.step), heads + (1 if attention.v is None else 2) * kv_heads
            )

    def _linear_heads(self, b: Binder, w: Matrix, column: int, finish: tuple[Any, ...]) -> Launch:
        head_dim = self.attention.head_dim
        width = LANES if w.split("linear_heads", b.rows, w.tiles) > 1 else b.device.width
        unit = i32(math.lcm(head_dim, width) // width)  # work-groups that make whole heads
        first = (i32(column), i32((column - self._columns.q) // head_dim))
        of_all = (*self._input(b).arguments(), b.step, *first, unit)
        arguments = (*of_all, *finish, b.scratch.arrivals)
        return b.product("linear_heads", w, *arguments, options=b.pages.options)


@dataclass(frozen=True, slots=True)
class Columns:
    """Where q, k, v and the gate start in a row of scratch, each at a multiple of 16.

    Queries are left from column 0. If rope is interleaved, q and k are computed elsewhere and moved.

    Attributes:
        q, k, v, gate: first columns of the products. A layer without ``v`` copies k there. 0: there is no gate.
        stride: length of a row.
    """

    q: int
    k: int
    v: int
    gate: int
    stride: int

    @classmethod
    def of(cls, attention: Attention) -> Columns:
        """Return the columns of a layer."""
        q = -(-attention.heads * attention.head_dim // LANES) * LANES
        kv = 0 if attention.k is None else -(-attention.kv_heads * attention.head_dim // LANES) * LANES
        first = q + kv if attention.rope is not None and attention.rope.interleaved else 0
        gate = first + q + (1 if attention.v is None else 2) * kv  # after the products that the layer has
        gates = 0 if attention.gate is None else attention.gate.weight.shape[0]
        end = gate + -(-gates // LANES) * LANES
        v = end if attention.v is None else first + q + kv
        return cls(first, first + q, v, 0 if attention.gate is None else gate, end + (kv if attention.v is None else 0))


def _layout(attention: Attention) -> Layout:
    """Return the layout of the pages that a layer reads."""
    return Layout(attention.kv_heads, attention.head_dim, attention.head_dim)


def _gating(attention: Attention) -> int:
    """Return the kind of gates as ``kernels/attention.cl`` numbers them."""
    by_head = attention.gate is not None and attention.gate.weight.shape[0] == attention.heads
    return SOFTPLUS * (attention.gate_kind == "softplus") + GATES_OF_HEADS * by_head


def _style(attention: Attention) -> int:
    """Return the variants of finishing heads as ``kernels/heads.cl`` numbers them."""
    norms = [norm for norm in (attention.q_norm, attention.k_norm) if norm is not None]
    rope = attention.rope
    return (
        CENTERED * any(norm.centered for norm in norms)
        + NORMED_AFTER_ROPE * attention.norm_after_rope
        + INTERLEAVED * (rope is not None and rope.interleaved)
        + VALUES_OF_KEYS * (attention.v is None and attention.k is not None)
    )
