"""What of the words of a description the kernels run, and what of them each block is then."""

from __future__ import annotations

from collections.abc import Iterator

from ipex_lookahead.architectures.spec import Attention, Block, Experts, GatedMlp, ModelSpec, Norm
from ipex_lookahead.errors import UnsupportedModelError, arg

MOST_HEAD, MOST_USED = 1024, 64
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "clamped": 2}


def attention_of(block: Block) -> Attention:
    """The block's mixer, which ``check_spec`` has seen."""
    assert isinstance(block.mixer, Attention)
    return block.mixer


def mlps_of(block: Block) -> tuple[GatedMlp, ...]:
    """A block's experts, or its only MLP."""
    if isinstance(block.feed_forward, Experts):
        return block.feed_forward.experts
    assert block.feed_forward is not None
    return (block.feed_forward,)


def check_spec(spec: ModelSpec) -> None:
    """Raise UnsupportedModelError for a model that the kernels do not run."""
    lacking = sorted({reason for block in spec.layers for reason in _lacking(block)} | {*_lacking_norms(spec)})
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


def _lacking(block: Block) -> Iterator[str]:
    """What of a block there are no kernels for."""
    if block.mixer is None or block.feed_forward is None:
        yield "layers without a mixer or without a feed-forward"
    if block.mixer is not None and not isinstance(block.mixer, Attention):
        yield f"{type(block.mixer).__name__} layers"
    elif block.mixer is not None:
        if block.mixer.gate is not None:
            yield "gated attention"
        if block.mixer.norm_after_rope:
            yield "norms after rope"
        if block.mixer.rope is not None and block.mixer.rope.interleaved:
            yield "interleaved rope"
        if block.mixer.k is None or block.mixer.v is None:
            yield "keys and values that are one, or another layer's"
        if block.mixer.value_norm is not None:
            yield "norms of values"
    if block.parallel:
        yield "parallel blocks"
    if block.per_layer is not None:
        yield "embeddings by layer"
    if block.output_scale is not None:
        yield "blocks whose output is scaled"
    mixture = block.feed_forward if isinstance(block.feed_forward, Experts) else None
    if mixture is not None:
        if mixture.used > MOST_USED:
            yield f"rows that go to {mixture.used} experts (of at most {MOST_USED})"
        if len({expert.activation for expert in mixture.experts}) > 1:
            yield "experts of several activations in a layer"
        if mixture.shared is not None:
            yield "shared experts"
        if mixture.scores == "sigmoid" or mixture.correction is not None or mixture.scale != 1 or mixture.groups > 1:
            yield "a router with sigmoids, corrections, groups or a scale"
    if block.feed_forward is not None:
        mlps = mlps_of(block)
        if any(mlp.gate is None for mlp in mlps):
            yield "MLPs without a gate"
        yield from (f"the activation {mlp.activation.kind}" for mlp in mlps if mlp.activation.kind not in ACTIVATIONS)


def _lacking_norms(spec: ModelSpec) -> Iterator[str]:
    """What of the norms there are no kernels for."""
    norms: list[Norm | None] = [spec.final_norm]
    for block in spec.layers:
        norms += (block.mixer_norm, block.mixer_after, block.feed_forward_norm, block.feed_forward_after)
    if any(norm is not None and norm.centered for norm in norms):
        yield "layer norms"
