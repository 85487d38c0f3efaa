"""A Llama in plain numpy behind the Engine protocol.

Every row is computed alone, from its own keys in position order, so a row's result cannot depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.engines.api import Batch, StepOutput
from ipex_lookahead.errors import ContextLengthError, InputError
from tests.support.scripted_engine import output_of
from tests.support.tiny import TinyLlama

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


class NumpyEngine:
    """A Llama of ``config`` and ``weights`` under Hugging Face's names; float32 weights [n_out, n_in]."""

    name = "numpy"
    row_invariant = True
    supports_tree = True

    def __init__(self, config: dict[str, Any], weights: dict[str, Array]) -> None:
        self._weights = weights
        self._layers, self._heads = config["num_hidden_layers"], config["num_attention_heads"]
        self._head_dim = config.get("head_dim") or config["hidden_size"] // self._heads
        self._epsilon = np.float32(config.get("rms_norm_eps", 1e-6))
        theta = config.get("rope_theta", 10000.0)
        self._frequencies = 1.0 / theta ** (np.arange(0, self._head_dim, 2, dtype=np.float64) / self._head_dim)
        self._head = "model.embed_tokens" if config.get("tie_word_embeddings") else "lm_head"
        self.vocab_size: int = weights["model.embed_tokens.weight"].shape[0]
        self.max_context: int = config["max_position_embeddings"]
        self.rows_seen: list[int] = []

    def new_cache(self) -> NumpyCache:
        return NumpyCache()

    def describe(self) -> dict[str, Any]:
        return {"engine": self.name, "isa": "numpy", "threads": 1, "low_bit": "fp32", "weight_bytes": 0}

    def forward(self, batch: Batch) -> StepOutput:
        caches = list(batch.caches)
        if len({id(c) for c in caches}) != len(caches):
            raise InputError("the batch has a cache twice")
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
        logits = [self._linear(self._head, self._norm("model.norm", hidden[row])) for row in want]
        return output_of(np.array(logits, np.float32).reshape(-1, self.vocab_size), batch)

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
        own: list[Any] = []
        x = self._weights["model.embed_tokens.weight"][token]
        for layer in range(self._layers):
            at = f"model.layers.{layer}."
            normed = self._norm(f"{at}input_layernorm", x)
            key = self._turned(self._linear(f"{at}self_attn.k_proj", normed), len(past))
            own.append((key, self._linear(f"{at}self_attn.v_proj", normed).reshape(-1, self._head_dim)))
            query = self._turned(self._linear(f"{at}self_attn.q_proj", normed), len(past))
            keys, values = (np.stack(list(rows)) for rows in zip(*(each[layer] for each in past), own[-1], strict=True))
            group = self._heads // keys.shape[1]
            out = np.empty((self._heads, self._head_dim), np.float32)
            for head in range(self._heads):
                scores = keys[:, head // group] @ query[head] * np.float32(self._head_dim**-0.5)
                shares = np.exp(scores - scores.max())
                out[head] = shares / shares.sum() @ values[:, head // group]
            x = x + self._linear(f"{at}self_attn.o_proj", out.reshape(-1))
            normed = self._norm(f"{at}post_attention_layernorm", x)
            gate = self._linear(f"{at}mlp.gate_proj", normed)
            inner = gate * (0.5 + 0.5 * np.tanh(0.5 * gate)) * self._linear(f"{at}mlp.up_proj", normed)
            x = x + self._linear(f"{at}mlp.down_proj", inner)
        cache.pending.append(own)
        return x

    def _turned(self, x: Array, position: int) -> Array:
        """Heads [n, head_dim], by rope."""
        left, right = np.split(x.reshape(-1, self._head_dim), 2, axis=1)
        cos, sin = (of(position * self._frequencies) for of in (np.cos, np.sin))
        return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=1).astype(np.float32)

    def _linear(self, name: str, x: Array) -> Array:
        y: Array = self._weights[f"{name}.weight"] @ x
        return y + self._weights[f"{name}.bias"] if f"{name}.bias" in self._weights else y

    def _norm(self, name: str, x: Array) -> Array:
        scaled: Array = x / np.sqrt((x * x).mean() + self._epsilon) * self._weights[f"{name}.weight"]
        return scaled


def tiny_numpy_engine(**sizes: Any) -> NumpyEngine:
    """The tiny random Llama of ``tests.support.tiny``."""
    tiny = TinyLlama(**sizes)
    return NumpyEngine(tiny.config("float32"), tiny.weights())
