"""A text that the answer may resemble is drafted from: an edit's original, a form to be filled in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ipex_lookahead.drafting.base import Proposer
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.engines.api import ARGMAX, Hidden, OutputRequest

SOURCE = "prediction"
"""Name of what comes of it, in ``Draft.sources``."""
PROB = 0.9
"""What a token is thought to be worth until the controller has counted."""
CONTEXT = 4
"""Tokens that find the place in the prediction again after it was left."""


class Prediction:
    """Copies the prediction while the output follows it; in between another proposer drafts.

    Example: with the prediction ``5 6 7 8 9`` the first draft is ``5 6 7 8 9``. If the output begins ``5 6 1``, the
    place is lost, and what the inner proposer has is drafted; after ``... 6 7``, which stands in the prediction, the
    draft is ``8 9``.

    Args:
        prediction: token ids.
        inner: drafts where the prediction has nothing to say, or None.
    """

    def __init__(self, prediction: Sequence[int], inner: Proposer | None = None) -> None:
        self._prediction = list(prediction)
        self._inner = inner
        self._at = 0
        self._last: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}
        for size in range(1, CONTEXT + 1):
            for end in range(len(self._prediction), size - 1, -1):  # the first place stays
                self._after[tuple(self._prediction[end - size : end])] = end

    @property
    def wants(self) -> OutputRequest:
        """As the inner proposer."""
        return ARGMAX if self._inner is None else self._inner.wants

    def begin(self, prompt: Sequence[int], hidden: Hidden | None = None) -> None:
        """The answer has begun with the last token."""
        if self._inner is not None:
            self._inner.begin(prompt, hidden)
        self._at, self._last = 0, []
        self._commit(prompt[-1:])

    def propose(self, budget: int) -> Draft:
        """The prediction's next tokens, at most ``budget``, or what the inner proposer has."""
        tokens = self._prediction[self._at : self._at + budget] if self._at >= 0 else []
        if not tokens and self._inner is not None:
            return self._inner.propose(budget)
        count = len(tokens)
        return Draft(tokens, range(-1, count - 1), 0, [PROB] * count, [SOURCE] * count)

    def observe(self, outcome: Outcome) -> None:
        """Follow the output."""
        if self._inner is not None:
            self._inner.observe(outcome)
        self._commit(outcome.emitted)

    def _commit(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._last = [*self._last, token][-CONTEXT:]
            if 0 <= self._at < len(self._prediction) and self._prediction[self._at] == token:
                self._at += 1
            else:
                self._at = -1
        if self._at < 0:
            found = (self._after.get(tuple(self._last[-size:])) for size in range(len(self._last), 1, -1))
            self._at = next((place for place in found if place is not None), -1)


class Filtered:
    """Another proposer's drafts, cut to what may follow at all.

    Args:
        inner: whose drafts.
        admitted: (the sequence so far, int64 [n]; a draft) -> what of it may follow; a tree again.
        committed: gives the sequence so far.
    """

    def __init__(
        self,
        inner: Proposer,
        admitted: Callable[[npt.NDArray[np.int64], Draft], Draft],
        committed: Callable[[], npt.NDArray[np.int64]],
    ) -> None:
        self._inner = inner
        self._admitted = admitted
        self._committed = committed

    @property
    def wants(self) -> OutputRequest:
        """As the inner proposer."""
        return self._inner.wants

    def begin(self, prompt: Sequence[int], hidden: Hidden | None = None) -> None:
        """Start a sequence."""
        self._inner.begin(prompt, hidden)

    def propose(self, budget: int) -> Draft:
        """What is left of the inner proposer's draft, without its scratch rows."""
        draft = self._inner.propose(budget)
        draft = draft.first(len(draft.tokens) - draft.scratch)
        return self._admitted(self._committed(), draft) if draft.tokens else draft

    def observe(self, outcome: Outcome) -> None:
        """What verification made of it."""
        self._inner.observe(outcome)
