"""A decoder described without reference to any file or engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SLOTS = ("q", "k", "v", "o", "gate", "up", "down")
"""The linear layers of a block, in the order they run."""


@dataclass(frozen=True, slots=True, eq=False)
class DecoderSpec:
    """Shapes, constants and tensor names of a decoder of the Llama form.

    Attributes:
        layers, hidden, intermediate, heads, kv_heads, head_dim, vocab: sizes.
        rms_epsilon: added to the mean square in every norm.
        max_context: positions a sequence may have.
        rope_frequencies: float32 [head_dim / 2], radians a position.
        rope_attention_factor: multiplies cos and sin (yarn's temperature).
        tied: the embedding serves as lm_head too.
        matrices: for each of ``SLOTS`` the tensor's name with ``{layer}`` in it, without ``.weight``.
        biased: the slots that have a ``.bias``.
        attention_norm, mlp_norm, final_norm, embedding, lm_head: the other tensors' names.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    rms_epsilon: float
    max_context: int
    rope_frequencies: npt.NDArray[np.float32]
    rope_attention_factor: float
    tied: bool
    matrices: dict[str, str]
    biased: frozenset[str]
    attention_norm: str
    mlp_norm: str
    final_norm: str
    embedding: str
    lm_head: str

    def shape(self, slot: str) -> tuple[int, int]:
        """[n_out, n_in] of a slot's weight."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q": (q, self.hidden),
            "k": (kv, self.hidden),
            "v": (kv, self.hidden),
            "o": (self.hidden, q),
            "gate": (self.intermediate, self.hidden),
            "up": (self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }[slot]

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """(name in the checkpoint, shape) of every tensor; a tied lm_head is the embedding."""
        table = (self.vocab, self.hidden)
        yield self.embedding, table
        for layer in range(self.layers):
            for norm in (self.attention_norm, self.mlp_norm):
                yield norm.format(layer=layer), (self.hidden,)
            for slot in SLOTS:
                name, shape = self.matrices[slot].format(layer=layer), self.shape(slot)
                yield name + ".weight", shape
                if slot in self.biased:
                    yield name + ".bias", shape[:1]
        yield self.final_norm, (self.hidden,)
        if not self.tied:
            yield self.lm_head, table
