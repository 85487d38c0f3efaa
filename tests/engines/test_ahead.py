"""Items made by a thread ahead of their use: order, bounds, errors, leaving early. Nothing waits for a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.engines.ahead import ahead
from tests.support.family_engines import each, load, some
from tests.support.tiny_families import build, write_folder


def counted(made: list[int], count: int) -> Iterator[int]:
    for i in range(count):
        made.append(i)
        yield i


@pytest.mark.parametrize("most", [1, 5, 10**9])
def test_all_items_come_in_their_order(most):
    with ahead(iter(range(1000)), lambda _: 1, most) as items:
        assert list(items) == list(range(1000))


def test_nothing_comes_of_nothing():
    with ahead(iter(()), lambda _: 1, 1) as items:
        assert list(items) == []


def test_items_are_made_by_another_thread_while_those_before_are_in_use():
    second = threading.Event()

    def make() -> Iterator[int]:
        yield threading.get_ident()
        second.set()
        yield threading.get_ident()

    with ahead(make(), lambda _: 1, 1) as items:
        assert next(items) != threading.get_ident()
        assert second.wait(60), "the second was not begun while the first was in use"


@pytest.mark.parametrize(("most", "size"), [(1, 1), (3, 1), (3, 2), (10, 4)])
def test_no_more_than_the_bound_and_one_item_wait(most, size):
    made: list[int] = []
    taken = 0
    with ahead(counted(made, 200), lambda _: size, most) as items:
        for taken, _ in enumerate(items, 1):
            waiting = (len(made) - taken) * size
            assert waiting < most + 2 * size  # what is being made was counted when it was begun


def test_an_error_comes_where_its_item_would():
    def make() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("the third")

    with ahead(make(), lambda _: 1, 10) as items:
        assert [next(items), next(items)] == [1, 2]
        with pytest.raises(KeyError, match="the third"):
            next(items)


def test_leaving_early_stops_the_thread():
    made: list[int] = []
    with ahead(counted(made, 10**9), lambda _: 1, 4) as items:
        next(items)
    assert "reading-ahead" not in {thread.name for thread in threading.enumerate()}
    assert len(made) <= 6


@each(some())
def test_a_model_read_ahead_is_the_same(tmp_path, monkeypatch, model_type, variant):
    folder = write_folder(tmp_path, build(model_type, variant))
    expected = dict(load(folder).weights())
    monkeypatch.setattr("ipex_lookahead.engines.native.engine.LARGE", 0)
    monkeypatch.setattr("ipex_lookahead.engines.native.engine.READ_AHEAD", 4096)  # both sides wait now and then
    got = dict(load(folder).weights())
    assert got.keys() == expected.keys()
    for name, weight in got.items():
        assert all(
            np.array_equal(a, b) for (_, a), (_, b) in zip(weight.arrays(), expected[name].arrays(), strict=True)
        )
