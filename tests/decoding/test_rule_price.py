"""Rules that take long hold up those who have them, not their neighbours; and nobody's bytes change."""

from __future__ import annotations

from typing import Any

import pytest

from ipex_lookahead.decoding import scheduler as scheduler_module
from ipex_lookahead.decoding import sequence as sequence_module
from ipex_lookahead.decoding import sequence_group as group_module
from ipex_lookahead.decoding.rule_price import SHARE
from ipex_lookahead.decoding.scheduler import Scheduler
from tests.support.hashed_engine import HashedEngine
from tests.support.sequence_groups import Submission, alone, group_of

VOCAB = 11


class Clock:
    """Goes on only where something is said to take time."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (sequence_module, group_module, scheduler_module):
        monkeypatch.setattr(module, "perf_counter", made)
    return made


def run(clock: Clock, rules: list[float], new: int = 200) -> tuple[list[int], list[Any]]:
    """Steps until each of several equal requests has ended, whose rules take so long; a forward takes one second."""
    engine = HashedEngine(VOCAB)

    run_batch = engine.forward

    def forward(batch: Any) -> Any:
        clock.now += 1.0
        return run_batch(batch)

    engine.forward = forward  # type: ignore[method-assign]
    scheduler = Scheduler(engine)
    made = []
    for number, seconds in enumerate(rules):
        group, answer = group_of(engine, Submission((1, 2, number), new, seed=number), number)
        (sequence,) = group.sequences

        def slow(_: Any, logits: Any, seconds: float = seconds) -> Any:
            clock.now += seconds
            return logits

        sequence.processors = [*sequence.processors, slow]
        scheduler.submit(group)
        made.append((group, answer))
    ends: dict[int, int] = {}
    while scheduler.busy:
        scheduler.step()
        for number, (group, _) in enumerate(made):
            if group.ended:
                ends.setdefault(number, scheduler.steps)
    for number, (_, answer) in enumerate(made):
        plain = alone(engine, Submission((1, 2, number), new, seed=number))
        assert (answer.tokens, answer.logits) == (plain.tokens, plain.logits)
    return [ends[number] for number in range(len(rules))], made


def test_neighbours_of_expensive_rules_are_hardly_held_up(clock):
    (cheap, expensive), _ = run(clock, [0.0, 10.0])
    assert cheap < 210
    # While the cheap one went on the expensive one was paid for by a quarter of each forward; then nobody is held up.
    paid = int(cheap * SHARE / 10.0)
    assert 0 <= 200 - paid - (expensive - cheap) <= 12


def test_several_expensive_ones_take_turns(clock):
    ends, _ = run(clock, [0.0, 5.0, 5.0, 5.0])
    assert ends[0] < 215
    assert max(ends[1:]) - min(ends[1:]) <= 3


def test_rules_that_are_all_expensive_hold_up_nobody_else(clock):
    ends, _ = run(clock, [10.0, 10.0])
    assert max(ends) < 210


def test_cheap_rules_sit_out_nothing(clock):
    ends, _ = run(clock, [0.0, 0.2])
    assert max(ends) < 210
