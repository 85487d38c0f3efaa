"""Arguments of calls come in pieces in every API, and a call that ``max_tokens`` cuts is a partial call, never text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serving.test_single_calls import TEXT, says

__all__ = ["says"]

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}
NAME = "w"
ASKED = [{"role": "user", "content": "Weather?"}]
FUNCTION = {"name": NAME, "parameters": PARAMETERS}
CALL = '<tool_call>\n{"name": "w", "arguments": {"a": 12, "b": "né \\"x\\""}}\n</tool_call>'
ARGUMENTS = '{"a": 12, "b": "né \\"x\\""}'
BODIES: dict[str, Any] = {
    "/v1/chat/completions": {"messages": ASKED, "tools": [{"type": "function", "function": FUNCTION}]},
    "/v1/messages": {"messages": ASKED, "tools": [{"name": NAME, "input_schema": PARAMETERS}]},
    "/v1/responses": {"input": "Weather?", "tools": [{"type": "function", **FUNCTION}]},
}
LIMIT = {"/v1/responses": "max_output_tokens"}
FORCED: dict[str, Any] = {"/v1/messages": {"type": "any"}}
EVERY = pytest.mark.parametrize("path", BODIES)


def body_of(path: str, most: int, *, forced: bool, **more: Any) -> dict[str, Any]:
    choice = {"tool_choice": FORCED.get(path, "required")} if forced else {}
    return {**BODIES[path], LIMIT.get(path, "max_tokens"): most, "temperature": 0, **choice, **more}


def events(text: str) -> Iterator[dict[str, Any]]:
    return (json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {"))


def streamed(client: Any, path: str, most: int, **more: Any) -> tuple[list[str], list[str], str]:
    """Pieces of arguments, pieces of text, and how the answer ended."""
    answer = client.post(path, json=body_of(path, most, stream=True, **more))
    assert answer.status_code == 200, answer.text
    pieces, texts, ended = [], [], ""
    for one in events(answer.text):
        if path == "/v1/chat/completions":
            for choice in one["choices"]:
                calls = choice["delta"].get("tool_calls", ())
                pieces += [call["function"]["arguments"] for call in calls if call["function"]["arguments"]]
                texts += [choice["delta"].get("content") or ""]
                ended = choice["finish_reason"] or ended
        elif path == "/v1/messages":
            delta = one.get("delta", {})
            pieces += [delta["partial_json"]] if "partial_json" in delta else []
            texts += [delta["text"]] if "text" in delta else []
            ended = delta.get("stop_reason") or ended
        else:
            pieces += [one["delta"]] if one["type"] == "response.function_call_arguments.delta" else []
            texts += [one["delta"]] if one["type"] == "response.output_text.delta" else []
            ended = one["response"]["status"] if "response" in one else ended
    return pieces, texts, ended


def whole(client: Any, path: str, most: int, **more: Any) -> tuple[list[Any], str, str]:
    """Arguments of calls, text, and how the answer ended."""
    found = client.post(path, json=body_of(path, most, **more)).json()
    if path == "/v1/chat/completions":
        (choice,) = found["choices"]
        calls = [one["function"]["arguments"] for one in choice["message"].get("tool_calls", ())]
        return calls, choice["message"]["content"] or "", choice["finish_reason"]
    if path == "/v1/messages":
        blocks = found["content"]
        texts = "".join(one.get("text", "") for one in blocks)
        return [one["input"] for one in blocks if one["type"] == "tool_use"], texts, found["stop_reason"]
    items = found["output"]
    texts = "".join(part["text"] for one in items if one["type"] == "message" for part in one["content"])
    return [one["arguments"] for one in items if one["type"] == "function_call"], texts, found["status"]


CUT = {"/v1/chat/completions": "length", "/v1/messages": "max_tokens", "/v1/responses": "incomplete"}
CALLED = {"/v1/chat/completions": "tool_calls", "/v1/messages": "tool_use", "/v1/responses": "completed"}


@EVERY
@pytest.mark.parametrize("forced", [False, True])
def test_arguments_come_in_pieces(says: Any, path: str, forced: bool) -> None:
    client = says(CALL)
    pieces, texts, ended = streamed(client, path, 300, forced=forced, lookahead=0)
    assert len(pieces) > 5
    assert ("".join(pieces), "".join(texts), ended) == (ARGUMENTS, "", CALLED[path])
    drafted, _, _ = streamed(client, path, 300, forced=forced, lookahead=8)
    assert "".join(drafted) == ARGUMENTS


@EVERY
def test_a_forced_call_that_is_cut_is_a_partial_call(says: Any, path: str) -> None:
    client = says(CALL)
    for most in range(1, len(CALL.encode()), 6):
        pieces, texts, ended = streamed(client, path, most, forced=True)
        calls, text, reason = whole(client, path, most, forced=True)
        complete = "".join(pieces) == ARGUMENTS
        assert ("".join(texts), text) == ("", "")
        assert (ended, reason) == ((CALLED if complete else CUT)[path],) * 2
        assert ARGUMENTS.startswith("".join(pieces))
        if path == "/v1/messages":
            assert calls in ([], [{}], [{"a": 12}], [json.loads(ARGUMENTS)])
        else:
            assert "".join(calls) == "".join(pieces)
    assert whole(client, path, 60, forced=True)[0] != []


def test_a_call_that_was_cut_can_be_sent_back(says: Any) -> None:
    client = says(CALL)
    path = "/v1/chat/completions"
    message = client.post(path, json=body_of(path, 60, forced=True)).json()["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"][:8]) == (NAME, '{"a": 12')
    result = {"role": "tool", "tool_call_id": call["id"], "content": "The arguments are incomplete."}
    again = {**body_of(path, 9, forced=False), "messages": [*ASKED, message, result]}
    assert client.post(path, json=again).status_code == 200


def test_what_a_response_has_of_a_call_that_was_cut(says: Any) -> None:
    client = says(CALL)
    found = list(events(client.post("/v1/responses", json=body_of("/v1/responses", 60, forced=True, stream=True)).text))
    kinds = [one["type"] for one in found]
    assert "response.function_call_arguments.done" not in kinds  # at which clients run a call
    (item,) = [one["item"] for one in found if one["type"] == "response.output_item.done"]
    assert (item["type"], item["status"], item["name"]) == ("function_call", "incomplete", NAME)
    assert found[-1]["response"]["output"] == [item]


def test_ollama_sends_whole_calls_with_their_numbers(says: Any) -> None:
    client = says(TEXT)
    tools = [{"type": "function", "function": {**FUNCTION, "parameters": {"type": "object"}}}]
    body = {"model": "tiny", "messages": ASKED, "tools": tools, "options": {"temperature": 0}}
    lines = [json.loads(line) for line in client.post("/api/chat", json=body).text.splitlines()]
    calls = [call["function"] for line in lines for call in line["message"].get("tool_calls", ())]
    assert [(one["index"], one["arguments"]) for one in calls] == [(0, {"a": 1}), (1, {"a": 2})]
    assert "".join(line["message"]["content"] for line in lines) == "I look.\nDone, and more of it."
    body["options"] = {"temperature": 0, "num_predict": len("I look.\n") + 45}
    cut = [json.loads(line) for line in client.post("/api/chat", json=body).text.splitlines()]
    partial = [call["function"] for line in cut for call in line["message"].get("tool_calls", ())]
    assert [(one["name"], one["arguments"]) for one in partial] == [(NAME, {})]
    assert cut[-1]["done_reason"] == "length"


def test_a_custom_tool_streams_its_text(says: Any) -> None:
    client = says('<tool_call>\n{"name": "w", "arguments": {"input": "né \\"x\\"\\n"}}\n</tool_call>')
    body = {"input": "Go", "tools": [{"type": "custom", "name": NAME}], "temperature": 0, "stream": True}
    found = list(events(client.post("/v1/responses", json=body).text))
    pieces = [one["delta"] for one in found if one["type"] == "response.custom_tool_call_input.delta"]
    assert len(pieces) > 3
    assert "".join(pieces) == 'né "x"\n' == found[-1]["response"]["output"][0]["input"]
