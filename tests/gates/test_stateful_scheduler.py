"""The scheduler, the kept beginnings and the pages under every order of deeds, against lists of what each request is
alone: whatever comes, goes, is given up or makes way, tokens and logits are those, and nothing is lost or held."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.controller import AdaptiveController, Controller
from ipex_lookahead.controller.calibration import Calibration
from ipex_lookahead.controller.cost import CostCurve
from ipex_lookahead.decoding.events import Event
from ipex_lookahead.decoding.prefix_cache import PAGE, PrefixCache
from ipex_lookahead.decoding.scheduler import Scheduler
from ipex_lookahead.decoding.sequence_group import SequenceGroup
from ipex_lookahead.drafting import make_proposer
from ipex_lookahead.drafting.base import Proposer
from tests.gates import cases, seed
from tests.support.hashed_engine import HashedEngine
from tests.support.proposers import OracleProposer, RandomProposer, TreeProposer
from tests.support.sequence_groups import Answer, Submission, alone, group_of

EXAMPLES = cases(70, 4_000)
DEEDS = 50
VOCAB = 11
MOST = 6
ENGINES = [HashedEngine(VOCAB, seed=1), HashedEngine(VOCAB, seed=2, kept_behind=90)]
TEXT = np.random.default_rng(0).integers(1, VOCAB, 300).tolist()
FAULTS = ("begin", "start", "rule")
PLAIN: dict[tuple[int, Submission], Answer] = {}
"""What requests are alone, by engine: reckoned once."""


@dataclass
class Live:
    """A request on its way, and what it has been told."""

    submission: Submission
    plain: Answer
    group: SequenceGroup
    answer: Answer
    heard: list[int]
    cancelled: bool = False
    over: str = ""
    fails: bool = False


class Requests(RuleBasedStateMachine):
    @initialize(
        engine=st.sampled_from(range(len(ENGINES))),
        pages=st.sampled_from([3, 4, 5, 7, 30, None]),
        slots=st.sampled_from([None, 4, 2, 1]),
        per_owner=st.sampled_from([None, None, 2]),
        rows=st.sampled_from([16, 70, 512]),
    )
    def begin(self, engine: int, pages: int | None, slots: int | None, per_owner: int | None, rows: int) -> None:
        self.number, self.engine = engine, ENGINES[engine]
        self.memory = None if pages is None else PrefixCache(pages)
        curve = CostCurve(Calibration((1, 4, 8, 32), (1.0, 1.2, 1.75, 5.0)))
        self.scheduler = Scheduler(
            self.engine, slots=slots, per_owner=per_owner, memory=self.memory, time=curve, prefill_rows=rows
        )
        self.shared = AdaptiveController(curve, 12, "test")
        self.live: dict[int, Live] = {}
        self.submitted = 0

    @precondition(lambda self: len(self.live) < MOST)
    @rule(
        common=st.sampled_from([0, 0, 63, 64, 65, 128, 140, 200]),
        own=st.integers(0, 2**16),
        length=st.integers(1, 20),
        new=st.sampled_from([150, 130, 70, 10, 1]),
        sampled=st.sampled_from([None, 1, 2]),
        key=st.sampled_from(["", "", "other", "third"]),
        kind=st.integers(0, 6),
        together=st.booleans(),
        stop=st.sampled_from([None, None, 0]),
        fault=st.sampled_from([*[""] * 12, *FAULTS]),
    )
    def submit(
        self,
        common: int,
        own: int,
        length: int,
        new: int,
        sampled: int | None,
        key: str,
        kind: int,
        together: bool,
        stop: int | None,
        fault: str,
    ) -> None:
        mine = np.random.default_rng(own % 5).integers(1, VOCAB, length).tolist()
        prompt = (*TEXT[:common], *mine)
        if self.memory is not None:
            room = self.memory.pages * PAGE
            prompt = prompt[-room // 2 :]
            new = min(new, room - len(prompt))
        submission = Submission(prompt, new, sampled, stop, key)
        known = (self.number, Submission(submission.prompt, new, sampled, stop))
        if known not in PLAIN:
            PLAIN[known] = alone(self.engine, submission)
        plain = PLAIN[known]
        self.submitted += 1
        controller: Controller = self.shared if together else Controller(5)
        group, answer = group_of(
            self.engine, submission, self.submitted, proposer_of(kind, submission, plain), controller, emits_events=True
        )
        if fault == "begin":
            group._make_controller = _raises
        elif fault == "start":
            group.sequences[0].head = FailingHead()
        elif fault == "rule":
            group.sequences[0].processors = [_raises, *group.sequences[0].processors]
        self.live[self.scheduler.submit(group)] = Live(submission, plain, group, answer, [], fails=bool(fault))

    @precondition(lambda self: self.live)
    @rule(method=st.sampled_from(["new_cache", "match", "take", "keep"]), after=st.integers(0, 3))
    def one_call_fails(self, method: str, after: int) -> None:
        """The call after so many in the next step: a group may end with it, and then alone."""
        owner = self.engine if method == "new_cache" else self.memory
        if owner is None:
            return
        calls, works = itertools.count(), getattr(owner, method)

        def call(*given: Any, **named: Any) -> Any:
            if next(calls) == after:
                raise MemoryError("by design")
            return works(*given, **named)

        setattr(owner, method, call)
        try:
            events = self.scheduler.step()
        finally:
            delattr(owner, method)
        broken = [event.group for event in events if event.kind == "error" and not self.live[event.group].fails]
        assert len(broken) <= 1
        for number in broken:
            self.live[number].fails = True
        self.hear(events)

    @rule()
    def step(self) -> None:
        self.hear(self.scheduler.step())

    @rule(times=st.integers(2, 50))
    def steps(self, times: int) -> None:
        for _ in range(times):
            self.hear(self.scheduler.step())

    @precondition(lambda self: self.live)
    @rule(data=st.data(), really=st.sampled_from([False, False, False, True]))
    def cancel(self, data: st.DataObject, really: bool) -> None:
        if not really:  # or few would come to their end
            return
        number = data.draw(st.sampled_from(sorted(self.live)))
        self.live[number].cancelled = True
        self.scheduler.cancel(number)

    @precondition(lambda self: self.memory is not None)
    @rule()
    def give_up_what_is_kept(self) -> None:
        assert self.memory is not None
        self.memory.clear()

    def hear(self, events: list[Event]) -> None:
        for event in events:
            one = self.live[event.group]
            assert not one.over, "nothing comes after the end"
            if event.kind == "tokens":
                one.heard += event.tokens
                assert len(event.tokens) == len(event.origins)
            elif event.kind != "prefill":
                one.over = event.kind
        for number, one in list(self.live.items()):
            count = len(one.answer.tokens)
            assert one.answer.tokens == one.plain.tokens[:count]
            assert one.answer.logits == one.plain.logits[:count]
            assert one.heard == one.answer.tokens[: len(one.heard) if one.fails else None]
            if one.over:
                assert one.over == "finish" or one.fails, one.group.error
                assert one.cancelled or one.over == "error" or count == len(one.plain.tokens)
                assert one.group.stats.tokens == count
                del self.live[number]

    @invariant()
    def the_budget_holds(self) -> None:
        memory = getattr(self, "memory", None)
        if memory is not None:
            assert 0 <= memory.used <= memory.pages
            assert memory.kept <= memory.used

    def teardown(self) -> None:
        if not hasattr(self, "live"):
            return
        for _ in range(20_000):
            if not self.scheduler.busy:
                break
            self.hear(self.scheduler.step())
        assert not self.live
        assert self.scheduler.running == self.scheduler.waiting == 0
        if self.memory is not None:
            assert self.memory.used == self.memory.kept
            self.memory.clear()
            assert self.memory.used == 0


class FailingHead:
    def follow(self, cache: Any) -> None:
        raise MemoryError("by design")


def _raises(*_: Any) -> Any:
    raise ZeroDivisionError("by design")


def proposer_of(kind: int, submission: Submission, plain: Answer) -> Proposer | None:
    text = [*submission.prompt, *plain.tokens]
    if kind == 0:
        return None
    if kind == 1:
        return OracleProposer(text)
    if kind == 2:
        return RandomProposer(VOCAB, len(text))
    if kind == 3:
        return TreeProposer(VOCAB, text, len(text))
    return make_proposer(LookaheadConfig(["prompt_lookup", "auto", "suffix"][kind - 4], 8))


def test_every_order_of_deeds_gives_each_request_its_own_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    # A clock of its own: by the machine's, drafts would differ when hypothesis does the same deeds again.
    monkeypatch.setattr("ipex_lookahead.decoding.scheduler.perf_counter", itertools.count(0.0).__next__)
    run_state_machine_as_test(
        hypothesis.seed(seed())(Requests),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=DEEDS,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
