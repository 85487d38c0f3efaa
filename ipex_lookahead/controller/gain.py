"""What drafting and its scratch rows have brought lately, as moving averages."""

from __future__ import annotations

SCRATCH_PRIOR, SCRATCH_FOLLOW = 1.6, 0.05
"""Tokens a step with all scratch rows before any was seen (Lookahead Decoding, arXiv 2402.02057), and the weight of a
new one."""
ALLOWED_LOSS, FOLLOW = 0.005, 0.01
"""Drafting may lose this share of the time, and the weight of a new step: so a step may lose half a forward."""


class MovingAverage:
    """The mean of what was seen, the last most; ``weight`` is that of a new value, and ``value`` stands before any."""

    __slots__ = ("value", "weight")

    def __init__(self, value: float, weight: float) -> None:
        self.value = value
        self.weight = weight

    def add(self, new: float) -> None:
        """Follow a new value."""
        self.value += self.weight * (new - self.value)


class Gain:
    """What is gained a step.

    No survival says what scratch rows are worth, since they pay in later steps; what steps with them have brought does.

    Attributes:
        net: of all drafting less its cost, in forwards without drafts.
        scratch: tokens of a sequence in a step with whole drafts, scratch rows included, less what drafting them cost.
    """

    def __init__(self) -> None:
        self.net = MovingAverage(0.0, FOLLOW)
        self.scratch = MovingAverage(SCRATCH_PRIOR, SCRATCH_FOLLOW)

    @property
    def room(self) -> float:
        """Forwards that drafting may lose in the next step."""
        return (self.net.value + ALLOWED_LOSS) / FOLLOW
