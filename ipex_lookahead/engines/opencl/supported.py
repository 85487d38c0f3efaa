"""The allow list of the fields of a model's description that kernels support.

A field in neither table is refused by name for any value: a new field belongs in one of the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from ipex_lookahead.architectures.spec import (
    Activation,
    Attention,
    Block,
    Experts,
    GatedMlp,
    Linear,
    ModelSpec,
    Norm,
    Rope,
    Tensor,
)
from ipex_lookahead.errors import UnsupportedModelError, arg

MOST_HEAD, MOST_USED = 1024, 64
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "clamped": 2}
SCORES = ("all", "chosen")
"""The supported values of ``Experts.scores``."""

RUN: dict[type, frozenset[str]] = {
    kind: frozenset(names.split())
    for kind, names in (
        (
            ModelSpec,
            "model_type hidden vocab max_context embedding layers final_norm head embedding_multiplier logit_multiplier"
            " logit_softcap read_past unread mtp",
        ),
        (
            Block,
            "mixer_norm mixer mixer_after feed_forward_norm feed_forward feed_forward_after residual_multiplier",
        ),
        (Attention, "heads kv_heads head_dim scale rope window softcap q k v q_norm k_norm sinks o"),
        (Rope, "frequencies factor query_beta query_original"),
        (Norm, "weight epsilon"),
        (Linear, "weight bias"),
        (GatedMlp, "gate up down activation"),
        (Activation, "kind alpha limit"),
        (Experts, "router experts used scores renormalise groups_used group_best"),
    )
}
"""Fields that kernels read, or that do not affect a step. ``_beyond`` restricts their values."""
AT_DEFAULT: dict[type, dict[str, str]] = {
    ModelSpec: {
        "per_layer": "embeddings by layer",
        "features": "features of another model's",
        "candidates": "logits of some tokens alone",
        "target_keys": "keys and values of another model's",
    },
    Block: {
        "parallel": "parallel blocks",
        "per_layer": "embeddings by layer",
        "per_layer_after": "embeddings by layer",
        "output_scale": "scaled block outputs",
    },
    Attention: {
        "gate": "gated attention",
        "norm_after_rope": "norms after rope",
        "value_norm": "norms of values",
        "shared": "keys and values that are one, or another layer's",
        "with_embedding": "attention that reads the embedding too",
    },
    Rope: {"interleaved": "interleaved rope"},
    Norm: {"bias": "layer norms", "centered": "layer norms"},
    GatedMlp: {"parameters": "activations with parameters"},
    Experts: {
        "router_norm": "a norm before the router",
        "router_multiplier": "scaled router inputs",
        "norm": "a norm of the experts' own",
        "after": "norms behind experts",
        "shared_after": "norms behind experts",
        "shared": "shared experts",
        "shared_gate": "shared experts",
        "expert_scales": "scales of experts",
        **dict.fromkeys(
            ("correction", "sum_epsilon", "scale", "groups"),
            "a router with sigmoids, corrections, groups or a scale",
        ),
    },
}
"""Fields that must have their default, which does not affect a step -> the name of the unsupported feature."""


def attention_of(block: Block) -> Attention:
    """Return the block's mixer, which ``check_spec`` has checked."""
    assert isinstance(block.mixer, Attention)
    return block.mixer


def mlps_of(block: Block) -> tuple[GatedMlp, ...]:
    """Return a block's experts, or its MLP."""
    if isinstance(block.feed_forward, Experts):
        return block.feed_forward.experts
    assert block.feed_forward is not None
    return (block.feed_forward,)


def check_spec(spec: ModelSpec) -> None:
    """Raise UnsupportedModelError for a model that kernels do not support."""
    lacking = sorted({reason for block in spec.layers for reason in _beyond(block)} | {*_unknown(spec)})
    if lacking:
        raise UnsupportedModelError(
            f"{spec.model_type} has {', '.join(lacking)}, which the OpenCL engine does not run",
            hint=f"use {arg('engine', 'native')}",
        )
    sizes = {(one.heads, one.kv_heads, one.head_dim) for one in map(attention_of, spec.layers)}
    if len(sizes) > 1:
        raise UnsupportedModelError("heads, kv_heads and head_dim must be the same in all layers")
    ((heads, kv_heads, head_dim),) = sizes
    if head_dim > MOST_HEAD or head_dim % 8 or heads % kv_heads:
        raise UnsupportedModelError(
            f"heads have {head_dim} values, {heads} of them for {kv_heads} key heads; the OpenCL"
            f" engine has heads of a multiple of 8 values up to {MOST_HEAD}, whole groups of them for a key head"
        )


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
    if block.mixer is None or block.feed_forward is None:
        yield "layers without a mixer or without a feed-forward"
    if isinstance(block.mixer, Attention) and (block.mixer.k is None or block.mixer.v is None):
        yield AT_DEFAULT[Attention]["shared"]
    mixture = block.feed_forward if isinstance(block.feed_forward, Experts) else None
    if mixture is not None:
        if mixture.used > MOST_USED:
            yield f"rows that go to {mixture.used} experts (of at most {MOST_USED})"
        if len({expert.activation for expert in mixture.experts}) > 1:
            yield "experts of several activations in a layer"
        if mixture.scores not in SCORES:
            yield AT_DEFAULT[Experts]["groups"]
    if block.feed_forward is not None:
        mlps = mlps_of(block)
        if any(mlp.gate is None for mlp in mlps):
            yield "MLPs without a gate"
        yield from (f"the activation {mlp.activation.kind}" for mlp in mlps if mlp.activation.kind not in ACTIVATIONS)
