"""The service: many callers, one model, and each gets the bytes that it would get alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ipex_lookahead.engines.loading import LoadedModel
from ipex_lookahead.errors import ContextLengthError, InputError, QueueFullError, ServiceError
from ipex_lookahead.generation.rules import Rules
from ipex_lookahead.generation.service import Event, Service
from ipex_lookahead.generation.text_model import TextModel
from tests.support.scripted_engine import markov

VOCAB = 24
SECONDS = 60  # before a test gives up; nothing here takes one


class Letters:
    """A tokenizer of one letter a token."""

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        return "".join(chr(ord("a") + token) for token in ids)

    def get_vocab(self) -> dict[str, int]:
        return {chr(ord("a") + token): token for token in range(VOCAB)}


def text_model(**generation_config: Any) -> TextModel:
    engine = markov(VOCAB, order=2, seed=4)
    loaded = LoadedModel(engine, "fp32", generation_config=generation_config)
    return TextModel(loaded, Letters())  # type: ignore[arg-type]


@pytest.fixture
def model() -> TextModel:
    return text_model()


@pytest.fixture
def service(model: TextModel) -> Iterator[Service]:
    made = Service(model, slots=4, queue=8)
    yield made
    made.close()


def tokens_of(events: list[Event]) -> list[int]:
    return [token for event in events for token in event.tokens]


RULES = [Rules(20), Rules(30, temperature=0.9, seed=7), Rules(25, repetition_penalty=1.3), Rules(40, stop=("cab",))]


@pytest.mark.parametrize("lookahead", [None, 3, "auto", "suffix"])
@pytest.mark.parametrize("rules", RULES)
def test_a_request_gets_what_generate_gives(model: TextModel, service: Service, rules: Rules, lookahead: Any) -> None:
    alone = model.generate([1, 2, 3], rules)
    events = list(service.stream([1, 2, 3], rules, lookahead=lookahead, adaptive=False))
    assert tokens_of(events) == alone
    assert [e.kind for e in events if e.kind != "tokens"] == ["prefill", "finish"]
    stats = events[-1].stats
    assert stats is not None
    assert stats.tokens == len(alone)
    assert events[-1].reason == model.stats.finish_reasons[0]
    assert stats.seed == rules.seed
    assert all(len(e.origins) == len(e.tokens) for e in events)


def test_no_new_tokens_are_none(service: Service) -> None:
    events = list(service.stream([1, 2], Rules(0)))
    assert [e.kind for e in events] == ["finish"]
    assert events[0].reason == "length"


def test_bad_requests_are_refused_at_once(service: Service) -> None:
    for prompt in ([], [VOCAB], [-1]):
        with pytest.raises(InputError):
            service.stream(prompt, Rules(3))
    with pytest.raises(ContextLengthError):
        service.stream([1] * 5000, Rules(3))
    with pytest.raises(InputError, match="lookahead"):
        service.stream([1], Rules(3), lookahead="guesswork")


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
    ticket = service.submit([1, 2], Rules(3000), tell)
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

    with_room_for_one.submit([1], Rules(3), hold)
    assert busy.wait(SECONDS)
    waiting = with_room_for_one.stream([2], Rules(3))
    with pytest.raises(QueueFullError) as caught:
        with_room_for_one.stream([3], Rules(3))
    assert caught.value.retry_after > 0
    go_on.set()
    assert list(waiting)[-1].kind == "finish"
    with_room_for_one.close()


def test_a_closed_service_takes_nothing(model: TextModel) -> None:
    made = Service(model)
    stream = made.stream([1, 2], Rules(40))
    made.close(drain=SECONDS)
    assert len(tokens_of(list(stream))) == 40
    assert made.state == "closed"
    with pytest.raises(ServiceError, match="closed"):
        made.stream([1], Rules(3))
    made.close()
