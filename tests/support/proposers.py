"""Proposers for tests: always wrong, always right, and random trees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.engines.api import ARGMAX


class RandomProposer:
    """Chains of random tokens, nearly always wrong."""

    wants = ARGMAX

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._vocab_size = vocab_size

    def begin(self, prompt: Sequence[int], hidden: object = None) -> None: ...

    def propose(self, budget: int) -> Draft:
        return Draft.chain(self._rng.integers(0, self._vocab_size, budget).tolist())

    def observe(self, outcome: Outcome) -> None: ...


class OracleProposer:
    """Chains of what plain decoding emits: always right. ``text`` is prompt and output."""

    wants = ARGMAX

    def __init__(self, text: Sequence[int]) -> None:
        self._text = list(text)
        self._length = 0
        self.outcomes: list[Outcome] = []

    def begin(self, prompt: Sequence[int], hidden: object = None) -> None:
        assert list(prompt) == self._text[: len(prompt)]
        self._length = len(prompt)

    def propose(self, budget: int) -> Draft:
        return Draft.chain(self._text[self._length : self._length + budget])

    def observe(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self._length += len(outcome.emitted)


class TreeProposer:
    """Random trees, with siblings, repeated tokens and scratch rows, some of whose paths are right (``text``)."""

    wants = ARGMAX

    def __init__(self, vocab_size: int, text: Sequence[int] = (), seed: int = 0, scratch: bool = True) -> None:
        self._rng = np.random.default_rng(seed)
        self._vocab_size = vocab_size
        self._text = list(text)
        self._scratch = scratch
        self._length = 0
        self.outcomes: list[Outcome] = []

    def begin(self, prompt: Sequence[int], hidden: object = None) -> None:
        self._length = len(prompt)

    def propose(self, budget: int) -> Draft:
        size = int(self._rng.integers(0, budget + 1))
        tokens: list[int] = []
        parents: list[int] = []
        depths: list[int] = []
        for row in range(size):
            parent = int(self._rng.integers(-1, row)) if self._rng.random() < 0.5 else row - 1
            depths.append(0 if parent < 0 else depths[parent] + 1)
            at = self._length + depths[-1]
            right = at < len(self._text) and self._rng.random() < 0.6
            tokens.append(self._text[at] if right else int(self._rng.integers(self._vocab_size)))
            parents.append(parent)
        scratch = int(self._rng.integers(0, size + 1)) if self._scratch and size and self._rng.random() < 0.3 else 0
        return Draft(tokens, parents, scratch)

    def observe(self, outcome: Outcome) -> None:
        assert len(outcome.scratch_argmax) == outcome.draft.scratch
        self.outcomes.append(outcome)
        self._length += len(outcome.emitted)
