"""Drafts where it pays."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from ipex_lookahead.decoding.budget.acceptance import Acceptance, Expected
from ipex_lookahead.decoding.budget.asking import Asking, asking_seconds
from ipex_lookahead.decoding.budget.dear import DEAR, Dear
from ipex_lookahead.decoding.budget.ledger import ACCOUNT_STEPS, Ledger, Step
from ipex_lookahead.decoding.budget.reach import Reach
from ipex_lookahead.decoding.budget.rows import best_first, most_worth, most_worth_in_step
from ipex_lookahead.decoding.budget.scratch import Scratch
from ipex_lookahead.decoding.budget.window import WindowGain
from ipex_lookahead.decoding.cost import CostCurve
from ipex_lookahead.drafting.base import Proposer
from ipex_lookahead.drafting.draft import Draft, Outcome

WORTH = 1.02
"""A draft must promise at least this much more speed than none: estimates err."""
WORTH_BEHIND = 1.25
"""And this much while drafting is behind (see :mod:`.ledger`)."""


class AdaptiveBudget:
    """The number of rows that maximises tokens a second, step by step.

    For a draft whose tokens come best first it takes the first n that maximise ``R(n) = E[tokens | n] / T(1 + n)``
    (:mod:`.rows`), where E is one and the sum of the tokens' survivals (:mod:`.acceptance`) and T the measured cost
    curve (:mod:`ipex_lookahead.decoding.cost`). Where the best R is below ``WORTH`` times that of no draft, none is
    verified. Acceptance is learned from drafts that were not verified too, so a draft source that becomes good is
    noticed without probing it; only a proposer whose own time counts is left alone for a growing number of steps, then
    tried again (:mod:`.dear`). One that costs little dozes for a few steps where asking it brings less still
    (:mod:`.asking`), and is asked for no more tokens than are taken (:mod:`.reach`).

    The sum of what drafting has gained and lost is kept (:mod:`.ledger`): while it is behind, only drafts that look
    very good are verified.

    The sequences of a batch share the rows: the likeliest tokens of all of them are taken first.

    Rows that only bring drafts for later steps are taken where what they have brought so far, a step, is worth more
    than the rows (:mod:`.scratch`, :mod:`.window`).

    Args:
        curve: the engine's cost curve.
        most: most rows a sequence may draft in a step.
        source: name of drafts that carry no sources of their own.
        proposers: those of the sequences, by number.
        widen: ask those that have ``widen`` to use it; for engines that take trees.
        in_step: whether the sequences advance in lockstep, as far in a step as all their drafts are right; then a
            depth is worth its rows only where it is likely for all of them at once.

    Reference: the objective is that of SmartSpec (Liu et al., arXiv 2406.14066) and Sequoia (Chen et al., arXiv
    2402.12374), for measured T and best-first trees.
    """

    def __init__(
        self,
        curve: CostCurve,
        most: int,
        source: str = "",
        proposers: Sequence[Proposer | None] = (),
        *,
        widen: bool = False,
        in_step: bool = False,
    ) -> None:
        self._most = most
        self._in_step = in_step
        self._widen = widen
        self._acceptance = Acceptance(source)
        self._ledger = Ledger(curve, most + 1)
        self._dear = Dear(most)
        self._asking = Asking()
        self._reach = Reach(most)
        self._scratch = Scratch()
        self._gain = WindowGain()
        self._windows: dict[int, Any] = {}
        self._window_rows = 0
        self._widening = False
        self._account_after = 1  # the first step may give the curve its unit
        self._expected: dict[int, Expected] = {}
        # Of this step: tokens emitted, sequences, tokens proposed, whether any was asked for, and what was chosen.
        self._emitted = self._taking_part = self._proposed = 0
        self._asked = self._whole_chosen = False
        self._dearest = inf
        for number, proposer in enumerate(proposers):
            self.join(number, proposer)

    def join(self, sequence: int, proposer: Proposer | None) -> None:
        """A sequence of that number comes, with its proposer."""
        self._asking.wake()
        if self._widen and hasattr(proposer, "widen"):
            self._windows[sequence] = proposer
            self._window_rows = max(self._window_rows, self._windows[sequence].window_rows)
            self._widening = self._may_widen(0)

    def leave(self, sequence: int) -> None:
        """Forget a sequence; what its drafts have taught stays."""
        self._windows.pop(sequence, None)
        self._expected.pop(sequence, None)

    def budget(self, sequence: int, length: int) -> int:
        """Most rows to propose: all that may be worth them, unless proposing itself takes time that counts."""
        if self._dear.pause or self._asking.doze:
            return 0
        self._asked = True
        alone = self._ledger.time(1, length)
        if self._dear.seconds <= DEAR * alone:
            return self._most if self._widening else self._reach.tokens
        return self._dear.budget(WORTH / alone, lambda rows: self._ledger.time(rows, length))

    def select(
        self, sequences: Sequence[int], drafts: Sequence[Draft], length: int, beside: int = 0
    ) -> Sequence[Draft]:
        """For each sequence the first tokens of its draft that are worth their rows."""
        ledger = self._ledger
        live = len(drafts) + beside
        alone = ledger.time(live, length)
        room = ledger.room(alone)
        behind = room < 0.0
        self._dearest = ledger.dearest(alone, room)
        worth = (WORTH_BEHIND if behind else WORTH) * live / alone
        self._whole_chosen = False
        if len(drafts) == 1:
            draft = drafts[0]
            seen = self._expect(draft)
            taken, worth = self._worth(seen.survival, live, length, worth)
            chosen = [draft.first(taken)]
            expected = [seen]
        else:
            expected = [self._expect(draft) for draft in drafts]
            if self._in_step:
                times = ledger.times_to(live + sum(len(seen.survival) for seen in expected), length)
                taken, worth = most_worth_in_step(expected, drafts, times, worth, self._dearest)
                chosen = [draft.first(taken) for draft in drafts]
            else:
                order = best_first(expected)
                best, worth = self._worth([survival for survival, _ in order], live, length, worth)
                places = [place for _, place in order[:best]]
                chosen = [draft.first(places.count(place)) for place, draft in enumerate(drafts)]
                taken = max(map(places.count, range(len(drafts))))
        if drafts[0].probs:
            self._reach.took(taken)
        if any(draft.scratch for draft in drafts) if len(drafts) > 1 else drafts[0].scratch:
            rows = live + sum(map(len, drafts))
            whole = ledger.time(rows, length)
            if (self._scratch.tokens * len(drafts) + beside) / whole > worth and whole <= self._dearest:
                self._whole_chosen = True
                chosen = list(drafts)
        if self._widening and not behind and not beside:
            chosen = self._widened(sequences, drafts, chosen, worth, length)
        for place, number in enumerate(sequences):
            waiting = self._expected.get(number)
            if waiting is None or not waiting.open or chosen[place].tokens:
                self._expected[number] = expected[place]
        return chosen

    def _worth(self, survival: Sequence[float], live: int, length: int, worth: float) -> tuple[int, float]:
        times = self._ledger.times_to(live + len(survival), length)
        return most_worth(survival, live, times, worth, self._dearest)

    def _may_widen(self, length: int) -> bool:
        """Whether a window's rows are cheap enough to look closer: at least by themselves, beside one row."""
        rows, ledger = self._window_rows, self._ledger
        return 0 < rows < self._most and self._gain.may_pay(ledger.times[0], ledger.time(rows + 1, length))

    def _widened(
        self, sequences: Sequence[int], drafts: Sequence[Draft], chosen: list[Draft], rate: float, length: int
    ) -> list[Draft]:
        """What was chosen of the drafts with a window each, where the tokens that windows bring are worth their rows.

        ``rate`` is that of the rows that were chosen, if any.
        """
        live, ledger = len(sequences), self._ledger
        rows = live + sum(map(len, chosen))
        now, wide = ledger.time(rows, length), ledger.time(rows + live * self._window_rows, length)
        tokens = rate * now if rows > live else live
        if wide > self._dearest or not self._gain.pay(live, tokens, now, wide, WORTH):
            return chosen
        found = []
        for number, draft, taken in zip(sequences, drafts, chosen, strict=True):
            window = self._windows.get(number)
            # Without a proposal in this step its window does not know how many rows there is room for.
            found.append(window.widen(taken) if window is not None and draft.tokens else taken)
        return found

    def observe(self, sequence: int, outcome: Outcome) -> None:
        """Learn which of the proposed tokens were right, verified or not."""
        emitted = outcome.emitted
        window = self._windows.get(sequence) if self._widening else None
        if window is not None and outcome.draft.sources:
            self._gain.brought(sum(outcome.draft.sources[row] == window.window_source for row in outcome.accepted))
        self._emitted += len(emitted)
        self._taking_part += 1
        seen = self._expected.get(sequence)
        if seen is not None and seen.open:
            known = len(seen.tried)
            seen.walk(emitted)
            self._dear.tested(seen.tried, known)
            if self._asking.doze and len(seen.tried) > 1 and seen.tried[-1] and seen.tried[-2]:
                self._asking.repeated()

    def timed(self, rows: int, length: int, seconds: float, proposing: float, experts: int = 0) -> None:
        """Correct the cost curve, and keep account of what drafting brings."""
        ledger, asking = self._ledger, self._asking
        emitted, live, proposed = self._emitted, self._taking_part or 1, self._proposed
        if asking.doze > 1:  # one such step in a row is enough to know what the others take
            asking.doze -= 1
            ledger.spent += ledger.time(rows, length)
            self._emitted = self._taking_part = 0
            return
        ledger.steps.append(Step(rows, length, seconds, proposing, proposed, emitted, live, experts))
        self._emitted = self._taking_part = self._proposed = 0
        if self._whole_chosen:
            self._scratch.emitted(emitted / live)
            self._whole_chosen = False
        if self._dear.pause and not proposed:
            self._dear.pause -= 1
        if self._asked and not self._dear.counts:
            took = ledger.curve(rows, length, experts) if experts else ledger.time(rows, length)
            asking.weigh(emitted / live, took, ledger.time(live, length), proposing)
        elif asking.doze:
            asking.doze -= 1
        self._asked = False
        if len(ledger.steps) >= self._account_after or (ledger.careful and rows > live):
            self._account()

    def _account(self) -> None:
        ledger, dear = self._ledger, self._dear
        for step in ledger.steps:
            ledger.curve.timed(step.rows, step.length, step.seconds, step.experts)
            asking = 0.0
            if step.proposed:
                dear.timed(step.proposing, step.proposed)
                alone = ledger.time(step.live, step.length)
                asking = max(dear.seconds * step.proposed, asking_seconds(step.proposing, alone))
            ledger.book(step, asking)
        length = ledger.steps[-1].length
        # What a dear proposer takes must be known at every step.
        dear.counts = dear.seconds > DEAR * ledger.curve(1, length)
        self._account_after = 1 if dear.counts else ACCOUNT_STEPS
        ledger.reprice(self._reach.tokens + 1, length)
        self._widening = self._may_widen(length)

    def _expect(self, draft: Draft) -> Expected:
        self._proposed += len(draft.tokens)
        return self._acceptance.expect(draft)
