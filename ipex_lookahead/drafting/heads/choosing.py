"""Free sources and a trained head under one price: each step drafts with what promises more tokens for its time.

A free draft of a tree costs its rows alone, a head's token also a share of a forward: its ``price``. With E expected
tokens a draft promises (1 + E) / (1 + price of drafting it) tokens in the time of a forward. E of the head is counted
by depth; E of the free sources is their own estimate, corrected by how much of such estimates came true lately. The
choice depends on the text alone, not on clocks; how many rows are worth verifying is the controller's, as ever.
"""

from __future__ import annotations

from collections.abc import Sequence

from ipex_lookahead.drafting.base import Proposer
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.engines.base import Hidden, OutputRequest

FADE, FIRST_RIGHT, PRIOR = 0.95, 0.65, 4.0
"""What a test leaves of the counts before it; how often a drafted token is right before any was tested; and tests that
this counts for."""
WORTH = 1.02
"""The head must promise at least this much more than no draft."""
FIRST_PAUSE, LONGEST_PAUSE = 8, 256
"""Steps until a head that has not paid is tried again: at first, and at most, doubling in between."""
SOURCE = "mtp"
"""Name of the head's tokens, in ``Draft.sources``."""


class Choosing:
    """Drafts with the free sources where the text repeats itself, and with the head elsewhere.

    Args:
        free: drafts with ``probs`` and ``sources``, such as :class:`~ipex_lookahead.drafting.auto.Auto`.
        head: drafts a chain.
        price: of a token of the head's, in forwards of one row.
        most: tokens that the head drafts a step at most.
    """

    def __init__(self, free: Proposer, head: Proposer, price: float, most: int = 8) -> None:
        self._free, self._head = free, head
        self._price, self._most = price, most
        self._depths = [[FIRST_RIGHT * PRIOR, PRIOR] for _ in range(most)]
        self._true, self._estimated = PRIOR, PRIOR
        self._pause, self._next_pause = 0, FIRST_PAUSE
        self._chain: Sequence[int] = ()  # the head's last draft

    @property
    def wants(self) -> OutputRequest:
        """What both want."""
        return self._free.wants | self._head.wants

    def begin(self, prompt: Sequence[int], hidden: Hidden | None = None) -> None:
        """Show both the text."""
        self._free.begin(prompt)
        self._head.begin(prompt, hidden)

    def propose(self, budget: int) -> Draft:
        """The free sources' tree, or the head's chain."""
        draft = self._free.propose(budget)
        expected = self._worth(draft) * self._true / self._estimated
        count, rate = self._best(min(budget, self._most))
        self._chain = ()
        if self._pause:
            self._pause -= 1
            return draft
        if not count:  # tried now and then all the same
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, LONGEST_PAUSE)
            count = min(1, budget)
        elif rate <= 1 + expected:
            return draft
        else:
            self._next_pause = FIRST_PAUSE
        chain = self._head.propose(count)
        if not chain.tokens:
            return draft
        self._chain = chain.tokens
        return Draft(chain.tokens, chain.parents, 0, chain.probs, [SOURCE] * len(chain.tokens), 0)

    def observe(self, outcome: Outcome) -> None:
        """Count what came true, and show both what was emitted."""
        draft = outcome.draft
        if self._chain:  # verified or not: what was emitted tells
            for cell, drafted, emitted in zip(self._depths, self._chain, outcome.emitted, strict=False):
                cell[0] = FADE * cell[0] + (drafted == emitted)
                cell[1] = FADE * cell[1] + 1.0
                if drafted != emitted:
                    break
        elif draft.tokens and draft.probs:
            self._true = FADE * self._true + len(outcome.accepted)
            self._estimated = FADE * self._estimated + self._worth(draft)
        self._chain = ()
        self._head.observe(outcome)
        self._free.observe(outcome)

    @staticmethod
    def _worth(draft: Draft) -> float:
        """Tokens that the draft says will be accepted."""
        reached: list[float] = []
        for parent, prob in zip(draft.parents, draft.probs, strict=False):
            reached.append(prob * (1.0 if parent < 0 else reached[parent]))
        return sum(reached)

    def _best(self, most: int) -> tuple[int, float]:
        """How many tokens of the head's promise the most, and what; 0 where none promises anything."""
        best, rate, chance, expected = 0, WORTH, 1.0, 0.0
        for count, (right, tested) in enumerate(self._depths[:most], 1):
            chance *= right / tested
            expected += chance
            promised = (1 + expected) / (1 + count * self._price)
            if promised > rate:
                best, rate = count, promised
        return best, rate
