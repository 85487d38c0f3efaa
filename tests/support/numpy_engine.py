"""Models in plain numpy behind the Engine protocol: the oracle that shares no code with the native engine.

Every row is computed alone, from its own keys in position order, so a row's result cannot depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    Place,
    Rope,
    Tensor,
    Xielu,
)
from ipex_lookahead.engines.api import Batch, StepOutput
from ipex_lookahead.errors import ContextLengthError, InputError
from tests.support.numpy_latent import latent_row
from tests.support.numpy_mixers import Recurrent, chosen_experts, recurrent_row, sigmoid
from tests.support.scripted_engine import output_of

Array = npt.NDArray[np.float32]


def _kept(heads: Array, kv: Any) -> Array:
    """Keys or values [kv_heads, head_dim] as a cache holds them; of int8 with a scale a head."""
    if kv != "int8":
        return heads.astype(kv)
    scale = np.abs(heads).max(axis=1, keepdims=True) / 127
    return np.rint(heads / np.where(scale > 0, scale, 1)) * scale


def _gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))), x.dtype)


class NumpyCache:
    """Keys and values as one list entry a position: for each layer (key, value), each [kv_heads, head_dim]."""

    def __init__(self) -> None:
        self.committed: list[Any] = []
        self.pending: list[Any] = []
        self.parents: list[int] = []

    @property
    def length(self) -> int:
        return len(self.committed)

    def keep(self, rows: Sequence[int]) -> None:
        previous = -1
        for row in rows:
            if not 0 <= row < len(self.pending) or self.parents[row] != previous:
                raise InputError(f"rows {list(rows)} are no path from the committed prefix")
            previous = row
        self.committed.extend(self.pending[row] for row in rows)
        self.pending, self.parents = [], []

    def crop(self, length: int) -> int:
        if not 0 <= length <= self.length:
            raise InputError(f"cannot crop to {length}: the cache holds {self.length}")
        del self.committed[length:]
        self.pending, self.parents = [], []
        return length

    def fork(self) -> NumpyCache:
        other = NumpyCache()
        other.committed = list(self.committed)
        return other


class SpecEngine:
    """Any ``ModelSpec`` in numpy.

    Args:
        spec: the model.
        weights: floats by the names of the spec's tensors, [n_out, n_in] or [n].
        dtype: what is computed in.
        kv: keys and values are rounded to that, as a cache does: a dtype, or "int8"; None: they stay.
    """

    name = "numpy"
    row_invariant = True
    supports_tree = True

    def __init__(self, spec: ModelSpec, weights: Mapping[str, Array], dtype: Any = np.float32, kv: Any = None) -> None:
        self._spec = spec
        self._dtype, self._kv = dtype, kv
        self._weights = weights if dtype == np.float32 else {k: w.astype(dtype) for k, w in weights.items()}
        self.vocab_size, self.max_context = spec.vocab, spec.max_context
        self.rows_seen: list[int] = []
        self.closest_choice = np.inf
        """The least distance between the logit of an expert that was chosen and of one that was not."""

    def new_cache(self) -> NumpyCache:
        return NumpyCache()

    def describe(self) -> dict[str, Any]:
        return {"engine": self.name, "isa": "numpy", "threads": 1, "low_bit": "fp32", "weight_bytes": 0}

    def forward(self, batch: Batch) -> StepOutput:
        caches = list(batch.caches)
        if len({id(c) for c in caches}) != len(caches):
            raise InputError("a cache stands twice in the batch")
        if sum(batch.counts) != len(batch.tokens) or min(batch.counts) < 1 or len(batch.counts) != len(caches):
            raise InputError("counts do not fit the rows")
        self.rows_seen.append(len(batch.tokens))
        hidden: list[Array] = []
        first = 0
        for cache, count in zip(caches, batch.counts, strict=True):
            tokens = batch.tokens[first : first + count]
            parents = batch.parents[first : first + count]
            self._check(cache, tokens, parents)
            cache.pending, cache.parents = [], []
            for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True):
                hidden.append(self._row(cache, token, parent))
                cache.parents.append(parent)
            first += count
        want = range(len(hidden)) if batch.wants.rows is None else batch.wants.rows.tolist()
        logits = np.stack([self._logits(hidden[row]) for row in want]) if len(want) else np.zeros((0, self.vocab_size))
        return output_of(logits.astype(np.float32), batch)

    def _check(self, cache: NumpyCache, tokens: npt.NDArray[np.int32], parents: npt.NDArray[np.int32]) -> None:
        depths: list[int] = []
        for row, (token, parent) in enumerate(zip(tokens.tolist(), parents.tolist(), strict=True)):
            if not 0 <= token < self.vocab_size:
                raise InputError(f"token id {token} is outside the vocabulary of {self.vocab_size}")
            if not -1 <= parent < row:
                raise InputError(f"row {row} has parent {parent}")
            depths.append(0 if parent < 0 else depths[parent] + 1)
            if cache.length + depths[-1] >= self.max_context:
                raise ContextLengthError(f"position {cache.length + depths[-1]} is beyond {self.max_context}")

    def _row(self, cache: NumpyCache, token: int, parent: int) -> Array:
        ancestors = []
        while parent >= 0:
            ancestors.append(cache.pending[parent])
            parent = cache.parents[parent]
        past = cache.committed + ancestors[::-1]
        position = len(past)
        own: list[Any] = []
        x = self._weights[self._spec.embedding.name][token] * self._dtype(self._spec.embedding_multiplier)
        values = None if self._spec.per_layer is None else self._per_layer(self._spec.per_layer, x, token)
        for layer, block in enumerate(self._spec.layers):
            left, normed = None, self.norm(block.mixer_norm, x)
            if block.mixer is not None:
                source = getattr(block.mixer, "shared", None)
                at = layer if source is None else source
                made = None if source is None else own[source]
                out, left = self._mixer(block.mixer, normed, [p[at] for p in past], position, made)
                if block.parallel:
                    out = out + self._mlp(block.feed_forward, normed)
                x = x + block.residual_multiplier * self.norm(block.mixer_after, out)
            own.append(left)
            if block.feed_forward is not None and not block.parallel:
                out = self._mlp(block.feed_forward, self.norm(block.feed_forward_norm, x))
                x = x + block.residual_multiplier * self.norm(block.feed_forward_after, out)
            if block.per_layer is not None:
                gate = self.linear(block.per_layer.gate, x)
                out = self.linear(block.per_layer.out, _gelu(gate) * values[block.per_layer.layer])
                x = x + self.norm(block.per_layer_after, out)
            if block.output_scale is not None:
                x = x * self.value(block.output_scale)
        cache.pending.append(own)
        return x

    def _per_layer(self, p: PerLayerInputs, x: Array, token: int) -> Array:
        """[layers, width]."""
        projected = (self.linear(p.projection, x) * self._dtype(p.projection_multiplier)).reshape(p.layers, p.width)
        normed = np.stack([self.norm(p.norm, one) for one in projected])
        of_token = self.value(p.table)[token].reshape(p.layers, p.width) * self._dtype(p.table_multiplier)
        return (normed + of_token) * self._dtype(p.multiplier)

    def _mixer(
        self, mixer: Attention | LatentAttention | Recurrent, x: Array, past: list[Any], position: int, made: Any
    ) -> tuple[Array, Any]:
        if isinstance(mixer, Attention):
            return self._attention(mixer, x, past, position, made)
        if isinstance(mixer, LatentAttention):
            kept = (lambda one: one) if self._kv is None else (lambda one: _kept(one, self._kv).astype(self._dtype))
            return latent_row(self, mixer, x, past, kept)
        return recurrent_row(self, mixer, x, past)

    def _attention(self, a: Attention, x: Array, past: list[Any], position: int, made: Any) -> tuple[Array, Any]:
        def turned(of: Linear, norm: Norm | None) -> Array:
            heads = self._heads(self.linear(of, x), None if a.norm_after_rope else norm, a.head_dim)
            heads = self._rope(a.rope, heads, position)
            return self._heads(heads, norm, a.head_dim) if a.norm_after_rope else heads

        query = turned(a.q, a.q_norm)
        if a.rope is not None and a.rope.query_beta:
            query = query * (1 + a.rope.query_beta * np.log(1 + position // a.rope.query_original))
        if made is None:
            key, value = turned(a.k, a.k_norm), self.linear(a.k if a.v is None else a.v, x).reshape(-1, a.head_dim)
            if a.value_norm is not None:
                squares = np.mean(value * value, axis=-1, keepdims=True)
                value = (value / np.sqrt(squares + self._dtype(a.value_norm))).astype(self._dtype)
            if self._kv is not None:
                key, value = (_kept(each, self._kv).astype(self._dtype) for each in (key, value))
        else:
            key, value = made
        seen = past if a.window is None else past[max(0, len(past) - a.window + 1) :]
        keys, values = (np.stack(list(rows)) for rows in zip(*seen, (key, value), strict=True))
        group = a.heads // a.kv_heads
        out = np.empty((a.heads, a.head_dim), self._dtype)
        for head in range(a.heads):
            scores = keys[:, head // group] @ query[head] * self._dtype(a.scale)
            if a.softcap is not None:
                scores = a.softcap * np.tanh(scores / a.softcap)
            if a.sinks is not None:
                scores = np.append(scores, self._weights[a.sinks.name][head])
            weights = np.exp(scores - scores.max())
            out[head] = (weights / weights.sum())[: len(values)] @ values[:, head // group]
        y = out.reshape(-1)
        return self.linear(a.o, y if a.gate is None else y * sigmoid(self.linear(a.gate, x))), (key, value)

    def _heads(self, x: Array, norm: Norm | None, head_dim: int) -> Array:
        if norm is not None and norm.weight.shape == x.shape:
            return self.norm(norm, x).reshape(-1, head_dim)
        return np.stack([self.norm(norm, head) for head in x.reshape(-1, head_dim)])

    def _rope(self, rope: Rope | None, x: Array, position: int) -> Array:
        if rope is None:
            return x
        angles = position * rope.frequencies.astype(np.float64)
        cos, sin = (f(angles) * rope.factor for f in (np.cos, np.sin))
        half = len(angles)
        if rope.interleaved:  # of value 2 i with 2 i + 1
            x = np.concatenate([x[:, : 2 * half : 2], x[:, 1 : 2 * half : 2], x[:, 2 * half :]], axis=1)
        left, right, rest = x[:, :half], x[:, half : 2 * half], x[:, 2 * half :]
        return np.concatenate([left * cos - right * sin, right * cos + left * sin, rest], axis=1).astype(self._dtype)

    def _mlp(self, mlp: GatedMlp | Experts, x: Array) -> Array:
        if isinstance(mlp, Experts):
            return self._experts(mlp, x)
        kind, up = mlp.activation, self.linear(mlp.up, x)
        gate, up = (up, np.ones_like(up)) if mlp.gate is None else (self.linear(mlp.gate, x), up)
        if mlp.parameters is not None:
            inner = self._xielu(mlp.parameters, gate) * up
        elif kind.kind == "relu_squared":
            inner = np.maximum(gate, 0) ** 2 * up
        elif kind.kind == "silu":
            inner = gate * (0.5 + 0.5 * np.tanh(0.5 * gate)) * up
        elif kind.kind == "gelu_tanh":
            inner = _gelu(gate) * up
        else:
            gate, up = np.minimum(gate, kind.limit), np.clip(up, -kind.limit, kind.limit)
            inner = gate * (0.5 + 0.5 * np.tanh(0.5 * kind.alpha * gate)) * (up + 1)
        return self.linear(mlp.down, inner.astype(self._dtype))

    def _xielu(self, p: Xielu, x: Array) -> Array:
        names = (p.alpha_p.name, p.alpha_n.name, p.beta.name, p.eps.name)
        alpha_p, alpha_n, beta, eps = (self._weights[name].reshape(-1)[0] for name in names)
        above, below = np.log1p(np.exp(alpha_p)), beta + np.log1p(np.exp(alpha_n))
        found: Array = np.where(x > 0, above * x * x, (np.expm1(np.minimum(x, eps)) - x) * below) + beta * x
        return found

    def _experts(self, mlp: Experts, x: Array) -> Array:
        correction = None if mlp.correction is None else self.value(mlp.correction)
        chosen, weights, closest = chosen_experts(mlp, self.linear(mlp.router, x), correction)
        self.closest_choice = min(self.closest_choice, closest)
        y = sum(w * self._mlp(mlp.experts[e], x) for w, e in zip(weights, chosen, strict=True))
        if mlp.shared is not None:
            every = self._mlp(mlp.shared, x)
            y = y + (every if mlp.shared_gate is None else every * sigmoid(self.linear(mlp.shared_gate, x)))
        return np.asarray(y, self._dtype)

    def value(self, tensor: Tensor) -> Array:
        return self._weights[tensor.name]

    def linear(self, layer: Linear, x: Array) -> Array:
        y = self._weights[layer.weight.name] @ x
        return y if layer.bias is None else y + self._weights[layer.bias.name]

    def norm(self, norm: Norm | None, x: Array) -> Array:
        if norm is None:
            return x
        if norm.centered:
            x = x - x.mean()
        scaled = x / np.sqrt((x * x).mean() + self._dtype(norm.epsilon)) * self._weights[norm.weight.name]
        biased = scaled if norm.bias is None else scaled + self._weights[norm.bias.name]
        return biased.astype(self._dtype)

    def _logits(self, hidden: Array) -> Array:
        head = Linear(self._spec.embedding) if self._spec.head is None else self._spec.head
        logits = self.linear(head, self.norm(self._spec.final_norm, hidden)) * self._dtype(self._spec.logit_multiplier)
        cap = self._spec.logit_softcap
        return logits if cap is None else cap * np.tanh(logits / cap)


class NumpyEngine(SpecEngine):
    """A Llama of ``config`` and ``weights`` under Hugging Face's names; float32 weights [n_out, n_in].

    ``inv_freq`` (float [head_dim / 2]) overrides the frequencies of plain rope, for scaled rope; ``attention_factor``
    multiplies the cosines and sines (yarn).
    """

    def __init__(
        self,
        config: dict[str, Any],
        weights: dict[str, Array],
        *,
        inv_freq: npt.ArrayLike | None = None,
        attention_factor: float = 1.0,
    ) -> None:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads") or heads
        head_dim = config.get("head_dim") or hidden // heads
        if inv_freq is None:
            theta = config.get("rope_theta", 10000.0)
            inv_freq = 1.0 / theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
        rope = Rope(np.asarray(inv_freq), attention_factor)

        def tensor(name: str) -> Tensor:
            place = Place(name, weights[name].shape)
            return Tensor(name, place.shape, place, place)

        def linear(name: str) -> Linear:
            bias = f"{name}.bias"
            return Linear(tensor(f"{name}.weight"), tensor(bias) if bias in weights else None)

        def norm(name: str) -> Norm:
            return Norm(tensor(name), config.get("rms_norm_eps", 1e-6))

        def block(at: str) -> Block:
            q, k, v, o = (linear(f"{at}self_attn.{x}_proj") for x in "qkvo")
            gate, up, down = (linear(f"{at}mlp.{x}_proj") for x in ("gate", "up", "down"))
            return Block(
                mixer=Attention(
                    heads=heads,
                    kv_heads=kv_heads,
                    head_dim=head_dim,
                    q=q,
                    k=k,
                    v=v,
                    o=o,
                    scale=head_dim**-0.5,
                    rope=rope,
                ),
                feed_forward=GatedMlp(gate, up, down, Activation("silu")),
                mixer_norm=norm(at + "input_layernorm.weight"),
                feed_forward_norm=norm(at + "post_attention_layernorm.weight"),
            )

        embedding = tensor("model.embed_tokens.weight")
        spec = ModelSpec(
            model_type="llama",
            hidden=hidden,
            vocab=embedding.shape[0],
            max_context=config["max_position_embeddings"],
            embedding=embedding,
            layers=tuple(block(f"model.layers.{i}.") for i in range(config["num_hidden_layers"])),
            final_norm=norm("model.norm.weight"),
            head=None if config.get("tie_word_embeddings") else linear("lm_head"),
        )
        super().__init__(spec, weights)


def tiny_numpy_engine(**sizes: Any) -> NumpyEngine:
    """The tiny random Llama of ``tests.support.tiny``."""
    from tests.support.tiny import TinyLlama

    tiny = TinyLlama(**sizes)
    return NumpyEngine(tiny.config("float32"), tiny.weights())
