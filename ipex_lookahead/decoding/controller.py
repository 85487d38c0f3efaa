"""How many rows a step may spend on a draft."""

from __future__ import annotations

from typing import Protocol

from ipex_lookahead.drafting.draft import Outcome


class Controller(Protocol):
    """Decides the budget of each sequence at each step, from what it has seen. It cannot change the output."""

    def budget(self, sequence: int, length: int) -> int:
        """Most rows that sequence number ``sequence``, ``length`` tokens long, may draft in this step."""
        ...

    def observe(self, sequence: int, outcome: Outcome) -> None:
        """What verification made of that sequence's draft, an empty one included."""
        ...

    def timed(self, rows: int, length: int, seconds: float) -> None:
        """What a forward of ``rows`` rows took, the longest of its sequences being ``length`` tokens long."""
        ...


class FixedBudget:
    """The same budget at every step."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def budget(self, sequence: int, length: int) -> int:
        """Always the number given."""
        return self._tokens

    def observe(self, sequence: int, outcome: Outcome) -> None:
        """Nothing to learn."""

    def timed(self, rows: int, length: int, seconds: float) -> None:
        """Nothing to learn."""
