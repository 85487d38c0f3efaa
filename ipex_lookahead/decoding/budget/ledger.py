"""The ledger: what forwards cost, and what drafting has brought and lost at these prices."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from ipex_lookahead.decoding.cost import CostCurve

ALLOWED_LOSS, FIRST_LOSS = 0.005, 0.5
"""Drafting may be behind by this share of all time, and so many forwards beside; then it must promise
``WORTH_BEHIND``."""
ACCOUNT_STEPS = 12
"""Steps after which costs and gains are brought up to date: going through them at once costs a fraction of going
through each when caches are cold."""


class Step(NamedTuple):
    """A step that is to be accounted for.

    Attributes:
        rows, length, seconds, proposing, experts: as ``Controller.timed`` is told.
        proposed: tokens that proposers put forward.
        emitted: tokens that its sequences emitted.
        live: how many sequences took part.
    """

    rows: int
    length: int
    seconds: float
    proposing: float
    proposed: int
    emitted: int
    live: int
    experts: int


class Ledger:
    """What was gained and lost, in seconds, and T(rows) as it was at the last account, at the length of its last step.

    Args:
        curve: the engine's cost curve; corrected from step to step.
        rows: for how many T is worked out beforehand.

    Attributes:
        careful: whether a wrong draft may cost as much as several tokens: in a mixture of experts it reads experts that
            no token needed. There a draft may add no more to a step than one forward, or than drafting has gained; and
            each draft is accounted for at once.
        spent: seconds of all forwards.
        gained: seconds that drafting has saved, less what it has cost.
        steps: those to be accounted for.
    """

    def __init__(self, curve: CostCurve, rows: int) -> None:
        self.curve = curve
        self.careful = bool(curve.calibration.experts)
        self.spent = self.gained = 0.0
        self.steps: list[Step] = []
        self._length = 0
        self._times = [curve(n) for n in range(1, rows + 1)]

    def time(self, rows: int) -> float:
        """Seconds of a forward of so many rows, at the last account's prices."""
        times = self._times
        return times[rows - 1] if rows <= len(times) else self.times(rows)[rows - 1]

    def times(self, rows: int) -> Sequence[float]:
        """Those of 1, 2, ... at least ``rows`` rows."""
        times = self._times
        while len(times) < rows:
            times.append(self.curve(len(times) + 1, self._length))
        return times

    def room(self, alone: float) -> float:
        """Seconds that drafting may still lose; ``alone`` is what a forward without drafts takes."""
        return self.gained + ALLOWED_LOSS * self.spent + FIRST_LOSS * alone

    def dearest(self, alone: float, room: float) -> float:
        """Seconds that the next step may take."""
        return alone + max(room, alone) if self.careful else inf

    def book(self, step: Step, asking: float) -> None:
        """Account for a step; ``asking`` is what its proposers cost, seconds."""
        took = self.curve(step.rows, step.length, step.experts) if step.experts else self.time(step.rows)
        self.spent += took
        self.gained += self.time(step.live) * (step.emitted / step.live) - took - asking

    def reprice(self, rows: int) -> None:
        """The account is done: T as it is now, worked out for up to ``rows`` rows."""
        self._length = self.steps[-1].length
        self._times = [self.curve(n, self._length) for n in range(1, rows + 1)]
        self.steps.clear()
