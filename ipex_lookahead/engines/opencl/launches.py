"""A step as a list of kernels with arguments that are bound once.

A block of attention and an MLP takes five launches:

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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipex_lookahead.engines.api import FINAL_NORM
from ipex_lookahead.engines.opencl.layers import Weights
from ipex_lookahead.engines.opencl.linear import GROUP, STEP_WANTED, blocks_of
from ipex_lookahead.engines.opencl.operations.base import Binder, HostCall, Launch
from ipex_lookahead.engines.opencl.scratch import PIECE

i32, f32 = np.int32, np.float32

SEARCHERS = 64
"""Work-items of a work-group of ``top``."""


@dataclass(frozen=True, slots=True)
class States:
    """Hidden states that a step copies.

    Attributes:
        layers: as in ``OutputRequest.hidden``, in any order; a number may occur twice.
        buffer: float32 [rows][layers][hidden].
    """

    layers: tuple[int, ...]
    buffer: Any


def step_launches(binder: Binder, weights: Weights, copied: Sequence[States] = ()) -> Iterator[Launch | HostCall]:
    """Yield the launches of a step in order; ``copied``: the hidden states that it copies."""
    yield from _embed(binder, weights)
    if weights.per_layer is not None:
        yield from weights.per_layer.launches(binder)
    yield from copies(binder, copied, 0)
    yield binder.norm(weights.branches[0].before, binder.scratch.x)
    yield from branch_launches(binder, weights, copied)
    if any(FINAL_NORM in one.layers for one in copied):
        x = binder.scratch.x
        yield binder.norm(weights.final_norm, x)
        yield from copies(binder, copied, FINAL_NORM, x.buffers[0], x.blocks * GROUP)
    yield from _head(binder, weights)


def branch_launches(binder: Binder, weights: Weights, copied: Sequence[States] = ()) -> Iterator[Launch | HostCall]:
    """Yield the launches of all blocks, the first of which reads ``scratch.x``."""
    branches = weights.branches
    for number, branch in enumerate(branches):
        after = branches[number + 1] if number + 1 < len(branches) else None
        yield from branch.operation.launches(binder, branch, None if after is None else after.before)
        if after is None or after.layer != branch.layer:
            yield from copies(binder, copied, branch.layer + 1)


def copies(
    binder: Binder, copied: Sequence[States], layer: int, rows: Any = None, stride: int | None = None
) -> Iterator[Launch]:
    """Yield the copies of the hidden states after ``layer`` layers; ``rows``: None: ``scratch.hidden``."""
    hidden = binder.spec.hidden
    values = binder.scratch.hidden if rows is None else rows
    for one in copied:
        for place, number in enumerate(one.layers):
            if number == layer:
                width = len(one.layers) * hidden
                yield binder.copy_rows(values, stride or hidden, hidden, one.buffer, width, place * hidden)


def _embed(b: Binder, weights: Weights) -> Iterator[Launch]:
    if (w := weights.embedding) is not None:
        scale = (i32(b.spec.hidden), f32(b.spec.embedding_multiplier))
        kernel = w.kernel("embed", 1, *w.arguments(), b.step, b.scratch.hidden, *scale)
        yield b.lanes(kernel, -(-blocks_of(b.spec.hidden) // 16))
    if weights.embedding_norm is not None:
        hidden, x = b.spec.hidden, b.scratch.x
        yield b.norm(weights.embedding_norm, x)
        yield b.copy_rows(x.buffers[0], x.blocks * GROUP, hidden, b.scratch.hidden, hidden)


def _head(b: Binder, weights: Weights) -> Iterator[Launch]:
    """Yield the lm_head of the wanted rows and the search for their largest logits."""
    s, spec, step, column = b.scratch, b.spec, b.step, 0
    yield b.norm(weights.final_norm, s.head_x, wanted=True)
    for piece in weights.head:
        yield b.linear(piece, s.head_x, s.logits, spec.vocab, column, wanted=True)
        column += piece.n_out
    vocab = i32(spec.vocab)
    if spec.logit_multiplier != 1 or spec.logit_softcap:
        caps = (vocab, f32(spec.logit_multiplier), f32(spec.logit_softcap or 0))
        kernel = b.kernel("cap", s.logits, vocab, *caps, step, i32(STEP_WANTED))
        yield Launch(kernel, -(-spec.vocab // 64) * 64, 64, wanted=True)
    (values, ids), last = s.tops
    yield top_launch(b, s.pieces, (s.logits, None), spec.vocab, PIECE, (values, ids))
    if s.pieces > 1:
        width = s.pieces * s.top
        yield top_launch(b, 1, (values, ids), width, width, last)


def top_launch(
    b: Binder, pieces: int, found: tuple[Any, Any], n: int, piece: int, out: tuple[Any, Any], top: int | None = None
) -> Launch:
    """Return the search of ``pieces`` work-groups among ``n`` values of a row, each among ``piece`` of them.

    ``top``: the number that each finds; None: the step's.
    """
    kernel = b.kernel("top", *found, i32(n), i32(n), i32(piece), i32(top or b.scratch.top), *out, b.step)
    return Launch(kernel, pieces * SEARCHERS, SEARCHERS, wanted=True)
