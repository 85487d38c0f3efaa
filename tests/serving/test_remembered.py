"""Remembered responses: bounded, the oldest go first, and no key can drive out another's below its own share."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.serving.remembered import Remembered


def item(number: str, size: int = 100) -> dict[str, Any]:
    return {"id": number, "text": "x" * size}


def test_the_least_recently_used_goes_first():
    kept = Remembered(1000, 10_000)
    for number in "abcd":
        kept.keep("k", "", number, [], [item("i" + number, 200)])
    assert kept.conversation("k", "", "a") == [item("ia", 200)]
    kept.keep("k", "", "e", [], [item("ie", 200)])
    assert kept.conversation("k", "", "b") is None
    assert kept.item("k", "", "ib") is None
    assert kept.conversation("k", "", "a") is not None
    assert kept.item("k", "", "ia") == item("ia", 200)


def test_what_is_larger_than_the_bound_is_not_kept_and_drives_nothing_out():
    kept = Remembered(1000, 10_000)
    kept.keep("k", "", "a", [], [item("ia")])
    kept.keep("k", "", "b", [item("x", 900)], [item("ib")])
    assert kept.conversation("k", "", "b") is None
    assert kept.item("k", "", "ib") is None
    assert kept.conversation("k", "", "a") is not None


def test_keys_and_salts_are_apart():
    kept = Remembered(1000, 10_000)
    kept.keep("k", "s", "a", [], [item("ia")])
    for key, salt in (("k", ""), ("k", "t"), ("l", "s")):
        assert kept.conversation(key, salt, "a") is None
        assert kept.item(key, salt, "ia") is None
    kept.keep("k", "t", "a", [], [item("ia", 1)])
    assert kept.conversation("k", "s", "a") == [item("ia")]


def test_the_key_that_has_most_loses_first():
    kept = Remembered(1000, 1500)
    kept.keep("modest", "", "a", [], [item("ia", 200)])
    for number in range(20):
        kept.keep("greedy", "", str(number), [], [item(f"i{number}", 200)])
    kept.keep("third", "", "b", [], [item("ib", 200)])
    assert kept.conversation("modest", "", "a") is not None
    assert kept.conversation("third", "", "b") is not None
    assert kept.conversation("greedy", "", "19") is not None
