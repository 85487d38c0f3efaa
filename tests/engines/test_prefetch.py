"""Items made by a thread ahead of their use: order, bounds, errors, leaving early. Nothing waits for a time."""

from __future__ import annotations

import threading

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.engines.prefetch import prefetched
from tests.support.family_engines import each, load, some
from tests.support.tiny_families import build, write_folder


@pytest.mark.parametrize(("run", "most"), [(1, 1), (1, 5), (7, 10), (7, 10**9), (10**9, 1)])
def test_all_items_come_in_their_order(run, most):
    with prefetched(lambda i: i * i, range(500), lambda _: 1, run=run, most=most) as items:
        assert list(items) == [i * i for i in range(500)]


def test_nothing_comes_of_nothing():
    with prefetched(lambda i: i, (), lambda _: 1, run=1, most=1) as items:
        assert list(items) == []


def test_items_are_made_by_another_thread_while_those_before_are_in_use():
    second = threading.Event()

    def make(i: int) -> int:
        if i == 1:
            second.set()
        return threading.get_ident()

    with prefetched(make, range(2), lambda _: 1, run=1, most=1) as items:
        assert next(items) != threading.get_ident()
        assert second.wait(60), "the second was not begun while the first was in use"


@pytest.mark.parametrize(("run", "most", "size"), [(1, 1, 1), (1, 3, 1), (2, 3, 1), (1, 10, 4), (1, 3, 9)])
def test_no_more_than_the_bound_or_one_run_is_begun(run, most, size):
    begun: list[int] = []
    taken = 0

    def make(i: int) -> int:
        begun.append(i)
        return i

    with prefetched(make, range(200), lambda _: size, run=run * size, most=most) as items:
        for taken, _ in enumerate(items, 1):
            ahead_of_it = (len(begun) - taken) * size
            assert ahead_of_it <= max(most, run * size) + run * size  # the second term: the run in hand


def test_an_error_comes_in_place_of_its_run_after_those_before():
    def make(i: int) -> int:
        if i >= 4:
            raise KeyError(f"item {i}")
        return i

    with prefetched(make, range(100), lambda _: 1, run=2, most=100) as items:
        assert [next(items) for _ in range(4)] == [0, 1, 2, 3]
        with pytest.raises(KeyError, match="item 4"):
            next(items)


def test_leaving_early_stops_the_thread():
    begun: list[int] = []

    def make(i: int) -> int:
        begun.append(i)
        return i

    with prefetched(make, range(10**4), lambda _: 1, run=1, most=4) as items:
        next(items)
    assert not [one.name for one in threading.enumerate() if one.name.startswith("reading-ahead")]
    assert len(begun) <= 5


@each(some())
@pytest.mark.rotating(27)
def test_a_model_read_in_small_runs_is_the_same(tmp_path, monkeypatch, model_type, variant):
    folder = write_folder(tmp_path, build(model_type, variant))
    expected = dict(load(folder).weights())
    monkeypatch.setattr("ipex_lookahead.engines.load_weights.READ_AHEAD", 4096)  # both sides wait now and then
    monkeypatch.setattr("ipex_lookahead.engines.load_weights.AT_A_TIME", 512)
    got = dict(load(folder).weights())
    assert got.keys() == expected.keys()
    for name, weight in got.items():
        assert all(
            np.array_equal(a, b) for (_, a), (_, b) in zip(weight.arrays(), expected[name].arrays(), strict=True)
        )
