"""When a head drafts, with free sources and alone; by a head with known luck."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.controller import AdaptiveController
from ipex_lookahead.controller.adaptive import HEAD_TRIES, should_attach_head
from ipex_lookahead.controller.calibration import Calibration
from ipex_lookahead.controller.cost import CostCurve
from ipex_lookahead.controller.kept import HeadRates
from ipex_lookahead.drafting.base import Proposer
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.drafting.heads.joined import MAX_CHAIN, SOURCE, HeadAndFree
from ipex_lookahead.drafting.partial_matching import auto
from ipex_lookahead.engines.api import ARGMAX

FLAT = Calibration((1, 64), (1.0, 1.0))
"""Rows that cost nothing."""
LOW_COST = 0.06


def know_price(rates: HeadRates, price: float = LOW_COST) -> None:
    for _ in range(2):
        rates.follow_price(price, 1.0)


class Knows:
    """A head that is right as often as ``luck``; a token takes ``price``."""

    wants = ARGMAX

    def __init__(self, luck: float, price: float = LOW_COST) -> None:
        self.luck, self.price, self.drafted, self.text = luck, price, 0, [0]

    def begin(self, prompt: Any, hidden: Any = None) -> None:
        self.text = [*prompt]

    def propose(self, budget: int) -> Draft:
        return self.propose_after((), budget)

    def propose_after(self, copied: Sequence[int], budget: int, min_chance: float = 0.0) -> Draft:
        self.drafted += budget
        start = len(self.text) + len(copied)
        wrong = np.random.default_rng(start).random(budget) >= self.luck
        drafted = [follower(start + i) + int(wrong[i]) for i in range(budget)]
        return Draft(drafted, range(-1, budget - 1), probs=[0.9] * budget, seconds=self.price * budget)

    def observe(self, outcome: Outcome) -> None:
        self.text += outcome.emitted


def follower(at: int) -> int:
    """A text that no free source foresees."""
    return int(np.random.default_rng(at).integers(3, 30000))


def play(
    head: Knows, free: Proposer | None, calibration: Calibration, rates: HeadRates, *, live: int = 1, length: int = 1500
) -> tuple[float, list[int]]:
    """Return seconds over those of plain decoding, and the rows of each step's draft."""
    curve = CostCurve(calibration)
    controller = AdaptiveController(curve, 8, "auto" if free else SOURCE, [(SOURCE, rates)])
    proposer = HeadAndFree(free, head, controller.plan)
    at, rows, seconds = 8, [], 0.0
    proposer.begin([follower(i) for i in range(at)], {})
    controller.join()
    while at < length:
        idle = controller.idle()
        budget = 0 if idle else controller.budget(live)
        draft = proposer.propose(budget) if budget else Draft()
        chosen = controller.select([0], [draft], live - 1)[0] if draft.tokens else draft
        accepted: list[int] = []
        for row, token in enumerate(chosen.tokens):
            if chosen.parents[row] == (accepted[-1] if accepted else -1) and token == follower(at + len(accepted)):
                accepted.append(row)
        outcome = Outcome(chosen, accepted, [follower(at + i) for i in range(len(accepted) + 1)])
        outcome.top = [[0]] * (1 + len(chosen.tokens))
        proposer.observe(outcome)
        if not idle:
            controller.observe(0, outcome)
            controller.timed(1 + len(chosen.tokens), at, curve(live + len(chosen.tokens)), draft.seconds)
        at += len(outcome.emitted)
        rows.append(len(chosen.tokens))
        seconds += curve(live + len(chosen.tokens)) + draft.seconds
    return seconds / (length - 8), rows


@pytest.mark.parametrize("free", [True, False], ids=["with free sources", "alone"])
@pytest.mark.parametrize("right", [True, False])
def test_a_head_drafts_where_it_is_right_and_pauses_where_it_is_not(right: bool, free: bool) -> None:
    head = Knows(float(right))
    ratio, rows = play(head, auto() if free else None, FLAT, HeadRates())
    if right:
        assert len(rows) < 1500 / 7
    else:
        assert head.drafted < 250
        assert ratio < 1.015


@pytest.mark.parametrize("last", [1.0, 9.0], ids=["rows cost nothing", "rows are expensive"])
def test_a_chain_is_as_long_as_rows_and_price_allow(last: float) -> None:
    """Of a head that is right in three of four the best length follows from the costs: 2 or more, or none."""
    rates = HeadRates()
    _, rows = play(Knows(0.75, 0.3), None, Calibration((1, 9), (1.0, last)), rates)
    later = rows[len(rows) // 2 :]
    assert rates.seconds == pytest.approx(0.3)
    assert (np.mean(later) > 1.2) if last == 1.0 else (np.mean(later) < 0.1)


def test_a_head_that_does_not_pay_is_given_few_sequences() -> None:
    rates, curve = HeadRates(), CostCurve(FLAT)
    know_price(rates)

    def taken(sequences: int) -> int:
        count = 0
        for _ in range(sequences):
            attached = should_attach_head(rates, rates.tests, rates.skipped, curve, MAX_CHAIN)
            rates.skipped = 0 if attached else rates.skipped + 1
            count += attached
        return count

    assert taken(40) == 40, "nothing is known of it yet"
    for _ in range(HEAD_TRIES + 60):
        rates.fade()
        rates.count(0, 0.9, False)
    assert taken(10 * HEAD_TRIES) == 10
    for _ in range(60):  # what was tried came true
        rates.fade()
        rates.count(0, 0.9, True)
    assert taken(40) == 40


def test_whether_it_pays_depends_on_what_it_costs() -> None:
    for price, last, expected in ((LOW_COST, 1.0, True), (0.55, 1.0, False), (LOW_COST, 32.5, False)):
        rates = HeadRates()
        rates.cells[0][:] = [500.0, 500.0, 1000.0]
        know_price(rates, price)
        curve = CostCurve(Calibration((1, 64), (1.0, last)))
        assert should_attach_head(rates, HEAD_TRIES, 0, curve, MAX_CHAIN) == expected


@pytest.mark.parametrize(("live", "longest"), [(1, 7), (4, 3), (16, 0)])
def test_chains_shrink_in_a_batch(live: int, longest: int) -> None:
    """Rows that cost nothing and tokens that are right in four of five: the n with the largest
    (1 + sum of 0.8^k) / (1 + live * 0.06 * n), since the heads of the other sequences draft too, one after another."""
    rates = HeadRates()
    for cell in rates.cells:
        cell[:] = [800.0, 800.0, 1000.0]
    know_price(rates)
    controller = AdaptiveController(CostCurve(FLAT), 8, SOURCE, [(SOURCE, rates)])
    controller.budget(live)
    plan = controller.plan(Draft(), 8)
    assert plan is not None
    assert plan.count == (longest or 1), "one token tests a head that does not pay"
    assert (rates.backoff.pause > 0) == (longest == 0)


def test_a_chain_follows_the_likeliest_path_where_that_promises_most() -> None:
    rates = HeadRates()
    know_price(rates)
    controller = AdaptiveController(CostCurve(FLAT), 8, "auto", [(SOURCE, rates)])
    controller.budget(1)
    tree = Draft([5, 6, 7], [-1, -1, 0], probs=[0.95, 0.03, 0.9], sources=["suffix"] * 3)
    head = Knows(1.0)
    joined = HeadAndFree(Fixed(tree), head, controller.plan)
    joined.begin([1, 2])
    draft = joined.propose(8)
    assert draft.tokens[:2] == [5, 7]
    assert draft.sources[:3] == ["suffix", "suffix", SOURCE]
    assert list(draft.parents) == list(range(-1, len(draft) - 1))
    assert draft.seconds == pytest.approx(LOW_COST * (len(draft) - 2))


@pytest.mark.parametrize("free", [None, Draft(), Draft([4], [-1])])
def test_without_a_controller_a_head_drafts_where_the_free_sources_do_not(free: Draft | None) -> None:
    joined = HeadAndFree(None if free is None else Fixed(free), Knows(1.0))
    joined.begin([1, 2])
    draft = joined.propose(5)
    assert len(draft) == (1 if free is not None and free.tokens else 5)


def test_a_draft_of_nothing_is_no_draft_of_the_heads() -> None:
    class Silent(Knows):
        def propose_after(self, copied: Sequence[int], budget: int, min_chance: float = 0.0) -> Draft:
            return Draft()

    joined = HeadAndFree(None, Silent(1.0))
    joined.begin([1, 2, 3], {})
    assert joined.propose(8) == Draft()
    joined.observe(Outcome(Draft(), [], [4]))


class Fixed:
    """A proposer of one draft."""

    wants = ARGMAX

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    def begin(self, prompt: Any, hidden: Any = None) -> None: ...

    def propose(self, budget: int) -> Draft:
        return self.draft

    def observe(self, outcome: Outcome) -> None: ...
