"""/v1/responses: the same answers as items."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from ipex_lookahead.runtime.recommended import SEED
from ipex_lookahead.runtime.sampling_params import SamplingParams
from tests.serving.test_chat import HOT, OWN, expected
from tests.serving.test_messages import SCHEMA

TOOLS = [{"type": "function", "name": "w", "parameters": SCHEMA}]


def generation(client: Any, **fields: Any) -> Any:
    answer = client.post("/v1/responses", json={"input": "Hi", "max_output_tokens": 16, **HOT, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(client: Any, **fields: Any) -> list[Any]:
    given = {"input": "Hi", "max_output_tokens": 16, **HOT, "stream": True, **fields}
    lines = client.post("/v1/responses", json=given).text.split("\n")
    data = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert [one["sequence_number"] for one in data] == list(range(len(data)))
    return data


def without_ids(item: Any) -> Any:
    return {key: value for key, value in item.items() if key not in ("id", "call_id")}


def test_the_answer_is_the_models(client, model):
    found = generation(client)
    (item,) = found["output"]
    assert item["content"][0]["text"] == expected(model, SamplingParams(16, **HOT))
    assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert found["usage"]["output_tokens"] == 16
    assert found["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}


def test_the_sampling_that_was_used_is_told(client, model, monkeypatch):
    assert (generation(client)["temperature"], generation(client)["top_p"]) == (HOT["temperature"], 1.0)
    given = {"input": "Hi", "max_output_tokens": 16}
    found = client.post("/v1/responses", json=given).json()
    assert (found["temperature"], found["timings"]["seed"]) == (0.0, None), "nothing is recommended for this model"
    monkeypatch.setattr(model, "_defaults", {**model.generation_defaults, **OWN})
    found = client.post("/v1/responses", json=given).json()
    assert (found["temperature"], found["top_p"], found["timings"]["seed"]) == (30.0, 0.8, SEED)
    said = expected(model, SamplingParams(16, temperature=None))
    assert found["output"][0]["content"][0]["text"] == said
    assert client.post("/v1/responses", json={**given, "temperature": 0}).json()["temperature"] == 0.0


def test_streamed_the_same(client):
    whole, events = generation(client), streamed(client)
    assert [e["type"] for e in events[:4]] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    assert text == whole["output"][0]["content"][0]["text"]
    assert [e["type"] for e in events[-4:]] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete",
    ]  # fmt: skip
    assert list(map(without_ids, events[-1]["response"]["output"])) == list(map(without_ids, whole["output"]))


def test_items_of_a_conversation(client):
    parts = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]
    assert generation(client, input=parts)["output"][0]["content"] == generation(client)["output"][0]["content"]
    system = {"role": "system", "content": "Be brief"}
    assert (
        generation(client, instructions="Be brief")["output"][0]["content"]
        == generation(client, input=[system, *parts])["output"][0]["content"]
    )
    conversation = [
        *parts,
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "w", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "w", "arguments": '{"a": 2}'},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
    ]
    assert generation(client, input=conversation, tools=TOOLS)["output"]


def test_forced_calls(client):
    given = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 300}
    found = generation(client, **given)
    (call,) = found["output"]
    assert (call["type"], call["name"], found["status"]) == ("function_call", "w", "completed")
    jsonschema.validate(json.loads(call["arguments"]), SCHEMA)
    events = streamed(client, **given)
    (told,) = [e for e in events if e["type"] == "response.function_call_arguments.done"]
    assert told["arguments"] == call["arguments"]


def test_a_schema_is_kept_to(client):
    wanted = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}
    found = generation(client, text=wanted, max_output_tokens=300)
    jsonschema.validate(json.loads(found["output"][0]["content"][0]["text"]), SCHEMA)


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("input", {"input": None}),
        ("input", {"input": []}),
        ("input.0.role", {"input": [{"role": "robot", "content": "x"}]}),
        ("input.0.content", {"input": [{"role": "user", "content": 4}]}),
        ("input.0.content.0.image_url", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
        ("input.0.id", {"input": [{"type": "item_reference", "id": "x"}]}),
        ("truncation", {"truncation": "middle"}),
        ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}),
        ("tools.0.type", {"tools": [{"name": "a"}]}),
        ("tools.0.tools", {"tools": [{"type": "namespace", "name": "a"}]}),
        ("tools.0.tools.0", {"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "function"}]}]}),
        ("tools.0.format", {"tools": [{"type": "custom", "name": "a", "format": {"type": "image"}}]}),
        ("tool_choice", {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}),
        ("tool_choice", {"tool_choice": {"type": "function", "name": "b"}}),
        ("text.format", {"text": {"format": {"type": "json_schema"}}}),
        ("previous_response_id", {"previous_response_id": "resp_1"}),
        ("background", {"background": True}),
        ("include", {"include": ["message.output_text.logprobs"]}),
        ("max_output_tokens", {"max_output_tokens": 0}),
    ],
    ids=str,
)
def test_a_wrong_field_is_named(client, param, fields):
    answer = client.post("/v1/responses", json={"input": "Hi", **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def said(response: Any) -> str:
    return str(response["output"][0]["content"][0]["text"])


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_goes_on_from_an_earlier_one(client, stream):
    """As from the whole conversation; instructions are each request's own."""
    first = streamed(client)[-1]["response"] if stream else generation(client, instructions="Be brief")
    second = generation(client, input="Yes?", previous_response_id=first["id"], instructions="Go on")
    whole = [user("Hi"), *first["output"], user("Yes?")]
    assert said(second) == said(generation(client, input=whole, instructions="Go on"))
    assert (second["previous_response_id"], second["store"]) == (first["id"], True)
    third = generation(client, input=[user("And?")], previous_response_id=second["id"])
    assert said(third) == said(generation(client, input=[*whole, *second["output"], user("And?")]))
    named = [user("Hi"), {"type": "item_reference", "id": first["output"][0]["id"]}, user("Yes?")]
    assert said(generation(client, input=named, instructions="Go on")) == said(second)
    assert said(generation(client, input=[*named[:1], {"id": first["output"][0]["id"]}, *named[2:]])) == said(
        generation(client, input=whole)
    )


def test_calls_are_remembered_with_their_results(client):
    given = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 300}
    first = generation(client, **given)
    (call,) = first["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    second = generation(client, input=[result], previous_response_id=first["id"], tools=TOOLS)
    assert (
        second["usage"]["input_tokens"]
        == generation(client, input=[user("Hi"), call, result], tools=TOOLS)["usage"]["input_tokens"]
    )


def test_others_do_not_know_a_response(client):
    salted = generation(client, cache_salt="a")
    assert generation(client, previous_response_id=salted["id"], cache_salt="a")
    forgotten = generation(client, store=False)
    assert forgotten["store"] is False
    reference = [{"type": "item_reference", "id": salted["output"][0]["id"]}]
    for param, fields in (
        ("previous_response_id", {"previous_response_id": salted["id"]}),
        ("previous_response_id", {"previous_response_id": salted["id"], "cache_salt": "b"}),
        ("previous_response_id", {"previous_response_id": forgotten["id"]}),
        ("input.0.id", {"input": reference}),
        ("input.0.id", {"input": reference, "cache_salt": "b"}),
    ):
        answer = client.post("/v1/responses", json={"input": "Hi", **fields})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_the_oldest_messages_are_left_out_where_that_is_asked_for(client, model):
    turns = [turn for n in range(12) for turn in (user(f"{n}" + "x" * 300), {"role": "assistant", "content": "y" * 20})]
    conversation = [*turns, user("Last")]
    given = {"input": conversation, "instructions": "Be brief"}
    answer = client.post("/v1/responses", json=given)
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    found = generation(client, **given, truncation="auto", max_output_tokens=100)
    room = model.engine.max_context - 100
    assert found["truncation"] == "auto"
    fits = [
        n
        for n in range(13)
        if _length(client, [{"role": "system", "content": "Be brief"}, *conversation[2 * n :]]) <= room
    ]
    assert found["usage"]["input_tokens"] == _length(
        client, [{"role": "system", "content": "Be brief"}, *conversation[2 * fits[0] :]]
    )
    assert said(found) == said(
        generation(client, **{**given, "input": conversation[2 * fits[0] :]}, max_output_tokens=100)
    )
    assert said(generation(client, truncation="auto")) == said(generation(client))
    answer = client.post("/v1/responses", json={"input": "x" * 5000, "truncation": "auto"})
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def _length(client: Any, messages: Any) -> int:
    return len(client.post("/apply-template", json={"messages": messages}).json()["tokens"])


def test_allowed_tools_are_called(client):
    tools = [*TOOLS, {"type": "function", "name": "v", "parameters": SCHEMA}]
    only = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "v"}]}
    for seed in range(3):
        found = generation(client, tools=tools, tool_choice=only, max_output_tokens=300, seed=seed)
        assert {item["name"] for item in found["output"]} == {"v"}
