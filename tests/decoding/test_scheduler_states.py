"""The scheduler on models with recurrent layers: preempted, cancelled and drafted for, each has its bytes alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.controller import Controller
from ipex_lookahead.decoding.prefix_cache import PAGE, RUNNING_STATES, PrefixCache
from ipex_lookahead.decoding.scheduler import Scheduler
from ipex_lookahead.decoding.sequence_group import SequenceGroup
from ipex_lookahead.drafting import DraftModel, make_proposer
from ipex_lookahead.drafting.base import Proposer
from ipex_lookahead.engines.api import position_bytes, state_bytes
from tests.support.hybrids import HYBRIDS, CountedEngine, hybrid, random_text
from tests.support.proposers import RandomProposer, TreeProposer
from tests.support.sequence_groups import Answer, Submission, alone, group_of

ENGINES = {name: hybrid(name) for name in (*HYBRIDS, "dense")}
SMALLER = {name: hybrid(name, 3, layers=1) for name in ("short convolution", "dense")}
VOCAB = 96


def memory_of(engine: CountedEngine, sequences: int, pages: int) -> PrefixCache:
    """Room for the states of so many running sequences, and so many pages beside them."""
    page, state = PAGE * position_bytes(engine), state_bytes(engine)
    return PrefixCache(sequences * RUNNING_STATES * state + pages * page, page=page, state=state)


class LateSelfSpeculation(DraftModel):
    """On whatever cache its sequence has: a preempted one comes back with another."""

    def __init__(self, engine: CountedEngine, group: Callable[[], SequenceGroup]) -> None:
        self._group = group
        super().__init__(engine, min_prob=0.0, shared=engine.new_cache())

    def begin(self, prompt, hidden=None):  # type: ignore[no-untyped-def]
        if len(prompt):
            cache = self._group().sequences[0].cache
            assert cache is not None
            self._cache = cache
        super().begin(prompt, hidden)


Make = Callable[[CountedEngine, Submission, Answer, Callable[[], SequenceGroup]], "Proposer | None"]


def drafting_with(name: str) -> Make:
    """A draft model with caches of its own, in a memory in which not all of its sequences have room."""
    draft = SMALLER[name]
    memory = memory_of(draft, 2, 6)
    return lambda *_: DraftModel(draft, min_prob=0.0, prefixes=memory)


MAKERS: dict[str, Callable[[], Make]] = {
    "none": lambda: lambda *_: None,
    "lookup": lambda: lambda *_: make_proposer(LookaheadConfig("prompt_lookup", 6)),
    "random": lambda: lambda *_: RandomProposer(VOCAB),
    "trees": lambda: lambda _, submission, plain, __: TreeProposer(VOCAB, [*submission.prompt, *plain.tokens]),
    "dense draft model": lambda: drafting_with("dense"),
    "draft model with states": lambda: drafting_with("short convolution"),
    "itself": lambda: lambda engine, _, __, group: LateSelfSpeculation(engine, group),
}


def submitted(
    scheduler: Scheduler, engine: CountedEngine, make: Make, submission: Submission, number: int, plain: Answer
) -> tuple[SequenceGroup, Answer]:
    made: list[SequenceGroup] = []
    proposer = make(engine, submission, plain, lambda: made[0])
    group, answer = group_of(engine, submission, number, proposer, Controller(5))
    made.append(group)
    scheduler.submit(group)
    return group, answer


@pytest.mark.parametrize("name", [name for name in HYBRIDS if position_bytes(ENGINES[name])])
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.rotating(5)
def test_preempted_sequences_lose_nothing(maker: str, name: str) -> None:
    """Three that grow where there is room for fewer: the younger make way, with their states, and go on later.

    A model without attention takes nothing more as it grows.
    """
    engine, make = ENGINES[name], MAKERS[maker]()
    memory = memory_of(engine, 2, 3)
    scheduler = Scheduler(engine, memory=memory, slots=3)
    wanted = [
        Submission(tuple(random_text(7)), 150),
        Submission(tuple(random_text(5, 1)), 140, seed=3),
        Submission((*random_text(6), 4), 120, seed=4),
    ]
    plain = [alone(engine, submission) for submission in wanted]
    groups = [
        submitted(scheduler, engine, make, submission, number, plain[number])
        for number, submission in enumerate(wanted)
    ]
    while scheduler.busy:
        scheduler.step()
        assert memory.used <= memory.budget
    assert scheduler.preemptions > 0
    assert [answer for _, answer in groups] == plain
    assert maker in ("none", "lookup") or any(group.stats.drafted for group, _ in groups)


@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.rotating(6)
def test_who_is_cancelled_takes_nothing_from_the_others(maker: str, name: str) -> None:
    """In its prompt and between two steps; what it kept serves the next that begins alike."""
    engine, make = ENGINES[name], MAKERS[maker]()
    memory = memory_of(engine, 6, 40)
    scheduler = Scheduler(engine, memory=memory, slots=4, prefill_rows=48)
    chance = np.random.default_rng(5)
    stem = random_text(100, 8)
    wanted = [
        Submission((*stem[: int(chance.choice([0, 64, 100]))], *random_text(20, number)), 25, number % 2 or None)
        for number in range(9)
    ]
    plain = [alone(engine, submission) for submission in wanted]
    groups = []
    for number, submission in enumerate(wanted):
        groups.append(submitted(scheduler, engine, make, submission, number, plain[number]))
        for _ in range(int(chance.integers(1, 5))):
            scheduler.step()
        if number % 3 == 2:
            scheduler.cancel(groups[number - (number % 2)][0].id)
    while scheduler.busy:
        scheduler.step()
        assert memory.used <= memory.budget
    assert any(group.stats.finish_reasons == ["cancelled"] for group, _ in groups)
    for (group, answer), expected in zip(groups, plain, strict=True):
        if group.stats.finish_reasons == ["cancelled"]:
            count = len(answer.tokens)
            assert (answer.tokens, answer.logits) == (expected.tokens[:count], expected.logits[:count])
        else:
            assert answer == expected
    assert memory._sequences == 0
