"""Cost of a head's tokens in units of a one-row forward of its target, measured once per machine."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from ipex_lookahead.engines.prefill import chain

_SECONDS, _ROUNDS, _TOKENS = 0.03, 5, 4
"""Maximum seconds and number of measurement rounds (at least one is run); tokens of the longer chain."""


@dataclass(frozen=True, slots=True)
class Price:
    """Cost of a chain: of its first token (including preceding rows), of each further token, of each copied token."""

    first: float
    each: float
    copied: float

    def of(self, tokens: int, copied: int = 0) -> float:
        """Return the cost of ``tokens`` tokens after ``copied`` copied ones."""
        return self.first + (tokens - 1) * self.each + copied * self.copied if tokens else 0.0

    def times(self, factor: float) -> Price:
        """Return the price in another unit."""
        return Price(factor * self.first, factor * self.each, factor * self.copied)


def price_of(engine: Any) -> Price:
    """Return the price of the tokens of ``engine.head``; the first call measures it.

    The engine runs some rows on a new cache.
    """
    head = engine.head
    if head.price is None:
        head.price = _measure(engine, head)
    found: Price = head.price
    return found


def _measure(engine: Any, head: Any) -> Price:
    cache, token = engine.new_cache(), np.zeros(1, np.int32)
    head.follow(cache)
    one_row: list[float] = []

    def seconds(most: int, copied: int = 0) -> float:
        began = perf_counter()
        engine.forward(chain(cache, token))
        middle = perf_counter()
        cache.keep([0])
        head.draft(cache, 0, most, copied=[0] * copied)
        one_row.append(middle - began)
        return perf_counter() - middle

    ways = [(1, 0), (_TOKENS, 0), (1, _TOKENS - 1)]
    for way in ways:  # first touch of the memory
        seconds(*way)
    one_row.clear()
    found: list[list[float]] = []
    began = perf_counter()
    while not found or (len(found) < _ROUNDS and perf_counter() - began < _SECONDS):
        found.append([seconds(*way) for way in ways])
    first, more, copied = (min(times) for times in zip(*found, strict=True))
    forward = max(min(one_row), 1e-9)
    further = _TOKENS - 1
    return Price(
        first / forward, max(more - first, 0.0) / further / forward, max(copied - first, 0.0) / further / forward
    )
