"""What a model is to the core: its decoder, and the order in which it is given the weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import ModelSpec, Rope, Tensor, named_tensors
from ipex_lookahead.engines.machine import check_threads, default_threads
from ipex_lookahead.engines.native.core import chosen_isa, native_core
from ipex_lookahead.errors import InputError, UnsupportedModelError

KV_CACHES = ("fp16", "int8")


def kv_bytes_per_token(spec: ModelSpec, kv_cache: str) -> int:
    """Bytes of a position's keys and values in all layers, and with ``int8`` of their scales."""
    total = 0
    for block in spec.layers:
        head_dim, padded = block.mixer.head_dim, (block.mixer.head_dim + 15) // 16 * 16
        total += block.mixer.kv_heads * (2 * (head_dim + padded) if kv_cache == "fp16" else head_dim + padded + 8)
    return total


def in_order(spec: ModelSpec) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors in the order in which a step reads them: a tied embedding is the head, and comes last."""
    named = named_tensors(spec)
    if spec.tied:
        embedding = next(named)
        yield from named
        yield embedding
    else:
        yield from named


def rope_tables(rope: Rope, positions: int) -> tuple[npt.NDArray[np.float32], ...]:
    """Cosines and sines [positions, pairs], and what queries are multiplied by [positions]: all float32."""
    return tuple(native_core().rope_tables(rope, positions))


def empty_decoder(spec: ModelSpec, threads: int | None, kv_cache: str) -> Any:
    """An empty native decoder of that shape. Raises UnsupportedModelError for sizes that the core does not take."""
    if kv_cache not in KV_CACHES:
        raise InputError(argument="kv_cache", got=kv_cache, allowed=f"one of {', '.join(KV_CACHES)}")
    count, isa = default_threads() if threads is None else check_threads(threads), chosen_isa()
    try:
        return native_core().Decoder(spec, count, isa, kv_cache)
    except (ValueError, TypeError) as error:
        raise UnsupportedModelError(f"the native engine cannot hold a model of this shape: {error}") from None
