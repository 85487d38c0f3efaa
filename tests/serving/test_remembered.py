"""Remembered responses: bounded in memory, the oldest go first, and no key drives out another's below its own share."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from ipex_lookahead.serving.remembered import Remembered

KEY_BYTES = 20_000


def item(number: str, size: int = 2000) -> dict[str, Any]:
    return {"id": number, "text": "x" * size}


def test_the_least_recently_used_goes_first():
    kept = Remembered(KEY_BYTES, 10 * KEY_BYTES)
    for number in "abcd":
        kept.keep("k", "", number, [], [item("i" + number)])
    assert kept.conversation("k", "", "a") == [item("ia")]
    kept.keep("k", "", "e", [], [item("ie", 8000)])
    assert kept.conversation("k", "", "b") is None
    assert kept.item("k", "", "ib") is None
    assert kept.conversation("k", "", "a") is not None
    assert kept.item("k", "", "ia") == item("ia")


def test_items_are_found_where_they_are():
    kept = Remembered(KEY_BYTES, KEY_BYTES)
    before = [{"role": "user", "content": "\U0001f642"}]
    kept.keep("k", "", "a", before, [item("one", 1), item("two", 2)])
    assert kept.conversation("k", "", "a") == [*before, item("one", 1), item("two", 2)]
    assert [kept.item("k", "", name) for name in ("one", "two")] == [item("one", 1), item("two", 2)]


def test_what_is_larger_than_the_bound_is_not_kept_and_drives_nothing_out():
    kept = Remembered(KEY_BYTES, 10 * KEY_BYTES)
    kept.keep("k", "", "a", [], [item("ia")])
    kept.keep("k", "", "b", [item("x", KEY_BYTES)], [item("ib")])
    assert kept.conversation("k", "", "b") is None
    assert kept.item("k", "", "ib") is None
    assert kept.conversation("k", "", "a") is not None


def test_keys_and_salts_are_apart():
    kept = Remembered(KEY_BYTES, 10 * KEY_BYTES)
    kept.keep("k", "s", "a", [], [item("ia")])
    for key, salt in (("k", ""), ("k", "t"), ("l", "s")):
        assert kept.conversation(key, salt, "a") is None
        assert kept.item(key, salt, "ia") is None
    kept.keep("k", "t", "a", [], [item("ia", 1)])
    assert kept.conversation("k", "s", "a") == [item("ia")]


def test_the_key_that_has_most_loses_first():
    kept = Remembered(KEY_BYTES, 30_000)
    kept.keep("modest", "", "a", [], [item("ia")])
    for number in range(20):
        kept.keep("greedy", "", str(number), [], [item(f"i{number}")])
    kept.keep("third", "", "b", [], [item("ib")])
    assert kept.conversation("modest", "", "a") is not None
    assert kept.conversation("third", "", "b") is not None
    assert kept.conversation("greedy", "", "19") is not None


SHAPES: dict[str, Callable[[int], tuple[list[Any], list[Any]]]] = {
    "short answers": lambda n: ([], [{"id": f"msg_{n:024}"}]),
    "many items in one": lambda n: ([{}] * 400, [{"id": f"msg_{n:024}"}]),
    "small objects": lambda n: ([{"content": [{"a": []}] * 400}], [{"id": f"msg_{n:024}"}]),
    "many outputs": lambda n: ([], [{"id": f"fc_{n:020}_{i:03}"} for i in range(50)]),
    "letters": lambda n: ([{"content": "\u6c34" * 400}], [{"id": f"msg_{n:024}"}]),
    "one of four bytes": lambda n: ([{"content": "x" * 900 + "\U0001f642"}], [{"id": f"msg_{n:024}"}]),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("salted", [False, True])
@pytest.mark.rotating(6)
def test_the_promise_is_of_memory(shape: str, salted: bool):
    """Python's objects of small items took 17 times what their JSON has."""
    most = 1 << 16
    gc.collect()
    tracemalloc.start()
    try:
        kept = Remembered(most, most)
        for number in range(60):
            before, output = json.loads(json.dumps(SHAPES[shape](number)))
            kept.keep("a" * 16, f"{number:032}" if salted else "", f"resp_{number:024}", before, output)
        del before, output
        gc.collect()
        own = [tracemalloc.Filter(True, name) for name in ("*remembered.py", "*json*", "<string>")]  # no other threads'
        held = sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(own).traces)
    finally:
        tracemalloc.stop()
    assert most // 8 < held <= most
