"""Descriptions of encoders, in the vocabulary of ``spec.py``: every row sees all rows, and no token is generated.

A block is ``Block`` with ``Attention`` (``window``: the distance up to which rows see each other) and ``GatedMlp``.
Chains are operations on single rows: patch embeddings, projectors. What is between them, such as adding position
embeddings or joining neighbors, is written in Python (``vision/``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
        chains: sequences of operations on a row.
        layers: blocks in order.
        rope_parts: a head is rotated in this number of consecutive parts, value i of a part with i + half of the part.
        tables: matrices and vectors that are not multiplied: position embeddings, factors.
    """

    model_type: str
    hidden: int
    chains: tuple[tuple[Link, ...], ...] = ()
    layers: tuple[Block, ...] = ()
    rope_parts: int = 1
    tables: tuple[Tensor, ...] = ()

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every weight with its field path, which is its name in the native core."""
        return named_tensors(self)
