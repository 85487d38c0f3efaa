"""Whether it pays to ask a proposer at all: on a text that repeats nothing only the questions would be left."""

from __future__ import annotations

from ipex_lookahead.decoding.budget.dear import DEAR

ASKING = 2.5
"""What a proposer costs that is asked, in units of its own time: what comes of it is observed, and all of that leaves
the next forward colder caches (SmolLM2-135M, two cores of a Xeon: 31 to 45 microseconds of 103)."""
BROUGHT_PRIOR, BROUGHT_FOLLOW = 0.1, 0.1
"""What asking is thought to bring a step before it was tried, in forwards of one row, and the weight of a new step."""
LONGEST_DOZE, SOUND_SLEEP = 8, 12
"""Steps at most that a proposer is not asked because asking has brought less than it costs; 1, 2, 4, 8 in turn, and
twice as many after so many times in a row. Two tokens in a row that would have been right end it."""

NEVER_IDLE = ("recycling",)
"""Sources that learn from the target's rows alone: in steps that are left alone they would learn nothing."""


def asking_seconds(proposing: float, alone: float) -> float:
    """What asking costs of which a forward is ``alone`` seconds.

    Once in a while another process has the core; that is not the proposer's doing.
    """
    return ASKING * min(proposing, DEAR * alone)


class Asking:
    """What asking brings and costs a step, in forwards without drafts.

    Attributes:
        doze: steps that proposers are not asked from now on.
    """

    def __init__(self) -> None:
        self.doze = self._dozes = 0
        self._brought, self._cost = BROUGHT_PRIOR, 0.0

    def wake(self) -> None:
        """A sequence has come, of which nothing is known."""
        self._brought = max(self._brought, BROUGHT_PRIOR)
        self.doze = self._dozes = 0

    def repeated(self) -> None:
        """The text is being repeated: tokens that were not asked for would have been right."""
        self.doze = self._dozes = 0
        self._brought = max(self._brought, self._cost)

    def weigh(self, emitted: float, took: float, alone: float, proposing: float) -> None:
        """A step in which proposers were asked.

        Args:
            emitted: tokens of a sequence.
            took: seconds of the forward.
            alone: those of one without drafts.
            proposing: seconds that the proposers took.
        """
        cost = asking_seconds(proposing, alone) / alone
        self._brought += BROUGHT_FOLLOW * (emitted - took / alone - self._brought)
        self._cost += BROUGHT_FOLLOW * (cost - self._cost) if self._cost else cost
        if max(self._brought, 0.0) < self._cost:
            longest = LONGEST_DOZE if self._dozes < SOUND_SLEEP else 2 * LONGEST_DOZE
            self.doze = min(1 << min(self._dozes, SOUND_SLEEP), longest)
            self._dozes += 1
        else:
            self._dozes = 0
