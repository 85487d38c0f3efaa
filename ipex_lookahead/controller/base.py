"""What decides how much is drafted, and the controller whose budget is fixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ipex_lookahead.controller.acceptance import Expected
from ipex_lookahead.drafting.draft import Draft, Outcome


@dataclass(slots=True)
class Selection:
    """What is verified of a step's drafts, and why.

    Attributes:
        drafts: for each sequence its draft, or the first part of it: ``Draft.first(n)``.
        expected: for each sequence what was expected of all of its draft.
        taken: tokens of the draft of which most were taken; None where drafts do not put the likeliest first.
        proposed: tokens of all drafts as they were proposed.
        whole: whether the drafts are whole for the sake of their scratch rows.
    """

    drafts: Sequence[Draft]
    expected: Sequence[Expected] = ()
    taken: int | None = None
    proposed: int = 0
    whole: bool = False


class Controller(Protocol):
    """Decides the budget of each sequence at each step, from what it has seen. It cannot change the output.

    The order of calls is ``join`` for each sequence that comes; in every step ``idle``, and where it is not,
    ``budget``, then ``select`` and ``note`` where there is a draft, ``observe`` for each sequence,
    ``timed``; and ``leave``.
    """

    def join(self, sequence: int) -> None:
        """A sequence of that number comes."""
        ...

    def idle(self) -> bool:
        """Whether this step is left alone, as if there were no proposers; called once at its beginning."""
        ...

    def budget(self, sequence: int) -> int:
        """Most rows that sequence number ``sequence`` may draft in this step."""
        ...

    def select(self, drafts: Sequence[Draft], beside: int = 0) -> Selection:
        """How much of each sequence's draft to verify. Changes nothing.

        ``beside`` is the number of rows that the forward has for others, who emit a token for each.
        """
        ...

    def note(self, sequences: Sequence[int], selection: Selection) -> None:
        """That is what is verified of the drafts of these sequences."""
        ...

    def observe(self, sequence: int, outcome: Outcome) -> None:
        """What verification made of that sequence's draft, an empty one included."""
        ...

    def timed(self, rows: int, length: int, seconds: float, proposing: float, experts: int = 0) -> None:
        """What a forward of ``rows`` rows took, the longest of its sequences being ``length`` tokens long.

        ``proposing`` is what ``budget``, ``propose`` and ``select`` took before it, seconds; ``experts`` how many of a
        mixture it read. ``seconds`` is 0 where others shared it: such a forward does not say what rows cost.
        """
        ...

    def leave(self, sequence: int) -> None:
        """That sequence has ended, or pauses: its number may be another's."""
        ...


class FixedBudget:
    """The same budget at every step."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def join(self, sequence: int) -> None:
        """Nothing to prepare."""

    def idle(self) -> bool:
        """Never."""
        return False

    def budget(self, sequence: int) -> int:
        """Always the number given."""
        return self._tokens

    def select(self, drafts: Sequence[Draft], beside: int = 0) -> Selection:
        """All of every draft."""
        return Selection(drafts)

    def note(self, sequences: Sequence[int], selection: Selection) -> None:
        """Nothing to note."""

    def observe(self, sequence: int, outcome: Outcome) -> None:
        """Nothing to learn."""

    def timed(self, rows: int, length: int, seconds: float, proposing: float, experts: int = 0) -> None:
        """Nothing to learn."""

    def leave(self, sequence: int) -> None:
        """Nothing to forget."""
