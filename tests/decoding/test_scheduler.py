"""The scheduler: whoever shares a forward with whom, each gets its tokens, chosen from its logits, by bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.decoding.budget import AdaptiveBudget, Controller, FixedBudget
from ipex_lookahead.decoding.calibration import Calibration
from ipex_lookahead.decoding.cost import CostCurve
from ipex_lookahead.decoding.party import Party
from ipex_lookahead.decoding.prefix_cache import PAGE, PrefixCache, pages_of
from ipex_lookahead.decoding.scheduler import DELAY, LEAST_PIECE, Scheduler
from ipex_lookahead.drafting import PROPOSERS, make_proposer
from ipex_lookahead.drafting.base import Proposer
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.drafting.prediction import Prediction
from ipex_lookahead.errors import ContextLengthError, EngineError, InputError
from tests.support.hashed_engine import HashedEngine
from tests.support.parties import Answer, Ask, alone, party_of
from tests.support.proposers import OracleProposer, RandomProposer, TreeProposer, WidenedAuto

VOCAB = 11
CURVE = Calibration((1, 2, 4, 5, 8, 16, 32), (1.0, 1.06, 1.18, 1.5, 1.75, 2.8, 5.0))

Make = Callable[[Ask, Answer], Proposer | None]
MAKERS: dict[str, Make] = {
    "none": lambda ask, plain: None,
    **{
        name: lambda ask, plain, name=name: make_proposer(LookaheadConfig(name, 16))  # type: ignore[misc]
        for name in PROPOSERS
    },
    "auto, widened": lambda ask, plain: WidenedAuto(),
    "random": lambda ask, plain: RandomProposer(VOCAB),
    "oracle": lambda ask, plain: OracleProposer([*ask.prompt, *plain.tokens]),
    "trees": lambda ask, plain: TreeProposer(VOCAB, [*ask.prompt, *plain.tokens]),
    "prediction": lambda ask, plain: Prediction(plain.tokens, make_proposer(LookaheadConfig("suffix"))),
}


def asks(seed: int, count: int) -> list[Ask]:
    """Requests some of whose prompts begin alike."""
    rng = np.random.default_rng(seed)
    common = rng.integers(1, VOCAB, 200).tolist()
    found = []
    for number in range(count):
        own = rng.integers(1, VOCAB, int(rng.integers(1, 60))).tolist()
        prompt = common[: int(rng.choice([0, 0, 64, 100, 130, 200]))] + own
        seed_of = None if number % 2 else int(rng.integers(1000))
        stop = 0 if number % 3 else None
        found.append(Ask(tuple(prompt), int(rng.integers(1, 70)), seed_of, stop))
    return found


def controllers(kind: str) -> Callable[[], Controller]:
    """What parties decode by: all by one, or each by its own."""
    if kind == "one for all":
        one = AdaptiveBudget(CostCurve(CURVE), 16, "test")
        return lambda: one
    return lambda: FixedBudget(7)


@pytest.mark.parametrize("memory", [None, 7, 60])
@pytest.mark.parametrize("kind", ["one for all", "each its own"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_crowd_that_comes_and_goes_leaves_everyone_alone(name: str, kind: str, memory: int | None) -> None:
    engine = HashedEngine(VOCAB)
    rng = np.random.default_rng(5)
    wanted = asks(1, 9)
    plain = [alone(engine, ask) for ask in wanted]
    pages = None if memory is None else PrefixCache(memory)
    scheduler = Scheduler(engine, slots=5, memory=pages, time=CostCurve(CURVE), prefill_rows=48)
    controller = controllers(kind)
    answers: dict[int, Answer] = {}
    ended: dict[int, Party] = {}
    waiting = list(range(len(wanted)))
    left = 0
    while waiting or scheduler.busy:
        if waiting and rng.random() < 0.3:
            number = waiting.pop(0)
            proposer = MAKERS[name](wanted[number], plain[number])
            party, answers[number] = party_of(engine, wanted[number], number, proposer, controller(), told=True)
            scheduler.submit(party)
            ended[number] = party
            if number % 5 == 4:
                left = party.id
        elif left and rng.random() < 0.1:
            scheduler.cancel(left)
            left = 0
        scheduler.step()
        assert pages is None or pages.used <= pages.pages
    assert scheduler.running == scheduler.waiting == 0
    for number, expected in enumerate(plain):
        got, finish = answers[number], ended[number].sequences[0].finish
        if finish == "cancelled":
            assert got.tokens == expected.tokens[: len(got.tokens)]
            assert got.logits == expected.logits[: len(got.logits)]
        else:
            assert got == expected
            assert finish == ("stop" if expected.tokens[-1] == wanted[number].stop else "length")
        assert ended[number].stats.tokens == len(got.tokens)
    if pages is not None:
        assert pages.available == pages.pages, "what has ended holds nothing"
        assert memory != 60 or pages.hits > 0


def test_news_are_each_partys_in_order() -> None:
    engine = HashedEngine(VOCAB)
    wanted = asks(2, 6)
    scheduler = Scheduler(engine, prefill_rows=32)
    parties = {}
    for number, ask in enumerate(wanted):
        proposer = OracleProposer([*ask.prompt, *alone(engine, ask).tokens])
        party, answer = party_of(engine, ask, number, proposer, told=True)
        parties[scheduler.submit(party)] = ask, answer, party
    news: dict[int, list[Any]] = {number: [] for number in parties}
    while scheduler.busy:
        for event in scheduler.step():
            news[event.id].append(event)
    for number, (ask, answer, party) in parties.items():
        kinds = [event.kind for event in news[number]]
        assert kinds[-1] == "finish"
        assert kinds == sorted(kinds, key=["prefill", "tokens", "finish"].index)
        assert [e.done for e in news[number] if e.kind == "prefill"][-1] == len(ask.prompt)
        told = [event for event in news[number] if event.kind == "tokens"]
        assert [token for event in told for token in event.tokens] == answer.tokens
        assert [origin for event in told for origin in event.origins] == party.stats.origins()
        assert all(len(event.tokens) == len(event.origins) for event in told)


@pytest.mark.parametrize("key_row_seconds", [0.0, 0.0005], ids=["", "attention is dear"])
def test_a_long_prompt_delays_running_streams_by_no_more_than_said(key_row_seconds: float) -> None:
    engine = HashedEngine(VOCAB)
    curve = CostCurve(replace(CURVE, key_row_seconds=key_row_seconds))
    scheduler = Scheduler(engine, time=curve)
    stream, _ = party_of(engine, Ask((1, 2, 3), 300))
    scheduler.submit(stream)
    scheduler.step()
    scheduler.step()
    long, _ = party_of(engine, Ask(tuple([4, 5] * 700), 3), 1)
    scheduler.submit(long)
    engine.batches.clear()
    while long.stats.tokens == 0:
        scheduler.step()
    read = 0
    for step, counts in enumerate(engine.batches):
        assert len(counts) == 2, "the stream goes on at every step"
        read += counts[1]
        assert curve(sum(counts), read) <= max(DELAY * curve(1, 3 + step), curve(1 + LEAST_PIECE, read))
    assert max(counts[1] for counts in engine.batches) > LEAST_PIECE
    assert stream.stats.tokens >= len(engine.batches)


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    engine = HashedEngine(VOCAB)
    scheduler = Scheduler(engine, prefill_rows=64)
    long, _ = party_of(engine, Ask(tuple([4, 5] * 700), 3))
    short, _ = party_of(engine, Ask((1, 2, 3), 3), 1)
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
    parties = [party_of(engine, Ask((*prompt, number), 5), number) for number in range(4)]
    for party, _ in parties:
        scheduler.submit(party)
    while scheduler.busy:
        scheduler.step()
    read = [party.stats.prompt_tokens - party.stats.cached_tokens for party, _ in parties]
    assert read == [301, *[301 - 256] * 3]
    for number, (_, answer) in enumerate(parties):
        assert answer == alone(engine, Ask((*prompt, number), 5))


@pytest.mark.parametrize("kind", ["one for all", "each its own"])
@pytest.mark.parametrize("name", MAKERS)
def test_put_back_parties_lose_nothing(name: str, kind: str) -> None:
    """Three that grow where there is room for one: the younger make way, and go on later."""
    engine = HashedEngine(VOCAB)
    memory = PrefixCache(pages_of(200))
    scheduler = Scheduler(engine, memory=memory)
    wanted = [Ask((1, 2, 3), 190), Ask((4, 5), 195, seed=3), Ask((1, 2, 4), 195, seed=4)]
    plain = [alone(engine, ask) for ask in wanted]
    controller = controllers(kind)
    parties = [
        party_of(engine, ask, number, MAKERS[name](ask, plain[number]), controller())
        for number, ask in enumerate(wanted)
    ]
    for party, _ in parties:
        scheduler.submit(party)
    while scheduler.busy:
        scheduler.step()
        assert memory.used <= memory.pages
    assert scheduler.put_back > 0
    assert [answer for _, answer in parties] == plain
    assert [party.stats.prompt_tokens for party, _ in parties] == [len(ask.prompt) for ask in wanted]


def test_what_never_fits_is_refused() -> None:
    engine = HashedEngine(VOCAB)
    scheduler = Scheduler(engine, memory=PrefixCache(2))
    with pytest.raises(ContextLengthError, match="129 positions take 3 pages"):
        scheduler.submit(party_of(engine, Ask((1,), 2 * PAGE))[0])
    party, answer = party_of(engine, Ask((1,), 2 * PAGE - 1), 0, RandomProposer(VOCAB), FixedBudget(128))
    scheduler.submit(party)
    while scheduler.busy:
        scheduler.step()
    assert answer == alone(engine, Ask((1,), 2 * PAGE - 1))


class Failing:
    """A proposer that raises at its third draft."""

    top = 0

    def __init__(self, error: Exception) -> None:
        self._error, self._drafts = error, 0

    def begin(self, prompt: Any) -> None: ...

    def observe(self, outcome: Outcome) -> None: ...

    def propose(self, budget: int) -> Draft:
        self._drafts += 1
        if self._drafts == 3:
            raise self._error
        return Draft([1], [-1])


def test_one_partys_fault_is_its_own() -> None:
    engine = HashedEngine(VOCAB)
    scheduler = Scheduler(engine)
    bystander, answer = party_of(engine, Ask((1, 2), 30), 0, RandomProposer(VOCAB), told=True)
    scheduler.submit(bystander)
    proposing, _ = party_of(engine, Ask((1, 3), 30), 1, Failing(ZeroDivisionError("by design")), told=True)
    scheduler.submit(proposing)
    ruling, _ = party_of(engine, Ask((2, 3), 30), 2, told=True)
    calls: list[int] = []

    def accept(token: int) -> bool:
        calls.append(token)
        if len(calls) == 5:
            raise InputError("the rule fails")
        return False

    ruling.sequences[0].accept = accept
    scheduler.submit(ruling)
    kinds: dict[int, str] = {}
    while scheduler.busy:
        for event in scheduler.step():
            kinds[event.id] = event.kind
    assert answer == alone(engine, Ask((1, 2), 30))
    assert kinds == {1: "finish", 2: "error", 3: "error"}
    assert isinstance(proposing.error, ZeroDivisionError)
    assert isinstance(ruling.error, InputError)
    assert ruling.stats.finish_reasons == ["abandoned"]
    assert bystander.error is None


@pytest.mark.parametrize("in_prompt", [True, False])
def test_rows_that_the_engine_fails_on_end_whose_they_are(in_prompt: bool) -> None:
    engine = HashedEngine(VOCAB)
    fine = Ask((1, 2), 30)
    expected = alone(engine, fine)
    scheduler = Scheduler(engine)
    party, answer = party_of(engine, fine, 0, OracleProposer([*fine.prompt, *expected.tokens]))
    poison = next(token for token in range(VOCAB) if token not in (*fine.prompt, *expected.tokens))
    prompt = (3, poison) if in_prompt else (3, 4)
    bad, _ = party_of(engine, Ask(prompt, 20), 1)
    if not in_prompt:
        bad.sequences[0].choose = lambda logits: poison
    scheduler.submit(party)
    scheduler.step()
    scheduler.submit(bad)
    engine.poison = poison
    while scheduler.busy:
        scheduler.step()
    assert answer == expected
    assert isinstance(bad.error, EngineError)
    assert party.error is None


def test_a_drafted_row_that_the_engine_fails_on_costs_nobody_anything() -> None:
    engine = HashedEngine(VOCAB)
    wanted = [Ask((1, 2), 30), Ask((2, 1), 30)]
    expected = [alone(engine, ask) for ask in wanted]
    engine.poison = next(t for t in range(VOCAB) if all(t not in (*a.prompt, *e.tokens) for a, e in zip(
        wanted, expected, strict=True)))  # fmt: skip
    scheduler = Scheduler(engine)
    parties = [party_of(engine, ask, number, RandomProposer(VOCAB)) for number, ask in enumerate(wanted)]
    for party, _ in parties:
        scheduler.submit(party)
    while scheduler.busy:
        scheduler.step()
    assert [answer for _, answer in parties] == expected


def test_cancelling_twice_or_what_has_ended_is_nothing() -> None:
    engine = HashedEngine(VOCAB)
    scheduler = Scheduler(engine, slots=1)
    running, _ = party_of(engine, Ask((1,), 50), told=True)
    waiting, _ = party_of(engine, Ask((2,), 50), 1, told=True)
    first, second = scheduler.submit(running), scheduler.submit(waiting)
    scheduler.step()
    for number in (second, second, first, 99):
        scheduler.cancel(number)
    assert [event.kind for event in scheduler.step()] == ["finish", "finish"]
    assert not scheduler.busy
    assert running.stats.finish_reasons == waiting.stats.finish_reasons == ["cancelled"]
    assert not scheduler.step()
