"""When a head drafts, beside free sources and alone; by a head whose luck is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.drafting.heads.choosing import ENOUGH, TRIED, Choosing, should_attach_head
from ipex_lookahead.drafting.heads.price import Price
from ipex_lookahead.drafting.heads.record import Record
from ipex_lookahead.drafting.partial_matching import auto
from ipex_lookahead.engines.api import ARGMAX

CHEAP = Price(0.06, 0.06, 0.03)


class Knows:
    """A head that is always right, or never."""

    wants = ARGMAX

    def __init__(self, right: bool) -> None:
        self.right, self.asked, self.text, self.record = right, 0, [], Record()
        self.chain: tuple[list[int], list[int]] = [], []

    def begin(self, prompt: Any, hidden: Any = None) -> None:
        self.text = [*prompt]

    def propose_after(self, copied: Any, budget: int, min_chance: float = 0.0) -> Draft:
        self.asked += budget
        start = len(self.text) + len(copied)
        drafted = [follower(start + i) + (0 if self.right else 1) for i in range(budget)]
        self.chain = [*copied], drafted
        return Draft(drafted, range(-1, budget - 1), probs=[0.9] * budget)

    def observe(self, outcome: Outcome) -> None:
        (copied, drafted), self.chain = self.chain, ([], [])
        if copied == [*outcome.emitted[: len(copied)]]:
            self.record.observe(drafted, [0.9] * len(drafted), outcome.emitted[len(copied) :])
        self.text += outcome.emitted


def follower(at: int) -> int:
    """A text that nothing free foresees."""
    return int(np.random.default_rng(at).integers(3, 30000))


def steps_of(proposer: Choosing, length: int) -> int:
    """Steps that decoding such a text takes, all that is drafted being verified."""
    at, steps = 8, 0
    proposer.begin([follower(i) for i in range(at)], {})
    while at < length:
        draft = proposer.propose(8)
        accepted: list[int] = []
        for row, token in enumerate(draft.tokens):
            if draft.parents[row] == (accepted[-1] if accepted else -1) and token == follower(at + len(accepted)):
                accepted.append(row)
        emitted = [follower(at + i) for i in range(len(accepted) + 1)]
        proposer.observe(Outcome(draft, accepted, emitted, top=[[0]] * (1 + len(draft.tokens))))
        at, steps = at + len(emitted), steps + 1
    return steps


@pytest.mark.parametrize("free", [True, False], ids=["beside free sources", "alone"])
@pytest.mark.parametrize("right", [True, False])
def test_a_head_drafts_where_it_is_right_and_is_left_alone_where_not(right: bool, free: bool) -> None:
    head = Knows(right)
    steps = steps_of(Choosing(auto() if free else None, head, CHEAP), 1500)
    if right:
        assert steps < 1500 / 7
    else:
        assert head.asked < 60


@pytest.mark.parametrize("rows", [1.0, 1.4], ids=["rows are cheap", "rows are dear"])
def test_a_chain_is_as_long_as_rows_and_price_allow(rows: float) -> None:
    """Of a head that is right in three of four the best length follows from the costs: 3 or more, or none."""

    class Lucky(Knows):
        def propose_after(self, copied: Any, budget: int, min_chance: float = 0.0) -> Draft:
            draft = super().propose_after(copied, budget)
            luck = np.random.default_rng(len(self.text)).random(budget) < 0.75
            drafted = [token if true else token + 1 for token, true in zip(draft.tokens, luck, strict=True)]
            self.chain = [*copied], drafted
            return Draft(drafted, draft.parents, probs=draft.probs)

    head = Lucky(True)
    proposer = Choosing(None, head, Price(0.3, 0.3, 0.0), lambda n: rows ** (n - 1))
    steps = steps_of(proposer, 1500)
    lengths = 1500 / steps
    assert (lengths > 1.6) if rows == 1.0 else (lengths < 1.15)


def test_a_head_that_does_not_pay_is_given_few_sequences() -> None:
    record = Record()
    taken: list[bool] = [should_attach_head(record, CHEAP, flat) for _ in range(40)]
    assert all(taken), "nothing is known of it yet"
    for _ in range(ENOUGH + 20):
        record.observe([1], [0.9], [2])
    taken = [should_attach_head(record, CHEAP, flat) for _ in range(10 * TRIED)]
    assert sum(taken) == 10
    for _ in range(60):  # what was tried came true
        record.observe([1], [0.9], [1])
    assert all(should_attach_head(record, CHEAP, flat) for _ in range(40))


def test_whether_it_pays_depends_on_what_it_costs() -> None:
    record = Record([(500, 1000)])
    assert should_attach_head(record, CHEAP, flat)
    attached = [should_attach_head(record, Price(0.5, 0.5, 0.0), flat) for _ in range(TRIED)]
    assert attached == [False] * (TRIED - 1) + [True]
    assert not should_attach_head(record, CHEAP, lambda rows: 1.0 + 0.5 * (rows - 1))


@pytest.mark.parametrize(("company", "longest"), [(1, 7), (4, 3), (16, 0)])
def test_chains_shrink_in_company(company: int, longest: int) -> None:
    """Rows for nothing, tokens that are right in four of five: the n with the most (1 + sum of 0.8^k) / (1 + company *
    0.06 * n), since the heads of the others draft too, one after the other."""
    head = Knows(True)
    head.record = Record([(80, 100)] * 8)
    proposer = Choosing(None, head, CHEAP, flat, lambda: company)
    proposer.begin([1, 2, 3], {})
    drafts = [proposer.propose(8)]
    proposer.observe(Outcome(drafts[0], [], [4]))  # one that does not pay is tried once
    drafts.append(proposer.propose(8))
    assert len(drafts[0 if longest else 1].tokens) == longest


def flat(rows: int) -> float:
    """Rows that cost nothing."""
    return 1.0


def test_a_draft_of_nothing_is_no_draft_of_the_heads() -> None:
    class Silent(Knows):
        def propose_after(self, copied: Sequence[int], budget: int, min_chance: float = 0.0) -> Draft:
            return Draft()

    proposer = Choosing(None, Silent(True), CHEAP)
    proposer.begin([1, 2, 3], {})
    assert proposer.propose(8) == Draft()
    proposer.observe(Outcome(Draft(), [], [4]))
