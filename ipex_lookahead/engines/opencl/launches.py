"""A step as a list of kernels with arguments that are bound once.

A block takes five launches:

1. q, k and v. The last work-groups to arrive rotate the heads and store them.
2. Attention, merged and quantized.
3. o. Its sums are normed and quantized for the next product.
4. gate and up.
5. down, followed by norm and quantization as in 3.

For more rows than ``MOST_FUSED``, norms and heads are launches of their own: eight in total. Where arrivals of
work-groups cannot be counted, merging is a ninth. All launches read the values that change from step to step from one
buffer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipex_lookahead.architectures.spec import Attention, Block, Experts, ModelSpec, Norm
from ipex_lookahead.engines.opencl.cache import Pages
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.layers import Layer, Stack, Weights
from ipex_lookahead.engines.opencl.linear import GROUP, LANES, STEP_ROWS, STEP_WANTED, Matrix, Rows, blocks_of
from ipex_lookahead.engines.opencl.programs import ARRIVALS, ROWS
from ipex_lookahead.engines.opencl.recording import Sized
from ipex_lookahead.engines.opencl.scratch import PIECE, RopeTable, Scratch
from ipex_lookahead.engines.opencl.step import Plan
from ipex_lookahead.engines.opencl.supported import ACTIVATIONS, attention_of, mlps_of

i32, f32 = np.int32, np.float32

MOST_FUSED = ROWS[1]
"""Most rows for which the last work-group of a product also norms the rows or finishes the heads."""
ATTENDERS, SEARCHERS = 256, 64
"""Work-items of a work-group of ``attend``, and of ``top``."""
NORM_BLOCKS = 16
"""Blocks of a row that one lane group of a norm writes. Each lane group computes the row's mean itself."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel to enqueue.

    Attributes:
        kernel: with its arguments.
        size: work-items for each group of ``rows`` rows.
        local: work-items of a work-group.
        rows: rows of the step that the kernel computes together.
        pairs: experts of a row; the work-items are multiplied by it.
        wanted: whether only wanted rows count.
        attends: whether the launch is attention's: ``size`` work-items for each group of rows that attention computes
            together, and for each block of positions.
    """

    kernel: Any
    size: int
    local: int
    rows: int = 1
    pairs: int = 1
    wanted: bool = False
    attends: bool = False


def sized(launches: list[Launch], plan: Plan, blocks: int, joint: int) -> Iterator[Sized]:
    """Yield the launches of a step with their sizes.

    Args:
        launches: of the step.
        plan: the step's rows.
        blocks: number of blocks of positions; at least the plan's.
        joint: number of rows that attention computes together.
    """
    wanted = len(plan.want)
    for launch in launches:
        rows = -(-(wanted if launch.wanted else plan.rows) // launch.rows) * launch.pairs
        if launch.attends:
            yield launch.kernel, (launch.size, -(-plan.rows // joint), blocks), (launch.local, 1, 1)
        elif rows:
            yield launch.kernel, (launch.size, rows), (launch.local, 1)


@dataclass(frozen=True, slots=True)
class NormBefore:
    """The norm before a mixer, a feed-forward or the lm_head.

    ``weight`` is on the device; ``order`` is the order in which the following product reads the normed row.
    """

    weight: Any
    norm: Norm | None
    order: Any = None

    @property
    def epsilon(self) -> Any:
        """The norm's epsilon; 0 without a norm."""
        return f32(self.norm.epsilon if self.norm else 0)


def _of_all_heads(norm: Norm | None, attention: Attention) -> bool:
    """Return True for a norm over all heads of q or of k together."""
    return norm is not None and norm.weight.shape != (attention.head_dim,)


@dataclass(frozen=True, slots=True)
class Binder:
    """Binds the kernels of a step to buffers.

    Attributes:
        device, spec, weights, pages: a model on a device.
        ropes: tables of ropes, by the ``id`` of the rope.
        joint_heads: number of heads that attention computes together.
        scratch: buffers of the step.
        step: the buffer with the values that change from step to step.
        rows: most rows of the step, one of ``ROWS``; the last one has no limit.
    """

    device: Device
    spec: ModelSpec
    weights: Weights
    pages: Pages
    ropes: Mapping[int, RopeTable]
    joint_heads: int
    scratch: Scratch
    step: Any
    rows: int

    def launches(self) -> Iterator[Launch]:
        """Yield the launches of a step in order."""
        yield from self._embed()
        layers = self.weights.layers
        norms = [self._before(layer, "mixer", "q") for layer in layers]
        yield self._norm(norms[0], self.scratch.x)
        for number, (layer, following) in enumerate(zip(layers, [*norms[1:], None], strict=True)):
            yield from self._heads(layer, self.pages.buffers[number])
            yield from self._attention(layer, self.pages.buffers[number])
            between = self._before(layer, "feed_forward", "gate")
            yield from self._end_branch(layer.o, self.scratch.attended, layer, "mixer", between)
            if isinstance(layer.block.feed_forward, Experts):
                first = i32(number * self.scratch.pairs)
                yield from self._experts(layer, layer.block.feed_forward, first, following)
            else:
                yield from self._mlp(layer, following)
        yield from self._head()

    # ---- what blocks are made of -------------------------------------------------------------------------------------

    @property
    def _fused(self) -> bool:
        return ARRIVALS in self.device.spelling and self.rows <= MOST_FUSED

    def _lanes(self, kernel: Any, count: int, rows: int = 1, wanted: bool = False, width: int | None = None) -> Launch:
        return Launch(kernel, self.device.lane_groups(count), width or self.device.width, rows, wanted=wanted)

    def _kernel(self, name: str, *arguments: Any) -> Any:
        return self.device.kernel(self.pages.program, name, *arguments)

    def _before(self, layer: Layer, part: str, first: str) -> NormBefore:
        """Return the norm before the mixer or the feed-forward (``part``); ``first`` is the matrix that reads it."""
        return NormBefore(layer.vectors[f"{part}_norm"], getattr(layer.block, f"{part}_norm"), layer.orders.get(first))

    def _norm(self, before: NormBefore, out: Rows, wanted: bool = False) -> Launch:
        hidden, groups = i32(self.spec.hidden), -(-blocks_of(self.spec.hidden) // NORM_BLOCKS)
        counted = i32(STEP_WANTED if wanted else STEP_ROWS)
        arguments = (before.weight, before.epsilon, before.order, *out.arguments(), self.step, counted, i32(groups))
        kernel = self._kernel("norm", self.scratch.hidden, hidden, hidden, *arguments)
        return self._lanes(kernel, groups, wanted=wanted)

    def _linear(
        self, w: Matrix, x: Rows, out: Any, stride: int, column: int = 0, add: bool = False, wanted: bool = False
    ) -> Launch:
        counted = i32(STEP_WANTED if wanted else STEP_ROWS)
        arguments = (*w.arguments(), *x.arguments(), self.step, counted, out, i32(stride), i32(column), i32(add))
        count = w.at_once(self.rows)
        return self._lanes(w.kernel("linear", count, *arguments), w.tiles, count, wanted, w.width(count))

    def _add_branch(self, block: Block, after: Any, norm: Norm | None) -> Launch:
        hidden, groups = i32(self.spec.hidden), -(-blocks_of(self.spec.hidden) // NORM_BLOCKS)
        factors = (f32(norm.epsilon if norm else 0), f32(block.residual_multiplier))
        arguments = (hidden, hidden, after, *factors, self.scratch.hidden, self.step, i32(groups))
        return self._lanes(self._kernel("add_branch", self.scratch.branch, *arguments), groups)

    def _end_branch(
        self, w: Matrix, x: Rows, layer: Layer, part: str, following: NormBefore | None
    ) -> Iterator[Launch]:
        """Add a branch's last product to the hidden rows, and norm these for what follows, unless that is lm_head."""
        s, hidden = self.scratch, self.spec.hidden
        after, norm = layer.vectors[f"{part}_after"], getattr(layer.block, f"{part}_after")
        plain = after is None and layer.block.residual_multiplier == 1
        if plain and self._fused and following is not None:
            normed = (following.weight, following.epsilon, following.order, *s.x.arguments(), s.arrivals)
            arguments = (*w.arguments(), *x.arguments(), self.step, s.hidden, i32(hidden), *normed)
            count = w.at_once(self.rows)
            yield self._lanes(w.kernel("linear_norm", count, *arguments), w.tiles, count)
            return
        yield self._linear(w, x, s.hidden if plain else s.branch, hidden, add=plain)
        if not plain:
            yield self._add_branch(layer.block, after, norm)
        if following is not None:
            yield self._norm(following, s.x)

    def _embed(self) -> Iterator[Launch]:
        if (w := self.weights.embedding) is not None:
            scale = (i32(self.spec.hidden), f32(self.spec.embedding_multiplier))
            kernel = w.kernel("embed", 1, *w.arguments(), self.step, self.scratch.hidden, *scale)
            yield self._lanes(kernel, -(-blocks_of(self.spec.hidden) // 16))

    # ---- attention ---------------------------------------------------------------------------------------------------

    def _heads(self, layer: Layer, pages: Any) -> Iterator[Launch]:
        """Yield q, k and v with rope and storing: in one kernel where a head fills whole tiles and is normed alone."""
        s, attention, v = self.scratch, attention_of(layer.block), layer.vectors
        heads, kv_heads, d = attention.heads, attention.kv_heads, attention.head_dim
        weights, epsilon, over_all = [], 0.0, []
        for name, norm, column, width in (
            ("q_norm", attention.q_norm, 0, heads * d),
            ("k_norm", attention.k_norm, s.k_column, kv_heads * d),
        ):
            epsilon = norm.epsilon if norm is not None else epsilon
            if _of_all_heads(norm, attention):
                of = (i32(s.qkv_stride), i32(column), i32(width), v[name], f32(epsilon), self.step)
                over_all.append(self._lanes(self._kernel("norm_whole", s.qkv, *of), 1))
            weights.append(None if _of_all_heads(norm, attention) else v[name])
        rope = None if attention.rope is None else self.ropes[id(attention.rope)]
        half = 0 if attention.rope is None else len(attention.rope.frequencies)
        columns = (i32(s.qkv_stride), i32(s.k_column), i32(s.v_column), i32(heads), i32(kv_heads), i32(d), i32(half))
        turns = (None, None, None) if rope is None else rope.buffers
        finish = (s.qkv, *columns, *turns, f32(attention.scale), *weights, f32(epsilon), pages)
        fused = self._fused and d % LANES == 0 and not over_all
        for w, column in zip(layer.qkv, (0, s.k_column, s.v_column), strict=False):
            if fused:
                yield self._linear_heads(w, column, d, finish)
            else:
                yield self._linear(w, s.x, s.qkv, s.qkv_stride, column)
        if not fused:
            yield from over_all
            yield self._lanes(self._kernel("finish_heads", *finish, self.step), heads + 2 * kv_heads)

    def _linear_heads(self, w: Matrix, column: int, head_dim: int, finish: tuple[Any, ...]) -> Launch:
        count, width = w.at_once(self.rows), self.device.width
        unit = i32(math.lcm(head_dim, width) // width)  # work-groups that make whole heads
        of_all = (*w.arguments(), *self.scratch.x.arguments(), self.step, i32(column), i32(column // head_dim), unit)
        arguments = (*of_all, *finish, self.scratch.arrivals)
        return self._lanes(w.kernel("linear_heads", count, *arguments, options=self.pages.options), w.tiles, count)

    def _attention(self, layer: Layer, pages: Any) -> Iterator[Launch]:
        s, attention, sinks = self.scratch, attention_of(layer.block), layer.vectors["sinks"]
        heads, kv_heads, d = attention.heads, attention.kv_heads, attention.head_dim
        sizes, window = (i32(heads), i32(kv_heads), i32(d)), i32(attention.window or 0)
        of_pages = (i32(self.joint_heads), pages, window, f32(attention.softcap or 0))
        arguments = (s.qkv, i32(s.qkv_stride), *sizes, *of_pages, s.partials, self.step)
        order = layer.orders.get("o")  # of a whole row, which no group of heads has
        merges = ARRIVALS in self.device.spelling and order is None
        if ARRIVALS in self.device.spelling:
            merged = i32(GROUP // math.gcd(d, GROUP) if merges else 0)
            arguments += (merged, sinks, *s.attended.arguments(), s.arrivals)
        groups = kv_heads * -(-(heads // kv_heads) // self.joint_heads)
        yield Launch(self._kernel("attend", *arguments), groups * ATTENDERS, ATTENDERS, attends=True)
        if not merges:
            arguments = (s.partials, i32(heads), i32(d), window, sinks, order, *s.attended.arguments(), self.step)
            yield self._lanes(self._kernel("merge_heads", *arguments), s.attended.blocks)

    # ---- feed-forward ------------------------------------------------------------------------------------------------

    def _gate_up(
        self, gate: Matrix, up: Matrix, made: Rows, kind: tuple[Any, ...], pairs: int = 1, experts: tuple[Any, ...] = ()
    ) -> Launch:
        """Return f(gate) * up as one kernel; ``experts``: buffer of chosen experts, the layer's offset, places."""
        count = 1 if experts else gate.at_once(self.rows)
        chosen, first, places = experts or (None, i32(0), None)
        both = (*gate.arguments(), *up.arguments(), *self.scratch.x.arguments(), *made.arguments())
        arguments = (*both, self.step, chosen, first, i32(pairs), places, i32(-(-made.n // LANES)), *kind)
        width = gate.width(count)
        return Launch(gate.kernel("gate_up", count, *arguments), made.blocks * width, width, count, pairs)

    def _activate(self, made: Rows, kind: tuple[Any, ...], pairs: int = 1) -> Launch:
        """Return f(gate) * up for products of separate kernels: for each row, or for each expert of a row."""
        s, n = self.scratch, i32(made.n)
        arguments = (s.gate, s.up, n, n, *made.arguments(), self.step, i32(STEP_ROWS), i32(pairs), *kind)
        kernel = self._kernel("activate", *arguments)
        return Launch(kernel, self.device.lane_groups(made.blocks), self.device.width, pairs=pairs)

    def _mlp(self, layer: Layer, following: NormBefore | None) -> Iterator[Launch]:
        s, gate, up = self.scratch, layer.gate[0].matrix, layer.up[0].matrix
        kind, made = _kind_of(layer.block), Rows(gate.n_out, s.gated.buffers)
        if layer.paired:
            yield self._gate_up(gate, up, made, kind)
        else:
            yield self._linear(gate, s.x, s.gate, gate.n_out)
            yield self._linear(up, s.x, s.up, up.n_out)
            yield self._activate(made, kind)
        if (order := layer.orders.get("down")) is not None:
            values, made = made, Rows(gate.n_out, s.ordered.buffers)
            parts = -(-made.blocks // NORM_BLOCKS)
            sizes = (i32(values.blocks * GROUP), i32(gate.n_out), None, f32(0), order)
            counts = (self.step, i32(STEP_ROWS), i32(parts))
            yield self._lanes(self._kernel("norm", values.buffers[0], *sizes, *made.arguments(), *counts), parts)
        yield from self._end_branch(layer.down[0].matrix, made, layer, "feed_forward", following)

    def _experts(
        self, layer: Layer, mixture: Experts, first: np.int32, following: NormBefore | None
    ) -> Iterator[Launch]:
        """Yield a mixture's launches. A weight is read once for every row that goes to its expert."""
        s, router, pairs = self.scratch, layer.router, mixture.used
        assert router is not None  # a mixture has one
        yield self._linear(router, s.x, s.router, router.n_out)
        softmax = (i32(mixture.scores == "all"), i32(mixture.renormalise))
        sizes = (i32(len(mixture.experts)), i32(pairs), *softmax)
        yield self._lanes(self._kernel("choose", s.router, *sizes, s.experts, first, s.weights, self.step), 1)
        kind, made = _kind_of(layer.block), Rows(layer.gate[0].matrix.parts[0], s.gated.buffers)
        if layer.paired:
            for gate, up in zip(layer.gate, layer.up, strict=True):
                yield self._gate_up(gate.matrix, up.matrix, made, kind, pairs, (s.experts, first, gate.places))
        else:
            yield from self._expert_linear(layer.gate, s.x, pairs, s.gate, made.n, (first, pairs))
            yield from self._expert_linear(layer.up, s.x, pairs, s.up, made.n, (first, pairs))
            yield self._activate(made, kind, pairs)
        hidden = self.spec.hidden
        yield from self._expert_linear(layer.down, made, 1, s.made, hidden, (first, pairs))
        after = layer.vectors["feed_forward_after"]
        plain = after is None and layer.block.residual_multiplier == 1
        out = (i32(pairs), i32(hidden), s.hidden if plain else s.branch, i32(plain), self.step)
        yield Launch(self._kernel("add_experts", s.made, s.weights, *out), -(-hidden // 64) * 64, 64)
        if not plain:
            yield self._add_branch(layer.block, after, layer.block.feed_forward_after)
        if following is not None:
            yield self._norm(following, s.x)

    def _expert_linear(
        self, stacks: list[Stack], x: Rows, share: int, out: Any, n: int, chosen: tuple[np.int32, int]
    ) -> Iterator[Launch]:
        """Yield the products of each pair of row and expert; ``share`` consecutive pairs read the same row of x."""
        first, pairs = chosen
        for stack in stacks:
            w, tiles = stack.matrix, -(-stack.matrix.parts[0] // LANES)
            own = (self.step, self.scratch.experts, first, i32(pairs), stack.places, i32(tiles), i32(share))
            kernel = w.kernel("expert_linear", 1, *w.arguments(), *x.arguments(), *own, out, i32(n))
            yield Launch(kernel, self.device.lane_groups(tiles), self.device.width, pairs=pairs)

    # ---- the head ----------------------------------------------------------------------------------------------------

    def _head(self) -> Iterator[Launch]:
        """Yield the lm_head of the wanted rows and the search for their largest logits."""
        s, spec, step, column = self.scratch, self.spec, self.step, 0
        yield self._norm(NormBefore(self.weights.final_norm, spec.final_norm), s.head_x, wanted=True)
        for piece in self.weights.head:
            yield self._linear(piece, s.head_x, s.logits, spec.vocab, column, wanted=True)
            column += piece.n_out
        vocab = i32(spec.vocab)
        if spec.logit_multiplier != 1 or spec.logit_softcap:
            caps = (vocab, f32(spec.logit_multiplier), f32(spec.logit_softcap or 0))
            kernel = self._kernel("cap", s.logits, vocab, *caps, step)
            yield Launch(kernel, -(-spec.vocab // 64) * 64, 64, wanted=True)
        top = i32(s.sizes[3])
        (values, ids), last = s.tops
        kernel = self._kernel("top", s.logits, None, vocab, vocab, i32(PIECE), top, values, ids, step)
        yield Launch(kernel, s.pieces * SEARCHERS, SEARCHERS, wanted=True)
        if s.pieces > 1:
            width = i32(s.pieces * s.sizes[3])
            kernel = self._kernel("top", values, ids, width, width, width, top, *last, step)
            yield Launch(kernel, SEARCHERS, SEARCHERS, wanted=True)


def _kind_of(block: Block) -> tuple[Any, ...]:
    """Return a block's activation as arguments of kernels."""
    activation = mlps_of(block)[0].activation
    return i32(ACTIVATIONS[activation.kind]), f32(activation.alpha), f32(activation.limit)
