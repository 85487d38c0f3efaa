"""What a refusal lets pass."""

from __future__ import annotations

from ipex_lookahead.files.refusal import Refusal, same


def test_values_that_ask_for_nothing_pass() -> None:
    refusal = Refusal("asks for an encoder", unless=(None, False, 1, [], {}))
    assert not any(map(refusal.refuses, (None, False, 1, 1.0, [], {})))
    assert all(map(refusal.refuses, (True, 0, 2, "", [1], "null")))
    assert Refusal("asks for more").refuses(None)


def test_true_is_not_one() -> None:
    assert [same(1, 1.0), same(True, True), same(True, 1), same(0, False)] == [True, True, False, False]
