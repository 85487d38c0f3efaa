"""How often a head was right: by depth, and by how likely it took a token to be; over all texts of a loaded model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

FADE, PRIOR = 0.97, 4.0
"""What a test leaves of the counts before it in its cell, and tests that a cell's first rate counts for."""
UNTRIED = (0.65 * PRIOR, PRIOR)
"""The cell of a depth: right, and tested."""
FORGET = 0.98
"""What a test leaves of the counts of depths that it did not reach: after few bad ones they are tried again."""
PARTS = 8
"""Parts of 0 to 1 in which the head's probabilities are counted apart."""
KEPT = 20.0
"""Tests that counts of an earlier run stand for at most, so that a text of another kind is soon told from them."""


class Record:
    """Counts of drafted tokens whose text is known, of each chain up to its first wrong one.

    Args:
        counts: (right, tested) by depth, of earlier runs.

    Attributes:
        right, tested: by depth, all of them.
        skipped: sequences that did without the head since it does not pay.
    """

    def __init__(self, counts: Iterable[tuple[int, int]] = ()) -> None:
        known = [*counts]
        self.right = [right for right, _ in known]
        self.tested = [tested for _, tested in known]
        self.skipped = 0
        self._depths = [[right * min(1.0, KEPT / tested), min(KEPT, tested)] for right, tested in known]
        self._parts = [[PRIOR * (part + 0.5) / PARTS, PRIOR] for part in range(PARTS)]

    def chance(self, depth: int) -> float:
        """How often a token at that depth is right where those before it are."""
        right, tested = self._depths[depth] if depth < len(self._depths) else UNTRIED
        return right / tested

    @property
    def rates(self) -> list[float]:
        """How often a token was right whose probability is in each of ``PARTS`` equal parts of 0 to 1."""
        return [right / tested for right, tested in self._parts]

    def rate(self, prob: float) -> float:
        """That of the part which holds ``prob``."""
        right, tested = self._parts[_part(prob)]
        return right / tested

    @property
    def proven(self) -> int:
        """One more token than the longest chain that was ever right: a useless head costs little."""
        return 1 + next((depth for depth, right in enumerate(self.right) if not right), len(self.right))

    @property
    def tests(self) -> int:
        """Chains that were compared with the text."""
        return self.tested[0] if self.tested else 0

    def observe(self, drafted: Sequence[int], probs: Sequence[float], true: Sequence[int]) -> None:
        """Count a chain, verified or not: what was emitted tells."""
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
