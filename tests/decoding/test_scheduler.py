"""The scheduler: whoever shares a forward with whom, each gets its tokens, chosen from its logits, by bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.controller import AdaptiveController, Controller
from ipex_lookahead.controller.calibration import Calibration
from ipex_lookahead.controller.cost import CostCurve
from ipex_lookahead.decoding.prefix_cache import PAGE, PrefixCache, pages_of
from ipex_lookahead.decoding.scheduler import DELAY, Scheduler
from ipex_lookahead.decoding.shares import LEAST_CHUNK
from ipex_lookahead.drafting import PROPOSERS, make_proposer
from ipex_lookahead.drafting.base import Proposer
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.drafting.prediction import Prediction
from ipex_lookahead.engines.api import ARGMAX
from ipex_lookahead.errors import ContextLengthError, EngineError, InputError
from tests.support.hashed_engine import HashedEngine
from tests.support.proposers import OracleProposer, RandomProposer, TreeProposer
from tests.support.sequence_groups import Answer, Submission, alone, group_of

VOCAB = 11
CURVE = Calibration((1, 2, 4, 5, 8, 16, 32), (1.0, 1.06, 1.18, 1.5, 1.75, 2.8, 5.0))

Make = Callable[[Submission, Answer], Proposer | None]
MAKERS: dict[str, Make] = {
    "none": lambda submission, plain: None,
    **{
        name: lambda submission, plain, name=name: make_proposer(LookaheadConfig(name, 16))  # type: ignore[misc]
        for name in PROPOSERS
    },
    "random": lambda submission, plain: RandomProposer(VOCAB),
    "oracle": lambda submission, plain: OracleProposer([*submission.prompt, *plain.tokens]),
    "trees": lambda submission, plain: TreeProposer(VOCAB, [*submission.prompt, *plain.tokens]),
    "prediction": lambda submission, plain: Prediction(plain.tokens, make_proposer(LookaheadConfig("suffix"))),
}


def submissions(seed: int, count: int) -> list[Submission]:
    """Requests some of whose prompts begin alike."""
    rng = np.random.default_rng(seed)
    common = rng.integers(1, VOCAB, 200).tolist()
    found = []
    for number in range(count):
        own = rng.integers(1, VOCAB, int(rng.integers(1, 60))).tolist()
        prompt = common[: int(rng.choice([0, 0, 64, 100, 130, 200]))] + own
        seed_of = None if number % 2 else int(rng.integers(1000))
        stop = 0 if number % 3 else None
        found.append(Submission(tuple(prompt), int(rng.integers(1, 70)), seed_of, stop))
    return found


def controllers(kind: str) -> Callable[[], Controller]:
    """What groups decode by: all by one, or each by its own."""
    if kind == "one for all":
        one = AdaptiveController(CostCurve(CURVE), 16, "test")
        return lambda: one
    return lambda: Controller(7)


def test_events_are_each_groups_in_order() -> None:
    engine = HashedEngine(VOCAB)
    wanted = submissions(2, 6)
    scheduler = Scheduler(engine, prefill_rows=32)
    groups = {}
    for number, submission in enumerate(wanted):
        proposer = OracleProposer([*submission.prompt, *alone(engine, submission).tokens])
        group, answer = group_of(engine, submission, number, proposer, emits_events=True)
        groups[scheduler.submit(group)] = submission, answer, group
    events: dict[int, list[Any]] = {number: [] for number in groups}
    while scheduler.busy:
        for event in scheduler.step():
            events[event.group].append(event)
    for number, (submission, answer, group) in groups.items():
        kinds = [event.kind for event in events[number]]
        assert kinds[-1] == "finish"
        assert kinds == sorted(kinds, key=["prefill", "tokens", "finish"].index)
        assert [e.done for e in events[number] if e.kind == "prefill"][-1] == len(submission.prompt)
        told = [event for event in events[number] if event.kind == "tokens"]
        assert [token for event in told for token in event.tokens] == answer.tokens
        assert [origin for event in told for origin in event.origins] == group.stats.origins()
        assert all(len(event.tokens) == len(event.origins) for event in told)


@pytest.mark.parametrize("key_row_seconds", [0.0, 0.0005], ids=["", "attention is dear"])
def test_a_long_prompt_delays_running_streams_by_no_more_than_said(key_row_seconds: float) -> None:
    engine = HashedEngine(VOCAB)
    curve = CostCurve(replace(CURVE, key_row_seconds=key_row_seconds))
    scheduler = Scheduler(engine, time=curve)
    stream, _ = group_of(engine, Submission((1, 2, 3), 300))
    scheduler.submit(stream)
    scheduler.step()
    scheduler.step()
    long, _ = group_of(engine, Submission(tuple([4, 5] * 700), 3), 1)
    scheduler.submit(long)
    engine.batches.clear()
    while long.stats.tokens == 0:
        scheduler.step()
    read = 0
    for step, counts in enumerate(engine.batches):
        assert len(counts) == 2, "the stream goes on at every step"
        read += counts[1]
        assert curve(sum(counts), read) <= max(DELAY * curve(1, 3 + step), curve(1 + LEAST_CHUNK, read))
    assert max(counts[1] for counts in engine.batches) > LEAST_CHUNK
    assert stream.stats.tokens >= len(engine.batches)


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    engine = HashedEngine(VOCAB)
    scheduler = Scheduler(engine, prefill_rows=64)
    long, _ = group_of(engine, Submission(tuple([4, 5] * 700), 3))
    short, _ = group_of(engine, Submission((1, 2, 3), 3), 1)
    scheduler.submit(long)
    scheduler.step()
    scheduler.submit(short)
    scheduler.step()
    assert short.stats.tokens == 1
    assert engine.batches[-1] == (3, 61), "what the short one does not need is the long one's"


def test_who_shares_a_prompt_waits_for_it_and_reads_the_rest() -> None:
    engine = HashedEngine(VOCAB)
    memory = PrefixCache(100)
    scheduler = Scheduler(engine, memory=memory, prefill_rows=50)
    prompt = tuple([3, 1, 4, 1, 5] * 60)
    groups = [group_of(engine, Submission((*prompt, number), 5), number) for number in range(4)]
    for group, _ in groups:
        scheduler.submit(group)
    while scheduler.busy:
        scheduler.step()
    read = [group.stats.prompt_tokens - group.stats.cached_tokens for group, _ in groups]
    assert read == [301, *[301 - 256] * 3]
    for number, (_, answer) in enumerate(groups):
        assert answer == alone(engine, Submission((*prompt, number), 5))


@pytest.mark.parametrize("kind", ["one for all", "each its own"])
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.rotating(6)
def test_preempted_groups_lose_nothing(name: str, kind: str) -> None:
    """Three that grow where there is room for one: the younger make way, and go on later."""
    engine = HashedEngine(VOCAB)
    memory = PrefixCache(pages_of(200))
    scheduler = Scheduler(engine, memory=memory)
    wanted = [Submission((1, 2, 3), 190), Submission((4, 5), 195, seed=3), Submission((1, 2, 4), 195, seed=4)]
    plain = [alone(engine, submission) for submission in wanted]
    controller = controllers(kind)
    groups = [
        group_of(engine, submission, number, MAKERS[name](submission, plain[number]), controller())
        for number, submission in enumerate(wanted)
    ]
    for group, _ in groups:
        scheduler.submit(group)
    while scheduler.busy:
        scheduler.step()
        assert memory.used <= memory.pages
    assert scheduler.preemptions > 0
    assert [answer for _, answer in groups] == plain
    assert [group.stats.prompt_tokens for group, _ in groups] == [len(submission.prompt) for submission in wanted]


def test_what_never_fits_is_refused() -> None:
    engine = HashedEngine(VOCAB)
    scheduler = Scheduler(engine, memory=PrefixCache(2))
    with pytest.raises(ContextLengthError, match="129 positions take 3 pages"):
        scheduler.submit(group_of(engine, Submission((1,), 2 * PAGE))[0])
    group, answer = group_of(engine, Submission((1,), 2 * PAGE - 1), 0, RandomProposer(VOCAB), Controller(128))
    scheduler.submit(group)
    while scheduler.busy:
        scheduler.step()
    assert answer == alone(engine, Submission((1,), 2 * PAGE - 1))


class FailingMemory(PrefixCache):
    """A cache that cannot keep a text that has ended."""

    def keep(self, tokens: Any, cache: Any, pages: Any, key: str = "", *, goes_on: bool = False) -> None:
        if not goes_on:
            raise MemoryError("keep, by design")
        super().keep(tokens, cache, pages, key, goes_on=goes_on)


class Proposing:
    """A proposer of one draft, again and again."""

    wants = ARGMAX

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def begin(self, prompt: Any, hidden: Any = None) -> None: ...

    def observe(self, outcome: Outcome) -> None: ...

    def propose(self, budget: int) -> Draft:
        return self._draft


def test_a_text_that_cannot_be_kept_costs_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    engine = HashedEngine(VOCAB)
    memory = FailingMemory(20)
    scheduler = Scheduler(engine, memory=memory)
    wanted = Submission((1, 2, 3), 70)
    group, answer = group_of(engine, wanted, emits_events=True)
    scheduler.submit(group)
    kinds = [event.kind for _ in range(80) for event in scheduler.step()]
    assert kinds[-1] == "finish"
    assert answer == alone(engine, wanted)
    assert memory.used == 0
    assert "not stored" in caplog.text


@pytest.mark.parametrize(
    "draft",
    [Draft([2**40], [-1]), Draft([1, 2], [-1]), Draft([1, 2], [1, 0]), Draft([1], [-1], [0.5, 0.5])],
    ids=["no int32", "a parent is missing", "a circle", "one probability too many"],
)
@pytest.mark.parametrize("kind", ["one for all", "each its own"])
@pytest.mark.parametrize("pages", [3, 20])
def test_a_draft_that_is_none_costs_nobody_else_anything(pages: int, kind: str, draft: Draft) -> None:
    engine = HashedEngine(VOCAB)
    controller = controllers(kind)
    scheduler = Scheduler(engine, memory=PrefixCache(pages))
    wanted = [Submission((1, 2), 70), Submission((1, 3), 100, seed=4), Submission((2, 3), 80)]
    proposers: list[Proposer] = [RandomProposer(VOCAB), Proposing(draft), RandomProposer(VOCAB)]
    groups = [
        group_of(engine, one, number, proposer, controller())
        for number, (one, proposer) in enumerate(zip(wanted, proposers, strict=True))
    ]
    for group, _ in groups:
        scheduler.submit(group)
    while scheduler.busy:
        scheduler.step()
    for (group, answer), one in zip(groups, wanted, strict=True):
        plain = alone(engine, one)
        if group is groups[1][0] and group.error is not None:
            assert answer.tokens == plain.tokens[: len(answer.tokens)]
        else:
            assert answer == plain


class Failing:
    """A proposer that raises at its third draft."""

    wants = ARGMAX

    def __init__(self, error: Exception) -> None:
        self._error, self._drafts = error, 0

    def begin(self, prompt: Any, hidden: Any = None) -> None: ...

    def observe(self, outcome: Outcome) -> None: ...

    def propose(self, budget: int) -> Draft:
        self._drafts += 1
        if self._drafts == 3:
            raise self._error
        return Draft([1], [-1])


def test_one_groups_fault_is_its_own() -> None:
    engine = HashedEngine(VOCAB)
    scheduler = Scheduler(engine)
    bystander, answer = group_of(engine, Submission((1, 2), 30), 0, RandomProposer(VOCAB), emits_events=True)
    scheduler.submit(bystander)
    proposing, _ = group_of(
        engine, Submission((1, 3), 30), 1, Failing(ZeroDivisionError("by design")), emits_events=True
    )
    scheduler.submit(proposing)
    ruling, _ = group_of(engine, Submission((2, 3), 30), 2, emits_events=True)
    calls: list[int] = []

    def stop(ids: npt.NDArray[np.int64]) -> bool:
        calls.append(int(ids[-1]))
        if len(calls) == 5:
            raise InputError("the rule fails")
        return False

    ruling.sequences[0].stop = stop
    scheduler.submit(ruling)
    kinds: dict[int, str] = {}
    while scheduler.busy:
        for event in scheduler.step():
            kinds[event.group] = event.kind
    assert answer == alone(engine, Submission((1, 2), 30))
    assert kinds == {1: "finish", 2: "error", 3: "error"}
    assert isinstance(proposing.error, ZeroDivisionError)
    assert isinstance(ruling.error, InputError)
    assert ruling.stats.finish_reasons == ["abandoned"]
    assert bystander.error is None


@pytest.mark.parametrize("in_prompt", [True, False])
def test_rows_that_the_engine_fails_on_end_whose_they_are(in_prompt: bool) -> None:
    engine = HashedEngine(VOCAB)
    fine = Submission((1, 2), 30)
    expected = alone(engine, fine)
    scheduler = Scheduler(engine)
    group, answer = group_of(engine, fine, 0, OracleProposer([*fine.prompt, *expected.tokens]))
    poison = next(token for token in range(VOCAB) if token not in (*fine.prompt, *expected.tokens))
    prompt = (3, poison) if in_prompt else (3, 4)
    bad, _ = group_of(engine, Submission(prompt, 20), 1)
    if not in_prompt:
        bad.sequences[0].processors = [lambda _, logits: (np.arange(VOCAB) == poison).astype(np.float32)]
    scheduler.submit(group)
    scheduler.step()
    scheduler.submit(bad)
    engine.poison = poison
    while scheduler.busy:
        scheduler.step()
    assert answer == expected
    assert isinstance(bad.error, EngineError)
    assert group.error is None


def test_a_drafted_row_that_the_engine_fails_on_costs_nobody_anything() -> None:
    engine = HashedEngine(VOCAB)
    wanted = [Submission((1, 2), 30), Submission((2, 1), 30)]
    expected = [alone(engine, submission) for submission in wanted]
    engine.poison = next(t for t in range(VOCAB) if all(t not in (*a.prompt, *e.tokens) for a, e in zip(
        wanted, expected, strict=True)))  # fmt: skip
    scheduler = Scheduler(engine)
    groups = [group_of(engine, submission, number, RandomProposer(VOCAB)) for number, submission in enumerate(wanted)]
    for group, _ in groups:
        scheduler.submit(group)
    while scheduler.busy:
        scheduler.step()
    assert [answer for _, answer in groups] == expected


def test_cancelling_twice_or_what_has_ended_is_nothing() -> None:
    engine = HashedEngine(VOCAB)
    scheduler = Scheduler(engine, slots=1)
    running, _ = group_of(engine, Submission((1,), 50), emits_events=True)
    waiting, _ = group_of(engine, Submission((2,), 50), 1, emits_events=True)
    first, second = scheduler.submit(running), scheduler.submit(waiting)
    scheduler.step()
    for number in (second, second, first, 99):
        scheduler.cancel(number)
    assert [event.kind for event in scheduler.step()] == ["finish", "finish"]
    assert not scheduler.busy
    assert running.stats.finish_reasons == waiting.stats.finish_reasons == ["cancelled"]
    assert not scheduler.step()
