"""The words a model is described in: what a family's file returns, and what everything that touches weights walks.

A description knows no file, no engine and no device. It says which blocks there are, in the order they run, with which
switches, and for each weight where it lies in either kind of file. Loading, saving, random weights, the names of GGUF,
progress and ``info`` walk its fields (``named_tensors``, ``ModelSpec.tensors()``); nothing else lists tensors.

All words stand in this one file, long as it is: ``csrc/description.h`` reads them field by field, and a family needs no
other.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
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
        block: so many neighbouring rows stand at each of these places.
        more: (rows behind ``first``, block) of further rows at that step, all of which come after those before them:
            a tensor's heads may hold parts of several kinds, where the weight has all heads of the first kind first.
        negative_exponential: the file holds -e^x of every value x.
        layout: "plain" is [n_out, n_in]; "transposed" [n_in, n_out]; "mxfp4" blocks of codes in this tensor, and their
            scales in the one whose name ends in ``_scales`` instead of ``_blocks`` (gpt-oss); "whole" numbers of
            tokens, read as float32, which holds all that there are; "key" an entry, the first
            of ``rows``, of a list in a GGUF file's metadata (Apertus); "turned" is [n_in, n_out] too, ``rows`` being
            the weight's inputs (a part of DeepSeek's ``kv_b_proj``).
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
    block: int = 1
    more: tuple[tuple[int, int], ...] = ()
    negative_exponential: bool = False


@dataclass(frozen=True, slots=True)
class Tensor:
    """One weight as a step needs it.

    Attributes:
        name: what this package calls it and saves it as: Hugging Face's name, or in its manner where theirs is a part.
        shape: [n_out, n_in] of a matrix, [n] of a vector, [] of a number.
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
    """x / sqrt(mean(x^2) + epsilon) * weight (RMS norm; Zhang and Sennrich, arXiv 1910.07467).

    ``centered``: the same of x - mean(x), plus the bias if there is one (layer norm; Ba et al., arXiv 1607.06450).
    """

    weight: Tensor
    epsilon: float
    bias: Tensor | None = None
    centered: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """Rotary position embedding of the first ``2 * len(frequencies)`` values of a head, i with i + len(frequencies).

    Attributes:
        frequencies: float32 [rotated / 2], radians a position.
        factor: multiplies cos and sin (yarn's and longrope's temperature).
        query_beta, query_original: a query at position p is multiplied by 1 + beta * ln(1 + floor(p / original))
            (Llama 4's and Ministral 3's temperature); beta 0: it is not.
        interleaved: value 2 i is rotated with 2 i + 1 instead (GLM, Cohere, ERNIE).
    """

    frequencies: npt.NDArray[np.float32]
    factor: float = 1.0
    query_beta: float = 0.0
    query_original: int = 0
    interleaved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Grouped-query attention, a mixer. Its fields that are weights stand in the order a step reads them.

    Attributes:
        heads, kv_heads, head_dim: sizes.
        q, k, v, o: the linear layers. No ``v``: values are what k comes to, before its norm and rope (Gemma 4).
        scale: multiplies a query's product with a key.
        rope: None: positions do not enter.
        q_norm, k_norm: before rope; over each head if as long as one, else over the whole projection. None: none.
        norm_after_rope: these norms, over heads, come after it (Hunyuan).
        window: a position sees itself and the ``window - 1`` before it; None: all.
        softcap: scores become cap * tanh(score / cap); None: they stay.
        sinks: [heads], one more logit a head in the softmax's denominator.
        gate: what heads come to is multiplied by its sigmoid (Qwen3-Next and after); None: it is not.
        value_norm: the epsilon of an RMS norm without weights over each head of values; None: there is none.
        shared: the number of the layer whose keys and values it attends to, having neither k nor v (Gemma 4), in a
            head with ``target_keys`` of the target's layer; None: it has its own.
        with_embedding: q, k and v are [n, 2 * hidden], of (the embedding of ``FeatureInputs.keep_embedding`` | x).
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    rope: Rope | None
    window: int | None = None
    softcap: float | None = None
    q: Linear
    k: Linear | None
    v: Linear | None
    gate: Linear | None = None
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    norm_after_rope: bool = False
    value_norm: float | None = None
    shared: int | None = None
    with_embedding: bool = False
    sinks: Tensor | None = None
    o: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), a mixer that keeps a latent and one key a position.

    c | r = kv_a x and q_h = q norm(q_a x), of which the last ``rotated`` values are rotated, and r too. A head's score
    is (k_b_h q_h's first values) . norm(c) + q_h's last . r, times ``scale``; what it comes to is v_b_h of the sum of
    norm(c) over what is seen: keys and values are never made of the latents.

    Attributes:
        heads: of queries.
        latent: values of c.
        passed, rotated: of a head of queries; ``value_dim``: of what heads come to.
        scale: multiplies scores.
        q_a, q_norm: None: q is of x.
        k_b: [latent, passed] of each head; ``v_b``: [value_dim, latent].
    """

    heads: int
    latent: int
    passed: int
    rotated: int
    value_dim: int
    scale: float
    rope: Rope
    q_a: Linear | None = None
    q_norm: Norm | None = None
    kv_a: Linear
    kv_norm: Norm
    q: Linear
    k_b: tuple[Linear, ...]
    v_b: tuple[Linear, ...]
    o: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNet:
    """A gated delta net (Yang et al., arXiv 2412.06464), a mixer with a state S [key_dim, value_dim] a head, float32.

    q, k, v = silu(convolution(inputs x)); q and k over their lengths, q over sqrt(key_dim). Then S = e^g S with
    g = -e^rate softplus(steps x + step_bias), d = sigmoid(beta x) (v - S^T k), S = S + k d^T, and y = S^T q; and
    out(norm(y) * silu(gate x)).

    Attributes:
        heads: of values; ``groups``: of queries and keys, each for ``heads / groups`` neighbouring ones of values.
        tiled: value head i has the keys of group i % groups instead (Qwen3.5's GGUF files).
        key_dim, value_dim: sizes of a head.
        kernel: taps of the convolution, the position's own among them.
        length_epsilon: under the root of q's and k's lengths.
        convolution: [channels * kernel], by channel; channels are q's, k's and v's.
        rate: [heads], a logarithm.
        norm: over each head of values.
    """

    heads: int
    groups: int
    tiled: bool = False
    key_dim: int
    value_dim: int
    kernel: int
    length_epsilon: float = 1e-6
    inputs: Linear
    gate: Linear
    steps: Linear
    beta: Linear
    convolution: Tensor
    rate: Tensor
    step_bias: Tensor
    norm: Norm
    out: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """Mamba-2 (Dao and Gu, arXiv 2405.21060), a mixer with a state S [key_dim, value_dim] a head, float32.

    x, B, C = silu(convolution(inputs x)), t = softplus(steps x + step_bias) within [least_step, most_step]. Then
    S = e^(-t e^rate) S + B (t x)^T, y = S^T C + skip x;
    and out(norm(y * silu(gate x))), or out(norm(y) * silu(gate x)).

    Attributes:
        heads, value_dim: of x; ``groups``, ``key_dim``: of B and C, each for ``heads / groups`` neighbouring heads.
        tiled: as a delta net's.
        kernel: taps of the convolution, the position's own among them.
        norm_group: so many values are normed together.
        gate_first: before the norm.
        convolution: [channels * kernel], by channel; channels are x's, B's and C's.
        rate: [heads], a logarithm; ``skip``: [heads].
        norm: weights for all values.
    """

    heads: int
    groups: int
    tiled: bool = False
    key_dim: int
    value_dim: int
    kernel: int
    norm_group: int
    gate_first: bool = True
    least_step: float = 0.0
    most_step: float = float("inf")
    inputs: Linear
    gate: Linear
    steps: Linear
    convolution: Tensor
    convolution_bias: Tensor | None = None
    rate: Tensor
    step_bias: Tensor
    skip: Tensor
    norm: Norm
    out: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConv:
    """out(c * convolution(b * x)), a mixer, where b, c and x are linear layers of its inputs (LFM2).

    Attributes:
        kernel: taps of the convolution, the position's own among them.
        convolution: [hidden * kernel], by channel.
    """

    kernel: int
    b: Linear
    c: Linear
    x: Linear
    convolution: Tensor
    convolution_bias: Tensor | None = None
    out: Linear


@dataclass(frozen=True, slots=True)
class Activation:
    """What becomes of gate and up: f(gate) * up; of up alone, where there is no gate, f(up).

    ``kind`` is "silu", "gelu_tanh", "relu_squared", "xielu", whose parameters are weights (``Xielu``), or "clamped":
    gate at most ``limit``, up within it, gate * sigmoid(alpha * gate) * (up + 1) (gpt-oss).
    """

    kind: str
    alpha: float = 0.0
    limit: float = 0.0


@dataclass(frozen=True, slots=True)
class Xielu:
    """The parameters of xIELU (Huang and Schlag, arXiv 2411.13010), each of one value.

    f(x) = softplus(alpha_p) x^2 + beta x above 0, else (beta + softplus(alpha_n)) (e^min(x, eps) - 1 - x) + beta x.
    """

    alpha_p: Tensor
    alpha_n: Tensor
    beta: Tensor
    eps: Tensor


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """down(f(gate x) * up x), or down(f(up x)) where there is no gate; ``parameters`` are f's, of "xielu" alone."""

    gate: Linear | None
    up: Linear
    down: Linear
    activation: Activation
    parameters: Xielu | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture: each row goes to the ``used`` experts that its router likes best.

    Attributes:
        router: [experts, hidden], never in a low-bit format.
        correction: [experts], added to the scores by which experts are chosen, and not to their weights.
        experts: all of one size.
        shared: an expert for every row, of a size of its own; None: there is none.
        shared_gate: [1, hidden], a float: it is multiplied by the sigmoid of that product; None: it is not.
        used: experts a row goes to.
        scores: what logits become: "all": their softmax over all experts, then the chosen ones taken; "chosen": over
            the chosen ones' only; "sigmoid": each by itself.
        renormalise: the chosen ones' weights are divided by their sum, and ``sum_epsilon``.
        scale: multiplies the weights.
        groups, groups_used: experts are in groups, and chosen among the best of these.
        group_best: by the sum of so many best experts of each, 1 or 2.
        router_norm, norm: the router and the experts read norms of their own of x; ``router_multiplier``: what the
            router reads is multiplied (Gemma 4). None: all read what the block's norm leaves, as ``shared`` does.
        after, shared_after: norms of what the chosen experts, and of what the shared one comes to, before the sum.
        expert_scales: [experts], multiply the weights in the end.
    """

    router_norm: Norm | None = None
    router_multiplier: float = 1.0
    router: Linear
    shared_gate: Linear | None = None
    correction: Tensor | None = None
    expert_scales: Tensor | None = None
    norm: Norm | None = None
    experts: tuple[GatedMlp, ...]
    after: Norm | None = None
    shared: GatedMlp | None = None
    shared_after: Norm | None = None
    used: int
    scores: str
    renormalise: bool
    sum_epsilon: float = 0.0
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1
    group_best: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerInputs:
    """Values that a row has for each layer: multiplier * (norm(projection_multiplier * projection e) + of the token).

    ``e`` is the token's embedding as the first layer reads it, and of the token is table_multiplier * table[token]
    (Gemma 4's embeddings by layer; those of all layers lie behind each other).

    Attributes:
        width, layers: of so many layers, so many values each.
        table: [vocab, layers * width]; of a step only its tokens' rows are read.
        norm: over each layer's values.
    """

    width: int
    layers: int
    table: Tensor
    table_multiplier: float
    projection: Linear
    projection_multiplier: float
    norm: Norm
    multiplier: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerGate:
    """out(gelu_tanh(gate x) * values), which are the row's for this ``layer``; see ``PerLayerInputs``."""

    layer: int
    gate: Linear
    out: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureInputs:
    """A drafting head's rows: x = project(embedding_norm(e) | norms(features)), e being the token's embedding.

    Features are another model's hidden states, of the row before (MTP of DeepSeek-V3, arXiv 2412.19437); those of a
    drafted token are the head's own, or back(the head's own) where that is there (Gemma 4's assistants). Or, with
    ``keep_embedding``: x = after(project(norms(features))), of the head's own features after(features), and
    embedding_norm(e) is passed to attention next to x (EAGLE-3, arXiv 2503.01840).

    Attributes:
        width: of a row's features.
        layers: which of the target's hidden states they are, one behind the other: those of so many layers, 0 the
            embedding alone, -1 after the final norm; ascending, one perhaps twice, and as wide as each other.
        feeds_back: which of the head's own hidden states, so numbered, are the features of what it drafted.
        keep_embedding: the normed embedding is passed to attention next to x (``Attention.with_embedding``).
        shares: "embedding" and "head" where they are the target's. The embedding may be wider than the head's rows.
        embedding_norm: over the embedding; None: there is none.
        norms: over the features, each over as many as it has weights, one behind the other; or none.
        project: [hidden, embedding + width]; with ``keep_embedding`` [hidden, width].
        back: [width, hidden], of the head's own features; None: they are as they are.
        after: over what ``project`` comes to; None: there is none.
    """

    width: int
    layers: tuple[int, ...] = (-1,)
    feeds_back: int = -1
    keep_embedding: bool = False
    shares: tuple[str, ...] = ("embedding", "head")
    embedding_norm: Norm | None = None
    norms: tuple[Norm, ...] = ()
    project: Linear
    back: Linear | None = None
    after: Norm | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Of a row's logits those are computed whose tokens have one of the ``used`` centroids that it likes best.

    Attributes:
        used: centroids of a row.
        centroids: [centroids, hidden]; each stands for as many tokens.
        ordering: [vocab], numbers of tokens: those of centroid c are the c-th part of it.
    """

    used: int
    centroids: Linear
    ordering: Tensor


Mixer = Attention | LatentAttention | GatedDeltaNet | Mamba2 | ShortConv
"""What makes a row of those before it: another kind of layer is one more dataclass here."""
FeedForward = GatedMlp | Experts
"""What makes a row of itself alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """x + multiplier * after(mixer(before(x))), and the same with the feed-forward; its fields as a step reads them.

    ``None`` for a norm, the mixer or the feed-forward: there is none at that place. ``parallel``: x + mixer(y) +
    feed_forward(y), y = before(x) of the mixer, without any other norm (Cohere). ``output_scale``: [1], multiplies what
    leaves the block, after ``per_layer`` where there is one (Gemma 4), which reads x without a norm.
    """

    mixer_norm: Norm | None = None
    mixer: Mixer | None = None
    mixer_after: Norm | None = None
    feed_forward_norm: Norm | None = None
    feed_forward: FeedForward | None = None
    feed_forward_after: Norm | None = None
    residual_multiplier: float = 1.0
    parallel: bool = False
    per_layer: PerLayerGate | None = None
    per_layer_after: Norm | None = None
    output_scale: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ModelSpec:
    """A decoder.

    Attributes:
        model_type: the family, the name of its file.
        hidden, vocab: sizes.
        max_context: positions a sequence may have.
        embedding: [vocab, hidden].
        per_layer: what rows have for each layer besides; None: nothing.
        features: what rows have beside their embedding, in a drafting head; None: nothing.
        layers: the blocks in order.
        final_norm: before the head.
        candidates: which logits of a row are computed; None: all of them.
        head: None: the embedding serves as lm_head too. A drafting head's may be a part of the vocabulary's.
        target_keys: of a drafting head whose layers have the keys and values of its target's (``Attention.shared``):
            its rows see what the target has committed, not each other, and leave nothing (Gemma 4's assistants).
        embedding_multiplier: multiplies the embedding of a token.
        logit_multiplier: multiplies the logits.
        logit_softcap: logits become cap * tanh(logit / cap), after the multiplier.
        read_past: how names of tensors begin that files hold for drafting (MTP), which are not of the decoder.
        unread: how names of others begin that files hold and no one reads.
        mtp: the head for drafting that files may hold beside the decoder, whose weights are not the decoder's.
    """

    model_type: str
    hidden: int
    vocab: int
    max_context: int
    embedding: Tensor
    per_layer: PerLayerInputs | None = None
    features: FeatureInputs | None = None
    layers: tuple[Block, ...]
    final_norm: Norm
    candidates: Candidates | None = None
    head: Linear | None
    target_keys: bool = False
    embedding_multiplier: float = 1.0
    logit_multiplier: float = 1.0
    logit_softcap: float | None = None
    read_past: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    mtp: ModelSpec | None = field(default=None, metadata={"apart": True})

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
        return (*(() if self.tied else (self.embedding.name,)), *self.routers())

    def tables(self) -> frozenset[str]:
        """Return the names of the matrices of which a token reads a row and which multiply nothing."""
        by_layer = () if self.per_layer is None else (self.per_layer.table.name,)
        return frozenset((*by_layer, *(() if self.tied else (self.embedding.name,))))

    def routers(self) -> tuple[str, ...]:
        """Names of the matrices that are floats always: routers, and gates of shared experts."""
        linears = (linear for one in self.mixtures for linear in (one.router, one.shared_gate) if linear is not None)
        return tuple(linear.weight.name for linear in linears)

    def tensors(self) -> Iterator[Tensor]:
        """Every weight once, in the order a step reads them."""
        return (tensor for _, tensor in named_tensors(self))

    def own_tensors(self) -> Iterator[Tensor]:
        """The same without those that a drafting head shares with its target."""
        shared = () if self.features is None else self.features.shares
        return (tensor for name, tensor in named_tensors(self) if name.partition(".")[0] not in shared)


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
        inner = ((label, getattr(part, label)) for label in _fields(kind))
    for label, one in inner:
        yield from named_tensors(one, f"{name}.{label}" if name else label)


@functools.cache
def _fields(kind: Any) -> tuple[str, ...]:
    """The fields of a kind of part that may lead to a weight; none of what is no part."""
    return tuple(one.name for one in fields(kind) if not one.metadata.get("apart")) if is_dataclass(kind) else ()
