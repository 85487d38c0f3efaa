"""Descriptions of encoders, in the vocabulary of ``spec.py``: every row sees all rows, and no token is generated.

A block is ``Block`` with ``Attention`` (``window``: the distance up to which rows see each other) and ``GatedMlp``.
Chains are operations on single rows: patch embeddings, projectors, dense layers and classifiers after pooling. What is
between them, such as adding interpolated position embeddings or joining neighbors, is written in Python (``vision/``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ipex_lookahead.architectures.spec import Activation, Block, Linear, Norm, Tensor, named_tensors


@dataclass(frozen=True, slots=True)
class PlainNorm:
    """RMS norm without weights over ``width`` values."""

    width: int
    epsilon: float


Link = Norm | PlainNorm | Linear | Activation
"""A part of a chain."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class EncoderSpec:
    """An encoder.

    Attributes:
        model_type: name of the family.
        hidden: width of the blocks' rows.
        embedding: [vocab, hidden] of a text encoder; None: rows are given. A token's row is embedding_norm(multiplier *
            embedding + its row of ``types`` + its row of ``positions``).
        embedding_multiplier: factor on embeddings.
        types: [types, hidden]; tokens without a type have type 0. None: no token types.
        positions: [positions, hidden], the row of the first token of a text first (``Place.rows`` skips rows for
            padding before it); None: no table.
        embedding_norm: norm of a token's row.
        chains: sequences of operations on a row.
        layers: blocks in order.
        post_norm: True if ``mixer_after`` and ``feed_forward_after`` are norms of the sum: after(x + mixer(x)), as in
            BERT. False: x + after(mixer(before(x))).
        slopes: [heads], factors of ALiBi (Press et al., arXiv 2108.12409): a head's scores are lowered by its slope
            times the distance of the two rows, in all layers. (): no ALiBi.
        final_norm: norm after the last layer.
        rope_parts: a head is rotated in this number of consecutive parts, value i of a part with i + half of the part.
        tables: matrices and vectors that are not multiplied: position embeddings of images, factors.
    """

    model_type: str
    hidden: int
    embedding: Tensor | None = None
    embedding_multiplier: float = 1.0
    types: Tensor | None = None
    positions: Tensor | None = None
    embedding_norm: Norm | None = None
    chains: tuple[tuple[Link, ...], ...] = ()
    layers: tuple[Block, ...] = ()
    post_norm: bool = False
    slopes: tuple[float, ...] = ()
    final_norm: Norm | None = None
    rope_parts: int = 1
    tables: tuple[Tensor, ...] = ()
    mtp: ClassVar[None] = None
    read_past: ClassVar[tuple[str, ...]] = ()
    unread: ClassVar[tuple[str, ...]] = ()

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every weight with its field path, which is its name in the native core."""
        return named_tensors(self)

    def kept(self) -> tuple[str, ...]:
        """Return the names of matrices that keep the file's format: tables, and linear layers of chains."""
        parts = (self.embedding, self.types, self.positions, self.chains, self.tables)
        return tuple(tensor.name for part in parts if part is not None for _, tensor in named_tensors(part))

    def tensors(self) -> Iterator[Tensor]:
        """Return every weight once."""
        return (tensor for _, tensor in named_tensors(self))

    def own_tensors(self) -> Iterator[Tensor]:
        """Return every weight once: an encoder shares none."""
        return self.tensors()

    def routers(self) -> tuple[str, ...]:
        """Return the names of routers: none."""
        return ()
