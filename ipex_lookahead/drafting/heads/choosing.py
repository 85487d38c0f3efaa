"""Choice between free sources and a trained head: each step uses the draft with the most expected tokens per time.

A draft from free sources costs its rows only; a head's token also costs a part of a forward, its ``Price``. With E
expected accepted tokens, a draft yields (1 + E) / (its rows + price of drafting it) tokens in the time of a forward of
one row. The candidates are the free sources' tree, the head's chain, and the chain after the free sources' most likely
path, which the head then reads. E of the head is measured by depth; E of the free sources is their own estimate,
corrected by the recent ratio of accepted to estimated tokens. The controller still decides how many rows are verified.
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
"""Decay of the counts per draft of the free sources, and weight of their own estimate in tokens."""
MIN_GAIN = 1.02
"""Minimum ratio of the head's expected rate to that of no draft."""
FIRST_PAUSE, LONGEST_PAUSE = 8, 256
"""Steps until a head that does not pay is tried again: the first pause and the maximum, doubling in between."""
ENOUGH, TRIED = 16, 16
"""Tests of a head after which its record decides; a head that does not pay is attached to one of TRIED sequences."""
MAX_COPIED = 8
"""Maximum number of copied tokens that the head reads before its chain."""
REFRESHED = 32
"""Number of proposals after which the cost of rows is read again."""
SOURCE = "head"
"""Name of the head's tokens in ``Draft.sources``."""


class Chain(Proposer, Protocol):
    """A proposer of chains; see :class:`ipex_lookahead.drafting.heads.chain.HeadChain`."""

    @property
    def record(self) -> Record:
        """The acceptance record."""
        ...

    def propose_after(self, copied: Sequence[int], budget: int, min_chance: float = 0.0) -> Draft:
        """Return a chain after ``copied`` draft tokens, which are not part of the returned draft."""
        ...


class Choosing:
    """Drafts with the free sources where the text repeats itself, else with the head, or with the head after a copy.

    Args:
        free: drafts with ``probs`` and ``sources``, such as those of strategy "auto"; None: the head
            is alone.
        head: drafts a chain.
        price: cost of the head's tokens.
        time: time of a forward with a number of rows, in any unit.
        batch_size: returns the number of sequences in a step, including this one. In a batch every sequence gets one
            token per step anyway and heads draft one after the other, so each drafted token pays less.
        max_tokens: maximum number of tokens that the head drafts per step.
    """

    def __init__(
        self,
        free: Proposer | None,
        head: Chain,
        price: Price,
        time: Callable[[int], float] = lambda rows: 1.0,
        batch_size: Callable[[], int] = lambda: 1,
        max_tokens: int = 8,
    ) -> None:
        self._free, self._head = free, head
        self._unit_price, self._max_tokens = price, max_tokens
        self._time, self._batch_size = time, batch_size
        self._cost, self._price = [1.0], price  # see ``_shares``
        self._proposed = self._seen_batch_size = 0
        self._true, self._estimated = PRIOR, PRIOR
        self._pause, self._next_pause = 0, FIRST_PAUSE
        self._chained = False  # the last draft has tokens of the head

    @property
    def wants(self) -> OutputRequest:
        """The outputs that either of them needs."""
        return self._head.wants if self._free is None else self._free.wants | self._head.wants

    def begin(self, prompt: Sequence[int], hidden: Hidden | None = None) -> None:
        """Start a sequence with both."""
        if self._free is not None:
            self._free.begin(prompt)
        self._head.begin(prompt, hidden)

    def propose(self, budget: int) -> Draft:
        """Return the free sources' tree, the head's chain, or a path of the tree with the chain after it."""
        draft = Draft() if self._free is None else self._free.propose(budget)
        self._chained = False
        if self._pause:
            self._pause -= 1
            return draft
        if self._proposed % REFRESHED == 0 or self._seen_batch_size != self._batch_size():
            self._seen_batch_size = self._batch_size()
            self._cost, self._price = _shares(
                self._time, self._unit_price, self._max_tokens + MAX_COPIED, self._seen_batch_size
            )
        self._proposed += 1
        corrected = self._true / self._estimated
        free_rate = self._rate(draft, corrected)
        path = _likeliest(draft) if draft.tokens else Draft()
        reached = [min(1.0, corrected) * chance for chance in accumulate(path.probs, mul)] or [1.0]
        best = partial(_best, self._head.record, self._price, self._cost)
        alone, rate = best(min(budget, self._max_tokens))
        behind, copy_rate = 0, 0.0
        if path.tokens and len(path) <= MAX_COPIED:
            behind, copy_rate = best(min(budget - len(path), self._max_tokens), len(path), sum(reached), reached[-1])
        if not alone and not behind:  # tried again after a pause
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, LONGEST_PAUSE)
            alone, rate = min(1, budget), free_rate + 1
        else:
            self._next_pause = FIRST_PAUSE
        if copy_rate > max(rate, free_rate) and behind:
            return self._path_and_chain(path, behind, copy_rate, reached[-1]) or draft
        if rate <= free_rate:
            return draft
        return self._path_and_chain(Draft(), alone, rate, 1.0) or draft

    def observe(self, outcome: Outcome) -> None:
        """Update the statistics and pass the outcome to both."""
        draft = outcome.draft
        if not self._chained and draft.tokens and draft.probs:
            self._true = FADE * self._true + len(outcome.accepted)
            self._estimated = FADE * self._estimated + _worth(draft)
        self._head.observe(outcome)
        if self._free is not None:
            self._free.observe(outcome)

    def _rate(self, draft: Draft, corrected: float) -> float:
        """Return the best rate of the most likely tokens of the free sources, over all numbers of tokens."""
        rate, expected = 1.0, 0.0
        for chance, cost in zip(sorted(_survival(draft), reverse=True), self._cost[1:], strict=False):
            expected += corrected * chance
            rate = max(rate, (1 + expected) / cost)
        return rate

    def _path_and_chain(self, path: Draft, count: int, rate: float, chance: float) -> Draft | None:
        """Return a path and the head's chain after it; None if the head drafts nothing.

        One more token is profitable if its acceptance probability exceeds ``rate`` times its price.
        """
        each = self._price.each + (self._cost[count] - self._cost[0]) / max(count, 1)
        min_chance = min(1.0, rate * each / max(self._head.record.chance(0) * chance, 1e-9))
        chain = self._head.propose_after(path.tokens, count, min_chance)
        if not chain.tokens:
            return None
        self._chained = True
        tokens = [*path.tokens, *chain.tokens]
        sources = [*(path.sources or ["copy"] * len(path)), *[SOURCE] * len(chain.tokens)]
        return Draft(tokens, range(-1, len(tokens) - 1), 0, [*path.probs, *chain.probs], sources, 0)


def should_attach_head(record: Record, price: Price, time: Callable[[int], float], max_tokens: int = 8) -> bool:
    """Return True if the next sequence should draft with the head; called once per sequence. Args as :class:`Choosing`.

    The head reads every prompt, so a head that does not pay is attached to one of ``TRIED`` sequences only.
    """
    cost, _ = _shares(time, price, max_tokens)
    if record.tests < ENOUGH or _best(record, price, cost, max_tokens)[0]:
        return True
    record.skipped += 1
    return record.skipped % TRIED == 0


def _shares(time: Callable[[int], float], price: Price, max_tokens: int, live: int = 1) -> tuple[list[float], Price]:
    """Return the costs of verifying 0, 1, ... tokens, and the price, per time of a token in a batch of ``live``."""
    base = time(live)
    cost = [1.0 + (time(live + drafted) - base) * live / base for drafted in range(max_tokens + 1)]
    return cost, price.times(live * time(1) / base)


def _best(
    record: Record,
    price: Price,
    cost: Sequence[float],
    max_tokens: int,
    copied: int = 0,
    before: float = 0.0,
    chance: float = 1.0,
) -> tuple[int, float]:
    """Return the head's best number of tokens and its rate; 0 if no number exceeds ``MIN_GAIN``.

    The tokens follow ``copied`` copied ones, of which ``before`` are expected to be accepted, all of them with
    probability ``chance``. ``cost`` of verifying 0, 1, ... tokens and ``price`` have the same unit.
    """
    found, rate, expected = 0, MIN_GAIN, before
    for count in range(1, min(max_tokens, record.proven) + 1):
        chance *= record.chance(count - 1)
        expected += chance
        promised = (1 + expected) / (cost[count + copied] + price.of(count, copied))
        if promised > rate:
            found, rate = count, promised
    return found, rate


def _worth(draft: Draft) -> float:
    """Return the estimated number of accepted tokens of the draft."""
    return sum(_survival(draft))


def _survival(draft: Draft) -> list[float]:
    """Return for each token the estimated probability that it and all its ancestors are accepted."""
    reached: list[float] = []
    for parent, prob in zip(draft.parents, draft.probs, strict=False):
        reached.append(prob * (1.0 if parent < 0 else reached[parent]))
    return reached


def _likeliest(draft: Draft) -> Draft:
    """Return the most likely path, up to the last token with a probability of at least 0.5."""
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
