"""What mixers with states, and mixtures' choices, mean in plain numpy, a row at a time: for oracles that walk a spec.

A row leaves what those behind it need: the inputs of its convolution, and the state after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import Experts, GatedDeltaNet, Linear, Mamba2, Norm, ShortConv, Tensor

Array = npt.NDArray[Any]
Recurrent = GatedDeltaNet | Mamba2 | ShortConv


class Weighted(Protocol):
    """An oracle with the weights of a model."""

    def linear(self, layer: Linear, x: Array) -> Array: ...

    def norm(self, norm: Norm | None, x: Array) -> Array: ...

    def value(self, tensor: Tensor) -> Array: ...


@dataclass(frozen=True)
class Left:
    """What a row leaves: ``inputs`` [channels] of the convolution; ``state`` [heads, key_dim, value_dim] after it."""

    inputs: Array
    state: Array | None


def recurrent_row(of: Weighted, layer: Recurrent, x: Array, past: Sequence[Left]) -> tuple[Array, Left]:
    """What a mixer makes of a row [hidden], of which ``past`` are those before it; and what that row leaves."""
    if isinstance(layer, ShortConv):
        inputs = of.linear(layer.b, x) * of.linear(layer.x, x)
        return of.linear(layer.out, of.linear(layer.c, x) * _convolved(of, layer, inputs, past)), Left(inputs, None)
    inputs = of.linear(layer.inputs, x)
    mixed = silu(_convolved(of, layer, inputs, past))
    heads, groups, d, n = layer.heads, layer.groups, layer.key_dim, layer.value_dim
    steps = of.linear(layer.steps, x) + of.value(layer.step_bias)
    before = past[-1].state if past else np.zeros((heads, d, n), x.dtype)
    assert before is not None
    step, rate = np.logaddexp(0, steps), np.exp(of.value(layer.rate))
    group = np.arange(heads) % groups if layer.tiled else np.arange(heads) // (heads // groups)
    if isinstance(layer, GatedDeltaNet):
        q, k = (each.reshape(groups, d)[group] for each in np.split(mixed[: 2 * groups * d], 2))
        v = mixed[2 * groups * d :].reshape(heads, n)
        q, k = (each / np.sqrt((each * each).sum(-1, keepdims=True) + layer.length_epsilon) for each in (q, k))
        state = before * np.exp(-rate * step)[:, None, None]
        read = np.einsum("hkv,hk->hv", state, k)
        d_values = (v - read) / (1 + np.exp(-of.linear(layer.beta, x)))[:, None]
        state = state + k[:, :, None] * d_values[:, None]
        y = np.einsum("hkv,hk->hv", state, q) / np.sqrt(d)
        gate_first, group_size = False, n
    else:
        v = mixed[: heads * n].reshape(heads, n)
        k, q = (each.reshape(groups, d)[group] for each in np.split(mixed[heads * n :], 2))
        step = np.clip(step, layer.least_step, layer.most_step)
        state = before * np.exp(-rate * step)[:, None, None] + k[:, :, None] * (step[:, None] * v)[:, None]
        y = np.einsum("hkv,hk->hv", state, q) + of.value(layer.skip)[:, None] * v
        gate_first, group_size = layer.gate_first, layer.norm_group
    gate, y = silu(of.linear(layer.gate, x)), y.reshape(-1)
    if gate_first:
        y = y * gate
    parts = y.reshape(-1, group_size)
    weight = np.broadcast_to(of.value(layer.norm.weight).reshape(-1, group_size), parts.shape)
    y = (parts / np.sqrt((parts * parts).mean(-1, keepdims=True) + layer.norm.epsilon) * weight).reshape(-1)
    out = of.linear(layer.out, (y if gate_first else y * gate).astype(x.dtype))
    return out, Left(inputs, state.astype(x.dtype))


def _convolved(of: Weighted, layer: Recurrent, inputs: Array, past: Sequence[Left]) -> Array:
    """The convolution at a row: the last tap is its own."""
    weight = of.value(layer.convolution).reshape(len(inputs), layer.kernel)
    taps = [*(row.inputs for row in past[len(past) - min(len(past), layer.kernel - 1) :]), inputs]
    y = sum(weight[:, layer.kernel - len(taps) + i] * tap for i, tap in enumerate(taps))
    bias = getattr(layer, "convolution_bias", None)
    return np.asarray(y if bias is None else y + of.value(bias))


def chosen_experts(layer: Experts, logits: Array, correction: Array | None) -> tuple[list[int], Array, float]:
    """A row's experts, the best first, their weights, and how far the choice was from another one."""
    scores = 1 / (1 + np.exp(-logits)) if layer.scores == "sigmoid" else logits
    choice = scores if correction is None else scores + correction
    allowed, closest = list(range(len(logits))), np.inf
    if layer.groups > 1:
        size = len(logits) // layer.groups
        best = [np.sort(choice[g * size : (g + 1) * size])[-layer.group_best :].sum() for g in range(layer.groups)]
        order = sorted(range(layer.groups), key=lambda g: (-best[g], g))
        allowed = sorted(e for g in order[: layer.groups_used] for e in range(g * size, (g + 1) * size))
        if layer.groups_used < layer.groups:
            closest = best[order[layer.groups_used - 1]] - best[order[layer.groups_used]]
    order = sorted(allowed, key=lambda e: (-choice[e], e))
    chosen = order[: layer.used]
    for other in order[layer.used : layer.used + 1]:
        closest = min(closest, choice[chosen[-1]] - choice[other])
    if layer.scores == "sigmoid":
        weights = scores[chosen]
    else:
        shares = np.exp(logits - logits.max())
        weights = shares[chosen] / (shares[chosen] if layer.scores == "chosen" else shares).sum()
    if layer.renormalise:
        weights = weights / (weights.sum() + layer.sum_epsilon)
    return chosen, weights * layer.scale, float(closest)


def silu(x: Array) -> Array:
    return np.asarray(x * (0.5 + 0.5 * np.tanh(0.5 * x)))


def sigmoid(x: Array) -> Array:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * x))
