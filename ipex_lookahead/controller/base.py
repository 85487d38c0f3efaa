"""The calls that decoding makes to a controller, and the controller with a fixed budget."""

from __future__ import annotations

from collections.abc import Sequence

from ipex_lookahead.controller.acceptance import Acceptance, Expected
from ipex_lookahead.drafting.draft import Draft, Outcome


class Controller:
    """Decides how many rows each step spends on drafts. It cannot change the output.

    This one verifies every draft whole, up to a fixed budget. The order of calls is ``join`` for each new sequence; in
    every step ``idle``, then unless idle ``budget`` for each sequence, ``select`` where any has a draft, ``observe``
    for each sequence, and ``timed``; and ``leave``.

    Args:
        tokens: budget of each sequence.
        acceptance: learns from the drafts; None learns nothing.
    """

    def __init__(self, tokens: int, acceptance: Acceptance | None = None) -> None:
        self._tokens = tokens
        self._acceptance = acceptance
        self._expected: dict[int, Expected] = {}

    def join(self) -> None:
        """Note that a sequence begins to decode."""

    def leave(self, sequence: int) -> None:
        """Forget a sequence that has ended or pauses: another one may get its number."""
        self._expected.pop(sequence, None)

    def idle(self) -> bool:
        """Return True if this step runs as if there were no proposers; called once at its beginning."""
        return False

    def budget(self, live: int) -> int:
        """Return the most rows that one of the step's ``live`` sequences may draft."""
        return self._tokens

    def select(self, sequences: Sequence[int], drafts: Sequence[Draft], others: int = 0) -> Sequence[Draft]:
        """Return the first part of each sequence's draft that is to be verified.

        Args:
            sequences: their numbers.
            drafts: as proposed, one for each sequence.
            others: rows that the forward has for other sequences, which emit one token each.
        """
        if self._acceptance is not None:
            for number, draft in zip(sequences, drafts, strict=True):
                self._expected[number] = self._acceptance.expect(draft)
        return drafts

    def observe(self, sequence: int, outcome: Outcome) -> None:
        """Learn what verification made of a sequence's draft, an empty one included."""
        seen = self._expected.get(sequence)
        if seen is not None and seen.open:
            seen.walk(outcome.emitted)

    def timed(self, rows: int, length: int, seconds: float, proposing: float, experts: int = 0) -> None:
        """Learn what a step took.

        Args:
            rows: rows of the forward.
            length: tokens of its longest sequence.
            seconds: time of the forward; 0 where other controllers' rows shared it.
            proposing: seconds that ``budget``, ``propose`` and ``select`` took before it.
            experts: experts of a mixture that the forward read.
        """
