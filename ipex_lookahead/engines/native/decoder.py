"""What a model is, in the core's words: its decoder with all switches set and no weights yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import Block, Experts, Linear, ModelSpec, Norm, Rope, Tensor
from ipex_lookahead.engines.machine import check_threads, default_threads
from ipex_lookahead.engines.native.core import chosen_isa, native_core
from ipex_lookahead.errors import InputError, UnsupportedModelError

KV_CACHES = ("fp16", "int8")


def kv_bytes_per_token(spec: ModelSpec, kv_cache: str) -> int:
    """Bytes of a position's keys and values, and with ``int8`` of their scales."""
    attention = spec.layers[0].mixer
    padded = (attention.head_dim + 15) // 16 * 16
    head = 2 * (attention.head_dim + padded) if kv_cache == "fp16" else attention.head_dim + padded + 8
    return len(spec.layers) * attention.kv_heads * head


def parts_of(block: Block) -> Iterator[tuple[str, int, Linear | Norm | Tensor]]:
    """A block's weights in the order a step reads them: (the core's name of its place, expert or -1, weight)."""
    attention, mlp = block.mixer, block.feed_forward
    if block.mixer_norm is not None:
        yield "attention_norm", -1, block.mixer_norm
    for name in ("q", "k", "v"):
        yield name, -1, getattr(attention, name)
    for name in ("q_norm", "k_norm", "sinks"):
        if (vector := getattr(attention, name)) is not None:
            yield name, -1, vector
    yield "o", -1, attention.o
    for name, norm in (("attention_after", block.mixer_after), ("mlp_norm", block.feed_forward_norm)):
        if norm is not None:
            yield name, -1, norm
    if isinstance(mlp, Experts):
        yield "router", -1, mlp.router
    for expert, one in enumerate(mlp.experts if isinstance(mlp, Experts) else (mlp,)):
        for name in ("gate", "up", "down"):
            yield name, expert if isinstance(mlp, Experts) else -1, getattr(one, name)
    if block.feed_forward_after is not None:
        yield "mlp_after", -1, block.feed_forward_after


def tensors_in_order(spec: ModelSpec) -> Iterator[Tensor]:
    """All tensors in the order in which ``NativeEngine.build`` asks for them; a tied embedding is the head."""

    def of(part: Linear | Norm | Tensor) -> Iterator[Tensor]:
        if isinstance(part, Tensor):
            yield part
        else:
            yield part.weight
            if isinstance(part, Linear) and part.bias is not None:
                yield part.bias

    if not spec.tied:
        yield spec.embedding
    for block in spec.layers:
        for _, _, part in parts_of(block):
            yield from of(part)
    yield from of(spec.final_norm)
    yield from of(Linear(spec.embedding) if spec.head is None else spec.head)


def empty_decoder(spec: ModelSpec, threads: int | None, kv_cache: str) -> Any:
    """An empty native decoder of that shape. Raises UnsupportedModelError for sizes that the core does not take."""
    if kv_cache not in KV_CACHES:
        raise InputError(argument="kv_cache", got=kv_cache, allowed=f"one of {', '.join(KV_CACHES)}")
    count, isa = default_threads() if threads is None else check_threads(threads), chosen_isa()
    epsilons = {norm.epsilon for norm in norms_of(spec)}
    if len(epsilons) > 1:
        raise UnsupportedModelError(f"norms have several epsilons ({sorted(epsilons)}); the native engine has one")
    native = native_core()
    ropes = list({id(rope): rope for block in spec.layers if (rope := block.mixer.rope) is not None}.values())
    try:
        return native.Decoder(
            hidden=spec.hidden,
            vocab=spec.vocab,
            max_context=spec.max_context,
            rms_epsilon=epsilons.pop(),
            embedding_multiplier=spec.embedding_multiplier,
            logit_multiplier=spec.logit_multiplier,
            logit_softcap=spec.logit_softcap or 0.0,
            ropes=[_native_rope(rope) for rope in ropes],
            layers=[native.Layer(**_layer(block, ropes)) for block in spec.layers],
            threads=count,
            isa=isa,
            kv_format=kv_cache,
        )
    except (ValueError, TypeError) as error:
        raise UnsupportedModelError(f"the native engine cannot hold a model of this shape: {error}") from None


def _native_rope(rope: Rope) -> Any:
    return native_core().Rope(
        frequencies=np.ascontiguousarray(rope.frequencies, dtype=np.float32),
        factor=rope.factor,
        query_beta=rope.query_beta,
        query_original=rope.query_original,
    )


def rope_tables(rope: Rope, positions: int) -> tuple[npt.NDArray[np.float32], ...]:
    """Cosines and sines [positions, pairs], and what queries are multiplied by [positions]: all float32."""
    return tuple(native_core().rope_tables(_native_rope(rope), positions))


def routers_of(spec: ModelSpec) -> set[str]:
    """Names of the routers' weights."""
    return {mixture.router.weight.name for mixture in spec.mixtures}


def norms_of(spec: ModelSpec) -> Iterator[Norm]:
    """All norms over rows, heads' included."""
    yield spec.final_norm
    for block in spec.layers:
        yield from (part for _, _, part in parts_of(block) if isinstance(part, Norm))


def _layer(block: Block, ropes: list[Rope]) -> dict[str, Any]:
    """The arguments of the core's ``Layer``."""
    attention = block.mixer
    mixture = block.feed_forward if isinstance(block.feed_forward, Experts) else None
    mlps = block.feed_forward.experts if isinstance(block.feed_forward, Experts) else (block.feed_forward,)
    activation = mlps[0].activation
    if any(mlp.activation != activation for mlp in mlps):
        raise UnsupportedModelError("the experts of a layer have several activations; the native engine has one")
    return {
        "heads": attention.heads,
        "kv_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "rope": next((i for i, rope in enumerate(ropes) if rope is attention.rope), -1),
        "query_scale": attention.scale,
        "window": attention.window or 0,
        "softcap": attention.softcap or 0.0,
        "sinks": attention.sinks is not None,
        "q_norm": _head_norm(attention.q_norm, attention.head_dim),
        "k_norm": _head_norm(attention.k_norm, attention.head_dim),
        "attention_norm": block.mixer_norm is not None,
        "attention_after": block.mixer_after is not None,
        "mlp_norm": block.feed_forward_norm is not None,
        "mlp_after": block.feed_forward_after is not None,
        "intermediate": mlps[0].gate.weight.shape[0],
        "activation": activation.kind,
        "alpha": activation.alpha,
        "limit": activation.limit,
        "residual_multiplier": block.residual_multiplier,
        "experts": 0 if mixture is None else len(mixture.experts),
        "experts_used": 0 if mixture is None else mixture.used,
        "router_softmax": "all" if mixture is None else mixture.softmax,
        "renormalise": mixture is not None and mixture.renormalise,
    }


def _head_norm(norm: Norm | None, head_dim: int) -> str:
    if norm is None:
        return "none"
    return "head" if norm.weight.shape == (head_dim,) else "whole"
