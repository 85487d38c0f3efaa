"""A Llama in plain numpy float32 behind the Engine protocol: the oracle that shares no code with the native engine.

Every row is computed alone, from its own keys in position order, so a row's result cannot depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.engines.base import Batch, StepOutput
from ipex_lookahead.errors import ContextLengthError, InputError
from tests.support.scripted_engine import output_of

Array = npt.NDArray[np.float32]


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

    def crop(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise InputError(f"cannot crop to {length}: the cache holds {self.length}")
        del self.committed[length:]
        self.pending, self.parents = [], []

    def fork(self) -> NumpyCache:
        other = NumpyCache()
        other.committed = list(self.committed)
        return other


class NumpyEngine:
    """``config`` and ``weights`` under Hugging Face's names; float32 weights [n_out, n_in].

    ``inv_freq`` (float [head_dim / 2]) overrides the frequencies of plain rope, for scaled rope; ``attention_factor``
    multiplies the cosines and sines (yarn).
    """

    name = "numpy"
    row_invariant = True
    supports_tree = True

    def __init__(
        self,
        config: dict[str, Any],
        weights: dict[str, Array],
        *,
        inv_freq: npt.ArrayLike | None = None,
        attention_factor: float = 1.0,
    ) -> None:
        self._weights = weights
        self.layers: int = config["num_hidden_layers"]
        self.heads: int = config["num_attention_heads"]
        self.kv_heads: int = config.get("num_key_value_heads") or self.heads
        self.head: int = config.get("head_dim") or config["hidden_size"] // self.heads
        self.epsilon: float = config.get("rms_norm_eps", 1e-6)
        self.max_context: int = config["max_position_embeddings"]
        self.attention_factor = attention_factor
        if inv_freq is None:
            theta = config.get("rope_theta", 10000.0)
            inv_freq = 1.0 / theta ** (np.arange(0, self.head, 2, dtype=np.float64) / self.head)
        self.inv_freq = np.asarray(inv_freq, np.float64)
        head_name = "model.embed_tokens.weight" if config.get("tie_word_embeddings") else "lm_head.weight"
        self._lm_head = weights[head_name]
        self.vocab_size: int = self._lm_head.shape[0]
        self.rows_seen: list[int] = []

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
        want = range(len(hidden)) if batch.want is None else batch.want.tolist()
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
        own: list[tuple[Array, Array]] = []
        x = self._weights["model.embed_tokens.weight"][token].astype(np.float32)
        for layer in range(self.layers):
            at = f"model.layers.{layer}."
            normed = self._norm(x, at + "input_layernorm.weight")
            query = self._linear(normed, at + "self_attn.q_proj").reshape(self.heads, self.head)
            key = self._linear(normed, at + "self_attn.k_proj").reshape(self.kv_heads, self.head)
            value = self._linear(normed, at + "self_attn.v_proj").reshape(self.kv_heads, self.head)
            query, key = self._rope(query, position), self._rope(key, position)
            own.append((key, value))
            keys = np.stack([p[layer][0] for p in past] + [key])
            values = np.stack([p[layer][1] for p in past] + [value])
            x = x + self._linear(self._attend(query, keys, values), at + "self_attn.o_proj")
            normed = self._norm(x, at + "post_attention_layernorm.weight")
            gate = self._linear(normed, at + "mlp.gate_proj")
            up = self._linear(normed, at + "mlp.up_proj")
            x = x + self._linear(gate / (1 + np.exp(-gate)) * up, at + "mlp.down_proj")
        cache.pending.append(own)
        return x

    def _attend(self, query: Array, keys: Array, values: Array) -> Array:
        group = self.heads // self.kv_heads
        out = np.empty((self.heads, self.head), np.float32)
        for head in range(self.heads):
            scores = keys[:, head // group] @ query[head] / np.float32(np.sqrt(self.head))
            weights = np.exp(scores - scores.max())
            out[head] = (weights / weights.sum()) @ values[:, head // group]
        return out.reshape(-1)

    def _linear(self, x: Array, name: str) -> Array:
        y = self._weights[name + ".weight"] @ x
        bias = self._weights.get(name + ".bias")
        return y if bias is None else y + bias

    def _norm(self, x: Array, name: str) -> Array:
        return (x / np.sqrt((x * x).mean() + np.float32(self.epsilon)) * self._weights[name]).astype(np.float32)

    def _rope(self, x: Array, position: int) -> Array:
        angles = position * self.inv_freq
        cos = (np.cos(angles) * self.attention_factor).astype(np.float32)
        sin = (np.sin(angles) * self.attention_factor).astype(np.float32)
        half = self.head // 2
        left, right = x[:, :half], x[:, half:]
        return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=1)

    def _logits(self, hidden: Array) -> Array:
        return self._lm_head @ self._norm(hidden, "model.norm.weight")


def tiny_numpy_engine(**sizes: Any) -> NumpyEngine:
    """The tiny random Llama of ``tests.support.tiny``."""
    from tests.support.tiny import TinyLlama

    tiny = TinyLlama(**sizes)
    return NumpyEngine(tiny.config("float32"), tiny.weights())
