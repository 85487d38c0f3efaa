"""Drafting from a text that the answer may resemble: the original of an edit, or a form to fill in."""

from __future__ import annotations

from collections.abc import Sequence

from ipex_lookahead.drafting.base import Proposer
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.engines.api import ARGMAX, Hidden, OutputRequest

SOURCE = "prediction"
"""Name of these drafts in ``Draft.sources``."""
PROB = 0.9
"""Initial probability of a token, until the controller has measured it."""
CONTEXT = 4
"""Number of tokens that locate the position in the prediction again after a mismatch."""


class Prediction:
    """Copies the prediction while the output follows it; otherwise another proposer drafts.

    Example: with the prediction ``5 6 7 8 9`` the first draft is ``5 6 7 8 9``. If the output begins ``5 6 1``, the
    position is lost and the inner proposer drafts; after ``... 6 7``, which occurs in the prediction, the draft is
    ``8 9``.

    Args:
        prediction: token ids.
        inner: the proposer after a mismatch, or None.
    """

    def __init__(self, prediction: Sequence[int], inner: Proposer | None = None) -> None:
        self._prediction = list(prediction)
        self._inner = inner
        self._at = 0
        self._last: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}
        for size in range(1, CONTEXT + 1):
            for end in range(len(self._prediction), size - 1, -1):  # the first position wins
                self._after[tuple(self._prediction[end - size : end])] = end

    @property
    def wants(self) -> OutputRequest:
        """The outputs that the inner proposer needs."""
        return ARGMAX if self._inner is None else self._inner.wants

    def begin(self, prompt: Sequence[int], hidden: Hidden | None = None) -> None:
        """Start a sequence; the last token of the prompt may be the first of the answer."""
        if self._inner is not None:
            self._inner.begin(prompt, hidden)
        self._at, self._last = 0, []
        self._commit(prompt[-1:])

    def propose(self, budget: int) -> Draft:
        """Return the prediction's next tokens, at most ``budget``, or the inner proposer's draft."""
        tokens = self._prediction[self._at : self._at + budget] if self._at >= 0 else []
        if not tokens and self._inner is not None:
            return self._inner.propose(budget)
        count = len(tokens)
        return Draft(tokens, range(-1, count - 1), 0, [PROB] * count, [SOURCE] * count)

    def observe(self, outcome: Outcome) -> None:
        """Update the position in the prediction."""
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
