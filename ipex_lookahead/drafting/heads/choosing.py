"""Free sources and a trained head under one price: each step drafts with what promises more tokens for its time.

A free draft of a tree costs its rows alone, a head's token also a share of a forward: its ``Price``. With E expected
tokens a draft promises (1 + E) / (its rows + price of drafting it) tokens in the time of a forward of one row: the free
sources' tree, the head's chain, or the chain behind the free sources' likeliest path, which the head then reads. E of
the head is counted by depth; E of the free sources is their own estimate, corrected by how much of such estimates came
true lately. How many rows are verified in the end is the controller's, as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from operator import mul
from typing import Protocol

from ipex_lookahead.drafting.base import Proposer
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.drafting.heads.price import Price
from ipex_lookahead.drafting.heads.record import Record
from ipex_lookahead.engines.api import Hidden, OutputRequest

FADE, PRIOR = 0.95, 4.0
"""What a draft of the free sources leaves of the counts before it, and tokens that their own estimate counts for."""
WORTH = 1.02
"""The head must promise at least this much more than no draft."""
FIRST_PAUSE, LONGEST_PAUSE = 8, 256
"""Steps until a head that has not paid is tried again: at first, and at most, doubling in between."""
ENOUGH, TRIED = 16, 16
"""Tests of a head that show whether it pays; where it does not, one sequence in so many has it all the same."""
MOST_COPIED = 8
"""Tokens of a copy that the head reads at most, to go on behind it."""
REFRESHED = 32
"""Steps after which what rows take is asked again."""
SOURCE = "head"
"""Name of the head's tokens, in ``Draft.sources``."""


class Chain(Proposer, Protocol):
    """What drafts a chain: :class:`ipex_lookahead.drafting.heads.chain.HeadChain` says more."""

    @property
    def record(self) -> Record:
        """How often it was right."""
        ...

    def behind(self, copied: Sequence[int], budget: int, least: float = 0.0) -> Draft:
        """Tokens behind others that are taken to follow the text; these are not in the draft."""
        ...


class Choosing:
    """Drafts with the free sources where the text repeats itself, with the head elsewhere, or with it behind a copy.

    Args:
        free: drafts with ``probs`` and ``sources``, such as :class:`~ipex_lookahead.drafting.auto.Auto`; None: the head
            is alone.
        head: drafts a chain.
        price: of the head's tokens.
        time: what a forward of so many rows takes, in any unit.
        company: how many sequences a step has, this one counted. Its forward gives each a token, and their heads draft
            one after the other, so that in company rows and drafts are dearer beside what is had without.
        most: tokens that the head drafts a step at most.
    """

    def __init__(
        self,
        free: Proposer | None,
        head: Chain,
        price: Price,
        time: Callable[[int], float] = lambda rows: 1.0,
        company: Callable[[], int] = lambda: 1,
        most: int = 8,
    ) -> None:
        self._free, self._head = free, head
        self._alone, self._most = price, most
        self._time, self._company = time, company
        self._cost, self._price = [1.0], price  # as ``_shares`` has them
        self._proposed = self._beside = 0
        self._true, self._estimated = PRIOR, PRIOR
        self._pause, self._next_pause = 0, FIRST_PAUSE
        self._chained = False  # whether the last draft has tokens of the head's

    @property
    def wants(self) -> OutputRequest:
        """What both want."""
        return self._head.wants if self._free is None else self._free.wants | self._head.wants

    def begin(self, prompt: Sequence[int], hidden: Hidden | None = None) -> None:
        """Show both the text."""
        if self._free is not None:
            self._free.begin(prompt)
        self._head.begin(prompt, hidden)

    def propose(self, budget: int) -> Draft:
        """The free sources' tree, the head's chain, or a path of the tree and the chain behind it."""
        draft = Draft() if self._free is None else self._free.propose(budget)
        self._chained = False
        if self._pause:
            self._pause -= 1
            return draft
        if self._proposed % REFRESHED == 0 or self._beside != self._company():
            self._beside = self._company()
            self._cost, self._price = _shares(self._time, self._alone, self._most + MOST_COPIED, self._beside)
        self._proposed += 1
        corrected = self._true / self._estimated
        free_rate = self._rate(draft, corrected)
        path = _likeliest(draft) if draft.tokens else Draft()
        reached = [min(1.0, corrected) * chance for chance in accumulate(path.probs, mul)] or [1.0]
        best = partial(_best, self._head.record, self._price, self._cost)
        alone, rate = best(min(budget, self._most))
        behind, copy_rate = 0, 0.0
        if path.tokens and len(path) <= MOST_COPIED:
            behind, copy_rate = best(min(budget - len(path), self._most), len(path), sum(reached), reached[-1])
        if not alone and not behind:  # tried now and then all the same
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, LONGEST_PAUSE)
            alone, rate = min(1, budget), free_rate + 1
        else:
            self._next_pause = FIRST_PAUSE
        if copy_rate > max(rate, free_rate) and behind:
            return self._behind(path, behind, copy_rate, reached[-1]) or draft
        if rate <= free_rate:
            return draft
        return self._behind(Draft(), alone, rate, 1.0) or draft

    def observe(self, outcome: Outcome) -> None:
        """Count what came true, and show both what was emitted."""
        draft = outcome.draft
        if not self._chained and draft.tokens and draft.probs:
            self._true = FADE * self._true + len(outcome.accepted)
            self._estimated = FADE * self._estimated + _worth(draft)
        self._head.observe(outcome)
        if self._free is not None:
            self._free.observe(outcome)

    def _rate(self, draft: Draft, corrected: float) -> float:
        """What the likeliest tokens of the free sources promise, as many of them as promise the most."""
        rate, expected = 1.0, 0.0
        for chance, cost in zip(sorted(_survival(draft), reverse=True), self._cost[1:], strict=False):
            expected += corrected * chance
            rate = max(rate, (1 + expected) / cost)
        return rate

    def _behind(self, path: Draft, count: int, rate: float, chance: float) -> Draft | None:
        """A path and the head's chain behind it; None where the head has none.

        One more token is worth its price where it is right so often that it adds more than ``rate`` for it.
        """
        each = self._price.each + (self._cost[count] - self._cost[0]) / max(count, 1)
        least = min(1.0, rate * each / max(self._head.record.chance(0) * chance, 1e-9))
        chain = self._head.behind(path.tokens, count, least)
        if not chain.tokens:
            return None
        self._chained = True
        tokens = [*path.tokens, *chain.tokens]
        sources = [*(path.sources or ["copy"] * len(path)), *[SOURCE] * len(chain.tokens)]
        return Draft(tokens, range(-1, len(tokens) - 1), 0, [*path.probs, *chain.probs], sources, 0)


def takes_next(record: Record, price: Price, time: Callable[[int], float], most: int = 8) -> bool:
    """Whether the next sequence is to have the head; asked once a sequence, arguments as of :class:`Choosing`.

    It reads every prompt, so of a head that promises no more than no draft only one sequence in ``TRIED`` gets it.
    """
    cost, _ = _shares(time, price, most)
    if record.tests < ENOUGH or _best(record, price, cost, most)[0]:
        return True
    record.skipped += 1
    return record.skipped % TRIED == 0


def _shares(time: Callable[[int], float], price: Price, most: int, live: int = 1) -> tuple[list[float], Price]:
    """What verifying 0, 1, ... tokens takes, and the price, in the time of a token where ``live`` sequences step."""
    base = time(live)
    cost = [1.0 + (time(live + drafted) - base) * live / base for drafted in range(most + 1)]
    return cost, price.times(live * time(1) / base)


def _best(
    record: Record,
    price: Price,
    cost: Sequence[float],
    most: int,
    copied: int = 0,
    before: float = 0.0,
    chance: float = 1.0,
) -> tuple[int, float]:
    """How many tokens of a head's promise the most, and what; 0 where none promises anything.

    They come behind so many copied ones, of which ``before`` are expected to be right, all of them at ``chance``.
    ``cost``: of verifying 0, 1, ... tokens, and ``price`` in one unit.
    """
    found, rate, expected = 0, WORTH, before
    for count in range(1, min(most, record.proven) + 1):
        chance *= record.chance(count - 1)
        expected += chance
        promised = (1 + expected) / (cost[count + copied] + price.of(count, copied))
        if promised > rate:
            found, rate = count, promised
    return found, rate


def _worth(draft: Draft) -> float:
    """Tokens that the draft says will be accepted."""
    return sum(_survival(draft))


def _survival(draft: Draft) -> list[float]:
    """Of each token, the chance that all up to it are right, as the draft says."""
    reached: list[float] = []
    for parent, prob in zip(draft.parents, draft.probs, strict=False):
        reached.append(prob * (1.0 if parent < 0 else reached[parent]))
    return reached


def _likeliest(draft: Draft) -> Draft:
    """The path to the token that ends the longest likely way: as long as it is likelier right than not."""
    path: list[int] = []
    children: dict[int, int] = {}
    for row, parent in enumerate(draft.parents[: len(draft.probs)]):
        if parent not in children or draft.probs[row] > draft.probs[children[parent]]:
            children[parent] = row
    at, chance = children.get(-1), 1.0
    while at is not None and (chance := chance * draft.probs[at]) >= 0.5:
        path.append(at)
        at = children.get(at)
    sources = [draft.sources[row] for row in path] if draft.sources else []
    return Draft(
        [draft.tokens[row] for row in path], range(-1, len(path) - 1), 0, [draft.probs[row] for row in path], sources, 0
    )
