"""Dear proposers: one whose own time counts, as a second model's does, is asked for no more than it can earn back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

DEAR = 0.06
"""A proposer whose time for a token is above this share of a forward is dear."""
FADE = 0.9
"""What a test leaves of the counts of how often it was right: it is tested seldom, so the last few must tell."""
FIRST_PAUSE, LONGEST_PAUSE = 4, 64
"""Steps that it is left alone after it promised no gain; twice as many each time."""
PROBE = 2
"""Tokens that it is asked for before a pause, to learn."""
FOLLOW, OUTLIER = 0.2, 3.0
"""Weight of a new time in the running mean, and by what factor it may be above it: once in a while another process has
the core; that is not the proposer's doing."""
_RIGHT, _TESTED = 2.8, 4.0
"""Counts at each depth before any was tested."""


class Dear:
    """What a proposer takes for a token, and what it is therefore asked for.

    Args:
        most: tokens that may be asked for.

    Attributes:
        seconds: for a token; 0 before any was timed.
        counts: whether that is dear.
        pause: steps that it is left alone from now on.
    """

    def __init__(self, most: int) -> None:
        self.seconds = 0.0
        self.counts = False
        self.pause = 0
        self._next_pause = FIRST_PAUSE
        self._most = most
        self._right = [[_RIGHT, _TESTED] for _ in range(most)]

    def budget(self, worth: float, time: Callable[[int], float]) -> int:
        """The number of tokens that promises the most a second, its own time included.

        Where none promises more than ``worth`` it is ``PROBE`` tokens once, to learn, and then a pause. ``time`` is
        that of so many rows.
        """
        best, expected, survival = 0, 1.0, 1.0
        for n in range(1, self._most + 1):
            right, tested = self._right[n - 1]
            survival *= right / tested
            expected += survival
            rate = expected / (time(1 + n) + n * self.seconds)
            if rate > worth:
                best, worth = n, rate
        if best:
            self._next_pause = FIRST_PAUSE
            return best
        self.pause, self._next_pause = self._next_pause, min(2 * self._next_pause, LONGEST_PAUSE)
        return min(self._most, PROBE)

    def tested(self, tried: Sequence[bool], first: int) -> None:
        """Whether a token was right at each depth, those from ``first`` on being news."""
        for depth, right in enumerate(tried[first : self._most], first):
            cell = self._right[depth]
            cell[0] = cell[0] * FADE + (1.0 if right else 0.0)
            cell[1] = cell[1] * FADE + 1.0
        if self.pause and tried and tried[-1]:  # it may have become good
            self.pause, self._next_pause = min(self.pause, FIRST_PAUSE), FIRST_PAUSE

    def timed(self, proposing: float, tokens: int) -> None:
        """So many seconds went into proposing so many tokens, at least one."""
        each, known = proposing / tokens, self.seconds
        self.seconds += FOLLOW * (min(each, OUTLIER * known) - known) if known else each
