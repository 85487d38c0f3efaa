"""Drafts where it pays."""

from __future__ import annotations

from collections.abc import Sequence

from ipex_lookahead.decoding.budget.acceptance import Acceptance, Expected
from ipex_lookahead.decoding.budget.asking import NEVER_IDLE, Asking, asking_seconds
from ipex_lookahead.decoding.budget.base import Selection
from ipex_lookahead.decoding.budget.dear import DEAR, Dear
from ipex_lookahead.decoding.budget.ledger import ACCOUNT_STEPS, Ledger, Step
from ipex_lookahead.decoding.budget.reach import Reach
from ipex_lookahead.decoding.budget.rows import best_first, most_worth, most_worth_in_step
from ipex_lookahead.decoding.budget.scratch import Scratch
from ipex_lookahead.decoding.budget.window import WindowGain
from ipex_lookahead.decoding.cost import CostCurve
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
        in_step: whether the sequences advance in lockstep, as far in a step as all their drafts are right; then a
            depth is worth its rows only where it is likely for all of them at once.

    Reference: the objective is that of SmartSpec (Liu et al., arXiv 2406.14066) and Sequoia (Chen et al., arXiv
    2402.12374), for measured T and best-first trees.
    """

    def __init__(self, curve: CostCurve, most: int, source: str = "", *, in_step: bool = False) -> None:
        self._most = most
        self._in_step = in_step
        self._acceptance = Acceptance(source)
        self._ledger = Ledger(curve, most + 1)
        self._dear = Dear(most)
        self._asking = Asking()
        self._may_idle = source not in NEVER_IDLE
        self._idle = 0  # steps from now on that are left alone
        self._reach = Reach(most)
        self._scratch = Scratch()
        self._window = WindowGain()
        self._widening = False
        self._account_after = 1  # the first step may give the curve its unit
        self._expected: dict[int, Expected] = {}
        # Of this step: tokens emitted, sequences, tokens proposed, whether any was asked for, whether drafts are whole.
        self._emitted = self._taking_part = self._proposed = 0
        self._asked = self._whole = False

    def join(self, sequence: int) -> None:
        """A sequence comes: its proposer is asked at once."""
        self._asking.wake()
        self._idle = 0

    def leave(self, sequence: int) -> None:
        """Forget a sequence; what its drafts have taught stays."""
        self._expected.pop(sequence, None)

    def idle(self) -> bool:
        """Whether proposers doze and no earlier draft waits to be seen right or wrong."""
        if not self._idle:
            return False
        self._idle -= 1
        return True

    def budget(self, sequence: int) -> int:
        """Most rows to propose: all that may be worth them, unless proposing itself takes time that counts."""
        if self._dear.pause or self._asking.doze:
            return 0
        self._asked = True
        alone = self._ledger.time(1)
        if self._dear.seconds <= DEAR * alone:
            return self._most if self._widening else self._reach.tokens
        return self._dear.budget(WORTH / alone, self._ledger.time)

    def select(self, drafts: Sequence[Draft], beside: int = 0) -> Selection:
        """For each sequence the first tokens of its draft that are worth their rows."""
        ledger = self._ledger
        live = len(drafts) + beside
        alone = ledger.time(live)
        room = ledger.room(alone)
        behind = room < 0.0
        dearest = ledger.dearest(alone, room)
        worth = (WORTH_BEHIND if behind else WORTH) * live / alone
        expected = [self._acceptance.expect(draft) for draft in drafts]
        counts, rate = self._counts(drafts, expected, live, worth, dearest)
        taken = max(counts) if drafts[0].probs else None
        found = Selection(drafts, expected, taken, sum([len(draft.tokens) for draft in drafts]))
        if any(draft.scratch for draft in drafts):
            whole = ledger.time(live + found.proposed)
            emitted = self._scratch.tokens * len(drafts) + beside
            if emitted / whole > rate and whole <= dearest:
                found.whole = True
                return found
        wide = not behind and not beside and self._widens(drafts, sum(counts), rate, dearest)
        found.drafts = [
            draft.widened(count) if wide else draft.first(count) for draft, count in zip(drafts, counts, strict=True)
        ]
        return found

    def _counts(
        self,
        drafts: Sequence[Draft],
        expected: Sequence[Expected],
        live: int,
        worth: float,
        dearest: float,
    ) -> tuple[list[int], float]:
        """How many tokens of each draft are worth their rows, and tokens a second with them; else ``worth``."""
        likely = sum([len(seen.survival) for seen in expected])
        times = self._ledger.times(live + likely)
        if len(drafts) == 1:
            count, rate = most_worth(expected[0].survival, live, times, worth, dearest)
            return [count], rate
        if self._in_step:
            count, rate = most_worth_in_step(expected, drafts, times, worth, dearest)
            return [min(count, len(draft.tokens)) for draft in drafts], rate
        order = best_first(expected)
        best, rate = most_worth([survival for survival, _ in order], live, times, worth, dearest)
        places = [place for _, place in order[:best]]
        return [places.count(place) for place in range(len(drafts))], rate

    def _widens(self, drafts: Sequence[Draft], taken: int, rate: float, dearest: float) -> bool:
        """Whether the tokens that windows bring are worth their rows, ``taken`` tokens being drafted at ``rate``."""
        each = max([draft.optional.most_rows for draft in drafts if draft.optional is not None], default=0)
        if not each or not self._may_widen(each):
            return False
        live, ledger = len(drafts), self._ledger
        now, wide = ledger.time(live + taken), ledger.time(live + taken + live * each)
        tokens = rate * now if taken else live
        return wide <= dearest and self._window.pay(live, tokens, now, wide, WORTH)

    def _may_widen(self, rows: int) -> bool:
        """Whether a window's rows are cheap enough to look closer: at least by themselves, beside one row."""
        ledger = self._ledger
        return 0 < rows < self._most and self._window.may_pay(ledger.time(1), ledger.time(rows + 1))

    def note(self, sequences: Sequence[int], selection: Selection) -> None:
        """Remember what is expected, until it is seen whether it was right."""
        for number, draft, expected in zip(sequences, selection.drafts, selection.expected, strict=True):
            waiting = self._expected.get(number)
            if waiting is None or not waiting.open or draft.tokens:
                self._expected[number] = expected
            if draft.optional is not None and draft.optional.most_rows > self._window.rows:
                self._window.rows = draft.optional.most_rows
                self._widening = self._may_widen(self._window.rows)
        if selection.taken is not None:
            self._reach.took(selection.taken)
        self._proposed, self._whole = selection.proposed, selection.whole

    def observe(self, sequence: int, outcome: Outcome) -> None:
        """Learn which of the proposed tokens were right, verified or not."""
        emitted = outcome.emitted
        draft = outcome.draft
        if self._widening and draft.optional is not None and draft.sources:
            source = draft.optional.source
            self._window.brought(sum([draft.sources[row] == source for row in outcome.accepted]))
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
        if asking.doze > 1:  # a draft waits to be seen right or wrong; one such step is enough to know what others take
            asking.doze -= 1
            ledger.spent += ledger.time(rows)
            self._emitted = self._taking_part = 0
            self._leave_alone(live)
            return
        ledger.steps.append(Step(rows, length, seconds, proposing, proposed, emitted, live, experts))
        self._emitted = self._taking_part = self._proposed = 0
        if self._whole:
            self._scratch.emitted(emitted / live)
            self._whole = False
        if self._dear.pause and not proposed:
            self._dear.pause -= 1
        if self._asked and not self._dear.counts:
            took = ledger.curve(rows, length, experts) if experts else ledger.time(rows)
            asking.weigh(emitted / live, took, ledger.time(live), proposing)
        elif asking.doze:
            asking.doze -= 1
        self._asked = False
        if asking.doze:
            self._leave_alone(live)
        if len(ledger.steps) >= self._account_after or (ledger.careful and rows > live):
            self._account()

    def _leave_alone(self, live: int) -> None:
        """While proposers doze there is nothing to do, once all drafts were seen right or wrong."""
        asking = self._asking
        if self._may_idle and not any(seen.open for seen in self._expected.values()):
            self._idle, asking.doze = asking.doze, 0
            self._ledger.spent += self._idle * self._ledger.time(live)

    def _account(self) -> None:
        ledger, dear = self._ledger, self._dear
        for step in ledger.steps:
            ledger.curve.timed(step.rows, step.length, step.seconds, step.experts)
            asking = 0.0
            if step.proposed:
                dear.timed(step.proposing, step.proposed)
                alone = ledger.time(step.live)
                asking = max(dear.seconds * step.proposed, asking_seconds(step.proposing, alone))
            ledger.book(step, asking)
        # What a dear proposer takes must be known at every step.
        dear.counts = dear.seconds > DEAR * ledger.curve(1, ledger.steps[-1].length)
        self._account_after = 1 if dear.counts else ACCOUNT_STEPS
        ledger.reprice(self._reach.tokens + 1)
        self._widening = self._may_widen(self._window.rows)
