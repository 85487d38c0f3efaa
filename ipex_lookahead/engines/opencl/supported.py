"""The allow list of the fields of a model's description that kernels support.

A field in neither table is refused by name for any value: a new field belongs in one of the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from ipex_lookahead.architectures.spec import (
    Activation,
    Attention,
    Block,
    Experts,
    GatedDeltaNet,
    GatedMlp,
    ImageInputs,
    LatentAttention,
    Linear,
    Mamba2,
    ModelSpec,
    Norm,
    PerLayerGate,
    PerLayerInputs,
    Rope,
    ShortConv,
    Tensor,
    Xielu,
)
from ipex_lookahead.engines.api import MOST_TOP
from ipex_lookahead.errors import UnsupportedModelError, arg

MOST_HEAD, MOST_USED = 1024, 64
MOST_PARTS = 8
"""Most norms over parts of a drafting head's features (``kernels/draft.cl``)."""
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "clamped": 2, "relu_squared": 3, "xielu": 4}
SCORES = ("all", "chosen", "sigmoid")
"""The supported values of ``Experts.scores``, in the order of ``kernels/experts.cl``."""

RUN: dict[type, frozenset[str]] = {
    kind: frozenset(names.split())
    for kind, names in (
        (
            ModelSpec,
            "model_type hidden vocab max_context embedding layers final_norm head embedding_multiplier embedding_norm"
            " logit_multiplier logit_softcap per_layer images read_past unread mtp",
        ),
        (
            Block,
            "mixer_norm mixer mixer_after feed_forward_norm feed_forward feed_forward_after residual_multiplier"
            " parallel per_layer per_layer_after output_scale",
        ),
        (
            Attention,
            "heads kv_heads head_dim scale rope window softcap q k v gate gate_kind q_norm k_norm norm_after_rope"
            " value_norm shared with_embedding sinks spans o",
        ),
        (
            LatentAttention,
            "heads latent passed rotated value_dim scale rope q_a q_norm kv_a kv_norm q gate k_b v_b o",
        ),
        (
            GatedDeltaNet,
            "heads groups tiled key_dim value_dim kernel length_epsilon inputs gate steps beta convolution rate"
            " step_bias norm out",
        ),
        (
            Mamba2,
            "heads groups tiled key_dim value_dim kernel norm_group gate_first least_step most_step inputs gate steps"
            " convolution convolution_bias rate step_bias skip norm out multipliers",
        ),
        (ShortConv, "kernel b c x convolution convolution_bias out"),
        (ImageInputs, "token hidden pad grid_positions deepstack"),
        (Rope, "frequencies factor query_beta query_original interleaved axes"),
        (Norm, "weight epsilon bias centered"),
        (Linear, "weight bias"),
        (GatedMlp, "gate up down activation parameters"),
        (Xielu, "alpha_p alpha_n beta eps"),
        (PerLayerInputs, "width layers table table_multiplier projection projection_multiplier norm multiplier"),
        (PerLayerGate, "layer gate out"),
        (Activation, "kind alpha limit"),
        (
            Experts,
            "router_norm router_multiplier router shared_gate correction expert_scales norm experts after shared"
            " shared_after used scores renormalize sum_epsilon scale groups groups_used group_best",
        ),
    )
}
"""Fields that kernels read, or that do not affect a step: words for rows of images, which the engine refuses.

``_beyond`` restricts their values.
"""
AT_DEFAULT: dict[type, dict[str, str]] = {
    ModelSpec: {
        "features": "features of another model's",
        "candidates": "logits of some tokens alone",
        "target_keys": "keys and values of another model's",
    },
    Linear: {"clip": "bounds on the inputs and outputs of linear layers"},
    Experts: dict.fromkeys(("compress", "expand"), "experts that read a projection of the rows"),
    Block: {
        "second_mixer": "two mixers in a layer",
        "mixer_multiplier": "factors on mixers",
        "second_mixer_multiplier": "factors on mixers",
        "feed_forward_multiplier": "factors on feed-forwards",
    },
}
"""Fields that must have their default, which does not affect a step -> the name of the unsupported feature."""


def mlps_of(block: Block) -> tuple[GatedMlp, ...]:
    """Return a block's experts with the shared one, or its MLP if it has one."""
    part = block.feed_forward
    if isinstance(part, Experts):
        return (*part.experts, *([] if part.shared is None else [part.shared]))
    return () if part is None else (part,)


def lacking(spec: ModelSpec) -> list[str]:
    """Return the features of a model that kernels do not support."""
    return sorted({reason for block in spec.layers for reason in _beyond(block)} | {*_unknown(spec)})


def check_spec(spec: ModelSpec) -> None:
    """Raise UnsupportedModelError for a model that kernels do not support."""
    if features := lacking(spec):
        raise UnsupportedModelError(
            f"{spec.model_type} has {', '.join(features)}, which the OpenCL engine does not run",
            hint=f"use {arg('engine', 'native')}",
        )
    sizes = {_heads_of(block.mixer) for block in spec.layers if isinstance(block.mixer, Attention | LatentAttention)}
    for heads, kv_heads, d in sizes:
        if d > MOST_HEAD or d % 8 or heads % kv_heads:
            raise UnsupportedModelError(
                f"heads have {d} values, {heads} of them for {kv_heads} key heads; the OpenCL"
                f" engine has heads of a multiple of 8 values up to {MOST_HEAD}, whole groups of them for a key head"
            )


def check_head(spec: ModelSpec) -> None:
    """Raise UnsupportedModelError for a drafting head that kernels do not support."""
    features = spec.features
    assert features is not None
    check_spec(replace(spec, features=None, candidates=None, target_keys=False))
    norms = [norm for norm in (features.embedding_norm, *features.norms, features.after) if norm is not None]
    alike = len({(norm.weight.shape, norm.epsilon) for norm in features.norms}) <= 1
    for wrong, lacking in (
        (any(norm.centered or norm.bias is not None for norm in norms), "layer norms"),
        (not alike or len(features.norms) > MOST_PARTS, "norms of different sizes over parts of the features"),
        (features.feeds_back not in (-1, len(spec.layers)), "features that are fed back from within its layers"),
        (
            spec.candidates is not None and spec.candidates.used > MOST_TOP,
            f"{spec.candidates and spec.candidates.used} centroids for a row (of at most {MOST_TOP})",
        ),
    ):
        if wrong:
            raise UnsupportedModelError(
                f"the drafting head has {lacking}, which the OpenCL engine does not run",
                hint=f"use {arg('engine', 'native')}",
            )


def may_divide(spec: ModelSpec, layers: int) -> bool:
    """Return True if the last ``layers`` layers need nothing but hidden states from the others, on another device.

    They must not read the others' keys and values, nor inputs that are made from embeddings.
    """
    first = len(spec.layers) - layers
    shared = (getattr(block.mixer, "shared", None) for block in spec.layers[first:])
    return first == 0 or (spec.per_layer is None and all(layer is None or layer >= first for layer in shared))


def _heads_of(mixer: Any) -> tuple[int, int, int]:
    """Return the numbers of heads and key heads of a mixer, and the size of a key."""
    if isinstance(mixer, LatentAttention):
        return mixer.heads, 1, mixer.rotated + mixer.latent
    return mixer.heads, mixer.kv_heads, mixer.head_dim


def _centered(norm: Norm | None) -> bool:
    return norm is not None and norm.centered


def _unknown(part: Any) -> Iterator[str]:
    """Yield the unsupported features of a part of a description: unknown fields, and values other than the default."""
    kind = next((one for one in type(part).__mro__ if one in RUN), None)
    if kind is None:
        yield f"{type(part).__name__} layers"
        return
    for one in fields(part):
        value = getattr(part, one.name)
        if one.name in RUN[kind]:
            inner = value if isinstance(value, tuple) else (value,)
            apart = one.metadata.get("apart", False)  # of no step
            yield from (
                lacking
                for each in inner
                if is_dataclass(each) and not isinstance(each, Tensor) and not apart
                for lacking in _unknown(each)
            )
        elif one.name not in AT_DEFAULT.get(kind, {}):
            yield f"{kind.__name__}.{one.name}"
        elif value != one.default:
            yield AT_DEFAULT[kind][one.name]


def _beyond(block: Block) -> Iterator[str]:
    """Yield the features of a block that have no kernels."""
    if block.mixer is None and block.feed_forward is None:
        yield "layers without a mixer and a feed-forward"
    norms = [getattr(block.mixer, name, None) for name in ("kv_norm", "q_norm", "norm")]
    if not isinstance(block.mixer, Attention) and any(map(_centered, norms)):
        yield f"layer norms within {type(block.mixer).__name__}"
    if isinstance(block.mixer, Attention) and block.mixer.with_embedding and _centered(block.mixer_norm):
        yield "layer norms before attention that reads the embedding too"
    if isinstance(block.mixer, LatentAttention) and block.mixer.gate is not None:
        yield "gates on latent attention"
    if isinstance(block.mixer, Mamba2) and (block.mixer.norm is None or {*block.mixer.multipliers} != {1.0}):
        yield "Mamba2 without a norm, or with factors"
    mixture = block.feed_forward if isinstance(block.feed_forward, Experts) else None
    if mixture is not None:
        if mixture.used > MOST_USED:
            yield f"rows that go to {mixture.used} experts (of at most {MOST_USED})"
        if len({expert.activation for expert in mixture.experts}) > 1:
            yield "experts of several activations in a layer"
        if mixture.scores not in SCORES:
            yield f"experts with the scores {mixture.scores!r}"
        if len({mlp.gate is None for mlp in mixture.experts}) > 1:
            yield "experts with and without a gate in a layer"
        if any(mlp.parameters is not None for mlp in mixture.experts):
            yield "experts with parameters in their activation"
        if _centered(mixture.after) or _centered(mixture.shared_after):
            yield "layer norms after experts"
    mlps = () if block.feed_forward is None else mlps_of(block)
    yield from (f"the activation {mlp.activation.kind}" for mlp in mlps if mlp.activation.kind not in ACTIVATIONS)
