"""The hashed engine with KV caches that can be exported and imported, for tests of the cache on disk."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.errors import InputError
from tests.support.hashed_engine import HashedCache, HashedEngine

Bytes = npt.NDArray[np.uint8]


class ExportingCache(HashedCache):
    """A page has the tokens and the numbers after each, the state has the last number and ``ballast``."""

    def __init__(self, kept_behind: int | None = None, ballast: int = 0) -> None:
        super().__init__(kept_behind)
        self.ballast = ballast

    def fork(self) -> ExportingCache:
        other = ExportingCache(self._kept_behind, self.ballast)
        other.tokens, other.states, other._longest = self.tokens.copy(), self.states.copy(), self._longest
        return other

    def export_pages(self, first: int, last: int) -> Bytes:
        assert first % 64 == 0
        assert first < last <= self.length
        return np.array([self.tokens[first:last], self.states[first:last]], "<i8").T.copy().view(np.uint8).reshape(-1)

    def export_state(self) -> Bytes:
        return np.array([self.length, self.states[-1], *range(self.ballast)], "<i8").view(np.uint8)


class ExportingEngine(HashedEngine):
    """``ballast``: numbers of 8 bytes in a state."""

    cache_layout = "hashed 1"

    def __init__(self, vocab_size: int = 11, *, ballast: int = 0, position_bytes: int = 16, **options: Any) -> None:
        super().__init__(vocab_size, **options)
        self._ballast, self._position_bytes = ballast, position_bytes

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "kv_bytes_per_token": self._position_bytes}

    def new_cache(self) -> ExportingCache:
        return ExportingCache(self._kept_behind, self._ballast)

    def import_cache(self, length: int, pages: Iterable[tuple[int, int, Bytes]], state: Bytes) -> ExportingCache:
        cache = self.new_cache()
        for first, last, data in pages:
            if first != cache.length or len(data) != 16 * (last - first):
                raise InputError(f"pages of {first} to {last} behind {cache.length} positions")
            rows = data.view("<i8").reshape(-1, 2)
            cache.tokens += rows[:, 0].tolist()
            cache.states += rows[:, 1].tolist()
        numbers = state.view("<i8")
        if len(numbers) != 2 + self._ballast or numbers[0] != length != cache.length or numbers[1] != cache.states[-1]:
            raise InputError("the state does not fit the pages")
        cache._longest = length
        return cache
