"""Owners that want more than there is get the same rows, soon, and none of it changes a byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.decoding.prefix_cache import PrefixCache
from ipex_lookahead.decoding.rule_price import RulePrice
from ipex_lookahead.decoding.scheduler import Scheduler
from ipex_lookahead.decoding.sequence_group import SequenceGroup
from ipex_lookahead.decoding.shares import QUANTUM, Shares
from ipex_lookahead.drafting.base import Proposer
from ipex_lookahead.engines.api import Batch, StepOutput
from tests.support.hashed_engine import HashedEngine
from tests.support.proposers import OracleProposer, RandomProposer
from tests.support.sequence_groups import Answer, Submission, alone, group_of

VOCAB = 11


@pytest.fixture(autouse=True)
def nobody_sits_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a recorder of logits may take so long that it counts as an expensive rule."""
    monkeypatch.setattr(RulePrice, "sitting_out", lambda self, groups: frozenset())


class Office:
    """A scheduler whose rows are counted at the engine's door, by owner."""

    def __init__(self, *, pages: int | None = 2000, **options: Any) -> None:
        self.engine = HashedEngine(VOCAB)
        self.memory = None if pages is None else PrefixCache(pages)
        self._run, self.engine.forward = self.engine.forward, self.forward  # type: ignore[method-assign]
        self.scheduler = Scheduler(self.engine, memory=self.memory, **options)
        self.rows: Counter[str] = Counter()
        self.asked: list[tuple[Submission, SequenceGroup, Answer]] = []

    def submit(self, submission: Submission, proposer: Proposer | None = None) -> SequenceGroup:
        group, answer = group_of(self.engine, submission, len(self.asked), proposer)
        self.scheduler.submit(group)
        self.asked.append((submission, group, answer))
        return group

    def forward(self, batch: Batch) -> StepOutput:
        owners = {id(group.sequences[0].cache): group.owner for _, group, _ in self.asked if not group.ended}
        for cache, rows in zip(batch.caches, batch.counts, strict=True):
            if id(cache) in owners:  # not that of a submission that is answered alone, to compare with
                self.rows[owners[id(cache)]] += rows
        return self._run(batch)

    def held(self) -> Counter[str]:
        """Slots, by owner."""
        return Counter(group.owner for group in self.scheduler._running)

    def unfinished(self, owner: str) -> int:
        return sum(not group.ended for _, group, _ in self.asked if group.owner == owner)


def greedy(rng: np.random.Generator, owner: str, numbers: Iterator[int]) -> tuple[Submission, Proposer | None]:
    """The next request of somebody who always has more: short ones, long answers, or long prompts and drafts."""
    kind = {"a": (20, 5), "b": (5, 800), "c": (400, 60)}[owner]
    prompt = (next(numbers) % VOCAB, *rng.integers(1, VOCAB, kind[0] + int(rng.integers(9))).tolist())
    submission = Submission(prompt, kind[1] + int(rng.integers(9)), key=owner)
    return submission, RandomProposer(VOCAB, len(prompt)) if owner == "c" else None


@pytest.mark.parametrize("slots", [1, 2, 3, 8])
@pytest.mark.parametrize("wanted", [(4, 8, 16), (16, 4, 9), (9, 16, 4)])
@pytest.mark.rotating(2)
def test_three_owners_of_different_greed_have_equal_rows(slots: int, wanted: tuple[int, ...]) -> None:
    office, rng, numbers = Office(slots=slots, prefill_rows=64), np.random.default_rng(0), count()
    halves: list[Counter[str]] = []
    for _ in range(2):
        office.rows.clear()
        for _ in range(6000 // slots):
            for owner, most in zip("abc", wanted, strict=True):
                while office.unfinished(owner) < max(most, slots + 1):
                    office.submit(*greedy(rng, owner, numbers))
            office.asked = [one for one in office.asked if not one[1].ended]
            office.scheduler.step()
        halves.append(office.rows.copy())
    for rows in halves:
        mean = rows.total() / 3
        assert all(abs(rows[owner] - mean) <= 0.2 * mean for owner in "abc"), rows
    assert office.scheduler.preemptions < office.scheduler.steps / 8, "seldom: each costs a row, and a proposer's begin"


def test_what_an_owner_has_too_much_of_is_the_next_ones_at_once() -> None:
    office = Office(slots=8)
    for number in range(8):
        office.submit(Submission((1, 2, number), 3000, key="greedy"))
    for _ in range(100):
        office.scheduler.step()
    assert office.held() == {"greedy": 8}
    late = office.submit(Submission((3, 4), 3000, key="late"))
    office.scheduler.step()
    assert late.stats.tokens == 1, "its first token comes with the next forward"
    for number in range(8):
        office.submit(Submission((4, number), 3000, key="late"))
    office.scheduler.step()
    assert office.held() == {"greedy": 4, "late": 4}
    third = [office.submit(Submission((5, number), 100, key="third")) for number in range(2)]
    office.scheduler.step()
    assert office.held() == {"greedy": 3, "late": 3, "third": 2}
    while not all(group.ended for group in third):
        office.scheduler.step()
    office.scheduler.step()
    assert office.held() == {"greedy": 4, "late": 4}, "what one does not want is the others'"


@pytest.mark.parametrize("owners", [2, 5])
def test_with_fewer_slots_than_owners_they_take_turns(owners: int) -> None:
    office = Office(slots=1)
    groups = [office.submit(Submission((1, number), 3000, key=f"key {number}")) for number in range(owners)]
    for step in range(2 * owners * QUANTUM):
        office.scheduler.step()
        assert office.scheduler.running == 1
        assert step > 0 or groups[0].stats.tokens == 1
    tokens = [group.stats.tokens for group in groups]
    assert min(tokens) > 0, "within so many steps each has had its turn"


def test_one_owners_requests_are_in_its_order() -> None:
    """Whatever others do; and alone as if there were no owners."""
    for others in (0, 3):
        office = Office(slots=3)
        mine = [office.submit(Submission((1, number), 60, key="mine")) for number in range(7)]
        for number in range(others):
            office.submit(Submission((2, number), 300, key="other"))
        begun: list[int] = []
        while office.scheduler.busy:
            office.scheduler.step()
            begun += [p.id for p in mine if p.stats.tokens and p.id not in begun]
        assert begun == [group.id for group in mine]
        assert others or office.scheduler.preemptions == 0


def test_an_owner_has_no_more_than_it_may() -> None:
    office = Office(slots=8, per_owner=2)
    for number in range(5):
        office.submit(Submission((1, number), 200, key="one"))
    for number in range(3):
        office.submit(Submission((2, number), 200, key="other"))
    most: Counter[str] = Counter()
    while office.scheduler.busy:
        office.scheduler.step()
        most |= office.held()
    assert most == {"one": 2, "other": 2}
    assert office.scheduler.preemptions == 0, "slots are free: nobody waits for another one's"


def test_rows_of_prompts_are_shared_by_owner_first() -> None:
    office = Office(prefill_rows=120)
    groups = [office.submit(Submission((1, number, *[2] * 300), 3, key="many")) for number in range(3)]
    lone = office.submit(Submission((4, *[5] * 300), 3, key="lone"))
    office.scheduler.step()
    read = [group.sequences[0].cache.length for group in [*groups, lone]]
    assert read == [20, 20, 20, 60]
    few = office.submit(Submission((6,) * 10, 3, key="few"))
    office.scheduler.step()
    assert few.stats.tokens == 1
    assert lone.sequences[0].cache.length == 60 + 55, "what the one with little to read did not need"


def test_without_a_memory_owners_take_turns_and_nobody_loses_its_place() -> None:
    office = Office(pages=None, slots=2)
    first = [office.submit(Submission((1, number), 30, key="first")) for number in range(4)]
    office.scheduler.step()
    second = office.submit(Submission((2,), 30, key="second"))
    while not second.stats.tokens:
        office.scheduler.step()
    assert [group.ended for group in first] == [True, True, False, False]
    assert office.scheduler.preemptions == 0
    while office.scheduler.busy:
        office.scheduler.step()
    assert [answer for *_, answer in office.asked] == [
        alone(office.engine, submission) for submission, *_ in office.asked
    ]


@pytest.mark.parametrize("pages", [5, 8, 13, 40])
@pytest.mark.parametrize("slots", [1, 2, 5])
@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.rotating(4)
def test_who_makes_way_loses_nothing_and_all_come_to_an_end(pages: int, slots: int, keeps: bool) -> None:
    """Also where memory is short: whoever is preempted gets on further the next time, so nobody goes round for ever."""
    office, rng = Office(slots=slots, prefill_rows=40), np.random.default_rng(pages)
    office.scheduler._memory = office.memory = PrefixCache(pages, keeps=keeps)
    waiting = 24
    while waiting or office.scheduler.busy:
        if waiting and rng.random() < 0.3:
            waiting -= 1
            prompt = tuple(rng.integers(1, VOCAB, int(rng.integers(1, 150))).tolist())
            new, seed = int(rng.integers(1, 160)), int(rng.integers(9))
            submission = Submission(prompt, new, seed, key="abc"[waiting % 7 % 3])
            plain = alone(office.engine, submission)
            office.submit(submission, OracleProposer([*submission.prompt, *plain.tokens]) if waiting % 2 else None)
        office.scheduler.step()
        assert office.memory.used <= office.memory.pages
        assert office.scheduler.steps < 50_000
    assert office.scheduler.preemptions > 0
    assert [answer for *_, answer in office.asked] == [
        alone(office.engine, submission) for submission, *_ in office.asked
    ]
    assert office.memory.available == office.memory.pages
    assert not office.scheduler._shares.counts


def groups(*owners: str) -> Sequence[SequenceGroup]:
    engine = HashedEngine(VOCAB)
    found = [group_of(engine, Submission((1,), 5, key=owner))[0] for owner in owners]
    for number, group in enumerate(found):
        group.id = number + 1
    return found


def test_what_is_owed() -> None:
    shares = Shares(8)
    wanting, other, content = both = groups("wanting", "other", "content")
    for group in both:
        shares.join(group)
    shares.took({"other": 9, "content": 0}, [], [other])
    assert shares.owed == {}, "nobody waited"
    shares.took({"other": 9, "content": 3}, [wanting, other], [other])
    assert shares.owed == {"wanting": 4.5, "other": -4.5, "content": 0.0}, "4 each of 12, and what one leaves"
    assert shares.next_of([other, wanting], []) is wanting
    for _ in range(1000):
        shares.took({"other": 9, "content": 3}, [wanting, other], [other])
    assert shares.owed == {"wanting": 8 * QUANTUM, "other": -8 * QUANTUM, "content": 0.0}, "bounded"
    shares.leave(other)
    shares.took({"content": 30}, [wanting], [content])
    assert shares.owed["other"] < 0, "whoever leaves and comes again is as far ahead as it was"
    shares.took({"content": 3}, [], [content])
    assert not shares.owed
