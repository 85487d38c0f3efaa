"""What the words of ``architectures.spec`` mean, in float64 and as plainly as it can be written: no cache, no kernels.

A family's file is right when its spec, run by these lines on the weights that a checkpoint gives, has the logits of
transformers. Slow, and so on purpose: nothing here is shared with an engine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

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
from ipex_lookahead.formats import dequantize

Array = npt.NDArray[np.float64]


class SpecModel:
    """The model that a spec describes, with the weights of an opened checkpoint (None: its own spec)."""

    def __init__(self, checkpoint: Any, spec: ModelSpec | None = None) -> None:
        self.spec: ModelSpec = checkpoint.spec if spec is None else spec
        self._weights = {tensor.name: _checked(checkpoint, tensor) for tensor in self.spec.tensors()}

    def logits(self, ids: npt.NDArray[np.integer[Any]]) -> Array:
        """[n, vocab] of all positions of one sequence."""
        spec = self.spec
        x = self.value(spec.embedding)[ids] * spec.embedding_multiplier
        for block in spec.layers:
            x = self.block(block, x)
        logits = self.norm(spec.final_norm, x) @ self.value(spec.head_weight).T
        if spec.head is not None and spec.head.bias is not None:
            logits = logits + self.value(spec.head.bias)
        return capped(logits * spec.logit_multiplier, spec.logit_softcap)

    def value(self, tensor: Tensor) -> Array:
        return self._weights[tensor.name]

    def block(self, block: Block, x: Array) -> Array:
        y = self.attention(block.mixer, self.norm(block.mixer_norm, x))
        x = x + block.residual_multiplier * self.norm(block.mixer_after, y)
        m = self.norm(block.feed_forward_norm, x)
        y = (
            self.experts(block.feed_forward, m)
            if isinstance(block.feed_forward, Experts)
            else self.gated(block.feed_forward, m)
        )
        return x + block.residual_multiplier * self.norm(block.feed_forward_after, y)

    def linear(self, layer: Linear, x: Array) -> Array:
        y = x @ self.value(layer.weight).T
        return y if layer.bias is None else y + self.value(layer.bias)

    def norm(self, norm: Norm | None, x: Array) -> Array:
        if norm is None:
            return x
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + norm.epsilon) * self.value(norm.weight)

    def attention(self, layer: Attention, x: Array) -> Array:
        rows, d = len(x), layer.head_dim
        q, k, v = (self.linear(one, x) for one in (layer.q, layer.k, layer.v))
        q = self.head_norm(layer.q_norm, q, d).reshape(rows, layer.heads, d)
        k = self.head_norm(layer.k_norm, k, d).reshape(rows, layer.kv_heads, d)
        v = v.reshape(rows, layer.kv_heads, d)
        if layer.rope is not None:
            q, k = turned(layer.rope, q), turned(layer.rope, k)
            if layer.rope.query_beta:
                turns = np.floor(np.arange(rows) / layer.rope.query_original)
                q = q * (1 + layer.rope.query_beta * np.log1p(turns))[:, None, None]
        sinks = None if layer.sinks is None else self.value(layer.sinks)
        group, out = layer.heads // layer.kv_heads, np.empty_like(q)
        for row in range(rows):
            first = 0 if layer.window is None else max(0, row - layer.window + 1)
            for head in range(layer.heads):
                keys, values = (each[first : row + 1, head // group] for each in (k, v))
                scores = capped(keys @ q[row, head] * layer.scale, layer.softcap)
                if sinks is not None:
                    scores = np.append(scores, sinks[head])
                shares = softmax(scores)[: len(keys)]
                out[row, head] = shares @ values
        return self.linear(layer.o, out.reshape(rows, -1))

    def head_norm(self, norm: Norm | None, x: Array, d: int) -> Array:
        """Over each head where the norm is as long as one, else over all of the projection."""
        if norm is None or norm.weight.shape != (d,):
            return self.norm(norm, x)
        return self.norm(norm, x.reshape(len(x), -1, d)).reshape(x.shape)

    def gated(self, mlp: GatedMlp, x: Array) -> Array:
        return self.linear(mlp.down, activated(mlp.activation, self.linear(mlp.gate, x), self.linear(mlp.up, x)))

    def experts(self, layer: Experts, x: Array) -> Array:
        logits = self.linear(layer.router, x)
        y = np.zeros_like(x)
        for row in range(len(x)):
            chosen = np.argsort(-logits[row], kind="stable")[: layer.used]
            shares = softmax(logits[row])[chosen] if layer.softmax == "all" else softmax(logits[row][chosen])
            if layer.renormalise:
                shares = shares / shares.sum()
            for expert, share in zip(chosen, shares, strict=True):
                y[row] += share * self.gated(layer.experts[expert], x[row : row + 1])[0]
        return y


def _checked(checkpoint: Any, tensor: Tensor) -> Array:
    values = dequantize(checkpoint.read(tensor.name))
    assert values.shape == tensor.shape, (tensor.name, values.shape, tensor.shape)
    return values.astype(np.float64)


def turned(rope: Rope, x: Array) -> Array:
    """Rows [n, heads, d] at positions 0 to n - 1: value i is rotated with value i + half."""
    half = len(rope.frequencies)
    angles = np.arange(len(x))[:, None, None] * rope.frequencies.astype(np.float64)
    cos, sin = np.cos(angles) * rope.factor, np.sin(angles) * rope.factor
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def activated(kind: Activation, gate: Array, up: Array) -> Array:
    if kind.kind == "silu":
        return gate / (1 + np.exp(-gate)) * up
    if kind.kind == "gelu_tanh":
        return gate * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up
    assert kind.kind == "clamped", kind
    gate, up = np.minimum(gate, kind.limit), np.clip(up, -kind.limit, kind.limit)
    return gate / (1 + np.exp(-kind.alpha * gate)) * (up + 1)


def capped(x: Array, cap: float | None) -> Array:
    return x if cap is None else cap * np.tanh(x / cap)


def softmax(x: Array) -> Array:
    shares = np.exp(x - x.max())
    return shares / shares.sum()
