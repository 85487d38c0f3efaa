"""How likely a draft token is to be accepted, learned while decoding.

A proposer's own estimate is a start; what counts is how often such tokens were right: counted by source, depth and, for
proposers that make no estimate, the length of the match that the draft rests on. Old counts fade, since a text changes
its nature. A token is tested only where its parent was right; what follows the first miss is censored, not a failure.
"""

from __future__ import annotations

from collections.abc import Sequence

from ipex_lookahead.drafting.draft import Draft

FADE = 0.97
"""What a test leaves of the counts before it."""
PRIOR_WEIGHT = 2.0
"""Accepted tokens that a proposer's own estimate counts for."""
DEEPEST = 3
"""Depths from here on are counted together."""
LONGEST_MATCH = 6
MOST = 0.98
"""No token is certain."""
LEAST = 0.02
"""The tokens from the first on that is less likely than this are left out of account: no row is that cheap."""

_BY_MATCH = (0.5, 0.3, 0.4, 0.55, 0.65, 0.75, 0.85)
"""First token of a draft without estimates, by match length (0: not known); counted on greedy chat and code answers."""
_FOLLOWING = 0.75
"""A later token of such a draft: where one was right the text is being repeated."""

DEPTH_PRIOR, DEPTH_FADE = (2.8, 4.0), 0.9
"""(right, tested) of a depth before any test, and what a test leaves of the counts before it: expensive proposers, for
which they count, are tested seldom, so the last few must tell."""

Cell = list[float]
"""[accepted, expected], both fading."""
Cells = list[Cell]
"""Those of one source (and one length of match) by depth, 0 to ``DEEPEST``."""


class Acceptance:
    """Conditional acceptance of draft tokens: the proposer's estimate times accepted / expected of its like so far."""

    def __init__(self, source: str = "") -> None:
        self._source = source
        self._cells: dict[str | tuple[str, int], Cells] = {}
        self._depths: Cells = []

    def chances(self, count: int) -> list[float]:
        """Survivals of the tokens of a chain that is not yet drafted, by how often their depths were right lately."""
        depths, chance, found = self._depths, 1.0, []
        while len(depths) < count:
            depths.append([*DEPTH_PRIOR])
        for right, tested in depths[:count]:
            chance *= right / tested
            found.append(chance)
        return found

    def expect(self, draft: Draft) -> Expected:
        """Estimates for a draft's tokens, as far as they are worth a look; scratch rows left out.

        Args:
            draft: as proposed. Where it has no estimates, the length of its ``match`` counts.

        Example: a chain of two tokens with estimates 0.5 and 0.8 of a source that has so far been right half as often
        as it said has survivals 0.25 and 0.1.
        """
        count = len(draft.tokens) - draft.scratch
        parents, probs, sources = draft.parents, draft.probs, draft.sources
        match = min(draft.match, LONGEST_MATCH)
        survival: list[float] = []
        chances: list[float] = []
        cells: list[Cell] = []
        depths: list[int] = []
        source = self._source
        kind = source if probs else (source, match)
        alike = self._cells.get(kind) or self._alike(kind)
        chance = 0.0
        for row in range(count):
            parent = parents[row]
            depth = 0 if parent < 0 else depths[parent] + 1
            if depth > DEEPEST:
                depth = DEEPEST
            depths.append(depth)
            if not probs:
                chance = _FOLLOWING if depth else _BY_MATCH[match]
            else:
                chance = probs[row]
                if sources and sources[row] != source:
                    source = sources[row]
                    alike = self._cells.get(source) or self._alike(source)
            cell = alike[depth]
            learned = chance * (cell[0] + PRIOR_WEIGHT) / (cell[1] + PRIOR_WEIGHT)
            if learned > MOST:
                learned = MOST
            if parent >= 0:
                learned *= survival[parent]
            if learned < LEAST:
                break
            survival.append(learned)
            chances.append(chance)
            cells.append(cell)
        return Expected(draft.tokens, parents, survival, chances, cells, self._depths)

    def _alike(self, kind: str | tuple[str, int]) -> Cells:
        return self._cells.setdefault(kind, [[0.0, 0.0] for _ in range(DEEPEST + 1)])


class Expected:
    """A draft with what is expected of it, walked along the emitted tokens, verified or not.

    The target's choices tell whether a token that was never verified would have been accepted; so learning costs no
    rows, also while nothing is drafted.

    Attributes:
        survival: for each token the probability that it and all its ancestors are accepted; may end early.
        open: False once the walk has met a miss or the end of the draft.
        tried: for each depth tested so far whether one of its tokens was right.
    """

    __slots__ = ("_at", "_cells", "_chances", "_depths", "_parents", "_tokens", "open", "survival", "tried")

    def __init__(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        survival: list[float],
        chances: list[float],
        cells: list[Cell],
        depths: Cells,
    ) -> None:
        self._tokens = tokens
        self._parents = parents
        self._chances = chances
        self._cells = cells
        self._depths = depths
        self._at = -1
        self.survival = survival
        self.tried: list[bool] = []
        self.open = bool(survival)

    def walk(self, emitted: Sequence[int]) -> None:
        """Go on along the tokens that were committed, and count each child that was tested."""
        tokens, parents, cells = self._tokens, self._parents, self._cells
        count = len(cells)
        for token in emitted:
            if not self.open:
                return
            at, found, children = self._at, -1, False
            for child in range(at + 1, count):
                if parents[child] != at:
                    continue
                children = True
                right = found < 0 and tokens[child] == token
                cell = cells[child]
                cell[0] = cell[0] * FADE + (1.0 if right else 0.0)
                cell[1] = cell[1] * FADE + self._chances[child]
                if right:
                    found = child
            if children:
                self._count_depth(found >= 0)
            self._at = found
            self.open = found >= 0 and found + 1 < count

    def _count_depth(self, right: bool) -> None:
        depths, depth = self._depths, len(self.tried)
        self.tried.append(right)
        if depth == len(depths):
            depths.append([*DEPTH_PRIOR])
        cell = depths[depth]
        cell[0] = cell[0] * DEPTH_FADE + (1.0 if right else 0.0)
        cell[1] = cell[1] * DEPTH_FADE + 1.0
