"""Inputs of a drafting head on a device: the token's embedding, and features of the previous position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipex_lookahead.architectures.spec import Attention, FeatureInputs, ModelSpec, Norm
from ipex_lookahead.engines.opencl.linear import GROUP, Matrix, Rows, blocks_of
from ipex_lookahead.engines.opencl.operations.base import NORM_BLOCKS, Binder, Launch, NormBefore
from ipex_lookahead.engines.opencl.uploads import Uploads

i32, f32 = np.int32, np.float32


@dataclass(frozen=True, slots=True)
class Part:
    """Values of each row that are joined with others: ``count`` parts of ``n``, each normed if there is a weight.

    Attributes:
        values, stride: float32 [rows][stride].
        n, count: sizes.
        weight: buffer, float32 [count * n]; None: no norm.
        epsilon: of the norms.
    """

    values: Any
    stride: int
    n: int
    count: int = 1
    weight: Any = None
    epsilon: float = 0.0


def join(b: Binder, first: Part | None, second: Part, out: Rows, order: Any = None) -> Launch:
    """Return the launch that writes two parts of each row next to each other, as linear layers read them."""
    one = Part(second.values, 0, 0) if first is None else first
    arguments: tuple[Any, ...] = (one.values, i32(one.stride), i32(one.n), one.weight, f32(one.epsilon))
    arguments += (second.values, i32(second.stride), i32(second.n), i32(second.count), second.weight)
    groups = -(-out.blocks // NORM_BLOCKS)
    more = (f32(second.epsilon), order, *out.arguments(), b.step, i32(groups))
    return b.lanes(b.device.kernel(b.device.program("draft"), "join", *arguments, *more), groups)


class FeatureBuffers:
    """Scratch of a head's inputs.

    Args:
        spec: the head.
        device: where buffers are allocated.
        rows: most rows of a step.

    Attributes:
        embeddings: float32 [rows][embedding's width].
        features: float32 [rows][width], the target's features.
        own: float32 [hidden], the head's own features of a chain's last row.
        joined, narrow, wide: inputs of ``project``; inputs and outputs of ``back``, for one row.
    """

    def __init__(self, spec: ModelSpec, device: Any, rows: int) -> None:
        features = spec.features
        assert features is not None
        self.embedding = spec.embedding.shape[1]
        self.embeddings = device.empty(4 * rows * self.embedding)
        self.features = device.empty(4 * rows * features.width)
        self.own = device.empty(4 * spec.hidden)
        before = 0 if features.keep_embedding else self.embedding
        self.joined = Rows.empty(device, rows, before + features.width)
        self.narrow, self.wide = Rows.empty(device, 1, spec.hidden), device.empty(4 * features.width)


class FeatureOperation:
    """x = project(embedding_norm(e) | norms(features)) and its variants; see ``architectures.spec.FeatureInputs``.

    Args:
        features: the description.
        uploads: takes the weights.
        device: the device.
    """

    def __init__(self, features: FeatureInputs, uploads: Uploads, device: Any) -> None:
        self.features = features
        self._embedding_norm = uploads.norm(features.embedding_norm)
        self._norms = _in_one(device, features.norms, [uploads.norm(norm) for norm in features.norms])
        self.project: Matrix = uploads.matrix([features.project])
        self.back = None if features.back is None else uploads.matrix([features.back])
        self._after = uploads.norm(features.after)

    def launches(self, b: Binder, buffers: FeatureBuffers, embedding: Matrix, own: bool) -> Iterator[Launch]:
        """Yield what writes ``scratch.hidden``; ``own``: from the head's own features of a single row."""
        s, spec, features, hidden = b.scratch, b.spec, self.features, b.spec.hidden
        width = buffers.embedding
        scale = (i32(width), f32(spec.embedding_multiplier))
        kernel = embedding.kernel("embed", 1, *embedding.arguments(), b.step, buffers.embeddings, *scale)
        yield b.lanes(kernel, -(-blocks_of(width) // 16))
        source = buffers.features
        if own and self.back is not None:
            yield join(b, None, Part(buffers.own, hidden, hidden), buffers.narrow)
            yield b.linear(self.back, buffers.narrow, buffers.wide, features.width)
            source = buffers.wide
        elif own:
            source = buffers.own
        if own and features.keep_embedding:
            yield b.copy_rows(source, hidden, hidden, s.hidden, hidden)
        else:
            count = max(len(features.norms), 1)
            epsilon = features.norms[0].epsilon if features.norms else 0.0
            after = Part(source, features.width, features.width // count, count, self._norms, epsilon)
            first = None if features.keep_embedding else self._embedding(buffers)
            yield join(b, first, after, buffers.joined)
            yield b.linear(self.project, buffers.joined, s.hidden, hidden)
        if features.after is not None:
            normed = Part(s.hidden, hidden, hidden, 1, self._after, features.after.epsilon)
            yield join(b, None, normed, s.x)
            yield b.copy_rows(s.x.buffers[0], s.x.blocks * GROUP, hidden, s.hidden, hidden)

    def before_layers(self, b: Binder, buffers: FeatureBuffers, before: NormBefore, first: Any) -> Launch:
        """Return what writes the inputs of the ``first`` layer's products, behind the norm ``before`` it."""
        if not (isinstance(first, Attention) and first.with_embedding):
            return b.norm(before, b.scratch.x)
        hidden = b.spec.hidden
        epsilon = 0.0 if before.norm is None else before.norm.epsilon
        rows = Part(b.scratch.hidden, hidden, hidden, 1, before.weight, epsilon)
        return join(b, self._embedding(buffers), rows, b.scratch.rows("with_embedding", 2 * hidden), before.order)

    def _embedding(self, buffers: FeatureBuffers) -> Part:
        norm = self.features.embedding_norm
        epsilon = 0.0 if norm is None else norm.epsilon
        return Part(buffers.embeddings, buffers.embedding, buffers.embedding, 1, self._embedding_norm, epsilon)


def _in_one(device: Any, norms: Sequence[Norm], weights: Sequence[Any]) -> Any:
    """Return the weights of norms, which have one width, in one buffer; None without norms."""
    if len(norms) < 2:
        return weights[0] if weights else None
    size = 4 * norms[0].weight.shape[0]
    made = device.empty(size * len(norms))
    for number, weight in enumerate(weights):
        device.copy(weight, made, size, 0, number * size)
    return made
