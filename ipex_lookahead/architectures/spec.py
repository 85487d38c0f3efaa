"""The words a model is described in: what a family's file returns, and what everything that touches weights walks.

A description knows no file, no engine and no device. It says which blocks there are, in the order they run, with which
switches, and for each weight where it lies in either kind of file. Loading, saving, random weights, the names of GGUF,
progress and ``info`` walk its fields (``named_tensors``, ``ModelSpec.tensors()``); nothing else lists tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Place:
    """Where a weight lies in one kind of file: a whole tensor, or a part of one.

    Attributes:
        name: the tensor's name in the file.
        shape: the whole tensor's, as the file must have it.
        expert: which entry of a leading dimension that counts experts; None: there is none.
        rows: (first, step) of the weight's rows among the tensor's (or the entry's); as many as the weight has.
        layout: "plain" is [n_out, n_in]; "transposed" [n_in, n_out]; "mxfp4" blocks of codes in this tensor, and their
            scales in the one whose name ends in ``_scales`` instead of ``_blocks`` (gpt-oss).
        pairs: heads whose rows the file holds as neighbouring rotary pairs (i, i + 1) instead of halves (i, i + d / 2).
        offset: added to every value, a norm's that the file keeps less 1.
    """

    name: str
    shape: tuple[int, ...]
    expert: int | None = None
    rows: tuple[int, int] | None = None
    layout: str = "plain"
    pairs: int = 0
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class Tensor:
    """One weight as a step needs it.

    Attributes:
        name: what this package calls it and saves it as: Hugging Face's name, or in its manner where theirs is a part.
        shape: [n_out, n_in] of a matrix, [n] of a vector.
        hf: where it lies in a Hugging Face folder.
        gguf: where it lies in a GGUF file.
    """

    name: str
    shape: tuple[int, ...]
    hf: Place
    gguf: Place

    @property
    def is_matrix(self) -> bool:
        """Whether it is multiplied with, and may be in a low-bit format."""
        return len(self.shape) == 2


@dataclass(frozen=True, slots=True)
class Linear:
    """y = W x + bias."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Norm:
    """x / sqrt(mean(x^2) + epsilon) * weight (RMS norm; Zhang and Sennrich, arXiv 1910.07467)."""

    weight: Tensor
    epsilon: float


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """Rotary position embedding of the first ``2 * len(frequencies)`` values of a head, i with i + len(frequencies).

    Attributes:
        frequencies: float32 [rotated / 2], radians a position.
        factor: multiplies cos and sin (yarn's and longrope's temperature).
        query_beta, query_original: a query at position p is multiplied by 1 + beta * ln(1 + floor(p / original))
            (Llama 4's and Ministral 3's temperature); beta 0: it is not.
    """

    frequencies: npt.NDArray[np.float32]
    factor: float = 1.0
    query_beta: float = 0.0
    query_original: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Grouped-query attention, a mixer. Its fields that are weights stand in the order a step reads them.

    Attributes:
        heads, kv_heads, head_dim: sizes.
        q, k, v, o: the linear layers.
        scale: multiplies a query's product with a key.
        rope: None: positions do not enter.
        q_norm, k_norm: before rope; over each head if as long as one, else over the whole projection. None: none.
        window: a position sees itself and the ``window - 1`` before it; None: all.
        softcap: scores become cap * tanh(score / cap); None: they stay.
        sinks: [heads], one more logit a head in the softmax's denominator.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    rope: Rope | None
    window: int | None = None
    softcap: float | None = None
    q: Linear
    k: Linear
    v: Linear
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    sinks: Tensor | None = None
    o: Linear


@dataclass(frozen=True, slots=True)
class Activation:
    """What becomes of gate and up: f(gate) * up.

    ``kind`` is "silu", "gelu_tanh", or "clamped": gate at most ``limit``, up within it, gate * sigmoid(alpha * gate) *
    (up + 1) (gpt-oss).
    """

    kind: str
    alpha: float = 0.0
    limit: float = 0.0


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """down(f(gate x) * up x)."""

    gate: Linear
    up: Linear
    down: Linear
    activation: Activation


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture: each row goes to the ``used`` experts that its router likes best.

    Attributes:
        router: [experts, hidden], never in a low-bit format.
        experts: all of one size.
        used: experts a row goes to.
        softmax: "all": over all experts' logits, then the chosen ones taken; "chosen": over the chosen ones' only.
        renormalise: the chosen ones' weights are divided by their sum.
    """

    router: Linear
    experts: tuple[GatedMlp, ...]
    used: int
    softmax: str
    renormalise: bool


Mixer = Attention
"""What makes a row of those before it: another kind of layer is one more dataclass here."""
FeedForward = GatedMlp | Experts
"""What makes a row of itself alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """x + multiplier * after(mixer(before(x))), and the same with the feed-forward; its fields as a step reads them.

    ``None`` for a norm: there is none at that place.
    """

    mixer_norm: Norm | None
    mixer: Mixer
    mixer_after: Norm | None = None
    feed_forward_norm: Norm | None
    feed_forward: FeedForward
    feed_forward_after: Norm | None = None
    residual_multiplier: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class ModelSpec:
    """A decoder.

    Attributes:
        model_type: the family, the name of its file.
        hidden, vocab: sizes.
        max_context: positions a sequence may have.
        embedding: [vocab, hidden].
        layers: the blocks in order.
        final_norm: before the head.
        head: None: the embedding serves as lm_head too.
        embedding_multiplier: multiplies the embedding of a token.
        logit_multiplier: multiplies the logits.
        logit_softcap: logits become cap * tanh(logit / cap), after the multiplier.
    """

    model_type: str
    hidden: int
    vocab: int
    max_context: int
    embedding: Tensor
    layers: tuple[Block, ...]
    final_norm: Norm
    head: Linear | None
    embedding_multiplier: float = 1.0
    logit_multiplier: float = 1.0
    logit_softcap: float | None = None

    @property
    def tied(self) -> bool:
        """Whether the embedding serves as lm_head too."""
        return self.head is None

    @property
    def head_weight(self) -> Tensor:
        """The tensor that serves as lm_head."""
        return self.embedding if self.head is None else self.head.weight

    @property
    def mixtures(self) -> tuple[Experts, ...]:
        """The feed-forwards that are mixtures of experts, of the layers that have one."""
        return tuple(block.feed_forward for block in self.layers if isinstance(block.feed_forward, Experts))

    def kept(self) -> tuple[str, ...]:
        """Names of the matrices that stay as they are in the file: an embedding that is no lm_head, and routers."""
        return (*(() if self.tied else (self.embedding.name,)), *(one.router.weight.name for one in self.mixtures))

    def tensors(self) -> Iterator[Tensor]:
        """Every weight once, in the order a step reads them."""
        return (tensor for _, tensor in named_tensors(self))


def named_tensors(part: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every weight of a part of a description, in the order a step reads them, with the fields that lead to it.

    The name of a layer's query weight is ``layers.0.mixer.q.weight``, that of an expert's ``....experts.3.up.weight``.
    """
    if isinstance(part, Tensor):
        yield name, part
        return
    if isinstance(part, tuple):
        inner: Iterable[tuple[str, Any]] = ((str(i), one) for i, one in enumerate(part))
    else:
        kind: Any = type(part)  # which mypy does not know to be hashable
        inner = ((field, getattr(part, field)) for field in _fields(kind))
    for field, one in inner:
        yield from named_tensors(one, f"{name}.{field}" if name else field)


@functools.cache
def _fields(kind: Any) -> tuple[str, ...]:
    """The fields of a kind of part that may lead to a weight; none of what is no part."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
