"""What decides how much is drafted, and the decider that always says the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ipex_lookahead.drafting.draft import Draft, Outcome


class Controller(Protocol):
    """Decides the budget of each sequence at each step, from what it has seen. It cannot change the output."""

    def budget(self, sequence: int, length: int) -> int:
        """Most rows that sequence number ``sequence``, ``length`` tokens long, may draft in this step."""
        ...

    def select(
        self, sequences: Sequence[int], drafts: Sequence[Draft], length: int, beside: int = 0
    ) -> Sequence[Draft]:
        """For each of its sequences how much of the draft to verify: ``Draft.first(n)``, or all of it.

        Called only where there is a draft at all; ``length`` is that of the longest sequence, ``beside`` the number of
        rows that the forward has for others, who emit a token for each.
        """
        ...

    def observe(self, sequence: int, outcome: Outcome) -> None:
        """What verification made of that sequence's draft, an empty one included."""
        ...

    def timed(self, rows: int, length: int, seconds: float, proposing: float, experts: int = 0) -> None:
        """What a forward of ``rows`` rows took, the longest of its sequences being ``length`` tokens long.

        ``proposing`` is what ``budget``, ``propose`` and ``select`` took before it, seconds; ``experts`` how many of a
        mixture it read. ``seconds`` is 0 where others shared it: that tells nothing of what rows cost.
        """
        ...

    def leave(self, sequence: int) -> None:
        """That sequence has ended, or pauses: its number may be another's."""
        ...


class FixedBudget:
    """The same budget at every step."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def budget(self, sequence: int, length: int) -> int:
        """Always the number given."""
        return self._tokens

    def select(
        self, sequences: Sequence[int], drafts: Sequence[Draft], length: int, beside: int = 0
    ) -> Sequence[Draft]:
        """All of every draft."""
        return drafts

    def observe(self, sequence: int, outcome: Outcome) -> None:
        """Nothing to learn."""

    def timed(self, rows: int, length: int, seconds: float, proposing: float, experts: int = 0) -> None:
        """Nothing to learn."""

    def leave(self, sequence: int) -> None:
        """Nothing to forget."""
