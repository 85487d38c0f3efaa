"""The service: many callers, one model, and each gets the bytes that it would get alone."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.config import MAX_DRAFT, LookaheadConfig
from ipex_lookahead.decoding.sequence import Sequence
from ipex_lookahead.drafting.draft import Draft
from ipex_lookahead.engines.api import OutputRequest
from ipex_lookahead.engines.prefill import chain
from ipex_lookahead.errors import ContextLengthError, InputError, LookaheadError, QueueFullError, ServiceError
from ipex_lookahead.runtime.logprobs import logprob_of
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.service import Event, Request, Service
from ipex_lookahead.runtime.text_model import TextModel
from tests.support.hashed_engine import HashedEngine
from tests.support.letters import VOCAB, text_model, tokens_of
from tests.support.scripted_engine import ScriptedEngine, markov

SECONDS = 60  # before a test gives up; nothing here takes one


@pytest.fixture
def model() -> TextModel:
    return text_model()


@pytest.fixture
def service(model: TextModel) -> Iterator[Service]:
    made = Service(model, slots=4, queue=8)
    yield made
    made.close()


RULES = [
    SamplingParams(20),
    SamplingParams(30, temperature=0.9, seed=7),
    SamplingParams(25, repetition_penalty=1.3),
    SamplingParams(40, stop=("cab",)),
]


@pytest.mark.parametrize("lookahead", [None, 3, "auto", "suffix"])
@pytest.mark.parametrize("params", RULES)
def test_a_request_gets_what_generate_gives(
    model: TextModel, service: Service, params: SamplingParams, lookahead: Any
) -> None:
    alone = model.generate([1, 2, 3], params)
    events = list(service.stream([1, 2, 3], params, lookahead=lookahead, adaptive=False))
    assert tokens_of(events) == alone
    assert [e.kind for e in events if e.kind != "tokens"] == ["prefill", "finish"]
    stats = events[-1].stats
    assert stats is not None
    assert stats.tokens == len(alone)
    assert events[-1].reason == model.stats.finish_reasons[0]
    assert stats.seed == params.seed
    assert all(len(e.origins) == len(e.tokens) for e in events)


def test_bad_requests_are_refused_at_once(service: Service) -> None:
    for prompt in ([], [VOCAB], [-1]):
        with pytest.raises(InputError):
            service.stream(prompt, SamplingParams(3))
    with pytest.raises(ContextLengthError):
        service.stream([1] * 5000, SamplingParams(3))
    with pytest.raises(InputError, match="lookahead"):
        service.stream([1], SamplingParams(3), lookahead="guesswork")


def test_a_forked_process_is_refused(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_worker", threading.Thread())  # as after a fork: it does not run
    with pytest.raises(ServiceError, match="does not run in this process"):
        service.stream([1], SamplingParams(3))
    monkeypatch.undo()
    assert tokens_of(list(service.stream([1], SamplingParams(3))))


def test_closing_a_stream_ends_the_request(service: Service) -> None:
    first = threading.Event()
    ended: list[Event] = []
    done = threading.Event()

    def tell(event: Event) -> None:
        if event.kind == "tokens":
            first.set()
            go_on.wait(SECONDS)
        if event.kind == "finish":
            ended.append(event)
            done.set()

    go_on = threading.Event()
    ticket = service.submit(Request([1, 2], SamplingParams(3000)), tell)
    assert first.wait(SECONDS)
    ticket.cancel()
    go_on.set()
    assert done.wait(SECONDS)
    assert ended[0].reason == "cancelled"
    assert ended[0].stats is not None
    assert ended[0].stats.tokens <= 2


def test_a_full_queue_says_when_to_come_again(model: TextModel) -> None:
    with_room_for_one = Service(model, slots=1, queue=1)
    busy, go_on = threading.Event(), threading.Event()

    def hold(event: Event) -> None:
        busy.set()
        go_on.wait(SECONDS)

    with_room_for_one.submit(Request([1], SamplingParams(3)), hold)
    assert busy.wait(SECONDS)
    waiting = with_room_for_one.stream([2], SamplingParams(3))
    with pytest.raises(QueueFullError) as caught:
        with_room_for_one.stream([3], SamplingParams(3))
    assert caught.value.retry_after > 0
    go_on.set()
    assert list(waiting)[-1].kind == "finish"
    with_room_for_one.close()


def test_a_closed_service_takes_nothing(model: TextModel) -> None:
    made = Service(model)
    stream = made.stream([1, 2], SamplingParams(40))
    made.close(drain=SECONDS)
    assert len(tokens_of(list(stream))) == 40
    assert made.state == "closed"
    with pytest.raises(ServiceError, match="closed"):
        made.stream([1], SamplingParams(3))
    made.close()


def requests(count: int) -> list[tuple[list[int], SamplingParams, dict[str, Any]]]:
    """Prompts that begin alike, greedy and sampled, with every kind of draft."""
    rng = np.random.default_rng(3)
    common = rng.integers(0, VOCAB, 150).tolist()
    made = []
    for number in range(count):
        prompt = common[: int(rng.choice([0, 70, 150]))] + rng.integers(0, VOCAB, 5 + number).tolist()
        params = SamplingParams(40, temperature=0.0 if number % 2 else 0.8, seed=number)
        drafting = [{}, {"lookahead": 4, "adaptive": False}, {"lookahead": "auto"}, {"lookahead": "suffix"}]
        prediction = rng.integers(0, VOCAB, 50).tolist() if number % 3 == 0 else []
        made.append((prompt, params, {**drafting[number % 4], "prediction": prediction, "sequence": number % 2}))
    return made


@pytest.mark.parametrize("pages", [6, 9, 200])
def test_alone_in_a_crowd_warm_evicted_and_put_back_are_the_same_bytes(pages: int) -> None:
    engine = HashedEngine(VOCAB, seed=1)
    model = text_model(engine)
    wanted = requests(10)

    def answers(made: Service, *, at_once: bool, top: int | None = None) -> list[list[Event]]:
        streams, found = [], []
        for prompt, params, options in wanted:
            stream = made.stream(prompt, params, top_logprobs=top, **options)
            found.append(list(stream) if not at_once else [])
            streams.append(stream)
        return [list(stream) for stream in streams] if at_once else found

    alone = Service(model, slots=1, queue=20)
    expected = answers(alone, at_once=False, top=3)
    alone.close()
    made = Service(model, slots=6, queue=20, cache_memory=pages * 64)
    assert made._memory.pages == pages
    for at_once in (True, False, True):
        got = answers(made, at_once=at_once, top=3)
        assert [tokens_of(events) for events in got] == [tokens_of(events) for events in expected]
        for mine, theirs in zip(got, expected, strict=True):
            assert logprobs_of(mine) == logprobs_of(theirs)
            assert [e.kind for e in mine][-1] == "finish"
    made.close()
    assert made.kv_bytes <= pages * 64
    if pages == 200:
        assert made.cached_tokens > 0


def logprobs_of(events: list[Event]) -> list[Any]:
    return [one for event in events for one in event.logprobs or ()]


def test_log_probabilities_are_those_of_the_raw_logits(model: TextModel, service: Service) -> None:
    params = SamplingParams(12, temperature=0.7, seed=3, presence_penalty=1.0)
    events = list(service.stream([1, 2], params, top_logprobs=4, lookahead="auto"))
    found, text = logprobs_of(events), [1, 2]
    assert len(found) == 12
    assert isinstance(model.engine, ScriptedEngine)
    for one in found:
        logits = model.engine._logits_of(text).astype(np.float64)
        expected = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        assert one.logprob == pytest.approx(expected[one.token], abs=1e-6)
        assert [token for token, _ in one.top] == np.argsort(-expected, kind="stable")[:4].tolist()
        assert [p for _, p in one.top] == pytest.approx(sorted(expected)[::-1][:4], abs=1e-6)
        text.append(one.token)
    (plain,) = [e.logprobs for e in service.stream([1], SamplingParams(1), top_logprobs=0) if e.tokens]
    assert plain is not None
    assert plain[0].top == ()
    assert all(e.logprobs is None for e in service.stream([1], SamplingParams(3)))
    with pytest.raises(InputError, match="top_logprobs is 65"):
        service.stream([1], SamplingParams(3), top_logprobs=65)


@pytest.mark.parametrize("pages", [6, 200])
def test_log_probabilities_of_a_prompt_are_those_of_one_forward(pages: int) -> None:
    """In a running batch, on a warm cache, preempted or only read: to the last bit."""
    model = text_model(HashedEngine(VOCAB, seed=1))
    made = Service(model, slots=4, queue=20, cache_memory=pages * 64)
    wanted = requests(10)
    for _ in range(2):
        streams = [
            made.stream(prompt, SamplingParams(0) if number % 3 == 0 else params, prompt_logprobs=2, **options)
            for number, (prompt, params, options) in enumerate(wanted)
        ]
        for number, (stream, (prompt, params, _)) in enumerate(zip(streams, wanted, strict=True)):
            events = list(stream)
            (found,) = [event.prompt_logprobs for event in events if event.prompt_logprobs is not None]
            logits = model.engine.forward(
                chain(model.engine.new_cache(), np.array(prompt, np.int32), OutputRequest(logits=True))
            ).logits
            assert logits is not None
            expected = [logprob_of(token, row, 2) for token, row in zip(prompt[1:], logits, strict=False)]
            assert found == [None, *expected]
            assert tokens_of(events) == ([] if number % 3 == 0 else model.generate(prompt, params))
            assert events[-1].kind == "finish"
    made.close()


def test_a_prompt_without_finite_logits_is_an_error(model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = model.engine.forward

    def broken(batch: Any) -> Any:
        output = forward(batch)
        output.argmax[0] = -1
        return output

    monkeypatch.setattr(model.engine, "forward", broken)
    made = Service(model)
    (event,) = made.stream([1, 2, 3], SamplingParams(0), prompt_logprobs=0)
    assert "NaN" in str(event.error)
    with pytest.raises(InputError, match="prompt_logprobs is -1"):
        made.stream([1], SamplingParams(3), prompt_logprobs=-1)
    made.close()


def test_a_prediction_that_is_right_is_accepted_and_counted(service: Service) -> None:
    answer = tokens_of(list(service.stream([5, 6], SamplingParams(40))))
    for prediction in (answer, [*answer[:10], 3, 3, 3, *answer[14:]]):
        events = list(service.stream([5, 6], SamplingParams(40), prediction=prediction, adaptive=False))
        stats = events[-1].stats
        assert tokens_of(events) == answer
        assert stats is not None
        assert stats.accepted_by_source["prediction"] >= 15
        assert [o for e in events for o in e.origins].count("prediction") == stats.accepted_by_source["prediction"]
    with pytest.raises(InputError, match="prediction"):
        service.stream([1], SamplingParams(3), prediction=[VOCAB])


def test_processors_see_each_position_once_and_filters_cut_drafts(service: Service) -> None:
    seen: list[list[int]] = []
    cut: list[int] = []

    def even(prefix: Any, logits: Any) -> Any:
        seen.append(prefix.tolist())
        logits = logits.copy()
        logits[1::2] = -np.inf
        return logits

    def admitted(prefix: Any, draft: Draft) -> Draft:
        good = next((at for at, token in enumerate(draft.tokens) if token % 2), len(draft.tokens))
        cut.append(good)
        assert prefix.tolist() == seen[-1] + [int(prefix[-1])]
        return draft.first(good)

    plain = tokens_of(list(service.stream([1, 2], SamplingParams(30), processors=[even])))
    seen.clear()
    options: dict[str, Any] = {"lookahead": "suffix", "adaptive": False, "prediction": [2, 4, 7, 9]}
    events = list(service.stream([1, 2], SamplingParams(30), processors=[even], draft_filter=admitted, **options))
    assert tokens_of(events) == plain
    assert not any(token % 2 for token in plain)
    assert [len(prefix) for prefix in seen] == list(range(2, 32))
    assert cut


SERVICE_FAULTS = {
    "a trained head": "ipex_lookahead.runtime.drafting.Drafting.prepare",
    "a proposer's constructor": "ipex_lookahead.runtime.drafting.make_proposer",
    "a store": "ipex_lookahead.drafting.store.Stores.open_or_none",
    "a log probability": "ipex_lookahead.runtime.service.logprob_of",
    "a controller": "ipex_lookahead.runtime.service.make_controller",
}


@pytest.mark.parametrize("fault", [*SERVICE_FAULTS, "a processor"])
def test_what_the_service_does_for_one_request_may_fail(
    model: TextModel, service: Service, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request gets the error, and its slot is free; another one goes on, and the next is served."""
    rule = SamplingParams(60, temperature=1.0, seed=3)
    alone = model.generate([3, 4], rule)
    fine = service.stream([3, 4], rule)
    next(fine)

    def fails(*_: Any, **__: Any) -> Any:
        raise MemoryError("by design")

    with monkeypatch.context() as broken:
        own = [] if fault in SERVICE_FAULTS else [lambda prefix, logits: fails() if len(prefix) > 6 else logits]
        if not own:
            broken.setattr(SERVICE_FAULTS[fault], fails)
        options: dict[str, Any] = {"lookahead": None if own else "auto", "top_logprobs": 2, "processors": own}
        bad = list(service.stream([1, 2], SamplingParams(9), key="bad", **options))
    assert bad[-1].kind == "error"
    assert isinstance(bad[-1].error, LookaheadError)
    assert "by design" in str(bad[-1].error)
    assert not own or len(tokens_of(bad)) == 5
    assert tokens_of(list(fine)) == alone
    assert tokens_of(list(service.stream([3, 4], rule, lookahead="auto"))) == alone
    assert service.state == "ready"
    assert service.running == service.waiting == 0


def test_an_answer_that_cannot_be_remembered_is_an_answer(
    model: TextModel, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ipex_lookahead.drafting.store.Stores.add", fails)
    events = list(service.stream([1, 2], SamplingParams(9), lookahead="auto", key="bad"))
    assert events[-1].kind == "finish"
    assert tokens_of(events) == model.generate([1, 2], SamplingParams(9))
    assert service.state == "ready"


def test_the_controllers_of_callers_with_ever_new_configurations_make_way_one_by_one(model: TextModel) -> None:
    """The one that is used again and again keeps what it has learned."""
    service = Service(model)
    try:
        usual = LookaheadConfig(num_draft_tokens=3)
        first = service._controller(usual)
        for ngram in range(1, 300):
            service._controller(LookaheadConfig("suffix", draft_min_prob=ngram / 300))
            assert service._controller(usual) is first
        assert len(service._controllers) <= MAX_DRAFT
    finally:
        service.close()


def test_who_cannot_be_told_is_served_no_longer(service: Service) -> None:
    calls: list[str] = []
    over = threading.Event()

    def deaf(event: Event) -> None:
        calls.append(event.kind)
        if event.kind == "finish":
            over.set()
        if event.kind == "tokens":
            raise OSError("gone")

    service.submit(Request([1, 2], SamplingParams(1000)), deaf)
    assert over.wait(SECONDS)
    assert calls.count("tokens") == 1
    assert len(tokens_of(list(service.stream([1, 2], SamplingParams(5))))) == 5


def test_keys_and_their_salts_share_neither_prompts_nor_answers() -> None:
    made = Service(text_model(HashedEngine(VOCAB)), cache_memory=200 * 64)
    prompt = np.random.default_rng(0).integers(0, VOCAB, 130).tolist()
    answers = set()

    def cached(key: str, salt: str) -> int:
        events = list(made.stream(prompt, SamplingParams(30), key=key, salt=salt, lookahead="auto"))
        answers.add(tuple(tokens_of(events)))
        assert events[-1].stats is not None
        return events[-1].stats.cached_tokens

    owners = [("", "x"), ("", "y"), ("alice", "x"), ("", ""), ("alice", ""), ("", "x"), ("alice", "x"), ("alice", "")]
    assert [cached(*one) for one in owners] == [0, 0, 0, 0, 0, 129, 129, 129]
    assert len(answers) == 1
    names = ("memory", "memory:#x", "memory:#y", "memory:alice#x", "memory:alice")
    stores = [made.model.stores.get(name) for name in names]
    assert len({id(one) for one in stores}) == 5
    assert all(map(len, stores))
    made.close()


def test_a_store_in_a_file_is_one_for_each_key(tmp_path: Path) -> None:
    """Drafts come of the asker's own answers only: ``draft_by_source`` would tell of others'."""
    config = LookaheadConfig("auto", 8, store=str(tmp_path / "answers.store"))

    def from_store(made: Service, key: str, salt: str = "") -> int:
        stats = list(made.stream([1, 2, 3], SamplingParams(40), key=key, salt=salt, lookahead=config, adaptive=False))[
            -1
        ].stats
        assert stats is not None
        stats.fold()
        return stats.drafted_by_source["store"]

    for opened in range(2):  # the second time from what the first has written
        made = Service(text_model(HashedEngine(VOCAB)))
        known = opened == 1
        assert [from_store(made, key) > 0 for key in ("alice", "bob", "")] == [known] * 3
        assert [from_store(made, key) > 0 for key in ("alice", "bob", "")] == [True] * 3
        assert from_store(made, "alice", "salt") == 0
        made.close()
        found = sorted(file.name for file in tmp_path.iterdir())
        assert found == ["answers.store", "answers.store.alice", "answers.store.bob"]


def test_a_damaged_store_costs_its_key_drafts_and_nobody_an_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "answers.store"
    config = LookaheadConfig("auto", 8, store=str(store))
    (tmp_path / "answers.store.alice").write_bytes(b"ipex-lookahead S, and what follows is damaged")
    (tmp_path / "answers.store.carol").mkdir()
    made = Service(text_model(HashedEngine(VOCAB)))
    try:
        for tokens in (1, 40, 40):  # a single one is not drafted for, and is kept
            for key in ("alice", "bob", "carol"):
                events = list(made.stream([1, 2, 3], SamplingParams(tokens), key=key, lookahead=config))
                assert events[-1].kind == "finish", events[-1].error
        made.model.stores.flush()  # files are written in the background
        store.with_name("answers.store.bob").unlink()
        store.with_name("answers.store.bob").mkdir()  # where it can no longer be written
        for _ in range(2):
            assert list(made.stream([1, 2], SamplingParams(9), key="bob", lookahead=config))[-1].kind == "finish"
        made.model.stores.flush()
        said = [record.getMessage() for record in caplog.records]
        assert [sum(key in one for one in said) for key in ("alice", "bob", "carol")] == [1, 1, 1]
        with pytest.raises(InputError, match="damaged"):
            made.model.stores.get(str(store) + ".alice")
    finally:
        made.close()


@pytest.mark.parametrize("lookahead", [None, "auto"])
def test_what_has_ended_holds_nothing_until_python_looks_for_circles(lookahead: Any) -> None:
    """In a server of a 135M model each such circle was a page of keys and values: 1 GiB in 100 seconds."""

    def sequences() -> int:
        return sum(type(one) is Sequence for one in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = sequences()
        service = Service(text_model(), slots=2)
        for token in range(1, 5):
            list(service.stream([1, 2, token], SamplingParams(20), lookahead=lookahead))
        leaving = service.stream([1, 2, 3], SamplingParams(200), lookahead=lookahead)
        next(leaving)
        leaving.close()
        service.close()
        del leaving
        assert sequences() == before
    finally:
        gc.enable()


def test_closing_ends_what_is_left() -> None:
    engine = markov(VOCAB, order=2, seed=4)
    engine.before_forward = lambda: time.sleep(
        0.02
    )  # 4,000 tokens take longer than any machine needs to get to the end
    made = Service(text_model(engine), slots=2)
    streams = [made.stream([number], SamplingParams(4000)) for number in range(4)]
    assert next(iter(streams[0])).kind == "prefill"
    made.close()
    for stream in streams:
        assert list(stream)[-1].reason == "cancelled"
    assert made.running == made.waiting == 0


def test_a_model_whose_config_cannot_be_obeyed_is_refused_at_the_start() -> None:
    with pytest.raises(InputError, match="generation config: num_beams=4 is not supported"):
        Service(text_model(num_beams=4))
