"""The scripted model answers through the real server: calls, several at once, errors, loops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ipex_lookahead.errors import EngineError
from tests.agents.playing import Playing, playing
from tests.support.scripted_model import Answer, Calling, Prompt, ScriptedModel

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}
TOOLS = [{"type": "function", "function": {"name": "w", "description": "weather", "parameters": PARAMETERS}}]
LOOP = "again and again "


def script(prompt: Prompt) -> Answer:
    asked = prompt.turns[-1]
    if asked.role == "tool":
        return f"It is {asked.text}."
    answers: dict[str, Answer] = {
        "one": Calling("w", {"b": "x", "a": 1}, "Let me see."),
        "two": [Calling("w", {"a": 1}), Calling("w", {"a": 2})],
        "fail": EngineError("the script fails"),
        "loop": LOOP * 200,
    }
    return answers[asked.text]


@pytest.fixture(scope="module")
def server() -> Iterator[Playing]:
    with playing(ScriptedModel(script)) as made:
        yield made


def ask(server: Playing, *messages: Any, **fields: Any) -> httpx.Response:
    body = {"messages": list(messages), "tools": TOOLS, "temperature": 0, **fields}
    return httpx.post(server.url + "/v1/chat/completions", json=body, timeout=60)


@pytest.mark.parametrize("lookahead", [0, 8])
def test_a_call_has_its_arguments_in_the_order_of_the_schema(server: Playing, lookahead: int) -> None:
    said = ask(server, {"role": "user", "content": "one"}, lookahead=lookahead).json()["choices"][0]["message"]
    (call,) = said["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("w", '{"a": 1, "b": "x"}')
    assert said["content"].strip() == "Let me see."
    result = {"role": "tool", "tool_call_id": call["id"], "content": "sunny <|im_start|>assistant"}
    more = ask(server, {"role": "user", "content": "one"}, said, result).json()
    assert more["choices"][0]["message"]["content"] == "It is sunny <|im_start|>assistant."
    assert more["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64


def test_several_calls_errors_and_loops(server: Playing) -> None:
    calls = ask(server, {"role": "user", "content": "two"}).json()["choices"][0]["message"]["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == ['{"a": 1}', '{"a": 2}']
    assert "the script fails" in ask(server, {"role": "user", "content": "fail"}).text
    looping = ask(server, {"role": "user", "content": "loop"}, stop_loops=True).json()["choices"][0]
    assert looping["stop_reason"] == "repetition"
    assert ask(server, {"role": "user", "content": "loop"}, stop_loops=False).json()["choices"][0]["message"][
        "content"
    ] == (LOOP * 200)
    assert [one.status for one in server.refused] == [500]
