"""The hashed engine with cache images, for tests of saved caches without a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.engines.api import Batch, StepOutput
from ipex_lookahead.errors import InputError
from tests.support.hashed_engine import HashedCache, HashedEngine


class ImagedCache(HashedCache):
    """A page has each position's token and state, the state the last 8 of them, as a window has."""

    def fork(self) -> ImagedCache:
        other = ImagedCache(self._kept_behind)
        other.tokens, other.states = self.tokens.copy(), self.states.copy()
        other._longest = self._longest
        return other

    def export_pages(self, first: int, last: int) -> npt.NDArray[np.uint8]:
        if first % 64 or not first < last <= self.length:
            raise InputError(f"positions {first} to {last}")
        return np.array([self.tokens[first:last], self.states[first:last]], "<i8").reshape(-1).view(np.uint8)

    def export_state(self) -> npt.NDArray[np.uint8]:
        return np.array(self.states[-8:], "<i8").view(np.uint8)


class ImagedEngine(HashedEngine):
    """``cache_layout`` is the one given."""

    def __init__(self, *arguments: Any, cache_layout: str = "imaged", **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.cache_layout = cache_layout

    def new_cache(self) -> ImagedCache:
        return ImagedCache(self._kept_behind)

    def import_cache(
        self, length: int, pages: Iterable[tuple[int, int, npt.NDArray[np.uint8]]], state: npt.NDArray[np.uint8]
    ) -> ImagedCache:
        cache = self.new_cache()
        for first, last, data in pages:
            if first != cache.length or last > length or data.nbytes != 16 * (last - first):
                raise InputError(f"the pages of positions {first} to {last} do not fit")
            tokens, states = data.view("<i8").reshape(2, -1)
            cache.tokens += tokens.tolist()
            cache.states += states.tolist()
        cache._longest = cache.length
        if cache.length != length or state.tobytes() != cache.export_state().tobytes():
            raise InputError("the state does not fit")
        return cache

    def forward(self, batch: Batch) -> StepOutput:
        assert all(isinstance(cache, ImagedCache) for cache in batch.caches)
        return super().forward(batch)
