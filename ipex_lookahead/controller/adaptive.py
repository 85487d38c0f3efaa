"""Drafts where it pays."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from ipex_lookahead.controller.acceptance import Acceptance, Expected
from ipex_lookahead.controller.base import Selection
from ipex_lookahead.controller.cost import CostCurve
from ipex_lookahead.controller.draft_cost import EXPENSIVE, NEVER_IDLE, PROBE, DraftCost
from ipex_lookahead.controller.gain import Gain
from ipex_lookahead.controller.objective import WORTH, WORTH_BEHIND, best_count, best_first
from ipex_lookahead.controller.row_cost import RowCost
from ipex_lookahead.drafting.draft import Draft, Outcome


class AdaptiveBudget:
    """The number of rows that maximises tokens a second, step by step: the R(D) of :mod:`.objective`.

    Four things are learned for it. How likely the tokens of a source and depth are to be right (:mod:`.acceptance`),
    from drafts that were not verified too, so that a source that becomes good is noticed without probing it. What rows
    cost (:mod:`.row_cost`). What drafting itself costs (:mod:`.draft_cost`): a proposer that brings less is left alone
    for a growing number of steps. And what all of it has gained lately (:mod:`.gain`): while that is a loss only drafts
    that look very good are verified, and scratch rows, which bring drafts for later steps, are taken where they have
    brought more than they cost.

    The sequences of a batch share the rows: the likeliest tokens of all of them are taken first.

    Args:
        curve: the engine's cost curve.
        most: most rows a sequence may draft in a step.
        source: name of drafts that carry no sources of their own.
    """

    def __init__(self, curve: CostCurve, most: int, source: str = "") -> None:
        self._most = most
        self._acceptance = Acceptance(source)
        self._rows = RowCost(curve)
        self._cost = DraftCost(most)
        self._gain = Gain()
        self._may_idle = source not in NEVER_IDLE
        self._idle = 0  # steps from now on that are left alone
        self._expected: dict[int, Expected] = {}
        # Of this step: tokens emitted, sequences, tokens proposed, whether any were requested, and scratch rows taken.
        self._emitted = self._taking_part = self._proposed = 0
        self._drafting = self._whole = False

    def join(self, sequence: int) -> None:
        """A sequence comes, of which nothing is known: it drafts at once."""
        self._cost.begin()
        self._idle = 0

    def leave(self, sequence: int) -> None:
        """Forget a sequence; what its drafts have taught stays."""
        self._expected.pop(sequence, None)

    def idle(self) -> bool:
        """Whether drafting pauses and no earlier draft waits to be seen right or wrong."""
        if not self._idle:
            return False
        self._idle -= 1
        return True

    def budget(self, sequence: int) -> int:
        """Most rows to propose: all that may be worth them, unless proposing itself takes time that counts."""
        cost = self._cost
        if cost.pause:
            return 0
        self._drafting = True
        alone = self._rows.time(1)
        each = cost.token_seconds
        if each <= EXPENSIVE * alone:
            return cost.tokens
        times = self._rows.times(1 + self._most)
        seconds = [times[n] + n * each for n in range(1 + self._most)]
        count, _ = best_count(1.0, self._acceptance.chances(self._most), seconds, WORTH / alone, seconds[-1])
        cost.judge(count > 0, PROBE * each / alone)
        return count or min(PROBE, self._most)

    def select(self, drafts: Sequence[Draft], beside: int = 0) -> Selection:
        """For each sequence the first tokens of its draft that are worth their rows."""
        rows = self._rows
        live = len(drafts) + beside
        alone = rows.time(live)
        room = self._gain.room
        # In a mixture a draft may add no more to a step than one forward, or than drafting has gained.
        longest = alone * (1.0 + max(room, 1.0)) if rows.of_experts else inf
        least = (WORTH_BEHIND if room < 0.0 else WORTH) * live / alone
        expected = [self._acceptance.expect(draft) for draft in drafts]
        counts, rate = self._counts(drafts, expected, live, least, longest)
        taken = max(counts) if any(draft.probs for draft in drafts) else None
        found = Selection(drafts, expected, taken, sum([len(draft.tokens) for draft in drafts]))
        if any(draft.scratch for draft in drafts):
            whole = rows.time(live + found.proposed)
            rate = rate if any(counts) else WORTH * live / alone
            if (self._gain.scratch.value * len(drafts) + beside) / whole > rate and whole <= longest:
                found.whole = True
                return found
        found.drafts = [draft.first(count) for draft, count in zip(drafts, counts, strict=True)]
        return found

    def _counts(
        self,
        drafts: Sequence[Draft],
        expected: Sequence[Expected],
        live: int,
        least: float,
        longest: float,
    ) -> tuple[list[int], float]:
        """How many tokens of each draft are worth their rows, and tokens a second with them; else ``least``."""
        times = self._rows.times(live + sum([len(seen.survival) for seen in expected]))
        if len(drafts) == 1:
            count, rate = best_count(live, expected[0].survival, times[live - 1 :], least, longest)
            return [count], rate
        order = best_first(expected)
        best, rate = best_count(live, [survival for survival, _ in order], times[live - 1 :], least, longest)
        places = [place for _, place in order[:best]]
        return [places.count(place) for place in range(len(drafts))], rate

    def note(self, sequences: Sequence[int], selection: Selection) -> None:
        """Remember what is expected, until it is seen whether it was right."""
        for number, draft, expected in zip(sequences, selection.drafts, selection.expected, strict=True):
            waiting = self._expected.get(number)
            if waiting is None or not waiting.open or draft.tokens:
                self._expected[number] = expected
        if selection.taken is not None:
            self._cost.selected(selection.taken)
        self._proposed, self._whole = selection.proposed, selection.whole

    def observe(self, sequence: int, outcome: Outcome) -> None:
        """Learn which of the proposed tokens were right, verified or not."""
        emitted = outcome.emitted
        self._emitted += len(emitted)
        self._taking_part += 1
        seen = self._expected.get(sequence)
        if seen is not None and seen.open:
            seen.walk(emitted)
            tried = seen.tried
            if self._cost.pause and len(tried) > 1 and tried[-1] and tried[-2]:
                self._cost.resume()

    def timed(self, rows: int, length: int, seconds: float, proposing: float, experts: int = 0) -> None:
        """Learn what rows and drafts cost, and what drafting brings."""
        cost, prices, gain = self._cost, self._rows, self._gain
        drafting, emitted, live, proposed = self._drafting, self._emitted, self._taking_part or 1, self._proposed
        self._drafting, self._emitted, self._taking_part, self._proposed = False, 0, 0, 0
        if cost.pause and not drafting:
            cost.pause -= 1
            gain.net.add(0.0)
            if cost.pause:  # a draft waits to be seen right or wrong; one such step is enough to know what others take
                self._leave_alone()
                return
        else:
            alone = prices.time(live)
            brought = emitted / live - prices.took(rows, length, experts) / alone
            spent = cost.seconds(proposing, 0 if self._whole else proposed, alone) / alone
            if self._whole:  # they need steps before they bring a draft, so only what comes of them is judged
                gain.scratch.add(emitted / live - spent)
            else:
                gain.net.add(brought - spent)
                if cost.token_seconds <= EXPENSIVE * alone:
                    cost.weigh(brought, spent)
        self._whole = False
        # What a draft in a mixture has lost is known before the next one: else several would be in one allowance.
        prices.learn(rows, length, seconds, experts, at_once=prices.of_experts and rows > live)
        if cost.pause:
            self._leave_alone()

    def _leave_alone(self) -> None:
        """While drafting pauses there is nothing to do, once all drafts were seen right or wrong."""
        if self._may_idle and not any(seen.open for seen in self._expected.values()):
            self._idle, self._cost.pause = self._cost.pause, 0
