"""Random walks over an engine's caches: whatever was kept, cropped and forked, logits are those of plain decoding.

Works on every engine with ``row_invariant``: equality is bit for bit. ``walk(engine, seed)`` is one walk.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from ipex_lookahead.engines.api import Batch, Cache, Engine, OutputRequest, state_bytes
from ipex_lookahead.errors import InputError

MOST_ROWS = 9
MOST_SEQUENCES = 3


class Plain:
    """Logits after a prefix by decoding it token by token on a cache of its own, remembered."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[tuple[int, ...], npt.NDArray[np.float32]] = {}

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        key = tuple(tokens)
        if key not in self._known:
            cache = self._engine.new_cache()
            for end in range(1, len(key) + 1):
                self._known[key[:end]] = forward(self._engine, [cache], [[key[end - 1]]], [[-1]])[0]
                cache.keep([0])
        return self._known[key]


def forward(
    engine: Engine, caches: Sequence[Cache], tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]
) -> npt.NDArray[np.float32]:
    """Logits of every row, float32 [rows, vocab_size]."""
    output = engine.forward(
        Batch(
            list(caches),
            [len(t) for t in tokens],
            np.array([x for t in tokens for x in t], np.int32),
            np.array([x for p in parents for x in p], np.int32),
            OutputRequest(logits=True),
        )
    )
    assert output.logits is not None
    assert np.array_equal(output.argmax, output.logits.argmax(-1))
    return output.logits


def walk(engine: Engine, seed: int, steps: int = 12, plain: Plain | None = None, longest: int = 40) -> None:
    """Grow, keep, crop and fork at random, several sequences at once; check every row's logits and every length."""
    rng = np.random.default_rng(seed)
    plain = plain or Plain(engine)
    states = state_bytes(engine) > 0  # which cannot go back to any length
    live: list[tuple[Cache, list[int]]] = [(engine.new_cache(), [])]
    for _ in range(steps):
        action = rng.choice(["grow", "grow", "grow", "crop", "fork", "new", "bad"])
        cache, tokens = live[int(rng.integers(len(live)))]
        if action == "grow":
            chosen = rng.choice(len(live), int(rng.integers(1, len(live) + 1)), replace=False)
            _grow(engine, [live[int(i)] for i in chosen], rng, plain, longest)
        elif action == "crop":
            length = int(rng.integers(0, len(tokens) + 1))
            reached = cache.crop(length)
            assert reached == length or (states and 0 <= reached < length)
            del tokens[reached:]
        elif action == "fork" and len(live) < MOST_SEQUENCES:
            live.append((cache.fork(), list(tokens)))
        elif action == "new" and len(live) < MOST_SEQUENCES:
            live.append((engine.new_cache(), []))
        elif action == "bad":
            with pytest.raises(InputError):
                cache.crop(len(tokens) + 1)
            with pytest.raises(InputError):
                cache.crop(-1)
        for held, known in live:
            assert held.length == len(known)


def _grow(
    engine: Engine,
    chosen: Sequence[tuple[Cache, list[int]]],
    rng: np.random.Generator,
    plain: Plain,
    longest: int,
) -> None:
    rows: list[list[int]] = []
    parents: list[list[int]] = []
    for _, tokens in chosen:
        count = int(rng.integers(1, max(2, min(MOST_ROWS, longest - len(tokens)) + 1)))
        if len(tokens) + count > longest:
            return
        rows.append(rng.integers(0, engine.vocab_size, count).tolist())
        tree = rng.random() < 0.6
        parents.append([int(rng.integers(-1, i)) if tree else i - 1 for i in range(count)])
    logits = forward(engine, [cache for cache, _ in chosen], rows, parents)
    first = 0
    for (cache, tokens), mine, above in zip(chosen, rows, parents, strict=True):
        paths = []
        for row, parent in enumerate(above):
            paths.append([*(paths[parent] if parent >= 0 else []), row])
            expected = plain.logits([*tokens, *(mine[r] for r in paths[row])])
            assert np.array_equal(logits[first + row], expected), f"row {row} of {len(mine)}, parents {above}"
        first += len(mine)
        path = paths[int(rng.integers(len(paths)))]
        path = path[: int(rng.integers(0, len(path) + 1))]
        if path:
            cache.keep(path)
            tokens.extend(mine[row] for row in path)
