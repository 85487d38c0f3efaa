"""Latent attention on a device, in its absorbed form: heads attend to latents as if they shared a key head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ipex_lookahead.architectures.spec import LatentAttention, ModelSpec
from ipex_lookahead.engines.opencl.cache import Layout
from ipex_lookahead.engines.opencl.linear import GROUP, LANES, Rows
from ipex_lookahead.engines.opencl.operations.base import Binder, Branch, Launch, Needs, NormBefore, Operation
from ipex_lookahead.engines.opencl.operations.cached_attention import CachedAttention
from ipex_lookahead.engines.opencl.uploads import Stack, Uploads

i32, f32 = np.int32, np.float32


class LatentAttentionOperation(Operation):
    """Latent attention over pages of latents and of keys that are the rotated values and the latent.

    Attributes:
        latents: the description.
        inputs: q_a, or q without it, and kv_a: one matrix if their formats are equal, else two.
        q: the queries' matrix if they are of low rank; else None.
        k_b, v_b: stacks of the heads' matrices.
        o: the output projection.
    """

    reads = "kv_a"

    def __init__(self, part: LatentAttention, uploads: Uploads) -> None:
        self.latents = part
        first = (part.q if part.q_a is None else part.q_a, part.kv_a)
        groups = [first] if uploads.alike(first) else [(one,) for one in first]
        self.inputs = [uploads.matrix(group) for group in groups]
        self.q = None if part.q_a is None else uploads.matrix([part.q])
        self._q_norm = NormBefore(uploads.norm(part.q_norm), part.q_norm, uploads.order("q"))
        self._kv_norm = uploads.norm(part.kv_norm)
        self.k_b, self.v_b = uploads.stacks(part.k_b), uploads.stacks(part.v_b)
        self.o, self._o_order = uploads.matrix([part.o]), uploads.order("o")
        layout = self.layout(part)
        self.cached = CachedAttention(part.heads, layout, uploads.pages(layout), _padded(part.latent, GROUP))

    @staticmethod
    def layout(part: LatentAttention) -> Layout:
        """Return the layout of a page."""
        return Layout(1, part.rotated + part.latent, part.latent)

    @staticmethod
    def needs(part: LatentAttention, spec: ModelSpec) -> Needs:
        """See ``Operation``."""
        stride, _ = _columns(part)
        floats = {
            "projected": stride,
            "absorbed": part.heads * (part.rotated + part.latent),
            "values": part.heads * part.value_dim,
        }
        rows = {
            "passed": (part.heads * _padded(part.passed, GROUP), 1),
            "attended": (part.heads * _padded(part.latent, GROUP), 1),
            "values": (part.heads * part.value_dim, 1),
        }
        if part.q_a is not None:
            floats["queries"] = part.q.weight.shape[0]
            rows["low_rank"] = (part.q.weight.shape[1], 1)
        return Needs(floats, rows, part.heads * (2 + part.latent), part.heads)

    def launches(self, binder: Binder, branch: Branch, following: NormBefore | None) -> Iterator[Launch]:
        """See ``Operation``."""
        b, s, part = binder, binder.scratch, self.latents
        key_dim, heads = part.rotated + part.latent, part.heads
        absorbed, attended = s.floats("absorbed"), s.rows("attended", self.cached.made)
        yield from self._queries(b)
        passed = s.rows("passed", heads * _padded(part.passed, GROUP))
        queries, stride = self._queries_in(b)
        arguments = (queries, i32(stride), i32(part.passed + part.rotated), i32(part.passed))
        yield b.lanes(b.kernel("passed_parts", *arguments, *passed.arguments(), b.step), passed.blocks)
        yield from _of_heads(b, self.k_b, passed, absorbed, (heads * key_dim, key_dim, part.rotated))
        yield self._finish(b)
        yield from self.cached.launches(b, absorbed, heads * key_dim, attended)
        values, rows = s.floats("values"), s.rows("values", heads * part.value_dim)
        yield from _of_heads(b, self.v_b, attended, values, (rows.n, part.value_dim, 0))
        yield b.norm(NormBefore(None, None, self._o_order), rows, values=(values, rows.n))
        yield from b.end_branch(self.o, rows, branch, following)

    def _queries(self, b: Binder) -> Iterator[Launch]:
        """Yield the products with the row: queries, directly or over a low rank, and what all heads share."""
        s, (stride, column) = b.scratch, _columns(self.latents)
        projected = s.floats("projected")
        for w, first in zip(self.inputs, (0, column), strict=False):
            yield b.linear(w, s.x, projected, stride, first)
        if self.q is not None:
            normed = s.rows("low_rank", self.q.n_in)
            yield b.norm(self._q_norm, normed, values=(projected, stride))
            yield b.linear(self.q, normed, s.floats("queries"), self.q.n_out)

    def _queries_in(self, b: Binder) -> tuple[Any, int]:
        """Return the buffer of the queries and the values of a row in it."""
        if self.q is None:
            return b.scratch.floats("projected"), _columns(self.latents)[0]
        return b.scratch.floats("queries"), self.q.n_out

    def _finish(self, b: Binder) -> Launch:
        """Return the launch that rotates and scales the queries, and stores the latent and the key."""
        s, part, rope = b.scratch, self.latents, self.latents.rope
        queries, query_stride = self._queries_in(b)
        stride, column = _columns(part)
        arguments = (
            *(queries, i32(query_stride), i32(part.passed), s.floats("absorbed"), i32(part.heads)),
            *(s.floats("projected"), i32(stride), i32(column), i32(part.latent)),
            *(i32(part.rotated // 2), i32(rope.interleaved), *b.ropes[id(rope)].buffers, f32(part.scale)),
            *(self._kv_norm, f32(part.kv_norm.epsilon), b.pages.buffers[self.cached.pages], b.step),
        )
        return b.lanes(b.kernel("finish_latents", *arguments), part.heads + 1)


def _of_heads(b: Binder, stacks: list[Stack], x: Rows, out: Any, place: tuple[int, int, int]) -> Iterator[Launch]:
    """Yield the products of each head's part of ``x`` with its own matrix.

    ``place``: values of a row of ``out`` and of a head in it, and the first column of the product in a head.
    """
    for stack in stacks:
        w, count = stack.matrix, stack.matrix.at_once(b.rows)
        n = w.parts[0]
        arguments = (*w.arguments(), *x.arguments(), b.step, stack.members, i32(-(-n // LANES)), i32(n))
        kernel = w.kernel("part_linear", count, *arguments, out, *map(i32, place))
        yield b.lanes(kernel, w.tiles, count, width=w.width(count))


def _columns(part: LatentAttention) -> tuple[int, int]:
    """Return the values of a row of the first products, and the column of the shared latent and key."""
    first = part.q if part.q_a is None else part.q_a
    column = _padded(first.weight.shape[0], LANES)
    return column + _padded(part.latent + part.rotated, LANES), column


def _padded(n: int, to: int) -> int:
    return -(-n // to) * to
