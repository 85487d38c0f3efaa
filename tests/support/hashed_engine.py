"""An engine whose logits depend, in their last bits, on every token before: a wrong cache shows at once.

What follows mostly goes by the last two tokens, so the text repeats itself and lookups hit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.engines.api import Batch, StepOutput
from ipex_lookahead.errors import ContextLengthError, EngineError, InputError
from tests.support.scripted_engine import output_of

_MASK = 2**61 - 1


class HashedCache:
    """The tokens, and after each a number that stands for all of them.

    ``kept_behind``: positions that may be cropped, as where layers have a window; None = all.
    """

    def __init__(self, kept_behind: int | None = None) -> None:
        self.tokens: list[int] = []
        self.states: list[int] = []
        self.pending: list[tuple[int, int, int]] = []
        self._kept_behind = kept_behind
        self._longest = 0

    @property
    def length(self) -> int:
        return len(self.tokens)

    def keep(self, rows: Sequence[int]) -> None:
        previous = -1
        for row in rows:
            if not 0 <= row < len(self.pending) or self.pending[row][1] != previous:
                raise InputError(f"rows {list(rows)} are no path")
            previous = row
        self.tokens += [self.pending[row][0] for row in rows]
        self.states += [self.pending[row][2] for row in rows]
        self.pending = []
        self._longest = max(self._longest, len(self.tokens))

    def crop(self, length: int) -> int:
        if not 0 <= length <= self.length:
            raise InputError(f"cannot crop to {length}")
        if length and self._kept_behind is not None and self._longest - length > self._kept_behind:
            length = 0
        del self.tokens[length:], self.states[length:]
        self.pending = []
        if not length:
            self._longest = 0
        return length

    def fork(self) -> HashedCache:
        other = HashedCache(self._kept_behind)
        other.tokens, other.states = self.tokens.copy(), self.states.copy()
        other._longest = self._longest
        return other


class HashedEngine:
    """``rows`` counts those that were run; a token of ``poison`` fails every forward that it is in."""

    name = "hashed"
    row_invariant = True
    supports_tree = True

    def __init__(
        self, vocab_size: int = 11, max_context: int = 4096, seed: int = 0, kept_behind: int | None = None
    ) -> None:
        rng = np.random.default_rng(seed)
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.poison: int | None = None
        self.rows = 0
        self.batches: list[tuple[int, ...]] = []
        self._kept_behind = kept_behind
        self._likely = (2 * rng.standard_normal((vocab_size + 1, vocab_size, vocab_size))).astype(np.float32)
        self._marks = (1e-3 * rng.standard_normal((257, vocab_size))).astype(np.float32)

    def new_cache(self) -> HashedCache:
        return HashedCache(self._kept_behind)

    def describe(self) -> dict[str, Any]:
        return {"engine": self.name, "weight_bytes": 0, "kv_bytes_per_token": 1}

    def forward(self, batch: Batch) -> StepOutput:
        assert len(set(map(id, batch.caches))) == len(batch.caches)
        assert sum(batch.counts) == len(batch.tokens) == len(batch.parents)
        if self.poison is not None and self.poison in batch.tokens:
            raise EngineError(f"token {self.poison} is poison")
        tokens, parents = batch.tokens.tolist(), batch.parents.tolist()
        before: list[int] = []
        states: list[int] = []
        positions: list[int] = []
        first = 0
        for cache, count in zip(batch.caches, batch.counts, strict=True):
            assert isinstance(cache, HashedCache)
            start = cache.states[-1] if cache.states else 0
            last = cache.tokens[-1] if cache.tokens else self.vocab_size
            pending: list[tuple[int, int, int]] = []
            depths: list[int] = []
            for token, parent in zip(tokens[first : first + count], parents[first : first + count], strict=True):
                if not 0 <= token < self.vocab_size:
                    raise InputError(f"token id {token}")
                came, state = (last, start) if parent < 0 else (pending[parent][0], pending[parent][2])
                depths.append(0 if parent < 0 else depths[parent] + 1)
                if cache.length + depths[-1] >= self.max_context:
                    raise ContextLengthError(f"position {cache.length + depths[-1]}")
                pending.append((token, parent, (state * 1_000_003 + token + 1) & _MASK))
                before.append(came)
                positions.append(cache.length + depths[-1])
                states.append(pending[-1][2])
            cache.pending = pending
            first += count
        self.rows += first
        self.batches.append(tuple(batch.counts))
        want = np.arange(first) if batch.wants.rows is None else batch.wants.rows
        marks = np.array(states, np.int64)[want] % 257
        logits: npt.NDArray[np.float32] = self._likely[np.array(before)[want], batch.tokens[want]] + self._marks[marks]
        return output_of(logits, batch, positions)
