"""Batches across requests: what is in them, in which order, and what happens to a request that fails or leaves."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.errors import InputError, NonFiniteError, QueueFullError, ServiceError
from ipex_lookahead.serving.embedding.batcher import MIN_BATCH_TOKENS, Batcher, Wanted
from tests.support.fake_embedding import FakeEmbedding, vector

PLAIN = Wanted()


@pytest.fixture
def model() -> FakeEmbedding:
    return FakeEmbedding(max_length=1000)


@pytest.fixture
def batcher(model: FakeEmbedding) -> Iterator[Batcher]:
    """Its target time is so short that batches have the minimum size."""
    made = Batcher(model, slots=4, queue=60, batch_seconds=1e-9)
    yield made
    model.go.set()
    made.close(5.0)


class Submitted:
    def __init__(self, batcher: Batcher, model: FakeEmbedding, texts: list[str], key: str = "", **wanted: Any) -> None:
        self._ended: queue.Queue[Any] = queue.Queue()
        self.job = batcher.submit(model.inputs(texts), Wanted(**wanted), key, self._ended.put)

    def result(self) -> Any:
        found = self._ended.get(timeout=30)
        if isinstance(found, Exception):
            raise found
        return found

    @property
    def has_ended(self) -> bool:
        return not self._ended.empty()


def hold(batcher: Batcher, model: FakeEmbedding) -> Submitted:
    """Begin a batch that waits, so that what is submitted next is batched together."""
    model.go.clear()
    while model.entered.acquire(blocking=False):
        pass
    first = Submitted(batcher, model, ["first"])
    assert model.entered.acquire(timeout=30)
    return first


def test_waiting_requests_share_a_batch(batcher, model):
    first = hold(batcher, model)
    others = [Submitted(batcher, model, [f"a{n}", f"b{n}"]) for n in range(3)]
    assert (batcher.running, batcher.waiting) == (1, 3)
    model.go.set()
    for number, other in enumerate(others):
        expected = [vector(map(ord, f"{letter}{number}"), 8) for letter in "ab"]
        assert np.array_equal(other.result(), np.stack(expected))
    first.result()
    assert [sorted(batch) for batch in model.batches] == [["first"], ["a0", "a1", "a2", "b0", "b1", "b2"]]
    assert (batcher.batches, batcher.texts, batcher.tokens) == (2, 7, 5 + 12)


def test_a_batch_is_bounded_in_tokens_and_takes_a_longer_text_alone(batcher, model):
    hold(batcher, model)
    texts = ["x" * 100, "y" * 100, "z" * 100, "w" * (MIN_BATCH_TOKENS + 1), "v"]
    large = Submitted(batcher, model, texts)
    model.go.set()
    assert len(large.result()) == 5
    assert [[text[0] for text in batch] for batch in model.batches[1:]] == [["x", "y"], ["z"], ["w"], ["v"]]


def test_the_size_of_a_batch_follows_the_speed(model):
    batcher = Batcher(model, batch_seconds=1e6)
    try:
        Submitted(batcher, model, ["warm"]).result()
        hold(batcher, model)
        large = Submitted(batcher, model, ["x" * 1000] * 16)
        model.go.set()
        large.result()
        assert len(model.batches[-1]) == 16
    finally:
        batcher.close(0.0)


def test_keys_and_requests_get_equal_shares(batcher, model):
    """A request with 30 texts delays neither another key's text nor its own key's."""
    hold(batcher, model)
    greedy = Submitted(batcher, model, ["x" * 100] * 30, "one")
    same_key = Submitted(batcher, model, ["s" * 100], "one")
    other = Submitted(batcher, model, ["o" * 100] * 2, "two")
    model.go.set()
    greedy.result()
    order = "".join(text[0] for batch in model.batches[1:] for text in batch)
    assert order.index("s") <= 4
    assert order.rindex("o") <= 4
    assert same_key.has_ended
    assert other.has_ended


def test_two_keys_alternate(batcher, model):
    hold(batcher, model)
    first = Submitted(batcher, model, ["a" * 100] * 8, "old")
    late = Submitted(batcher, model, ["b" * 100] * 8, "late")
    model.go.set()
    first.result(), late.result()
    order = "".join(text[0] for batch in model.batches[1:] for text in batch)
    assert abs(order[:8].count("a") - order[:8].count("b")) <= 1


def test_texts_that_want_something_else_are_not_in_the_batch(batcher, model):
    hold(batcher, model)
    plain, cut = Submitted(batcher, model, ["one", "two"]), Submitted(batcher, model, ["three"], dimensions=4)
    model.go.set()
    assert plain.result().shape == (2, 8)
    assert cut.result().shape == (1, 4)
    assert ["three"] in model.batches


def test_a_failure_is_that_of_one_request(batcher, model):
    hold(batcher, model)
    model.broken = "bad"
    good, bad, other = (Submitted(batcher, model, [text]) for text in ("good", "bad", "other"))
    model.go.set()
    assert good.result().shape == other.result().shape == (1, 8)
    with pytest.raises(RuntimeError, match="a broken text"):
        bad.result()
    assert Submitted(batcher, model, ["later"]).result().shape == (1, 8)


def test_values_that_are_not_finite_are_an_error(batcher, model, monkeypatch):
    monkeypatch.setattr(model, "vectors", lambda inputs, **_: np.full((len(inputs), 8), np.nan, np.float32))
    with pytest.raises(NonFiniteError, match="not finite"):
        Submitted(batcher, model, ["x"]).result()


def test_a_canceled_request_leaves_the_queue(batcher, model):
    first = hold(batcher, model)
    gone, stays = Submitted(batcher, model, ["gone"]), Submitted(batcher, model, ["stays"])
    batcher.cancel(gone.job)
    batcher.cancel(first.job)
    model.go.set()
    stays.result()
    assert ["stays"] in model.batches
    assert ["gone"] not in model.batches
    assert not gone.has_ended
    assert not first.has_ended
    assert (batcher.running, batcher.waiting) == (0, 0)


def test_the_queue_is_bounded_for_a_key_and_for_all(model):
    batcher = Batcher(model, slots=1, queue=2, running_per_key=1, queued_per_key=1)
    try:
        hold(batcher, model)
        Submitted(batcher, model, ["second"])
        with pytest.raises(QueueFullError, match="this key has 2 running and queued requests"):
            Submitted(batcher, model, ["third"])
        other = Submitted(batcher, model, ["another key"], "b")
        model.go.set()
        other.result()
    finally:
        batcher.close(5.0)
    with pytest.raises(InputError, match="slots"):
        Batcher(model, slots=0)


def test_closing_lets_requests_end_or_cuts_them(model):
    batcher = Batcher(model)
    ended = Submitted(batcher, model, ["x"])
    batcher.close(30.0)
    assert ended.result().shape == (1, 8)
    assert batcher.state == "closed"
    with pytest.raises(ServiceError, match="closed"):
        Submitted(batcher, model, ["y"])


def test_closing_without_patience_cuts_what_waits(model):
    batcher = Batcher(model)
    first = hold(batcher, model)
    second = Submitted(batcher, model, ["second"])
    closing = threading.Thread(target=batcher.close, args=(0.0,))
    closing.start()
    for cut in (first, second):
        with pytest.raises(ServiceError, match="cut off"):
            cut.result()
    model.go.set()
    closing.join(30)
    assert not closing.is_alive()
    assert ["second"] not in model.batches
