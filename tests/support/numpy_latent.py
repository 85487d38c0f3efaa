"""Latent attention in plain numpy for the oracles that walk a spec, with heads' keys and values made of the latents.

That is the form which the native engine never has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import LatentAttention
from tests.support.numpy_mixers import Weighted

Array = npt.NDArray[Any]


def latent_row(
    of: Weighted,
    layer: LatentAttention,
    x: Array,
    past: Sequence[tuple[Array, Array]],
    kept: Callable[[Array], Array] = lambda one: one,
) -> tuple[Array, tuple[Array, Array]]:
    """What attention makes of a row [hidden] behind those of ``past``, and the row's rotated key and its latent.

    ``kept``: what a cache makes of what it is given, [1, values].
    """
    queried = x if layer.q_a is None else of.norm(layer.q_norm, of.linear(layer.q_a, x))
    queries = of.linear(layer.q, queried).reshape(layer.heads, -1)
    both = of.linear(layer.kv_a, x)
    latent = of.norm(layer.kv_norm, both[: layer.latent])
    key = _turned(layer, both[layer.latent :], len(past))
    whole = kept(np.concatenate([key, latent])[None])[0]
    key, of_keys, of_values = whole[: layer.rotated], whole[layer.rotated :], kept(latent[None])[0]
    seen = [*past, (np.concatenate([key, of_keys]), of_values)]
    rotated = np.stack([one[: layer.rotated] for one, _ in seen])
    latents, values = np.stack([one[layer.rotated :] for one, _ in seen]), np.stack([one for _, one in seen])
    out = []
    for head in range(layer.heads):
        k_b, v_b = of.value(layer.k_b[head].weight), of.value(layer.v_b[head].weight)
        passed, turning = queries[head][: layer.passed], _turned(layer, queries[head][layer.passed :], len(past))
        scores = (latents @ k_b @ passed + rotated @ turning) * layer.scale
        shares = np.exp(scores - scores.max())
        out.append(shares / shares.sum() @ (values @ v_b.T))
    return of.linear(layer.o, np.concatenate(out).astype(x.dtype)), seen[-1]


def _turned(layer: LatentAttention, x: Array, position: int) -> Array:
    """The rotated values at a position; neighbouring pairs become halves, of queries and keys alike."""
    angles = position * layer.rope.frequencies.astype(np.float64)
    cos, sin = np.cos(angles) * layer.rope.factor, np.sin(angles) * layer.rope.factor
    a, b = (x[::2], x[1::2]) if layer.rope.interleaved else np.split(x, 2)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin]).astype(x.dtype)
