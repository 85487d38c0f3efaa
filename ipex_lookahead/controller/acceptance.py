"""How likely a drafted token is to be accepted: one table by source and depth, learned while decoding.

A source's own estimate is a start; what counts is how often tokens of that source and depth were right. The emitted
tokens are compared with every draft, verified or not, so learning costs no rows. A token is tested only where its
parent was right: what follows the first miss is unknown, not wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ipex_lookahead.drafting.draft import Draft

FADE = 0.97
"""Factor on a source's counts with each of its drafts. 0.95 and 0.96 replayed within 0.2 % of it."""
PRIOR_COUNT = 2.0
"""Tokens that an estimate, or ``PRIOR_RATE``, counts for. 3 and 4 replayed 0.1 and 0.2 % slower."""
PRIOR_RATE = 0.65
"""Acceptance rate of a token before any test. 0.6 to 0.75 replayed within 0.3 % of it; published heads have 0.69 to
0.77."""
MAX_DEPTH = 3
"""Depths from here on share one count. 5 and 8 replayed within 0.05 % of it, 2 at 0.15 % less."""
BY_MATCH = (0.5, 0.3, 0.4, 0.55, 0.65, 0.75, 0.85)
"""Acceptance rate of the first token of a draft without estimates, by match length in tokens (0: unknown), counted on
greedy chat and code answers."""
MAX_CHANCE = 0.98
"""Highest acceptance rate: the longest copy ends, too."""
MIN_SURVIVAL = 0.02
"""A draft's tokens from the first less likely one on are ignored: a row costs at least 0.02 forwards (LOG: 4 rows over
1 row are 1.06 at best)."""
ALLOWED_LOSS = 0.005
"""Share of the time that drafting may lose. 0 and 0.0025 replayed within 1.2 % of it."""
FIRST_SHARE, SHRINK = 0.1, 0.7
"""Share of the time that drafting in vain may take at first, and its factor after each pause, down to
``ALLOWED_LOSS``. A share of 0.05 replayed 0.7 % slower, factors of 0.6 and 0.8 0.3 % slower and 0.1 % faster."""


class Backoff:
    """Pauses of a source with drafts that bring less than they cost, each longer than the one before.

    Attributes:
        pause: steps from now on without the source.
    """

    __slots__ = ("_share", "pause")

    def __init__(self) -> None:
        self.resume()

    def judge(self, *, pays: bool, cost: float) -> None:
        """Begin a pause unless the source pays; ``cost`` is that of a step with it, in forwards."""
        if pays:
            self._share = FIRST_SHARE
            return
        self.pause = round(cost / self._share)
        self._share = max(self._share * SHRINK, ALLOWED_LOSS)

    def resume(self) -> None:
        """End the pause, and begin with short ones."""
        self.pause = 0
        self._share = FIRST_SHARE


class SourceRates:
    """Acceptance and price of one source's tokens, and its pauses where its price decides.

    Attributes:
        cells: fading counts by depth, 0 to ``MAX_DEPTH``: [right, estimated, tested].
        seconds: drafting time of one token, a moving average; 0 before any token was timed.
        timed: drafts that were timed. The first one is replaced by the second: it touches memory for the first time.
    """

    __slots__ = ("backoff", "cells", "seconds", "timed")

    def __init__(self) -> None:
        self.cells = [[0.0, 0.0, 0.0] for _ in range(MAX_DEPTH + 1)]
        self.seconds = 0.0
        self.timed = 0
        self.backoff = Backoff()

    def chance(self, depth: int) -> float:
        """Return how often a token at ``depth`` is right where those before it are."""
        right, _, tested = self.cells[min(depth, MAX_DEPTH)]
        return min(MAX_CHANCE, (right + PRIOR_COUNT * PRIOR_RATE) / (tested + PRIOR_COUNT))

    def fade(self) -> None:
        """Let every count fade by one draft, so that a depth that is no longer tested drifts to its prior."""
        for cell in self.cells:
            cell[0] *= FADE
            cell[1] *= FADE
            cell[2] *= FADE

    def count(self, depth: int, estimate: float, right: bool) -> None:
        """Count one tested token."""
        cell = self.cells[min(depth, MAX_DEPTH)]
        cell[0] += right
        cell[1] += estimate
        cell[2] += 1.0

    def follow_price(self, seconds: float, weight: float) -> None:
        """Take a drafting time per token into the average, at most twice the average: another process may run."""
        known = self.seconds
        self.seconds = seconds if self.timed < 2 else known + weight * (min(seconds, 2.0 * known) - known)
        self.timed += 1


class Acceptance:
    """The table: a source's name, with the match length where its drafts carry one, to :class:`SourceRates`.

    Args:
        source: name of drafts without ``sources``.
        known: rates that other controllers share, by source.
    """

    def __init__(self, source: str = "", known: Iterable[tuple[str, SourceRates]] = ()) -> None:
        self._source = source
        self._table: dict[str | tuple[str, int], SourceRates] = {**dict(known)}

    def rates(self, source: str | tuple[str, int]) -> SourceRates:
        """Return the rates of a source."""
        found = self._table.get(source)
        return self._table.setdefault(source, SourceRates()) if found is None else found

    def expect(self, draft: Draft) -> Expected:
        """Estimate the survival of a draft's tokens, without its scratch rows.

        Example: a chain of two tokens with estimates 0.5 and 0.8, of a source that was right half as often as it
        estimated, has survivals 0.25 and 0.1.
        """
        parents, probs, sources = draft.parents, draft.probs, draft.sources
        match = min(draft.match, len(BY_MATCH) - 1)
        source = self._source
        rates = self.rates((source, match) if match and not probs else source)
        found = Expected(draft)
        survival, depths = found.survival, found.depths
        estimate = 0.0
        for row in range(len(draft.tokens) - draft.scratch):
            parent = parents[row]
            depth = 0 if parent < 0 else depths[parent] + 1
            if not probs:
                estimate = PRIOR_RATE if depth else BY_MATCH[match]
            else:
                estimate = probs[row]
                if sources and sources[row] != source:
                    source = sources[row]
                    rates = self.rates(source)
            right, estimated, _ = rates.cells[depth if depth < MAX_DEPTH else MAX_DEPTH]
            chance = estimate * (right + PRIOR_COUNT) / (estimated + PRIOR_COUNT)
            if chance > MAX_CHANCE:
                chance = MAX_CHANCE
            if parent >= 0:
                chance *= survival[parent]
            if chance < MIN_SURVIVAL:
                break
            survival.append(chance)
            depths.append(depth)
            found.estimates.append(estimate)
            found.rates.append(rates)
        found.open = bool(survival)
        return found


class Expected:
    """A draft with its survivals, walked along the emitted tokens.

    Attributes:
        survival: for each token the probability that it and all its ancestors are accepted; may end early.
        depths, estimates, rates: of the same tokens.
        open: False once the walk has met a miss or the end of the draft.
        right: tokens that the walk has found right; 0 after a miss.
    """

    __slots__ = ("_at", "_parents", "_tokens", "depths", "estimates", "open", "rates", "right", "survival")

    def __init__(self, draft: Draft) -> None:
        self._tokens: Sequence[int] = draft.tokens
        self._parents: Sequence[int] = draft.parents
        self._at = -1
        self.survival: list[float] = []
        self.depths: list[int] = []
        self.estimates: list[float] = []
        self.rates: list[SourceRates] = []
        self.open = False
        self.right = 0

    def walk(self, emitted: Sequence[int]) -> None:
        """Continue along committed tokens and count each child that they test."""
        tokens, parents = self._tokens, self._parents
        count = len(self.survival)
        for token in emitted:
            if not self.open:
                return
            at, found, tested = self._at, -1, False
            if at < 0:
                for rates in set(self.rates):
                    rates.fade()
            for child in range(at + 1, count):
                if parents[child] != at:
                    continue
                tested = True
                right = found < 0 and tokens[child] == token
                self.rates[child].count(self.depths[child], self.estimates[child], right)
                if right:
                    found = child
            if tested:
                self.right = self.right + 1 if found >= 0 else 0
            self._at = found
            self.open = found >= 0 and found + 1 < count

    def most_likely_path(self) -> list[int]:
        """Return the rows of the most likely path, as far as it is likelier right than not."""
        children: dict[int, int] = {}
        for row, chance in enumerate(self.survival):
            parent = self._parents[row]
            if chance >= 0.5 and (parent not in children or chance > self.survival[children[parent]]):
                children[parent] = row
        path: list[int] = []
        while (row := children.get(path[-1] if path else -1, -1)) >= 0:
            path.append(row)
        return path
