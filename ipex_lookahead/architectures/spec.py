"""The vocabulary of model descriptions, used by families to describe models and by all code that handles weights.

A description is independent of files, engines and devices. It lists the blocks in execution order with their options,
and for each weight its place in both kinds of files. Loading, saving, random weights, GGUF names, progress and ``info``
iterate over ``named_tensors`` or ``ModelSpec.tensors()``; no other code lists tensors.

The vocabulary is in one file, because ``csrc/description.h`` reads it field by field and families need nothing else.
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
    """The place of a weight in one kind of file: a tensor or a part of one.

    Attributes:
        name: name of the tensor in the file.
        shape: required shape of the whole tensor.
        expert: index in the leading dimension of experts; None: there is no such dimension.
        rows: (first, step) of the weight's rows in the tensor or entry.
        block: number of consecutive rows at each of these positions.
        more: (offset from ``first``, block) of further rows with the same step, which follow all earlier ones in the
            weight. Used for tensors with several kinds of rows per head.
        negative_exponential: True if the file holds -e^x for each value x.
        constant: value of all elements of a weight that is in no tensor; None: it is in one.
        layout: "plain": [n_out, n_in]; "transposed": [n_in, n_out]; "mxfp4": blocks of codes, with scales in the tensor
            named ``_scales`` instead of ``_blocks`` (gpt-oss); "whole": token ids, read as float32, which represents
            them exactly; "key": entry ``rows[0]`` of a list in a GGUF file's metadata (Apertus); "by_input": [n_in,
            n_out] with ``rows`` selecting the weight's inputs (parts of DeepSeek's ``kv_b_proj``).
        pairs: number of heads with rows as adjacent rotary pairs (i, i + 1) instead of halves (i, i + d / 2).
        offset: added to every value, for norm weights stored minus 1.
        also: other names of the tensor, as other programs save folders.
        exponential: True if the file holds e^x for each value x.
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
    constant: float | None = None
    also: tuple[str, ...] = ()
    exponential: bool = False


@dataclass(frozen=True, slots=True)
class Tensor:
    """A weight of a step.

    Attributes:
        name: name here and in saved folders: Hugging Face's name, or a similar one for parts of its tensors.
        shape: [n_out, n_in] of a matrix, [n] of a vector, [] of a scalar.
        hf: place in a Hugging Face folder.
        gguf: place in a GGUF file.
    """

    name: str
    shape: tuple[int, ...]
    hf: Place
    gguf: Place

    @property
    def constant(self) -> float | None:
        """The value of all elements if folders do not have the weight; None for a stored weight."""
        return self.hf.constant

    @property
    def is_matrix(self) -> bool:
        """True for matrices, which may be in a low-bit format."""
        return len(self.shape) == 2


@dataclass(frozen=True, slots=True)
class Clip:
    """Limits of a linear layer's inputs and outputs, scalars (Gemma 4's vision tower). Encoders only."""

    input_min: Tensor
    input_max: Tensor
    output_min: Tensor
    output_max: Tensor


@dataclass(frozen=True, slots=True)
class Linear:
    """y = W x + bias; with ``clip``, x and y are clamped."""

    weight: Tensor
    bias: Tensor | None = None
    clip: Clip | None = None


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS norm (Zhang and Sennrich, arXiv 1910.07467): x / sqrt(mean(x^2) + epsilon) * weight.

    ``centered``: layer norm (Ba et al., arXiv 1607.06450): the same of x - mean(x), plus the optional bias.
    """

    weight: Tensor
    epsilon: float
    bias: Tensor | None = None
    centered: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """Rotary embedding of the first ``2 * len(frequencies)`` values of a head, i with i + len(frequencies).

    Attributes:
        frequencies: float32 [rotated / 2], radians per position.
        factor: factor on cos and sin (temperature of yarn and longrope).
        query_beta, query_original: a query at position p is multiplied by 1 + beta * ln(1 + floor(p / original))
            (temperature of Llama 4 and Ministral 3); beta 0 disables it.
        interleaved: True if value 2 i is rotated with 2 i + 1 instead (GLM, Cohere, ERNIE).
        axes: for each pair, which of a row's three positions it is rotated by (0 time, 1 row, 2 column of an image);
            they are equal for text. (): the first (M-RoPE, Qwen2-VL and later).
    """

    frequencies: npt.NDArray[np.float32]
    factor: float = 1.0
    query_beta: float = 0.0
    query_original: int = 0
    interleaved: bool = False
    axes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Grouped-query attention, a mixer. Weights are in the order in which a step reads them.

    Attributes:
        heads, kv_heads, head_dim: sizes.
        q, k, v, o: linear layers. Without ``v``, values are k before its norm and rope (Gemma 4).
        scale: factor on the product of query and key.
        rope: None: no position embedding.
        q_norm, k_norm: norms before rope, over each head or the whole projection, depending on their length.
        norm_after_rope: True if these norms, over heads, are applied after rope (Hunyuan).
        window: number of visible positions, including the present one; None: all.
        softcap: scores become cap * tanh(score / cap); None: no cap.
        sinks: [heads], an additional logit per head in the softmax's denominator.
        gate: the heads' outputs are multiplied by ``gate_kind`` of it, "sigmoid" (Qwen3-Next and later) or "softplus"
            (Laguna); it has one value per head, or one per value of a head.
        value_norm: epsilon of an RMS norm without weights over each head of values; None: no norm.
        shared: layer that provides the keys and values if there is neither k nor v (Gemma 4); in a head with
            ``target_keys``, a layer of the target. None: no sharing.
        with_embedding: True if q, k and v are [n, 2 * hidden] and read (embedding | x); see
            ``FeatureInputs.keep_embedding``.
        spans: True if the rows of an image see each other (Gemma 3, and Gemma 4's layers with a window).
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
    gate_kind: str = "sigmoid"
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    norm_after_rope: bool = False
    value_norm: float | None = None
    shared: int | None = None
    with_embedding: bool = False
    spans: bool = False
    sinks: Tensor | None = None
    o: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), a mixer that caches a latent and a key per position.

    c | r = kv_a x and q_h = q norm(q_a x); the last ``rotated`` values of q_h and r are rotated. A head's score is
    (k_b_h first values of q_h) . norm(c) + last values of q_h . r, times ``scale``. Its output is v_b_h applied to the
    weighted sum of norm(c); latents are never expanded to keys and values.

    Attributes:
        heads: number of query heads.
        latent: size of c.
        passed, rotated: unrotated and rotated size of a query head; ``value_dim``: size of a head's output.
        scale: factor on scores.
        q_a, q_norm: None: q reads x.
        gate: [heads, hidden]; a head's output is multiplied by the sigmoid of its value (Ling 3). None: no gate.
        k_b: [latent, passed] per head; ``v_b``: [value_dim, latent].
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
    gate: Linear | None = None
    k_b: tuple[Linear, ...]
    v_b: tuple[Linear, ...]
    o: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNet:
    """Gated delta net (Yang et al., arXiv 2412.06464), a mixer with a float32 state S [key_dim, value_dim] per head.

    q, k, v = silu(convolution(inputs x)), with q and k divided by their lengths, and q by sqrt(key_dim). Then S = e^g S
    with g = -e^rate softplus(steps x + step_bias), d = sigmoid(beta x) (v - S^T k), S = S + k d^T, y = S^T q, and the
    output is out(norm(y) * silu(gate x)).

    Attributes:
        heads: value heads; ``groups``: query and key heads, each for ``heads / groups`` consecutive value heads.
        tiled: True if value head i uses group i % groups instead (GGUF files of Qwen3.5).
        key_dim, value_dim: sizes of a head.
        kernel: taps of the convolution, including the present position.
        length_epsilon: epsilon in the lengths of q and k.
        convolution: [channels * kernel], by channel, in the order q, k, v.
        rate: [heads], a logarithm.
        norm: norm over each value head.
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
class KimiDeltaAttention:
    """Kimi delta attention (arXiv 2510.26692), a delta net in which each row of S, that is each key, has its own decay.

    q, k, v = silu(convolution(q x)), ..., with q and k divided by their lengths, and q by sqrt(head_dim). Then
    S = e^g S by row with g = -e^rate softplus(z) or, with a bound, decay_bound * sigmoid(e^rate z), where z = steps
    steps_a x + step_bias; d = sigmoid(beta x) (v - S^T k), S = S + k d^T, y = S^T q, and the output is out(norm(y) *
    sigmoid(gate gate_a x)).

    Attributes:
        heads, head_dim: sizes of q, k and v.
        kernel: taps of the convolutions, including the present position.
        length_epsilon: epsilon in the lengths of q and k.
        decay_bound: lowest g; None: not bounded.
        steps_a, gate_a: None: ``steps`` and ``gate`` read x.
        q_convolution, k_convolution, v_convolution: [heads * head_dim * kernel], by channel.
        rate: [heads], a logarithm; ``step_bias``: [heads * head_dim].
        norm: norm over each head.
    """

    heads: int
    head_dim: int
    kernel: int
    length_epsilon: float = 1e-6
    decay_bound: float | None = None
    q: Linear
    k: Linear
    v: Linear
    gate_a: Linear | None = None
    gate: Linear
    steps_a: Linear | None = None
    steps: Linear
    beta: Linear
    q_convolution: Tensor
    k_convolution: Tensor
    v_convolution: Tensor
    rate: Tensor
    step_bias: Tensor
    norm: Norm
    out: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """Mamba-2 (Dao and Gu, arXiv 2405.21060), a mixer with a float32 state S [key_dim, value_dim] per head.

    x, B, C = silu(convolution(inputs x)), t = softplus(steps x + step_bias) clamped to [least_step, most_step]. Then
    S = e^(-t e^rate) S + B (t x)^T, y = S^T C + skip x, and the output is out(norm(y * silu(gate x))),
    out(norm(y) * silu(gate x)), or without a norm out(y * silu(gate x)).

    Attributes:
        heads, value_dim: of x; ``groups``, ``key_dim``: of B and C, each for ``heads / groups`` consecutive heads.
        tiled: see ``GatedDeltaNet``.
        kernel: taps of the convolution, including the present position.
        norm_group: number of values that are normalized together.
        gate_first: True if the gate is applied before the norm.
        convolution: [channels * kernel], by channel, in the order x, B, C.
        multipliers: factors on gate, x, B, C and steps after their matrices, before everything else (Falcon-H1).
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
    multipliers: tuple[float, float, float, float, float] = (1.0, 1.0, 1.0, 1.0, 1.0)
    inputs: Linear
    gate: Linear
    steps: Linear
    convolution: Tensor
    convolution_bias: Tensor | None = None
    rate: Tensor
    step_bias: Tensor
    skip: Tensor
    norm: Norm | None
    out: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConv:
    """Short convolution (LFM2), a mixer: out(c * convolution(b * x)), where b, c and x are linear layers of its input.

    Attributes:
        kernel: taps of the convolution, including the present position.
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
    """The activation f of an MLP: f(gate) * up, or f(up) without a gate.

    ``kind`` is "silu", "gelu_tanh", "relu_squared", "xielu" (with weights in ``Xielu``), "scaled_silu":
    silu(alpha * gate) * up (Falcon-H1), or "clamped": gate at most
    ``limit``, up within ±``limit``, gate * sigmoid(alpha * gate) * (up + 1) (gpt-oss). Encoders have "silu",
    "gelu_tanh", "gelu" with the error function, "gelu_quick": x * sigmoid(1.702 x), "relu", "tanh", and "sigmoid".
    """

    kind: str
    alpha: float = 0.0
    limit: float = 0.0


@dataclass(frozen=True, slots=True)
class Xielu:
    """Parameters of xIELU (Huang and Schlag, arXiv 2411.13010), one value each.

    f(x) = softplus(alpha_p) x^2 + beta x above 0, else (beta + softplus(alpha_n)) (e^min(x, eps) - 1 - x) + beta x.
    """

    alpha_p: Tensor
    alpha_n: Tensor
    beta: Tensor
    eps: Tensor


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """MLP: down(f(gate x) * up x), or down(f(up x)) without gate; ``parameters`` belong to the activation "xielu"."""

    gate: Linear | None
    up: Linear
    down: Linear
    activation: Activation
    parameters: Xielu | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Mixture of experts: each row is processed by the ``used`` experts with the highest scores.

    Attributes:
        router: [experts, hidden], never in a low-bit format.
        correction: [experts], added to the scores when experts are selected, but not to their weights.
        experts: experts of equal size.
        shared: expert for all rows, of any size; None: none.
        shared_gate: [1, hidden], in floats; the shared expert's output is multiplied by its sigmoid. None: no gate.
        used: number of experts per row.
        scores: how logits become scores: "all": softmax over all experts, then selection; "chosen": softmax over the
            selected ones; "sigmoid": sigmoid of each.
        renormalize: True if the weights of selected experts are divided by their sum plus ``sum_epsilon``.
        scale: factor on the weights.
        groups, groups_used: number of groups of experts, and of the best groups from which experts are selected.
        group_best: number of best experts (1 or 2) with scores that are summed to rank groups.
        router_norm, norm: separate norms of x for the router and the experts; ``router_multiplier``: factor on the
            router's input (Gemma 4). None: the block's norm is used, as for ``shared``.
        after, shared_after: norms of the output of the selected experts and of the shared one, before the sum.
        expert_scales: [experts], final factors on the weights.
        compress, expand: [latent, hidden] and [hidden, latent]: experts read compress x, and expand is applied to the
            sum of their outputs; the router and the shared expert read x (Nemotron 3). None: experts read x.
    """

    router_norm: Norm | None = None
    router_multiplier: float = 1.0
    router: Linear
    shared_gate: Linear | None = None
    correction: Tensor | None = None
    expert_scales: Tensor | None = None
    norm: Norm | None = None
    compress: Linear | None = None
    experts: tuple[GatedMlp, ...]
    expand: Linear | None = None
    after: Norm | None = None
    shared: GatedMlp | None = None
    shared_after: Norm | None = None
    used: int
    scores: str
    renormalize: bool
    sum_epsilon: float = 0.0
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1
    group_best: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerInputs:
    """Additional inputs per layer: multiplier * (norm(projection_multiplier * projection e) + the token's values).

    ``e`` is the token's embedding as read by the first layer. The token's values are table_multiplier * table[token],
    with the values of all layers concatenated (per-layer embeddings of Gemma 4).

    Attributes:
        width, layers: values per layer, and number of layers.
        table: [vocab, layers * width]; a step reads only its tokens' rows.
        norm: norm over each layer's values.
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
    """out(gelu_tanh(gate x) * values), with the row's values for this ``layer``; see ``PerLayerInputs``."""

    layer: int
    gate: Linear
    out: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureInputs:
    """Inputs of a drafting head: x = project(embedding_norm(e) | norms(features)), e being the token's embedding.

    Features are hidden states of the target for the previous row (MTP of DeepSeek-V3, arXiv 2412.19437). For drafted
    tokens they are the head's own hidden states, optionally passed through ``back`` (Gemma 4's assistants). With
    ``keep_embedding``, x = after(project(norms(features))), or after(features) for the head's own features, and
    embedding_norm(e) is an additional input of attention with ``with_embedding`` (EAGLE-3, arXiv 2503.01840).

    Attributes:
        width: number of features per row.
        layers: the target's hidden states that are concatenated: the number of layers before each, 0 for the
            embedding, -1 after the final norm; ascending, possibly with one duplicate, all of equal width.
        feeds_back: the head's own hidden state, numbered the same way, that is the feature of drafted tokens.
        keep_embedding: True if the embedding is a separate input instead of a part of x.
        shares: "embedding" and "head" if they are the target's. The embedding may be wider than the head's rows.
        embedding_norm: norm over the embedding; None: none.
        norms: norms over consecutive parts of the features; may be empty.
        project: [hidden, embedding + width]; with ``keep_embedding`` [hidden, width].
        back: [width, hidden], applied to the head's own features; None: identity.
        after: norm over the output of ``project``; None: none.
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
    """Restriction of the computed logits to the tokens of the ``used`` best centroids of a row.

    Attributes:
        used: number of centroids per row.
        centroids: [centroids, hidden]; each represents the same number of tokens.
        ordering: [vocab], token ids; those of centroid c are the c-th part of it.
    """

    used: int
    centroids: Linear
    ordering: Tensor


Mixer = Attention | LatentAttention | GatedDeltaNet | KimiDeltaAttention | Mamba2 | ShortConv
"""Layers that combine a row with earlier rows. A new kind is one more dataclass here."""
Recurrent = GatedDeltaNet | KimiDeltaAttention | Mamba2 | ShortConv
"""Mixers with a state instead of keys and values for each position."""
FeedForward = GatedMlp | Experts
"""Layers that process each row on its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """x + multiplier * after(mixer(before(x))), and the same with the feed-forward; fields in the order of a step.

    A norm, mixer or feed-forward that is None is absent. ``parallel``: x + mixer(y) + feed_forward(y) with y =
    before(x) of the mixer, without other norms (Cohere). ``second_mixer``: x + mixer(y) + second_mixer(y), without
    norms after them (Falcon-H1). ``mixer_multiplier`` and similar: further factors on one part's output.
    ``output_scale``: [1], factor on the block's output, after ``per_layer`` (Gemma 4), which reads x without a norm.
    """

    mixer_norm: Norm | None = None
    mixer: Mixer | None = None
    second_mixer: Mixer | None = None
    mixer_after: Norm | None = None
    feed_forward_norm: Norm | None = None
    feed_forward: FeedForward | None = None
    feed_forward_after: Norm | None = None
    residual_multiplier: float = 1.0
    mixer_multiplier: float = 1.0
    second_mixer_multiplier: float = 1.0
    feed_forward_multiplier: float = 1.0
    parallel: bool = False
    per_layer: PerLayerGate | None = None
    per_layer_after: Norm | None = None
    output_scale: Tensor | None = None


@dataclass(frozen=True, slots=True)
class ImageInputs:
    """How a decoder takes images: rows with given embeddings.

    Attributes:
        token: id of the placeholder for a row of an image, which is never drafted.
        grid_positions: whether rows of images have RoPE positions of three parts, see ``Rope.axes``.
        hidden: number of values of a row's embedding.
        pad: id of the token that rows of images have in the per-layer inputs (Gemma 4).
        deepstack: number of first layers after which further features are added to these rows (Qwen3-VL).
    """

    token: int
    hidden: int
    pad: int = 0
    grid_positions: bool = False
    deepstack: int = 0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ModelSpec:
    """A decoder.

    Attributes:
        model_type: name of the family.
        hidden, vocab: sizes.
        max_context: maximum number of positions per sequence.
        embedding: [vocab, hidden].
        per_layer: additional inputs per layer; None: none.
        images: how it takes images; None: not at all.
        features: inputs of a drafting head in addition to the embedding; None: not a head.
        layers: blocks in order.
        final_norm: norm before the head.
        candidates: restriction of the computed logits; None: all logits.
        head: lm_head; None: the embedding. A drafting head's may cover a part of the vocabulary.
        target_keys: True for a drafting head with layers that use the target's keys and values (``Attention.shared``):
            its rows see the target's committed tokens, not each other, and are not cached (Gemma 4's assistants).
        embedding_multiplier: factor on embeddings.
        embedding_norm: epsilon of an RMS norm without weights over an embedding, after the factor (Muse-Glimmer); None:
            no norm.
        logit_multiplier: factor on logits.
        logit_softcap: logits become cap * tanh(logit / cap), after the multiplier.
        read_past: name prefixes of tensors of MTP blocks in files, which are not part of the decoder.
        unread: name prefixes of other ignored tensors.
        mtp: drafting head in the same files, with weights of its own.
    """

    model_type: str
    hidden: int
    vocab: int
    max_context: int
    embedding: Tensor
    per_layer: PerLayerInputs | None = None
    images: ImageInputs | None = None
    features: FeatureInputs | None = None
    layers: tuple[Block, ...]
    final_norm: Norm
    candidates: Candidates | None = None
    head: Linear | None
    target_keys: bool = False
    embedding_multiplier: float = 1.0
    embedding_norm: float | None = None
    logit_multiplier: float = 1.0
    logit_softcap: float | None = None
    read_past: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    mtp: ModelSpec | None = field(default=None, metadata={"apart": True})

    @property
    def tied(self) -> bool:
        """True if the embedding is used as the lm_head."""
        return self.head is None

    @property
    def head_weight(self) -> Tensor:
        """The tensor used as the lm_head."""
        return self.embedding if self.head is None else self.head.weight

    @property
    def mixtures(self) -> tuple[Experts, ...]:
        """The mixtures of experts of all layers that have one."""
        return tuple(block.feed_forward for block in self.layers if isinstance(block.feed_forward, Experts))

    @property
    def spans(self) -> bool:
        """True if rows of an image see each other in some layers, so that a step must have all of them."""
        return any(isinstance(block.mixer, Attention) and block.mixer.spans for block in self.layers)

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """The mixers of all layers."""
        found = (mixer for block in self.layers for mixer in (block.mixer, block.second_mixer))
        return tuple(mixer for mixer in found if mixer is not None)

    def kept(self) -> tuple[str, ...]:
        """Return the names of matrices that keep the file's format: an untied embedding, and routers."""
        return (*(() if self.tied else (self.embedding.name,)), *self.routers())

    def tables(self) -> frozenset[str]:
        """Return the names of matrices that are only accessed by row and never multiplied."""
        by_layer = () if self.per_layer is None else (self.per_layer.table.name,)
        return frozenset((*by_layer, *(() if self.tied else (self.embedding.name,))))

    def routers(self) -> tuple[str, ...]:
        """Return the names of matrices that are always floats: routers, and gates of shared experts."""
        linears = (linear for one in self.mixtures for linear in (one.router, one.shared_gate) if linear is not None)
        return tuple(linear.weight.name for linear in linears)

    def tensors(self) -> Iterator[Tensor]:
        """Return every weight once, in the order in which a step reads them."""
        return (tensor for _, tensor in named_tensors(self))

    def own_tensors(self) -> Iterator[Tensor]:
        """Return every weight except those that a drafting head shares with its target."""
        shared = () if self.features is None else self.features.shares
        return (tensor for name, tensor in named_tensors(self) if name.partition(".")[0] not in shared)


def named_tensors(part: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every weight of a part of a description, in the order of a step, with its field path.

    Examples are ``layers.0.mixer.q.weight`` and ``layers.0.feed_forward.experts.3.up.weight``.
    """
    if isinstance(part, Tensor):
        yield name, part
        return
    if isinstance(part, tuple):
        inner: Iterable[tuple[str, Any]] = ((str(i), one) for i, one in enumerate(part))
    else:
        kind: Any = type(part)  # not known to be hashable by mypy
        inner = ((label, getattr(part, label)) for label in _fields(kind))
    for label, one in inner:
        yield from named_tensors(one, f"{name}.{label}" if name else label)


@functools.cache
def _fields(kind: Any) -> tuple[str, ...]:
    """Return the fields of a class that may lead to a weight; none for other classes."""
    return tuple(one.name for one in fields(kind) if not one.metadata.get("apart")) if is_dataclass(kind) else ()
