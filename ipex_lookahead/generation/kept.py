"""Keys and values that are kept from one generation to the next: a conversation's turns begin as the last one did."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ipex_lookahead.engines.base import Cache, Engine, crop_or_empty


class Kept:
    """The cache of the last sequence, and its tokens.

    Args:
        engine: whose caches they are.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cache: Cache | None = None
        self._ids = np.empty(0, np.int64)

    def take(self, prompt: npt.NDArray[np.int32]) -> Cache:
        """A cache with what the prompt, int32 [n], begins with, less than all of it; nothing is left here.

        So whatever ends a generation half-way, the next one never starts from keys that nobody vouches for.
        """
        cache, self._cache = self._cache, None
        if cache is None:
            return self._engine.new_cache()
        held = self._ids[: len(prompt) - 1]
        same = held == prompt[: len(held)]
        crop_or_empty(cache, len(held) if same.all() else int(same.argmin()))
        return cache

    def hold(self, cache: Cache, ids: npt.NDArray[np.int64]) -> None:
        """Keep the cache of a sequence, int64 [n]: it holds the first ``cache.length`` of its tokens."""
        self._cache, self._ids = cache, ids[: cache.length].copy()
