"""The conversations of ``bench agent``: messages that are only appended, and lengths that are met."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ipex_lookahead.bench.conversations import Conversation, fitted
from ipex_lookahead.errors import InputError

MADE = Conversation("first", sentences=30, turns=6, long_lines=40)


def words(body: dict[str, Any]) -> int:
    """A count of tokens: the words of a request, and some that a chat template adds."""
    return len(json.dumps(body).split()) + 7 * len(body["messages"])


def test_each_request_repeats_the_one_before():
    bodies = [MADE.body(turn) for turn in range(1, 7)]
    for before, after in zip(bodies, bodies[1:], strict=False):
        assert after["tools"] == before["tools"]
        assert after["messages"][:-2] == before["messages"]
        called, result = after["messages"][-2:]
        assert result["tool_call_id"] == called["tool_calls"][0]["id"]
        assert called["tool_calls"][0]["function"]["name"] in {tool["function"]["name"] for tool in after["tools"]}
    assert [len(body["messages"]) for body in bodies] == [2, 4, 6, 8, 10, 12]
    lines = [message["content"].count("\n") + 1 for message in bodies[-1]["messages"] if message["role"] == "tool"]
    assert lines == [8, 8, 40, 8, 8]  # the result of request 4


def test_names_share_no_prefix_and_tasks_share_all_but_the_messages():
    other, task = replace(MADE, name="second").body(2), replace(MADE, task=1).body(2)
    assert MADE.body(2) == Conversation("first", sentences=30, turns=6, long_lines=40).body(2)
    assert other["messages"][0]["content"].startswith("Session second.")
    assert other["tools"][0]["function"]["description"].startswith("Session second.")
    assert (task["tools"], task["messages"][0]) == (MADE.body(2)["tools"], MADE.body(2)["messages"][0])
    assert all(a != b for a, b in zip(task["messages"][1:], MADE.body(2)["messages"][1:], strict=True))


@pytest.mark.parametrize(("prompt", "result"), [(700, 100), (6000, 4000), (30_000, 4000)])
def test_lengths_are_met(prompt, result):
    made, last = fitted(MADE, prompt, result, words)
    assert words(made.body(1)) == pytest.approx(prompt, rel=0.05)
    long = words(made.body(4)) - words(made.body(3))
    short = words(made.body(3)) - words(made.body(2))
    assert long - short == pytest.approx(result * (1 - 8 / made.long_lines), rel=0.05)
    assert words(made.body(6)) == pytest.approx(last, rel=0.05)


def test_a_prompt_that_is_too_short_for_the_tools():
    with pytest.raises(InputError, match=r"--prompt-tokens is 10: the tools alone take \d+ tokens"):
        fitted(MADE, 10, 100, words)
