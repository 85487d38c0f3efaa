"""An engine whose next token is written down: for tests of the loop, without any arithmetic of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.engines.api import Batch, StepOutput
from ipex_lookahead.errors import ContextLengthError, InputError

Logits = Callable[[list[int]], npt.NDArray[np.float32]]
"""All tokens up to and including a row's own -> float32 [vocab_size]."""


class ScriptedCache:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.pending: list[tuple[int, int]] = []

    @property
    def length(self) -> int:
        return len(self.tokens)

    def path(self, row: int) -> list[int]:
        """The tokens of a pending row's ancestors and its own."""
        found: list[int] = []
        while row >= 0:
            token, row = self.pending[row]
            found.append(token)
        return found[::-1]

    def keep(self, rows: Sequence[int]) -> None:
        previous = -1
        for row in rows:
            if not 0 <= row < len(self.pending) or self.pending[row][1] != previous:
                raise InputError(f"rows {list(rows)} are no path")
            previous = row
        self.tokens.extend(self.pending[row][0] for row in rows)
        self.pending = []

    def crop(self, length: int) -> int:
        if not 0 <= length <= self.length:
            raise InputError(f"cannot crop to {length}")
        del self.tokens[length:]
        self.pending = []
        return length

    def fork(self) -> ScriptedCache:
        other = ScriptedCache()
        other.tokens = list(self.tokens)
        return other


def output_of(logits: npt.NDArray[np.float32], batch: Batch, positions: Sequence[int] = ()) -> StepOutput:
    """What the batch wants, from the logits of its wanted rows and all rows' positions.

    A hidden state is :func:`state_of`.
    """
    top = None
    if batch.wants.top:
        top = np.full((len(logits), batch.wants.top), -1, np.int32)
        best = np.argsort(-logits, axis=-1, kind="stable")[:, : batch.wants.top]
        top[:, : best.shape[1]] = best
    output = StepOutput(logits.argmax(-1).astype(np.int32), logits if batch.wants.logits else None, top)
    if batch.wants.hidden:
        assert len(positions) == len(batch.tokens)
        rows = range(len(positions)) if batch.wants.hidden_rows is None else batch.wants.hidden_rows.tolist()
        output.hidden = {
            layer: np.array([state_of(layer, positions[row], batch.tokens[row]) for row in rows], np.float32)
            for layer in batch.wants.hidden
        }
    return output


def state_of(layer: int, position: int, token: int) -> tuple[int, int, int]:
    """The hidden state of a token at a position."""
    return layer, position, int(token)


class ScriptedEngine:
    """Logits are a function of the tokens so far; ``batches`` records (rows of each sequence, wanted, logits asked)."""

    name = "scripted"
    row_invariant = True
    supports_tree = True

    def __init__(self, logits_of: Logits, vocab_size: int, max_context: int = 4096) -> None:
        self._logits_of = logits_of
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.batches: list[tuple[list[int], int, bool]] = []
        self.before_forward: Callable[[], None] = lambda: None

    def new_cache(self) -> ScriptedCache:
        return ScriptedCache()

    def describe(self) -> dict[str, Any]:
        return {"engine": self.name, "isa": "none", "threads": 1, "low_bit": "fp32", "weight_bytes": 0}

    def forward(self, batch: Batch) -> StepOutput:
        self.before_forward()
        assert batch.tokens.dtype == np.int32
        assert batch.parents.dtype == np.int32
        assert sum(batch.counts) == len(batch.tokens) == len(batch.parents)
        positions: list[int] = []
        owners: list[tuple[ScriptedCache, int]] = []
        first = 0
        for cache, count in zip(batch.caches, batch.counts, strict=True):
            assert count >= 1
            assert isinstance(cache, ScriptedCache)
            cache.pending = []
            for row in range(first, first + count):
                token, parent = int(batch.tokens[row]), int(batch.parents[row])
                if not 0 <= token < self.vocab_size:
                    raise InputError(f"token id {token}")
                if not -1 <= parent < row - first:
                    raise InputError(f"parent {parent} of row {row - first}")
                cache.pending.append((token, parent))
                positions.append(cache.length if parent < 0 else positions[first + parent] + 1)
                if positions[-1] >= self.max_context:
                    raise ContextLengthError(f"position {positions[-1]}")
                owners.append((cache, row - first))
            first += count
        want = list(range(first)) if batch.wants.rows is None else batch.wants.rows.tolist()
        self.batches.append((list(batch.counts), len(want), batch.wants.logits))
        rows = [self._logits_of(cache.tokens + cache.path(row)) for cache, row in (owners[w] for w in want)]
        logits = np.stack(rows) if rows else np.zeros((0, self.vocab_size), np.float32)
        return output_of(logits, batch, positions)


def scripted(text: Sequence[int], vocab_size: int, prompt_length: int, **kwargs: Any) -> ScriptedEngine:
    """After a prompt of ``prompt_length`` tokens follows ``text``, whatever was emitted; after its end token 0."""

    def logits(tokens: list[int]) -> npt.NDArray[np.float32]:
        at = len(tokens) - prompt_length
        row = np.zeros(vocab_size, np.float32)
        row[text[at] if 0 <= at < len(text) else 0] = 1.0
        return row

    return ScriptedEngine(logits, vocab_size, **kwargs)


def markov(
    vocab_size: int = 12, order: int = 2, seed: int = 0, sharpness: float = 2.0, **kwargs: Any
) -> ScriptedEngine:
    """Random logits that depend on the last ``order`` tokens: the text repeats itself, so lookups hit and miss."""
    known: dict[tuple[int, ...], npt.NDArray[np.float32]] = {}

    def logits(tokens: list[int]) -> npt.NDArray[np.float32]:
        key = tuple(tokens[-order:])
        if key not in known:
            rng = np.random.default_rng([seed, len(key), *key])
            known[key] = (sharpness * rng.standard_normal(vocab_size)).astype(np.float32)
        return known[key].copy()

    return ScriptedEngine(logits, vocab_size, **kwargs)
