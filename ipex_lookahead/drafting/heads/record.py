"""Acceptance record of a head: by depth and by predicted probability, over all texts of a loaded model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

FADE, PRIOR = 0.97, 4.0
"""Decay of a cell's counts per test, and weight of a cell's initial rate in tests."""
UNTRIED = (0.65 * PRIOR, PRIOR)
"""Initial cell of a depth: right, and tested."""
FORGET = 0.98
"""Decay per test of the counts of depths that the test did not reach, so that they are tried again after failures."""
PARTS = 8
"""Number of equal intervals of [0, 1] in which the head's probabilities are counted."""
KEPT = 20.0
"""Maximum weight in tests of counts from an earlier run, so that they adapt quickly to another kind of text."""


class Record:
    """Counts of draft tokens with known outcome, of each chain up to its first wrong token.

    Args:
        counts: (right, tested) by depth, of earlier runs.

    Attributes:
        right, tested: totals by depth.
        skipped: number of sequences without the head because it does not pay.
    """

    def __init__(self, counts: Iterable[tuple[int, int]] = ()) -> None:
        known = [*counts]
        self.right = [right for right, _ in known]
        self.tested = [tested for _, tested in known]
        self.skipped = 0
        self._depths = [[right * min(1.0, KEPT / tested), min(KEPT, tested)] for right, tested in known]
        self._parts = [[PRIOR * (part + 0.5) / PARTS, PRIOR] for part in range(PARTS)]

    def chance(self, depth: int) -> float:
        """Return the acceptance rate at that depth, given that all tokens before it are accepted."""
        right, tested = self._depths[depth] if depth < len(self._depths) else UNTRIED
        return right / tested

    @property
    def rates(self) -> list[float]:
        """Acceptance rate of tokens with a probability in each of ``PARTS`` equal intervals of [0, 1]."""
        return [right / tested for right, tested in self._parts]

    def rate(self, prob: float) -> float:
        """Return the acceptance rate of the interval that contains ``prob``."""
        right, tested = self._parts[_part(prob)]
        return right / tested

    @property
    def proven(self) -> int:
        """One more than the longest chain that was ever right, which bounds the cost of a useless head."""
        return 1 + next((depth for depth, right in enumerate(self.right) if not right), len(self.right))

    @property
    def tests(self) -> int:
        """Number of chains that were compared with the text."""
        return self.tested[0] if self.tested else 0

    def observe(self, drafted: Sequence[int], probs: Sequence[float], true: Sequence[int]) -> None:
        """Count a chain; the emitted tokens decide, even without verification."""
        if not drafted or not true:
            return
        for depth, (token, prob, emitted) in enumerate(zip(drafted, probs, true, strict=False)):
            if depth == len(self.tested):
                self.right.append(0)
                self.tested.append(0)
            if depth == len(self._depths):
                self._depths.append([*UNTRIED])
            right = token == emitted
            self.right[depth] += right
            self.tested[depth] += 1
            for cell in (self._depths[depth], self._parts[_part(prob)]):
                cell[0] = FADE * cell[0] + right
                cell[1] = FADE * cell[1] + 1.0
            if not right:
                break
        for cell in self._depths[depth + 1 :]:
            cell[:] = (first + FORGET * (count - first) for count, first in zip(cell, UNTRIED, strict=True))


def _part(prob: float) -> int:
    return min(PARTS - 1, int(prob * PARTS))
