"""A model in the core: its decoder, and what a sequence takes in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import (
    Attention,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentAttention,
    Mamba2,
    ModelSpec,
    Rope,
    ShortConv,
)
from ipex_lookahead.engines.load_weights import Order
from ipex_lookahead.engines.machine import check_threads, default_threads
from ipex_lookahead.engines.native.core import chosen_isa, native_core
from ipex_lookahead.engines.native.linear import streams
from ipex_lookahead.errors import InputError, UnsupportedModelError
from ipex_lookahead.formats.base import PackedWeight

KV_CACHES = ("fp16", "int8")


def kv_bytes_per_token(spec: ModelSpec, kv_cache: str) -> int:
    """Return the bytes of a position's keys and values in all layers, including the scales of ``int8``."""
    total = 0
    for block in spec.layers:
        if isinstance(block.mixer, Attention):
            if block.mixer.shared is not None:
                continue
            heads, key, value = block.mixer.kv_heads, block.mixer.head_dim, block.mixer.head_dim
        elif isinstance(block.mixer, LatentAttention):
            heads, key, value = 1, block.mixer.rotated + block.mixer.latent, block.mixer.latent
        else:
            continue
        padded = (value + 15) // 16 * 16
        total += heads * (2 * (key + padded) if kv_cache == "fp16" else key + padded + 8)
    return total


def state_bytes(spec: ModelSpec) -> int:
    """Return the bytes of a sequence's recurrent states: matrices in tiles of 16 values, and convolution inputs."""
    total = 0
    for mixer in spec.mixers:
        if isinstance(mixer, ShortConv):
            total += 4 * (mixer.kernel - 1) * spec.hidden
        elif isinstance(mixer, GatedDeltaNet | Mamba2):
            channels = 2 * mixer.groups * mixer.key_dim + mixer.heads * mixer.value_dim
            matrices = mixer.heads * mixer.key_dim * ((mixer.value_dim + 15) // 16 * 16)
            total += 4 * (matrices + (mixer.kernel - 1) * channels)
        elif isinstance(mixer, KimiDeltaAttention):
            d = mixer.head_dim
            total += 4 * mixer.heads * d * ((d + 15) // 16 * 16 + 3 * (mixer.kernel - 1))
    return total


def rope_tables(rope: Rope, positions: int) -> tuple[npt.NDArray[np.float32], ...]:
    """Return cosines and sines [positions, pairs] and the query factors [positions], all float32."""
    return tuple(native_core().rope_tables(rope, positions))


def empty_decoder(spec: ModelSpec, threads: int | None, kv_cache: str, target: Any = None) -> Any:
    """Create a native decoder without weights. ``target``: for a head with ``target_keys``, the decoder of its target.

    Raises UnsupportedModelError for sizes that the core does not support.
    """
    if kv_cache not in KV_CACHES:
        raise InputError(argument="kv_cache", got=kv_cache, allowed=f"one of {', '.join(KV_CACHES)}")
    count, isa = default_threads() if threads is None else check_threads(threads), chosen_isa()
    try:
        return native_core().Decoder(spec, count, isa, kv_cache, target)
    except (ValueError, TypeError) as error:
        raise UnsupportedModelError(f"the native engine cannot hold a model of this shape: {error}") from None


def set_weight(decoder: Any, name: str, weight: PackedWeight, order: Order | None = None) -> None:
    """Copy a weight into a decoder.

    ``order``: that of the inputs of a matrix, and of all matrices that read the same inputs; None: the model's, or the
    order that another of them brought.
    """
    if order is not None:
        decoder.set_order(name, order)
    if len(weight.shape) == 2:
        decoder.set_matrix(name, *streams(weight))
    else:
        decoder.set_vector(name, weight.codes.reshape(-1))
