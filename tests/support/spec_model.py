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
    LatentAttention,
    Linear,
    ModelSpec,
    Norm,
    PerLayerInputs,
    Rope,
    Tensor,
)
from ipex_lookahead.formats import dequantize
from tests.support.numpy_latent import latent_row
from tests.support.numpy_mixers import Recurrent, chosen_experts, recurrent_row, sigmoid

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
        self._made: list[tuple[Array, Array]] = []
        self._per_layer = None if spec.per_layer is None else self.per_layer(spec.per_layer, x, ids)
        for block in spec.layers:
            x = self.block(block, x)
        logits = self.norm(spec.final_norm, x) @ self.value(spec.head_weight).T
        if spec.head is not None and spec.head.bias is not None:
            logits = logits + self.value(spec.head.bias)
        return capped(logits * spec.logit_multiplier, spec.logit_softcap)

    def value(self, tensor: Tensor) -> Array:
        return self._weights[tensor.name]

    def block(self, block: Block, x: Array) -> Array:
        y = self.branches(block, x)
        if (gate := block.per_layer) is not None:
            assert self._per_layer is not None
            gated = activated(Activation("gelu_tanh"), self.linear(gate.gate, y), self._per_layer[:, gate.layer])
            y = y + self.norm(block.per_layer_after, self.linear(gate.out, gated))
        return y if block.output_scale is None else y * self.value(block.output_scale)

    def branches(self, block: Block, x: Array) -> Array:
        if block.mixer is not None:
            normed = self.norm(block.mixer_norm, x)
            attends = isinstance(block.mixer, Attention)
            y = self.attention(block.mixer, normed) if attends else self.mixed(block.mixer, normed)
            if block.parallel:
                return x + y + self.gated(block.feed_forward, normed)
            x = x + block.residual_multiplier * self.norm(block.mixer_after, y)
        if block.feed_forward is None:
            return x
        m = self.norm(block.feed_forward_norm, x)
        y = (
            self.experts(block.feed_forward, m, x)
            if isinstance(block.feed_forward, Experts)
            else self.gated(block.feed_forward, m)
        )
        return x + block.residual_multiplier * self.norm(block.feed_forward_after, y)

    def per_layer(self, p: PerLayerInputs, x: Array, ids: npt.NDArray[np.integer[Any]]) -> Array:
        """[n, layers, width]."""
        rows = (len(ids), p.layers, p.width)
        projected = self.norm(p.norm, (self.linear(p.projection, x) * p.projection_multiplier).reshape(rows))
        return (projected + self.value(p.table)[ids].reshape(rows) * p.table_multiplier) * p.multiplier

    def linear(self, layer: Linear, x: Array) -> Array:
        y = x @ self.value(layer.weight).T
        return y if layer.bias is None else y + self.value(layer.bias)

    def norm(self, norm: Norm | None, x: Array) -> Array:
        if norm is None:
            return x
        if norm.centered:
            x = x - np.mean(x, axis=-1, keepdims=True)
        y = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + norm.epsilon) * self.value(norm.weight)
        return y if norm.bias is None else y + self.value(norm.bias)

    def mixed(self, layer: LatentAttention | Recurrent, x: Array) -> Array:
        rows: list[Array] = []
        past: list[Any] = []
        for row in x:
            made = latent_row if isinstance(layer, LatentAttention) else recurrent_row
            y, left = made(self, layer, row, past)
            rows.append(y)
            past.append(left)
        return np.stack(rows)

    def attention(self, layer: Attention, x: Array) -> Array:
        rows, d = len(x), layer.head_dim
        after = layer.norm_after_rope

        def turned_heads(of: Linear, norm: Norm | None, heads: int) -> Array:
            made = self.head_norm(None if after else norm, self.linear(of, x), d).reshape(rows, heads, d)
            made = made if layer.rope is None else turned(layer.rope, made)
            return self.norm(norm, made) if after else made

        q = turned_heads(layer.q, layer.q_norm, layer.heads)
        if layer.shared is not None:
            k, v = self._made[layer.shared]
        else:
            k = turned_heads(layer.k, layer.k_norm, layer.kv_heads)
            v = self.linear(layer.k if layer.v is None else layer.v, x).reshape(rows, layer.kv_heads, d)
            if layer.value_norm is not None:
                v = v / np.sqrt(np.mean(v * v, axis=-1, keepdims=True) + layer.value_norm)
        self._made.append((k, v))
        if layer.rope is not None and layer.rope.query_beta:
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
        y = out.reshape(rows, -1)
        return self.linear(layer.o, y if layer.gate is None else y * sigmoid(self.linear(layer.gate, x)))

    def head_norm(self, norm: Norm | None, x: Array, d: int) -> Array:
        """Over each head where the norm is as long as one, else over all of the projection."""
        if norm is None or norm.weight.shape != (d,):
            return self.norm(norm, x)
        return self.norm(norm, x.reshape(len(x), -1, d)).reshape(x.shape)

    def gated(self, mlp: GatedMlp, x: Array) -> Array:
        up = self.linear(mlp.up, x)
        if mlp.parameters is not None:
            p = mlp.parameters
            numbers = (self.value(one).item() for one in (p.alpha_p, p.alpha_n, p.beta, p.eps))
            return self.linear(mlp.down, xielu(*numbers, up))
        gate, up = (up, np.ones_like(up)) if mlp.gate is None else (self.linear(mlp.gate, x), up)
        return self.linear(mlp.down, activated(mlp.activation, gate, up))

    def experts(self, layer: Experts, x: Array, raw: Array) -> Array:
        """Of rows ``x`` after the block's norm, and before it (``raw``)."""
        apart = layer.router_norm is not None
        given = self.norm(layer.router_norm, raw) * layer.router_multiplier if apart else x
        rows = self.norm(layer.norm, raw) if apart else x
        scales = None if layer.expert_scales is None else self.value(layer.expert_scales)
        logits, y = self.linear(layer.router, given), np.zeros_like(x)
        correction = None if layer.correction is None else self.value(layer.correction)
        for row in range(len(x)):
            chosen, shares, _ = chosen_experts(layer, logits[row], correction)
            for expert, share in zip(chosen, shares, strict=True):
                share = share if scales is None else share * scales[expert]
                y[row] += share * self.gated(layer.experts[expert], rows[row : row + 1])[0]
        y = self.norm(layer.after, y)
        if layer.shared is None:
            return y
        every = self.norm(layer.shared_after, self.gated(layer.shared, x))
        return y + (every if layer.shared_gate is None else every * sigmoid(self.linear(layer.shared_gate, x)))


def _checked(checkpoint: Any, tensor: Tensor) -> Array:
    values = dequantize(checkpoint.read(tensor.name))
    assert values.shape == tensor.shape, (tensor.name, values.shape, tensor.shape)
    return values.astype(np.float64)


def turned(rope: Rope, x: Array) -> Array:
    """Rows [n, heads, d] at positions 0 to n - 1: value i is rotated with value i + half, or 2 i with 2 i + 1."""
    half = len(rope.frequencies)
    angles = np.arange(len(x))[:, None, None] * rope.frequencies.astype(np.float64)
    cos, sin = np.cos(angles) * rope.factor, np.sin(angles) * rope.factor
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    if rope.interleaved:
        a, b = x[..., : 2 * half : 2], x[..., 1 : 2 * half : 2]
        pairs = np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
        return np.concatenate([pairs.reshape(*x.shape[:-1], 2 * half), rest], axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def activated(kind: Activation, gate: Array, up: Array) -> Array:
    if kind.kind == "silu":
        return gate / (1 + np.exp(-gate)) * up
    if kind.kind == "gelu_tanh":
        return gate * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up
    if kind.kind == "relu_squared":
        return np.maximum(gate, 0) ** 2 * up
    assert kind.kind == "clamped", kind
    gate, up = np.minimum(gate, kind.limit), np.clip(up, -kind.limit, kind.limit)
    return gate / (1 + np.exp(-kind.alpha * gate)) * (up + 1)


def xielu(alpha_p: float, alpha_n: float, beta: float, eps: float, x: Array) -> Array:
    above, below = np.log1p(np.exp(alpha_p)), beta + np.log1p(np.exp(alpha_n))
    return np.where(x > 0, above * x * x, (np.expm1(np.minimum(x, eps)) - x) * below) + beta * x


def capped(x: Array, cap: float | None) -> Array:
    return x if cap is None else cap * np.tanh(x / cap)


def softmax(x: Array) -> Array:
    shares = np.exp(x - x.max())
    return shares / shares.sum()
