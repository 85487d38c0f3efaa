"""/v1/messages, Anthropic's API: the same answers in other shapes."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from ipex_lookahead.errors import LookaheadError
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.service import Event
from ipex_lookahead.serving.messages import MessagesRequest
from tests.serving.conftest import LIMITS
from tests.serving.test_chat import ASKED, HOT, expected

DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
SCHEMA = {"type": "object", "properties": {"a": DIGIT}, "required": ["a"], "additionalProperties": False}
TOOLS = [{"name": "w", "description": "weather", "input_schema": SCHEMA}]


def generation(client: Any, **fields: Any) -> Any:
    answer = client.post("/v1/messages", json={"messages": ASKED, "max_tokens": 16, **HOT, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(client: Any, **fields: Any) -> list[Any]:
    given = {"messages": ASKED, "max_tokens": 16, **HOT, "stream": True, **fields}
    lines = client.post("/v1/messages", json=given).text.split("\n")
    names = [line[7:] for line in lines if line.startswith("event: ")]
    data = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert names == [one["type"] for one in data]
    return data


def test_the_answer_is_the_models(client, model):
    found = generation(client)
    assert found["content"] == [{"type": "text", "text": expected(model, SamplingParams(16, **HOT))}]
    assert (found["type"], found["role"], found["stop_reason"], found["stop_sequence"]) == (
        "message", "assistant", "max_tokens", None,
    )  # fmt: skip
    assert found["usage"]["output_tokens"] == 16
    counted = client.post("/v1/messages/count_tokens", json={"messages": ASKED}).json()["input_tokens"]
    assert found["usage"]["input_tokens"] + found["usage"]["cache_read_input_tokens"] == counted


def test_streamed_the_same(client):
    whole, events = generation(client), streamed(client)
    assert events[0]["type"] == "message_start"
    assert events[-1]["type"] == "message_stop"
    assert (
        "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta") == whole["content"][0]["text"]
    )
    (ended,) = [e for e in events if e["type"] == "message_delta"]
    assert ended["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    kinds = [e["type"] for e in events]
    assert kinds.index("content_block_start") < kinds.index("content_block_delta") < kinds.index("content_block_stop")


def test_a_streams_usage_is_that_of_a_whole_answer(client):
    """Tokens that were found in the prefix cache are no input tokens, in each of the three places."""
    messages = [{"role": "user", "content": "b" * 150}]
    counted = client.post("/v1/messages/count_tokens", json={"messages": messages}).json()["input_tokens"]
    for salt, found in (("one", 0), ("one", 128)):
        events = streamed(client, messages=messages, cache_salt=salt)
        (ended,) = [e for e in events if e["type"] == "message_delta"]
        begun = events[0]["message"]["usage"]
        assert (begun["input_tokens"], begun["cache_read_input_tokens"]) == (counted - found, found)
        assert ended["usage"] == {**begun, "output_tokens": 16}
    assert generation(client, messages=messages, cache_salt="one")["usage"] == ended["usage"]


def test_the_system_text_and_blocks(client):
    blocks = [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]}]
    assert generation(client, messages=blocks)["content"] == generation(client)["content"]
    told = [{"type": "text", "text": "Be brief"}]
    assert generation(client, system=told)["content"] == generation(client, system="Be brief")["content"]


def test_it_stops_at_a_text_and_says_which(client, model):
    said = expected(model, SamplingParams(16, **HOT))
    found = generation(client, stop_sequences=["never there", said[4:6]])
    assert found["content"][0]["text"] == said[: said.index(said[4:6])]
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", said[4:6])


def test_an_assistants_turn_at_the_end_is_gone_on_from(client, model):
    template = model.tokenizer.apply_chat_template(ASKED, add_generation_prompt=True)
    ids = model.tokenizer.encode(template + "Well,", add_special_tokens=False)
    said = model.tokenizer.decode(model.generate(ids, SamplingParams(16, **HOT)), skip_special_tokens=True)
    found = generation(client, messages=[*ASKED, {"role": "assistant", "content": "Well,"}])
    assert found["content"][0]["text"] == said


def test_forced_tools(client):
    given = {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "w"}, "max_tokens": 300}
    found = generation(client, **given)
    (block,) = found["content"]
    assert (block["type"], block["name"], found["stop_reason"]) == ("tool_use", "w", "tool_use")
    jsonschema.validate(block["input"], SCHEMA)
    events = streamed(client, **given)
    (begun,) = [e for e in events if e["type"] == "content_block_start"]
    assert begun["content_block"]["name"] == "w"
    parts = [e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta"]
    assert json.loads("".join(parts)) == block["input"]


@pytest.mark.parametrize(
    ("thinking", "variables"),
    [
        (None, {}),
        ({"type": "enabled", "budget_tokens": 1024}, {"enable_thinking": True}),
        ({"type": "adaptive"}, {"enable_thinking": True}),
        ({"type": "disabled"}, {"enable_thinking": False}),
    ],
)
def test_thinking_is_a_variable_of_the_template(thinking, variables):
    body = MessagesRequest(messages=ASKED, max_tokens=9, thinking=thinking)
    assert body.to_conversation(LIMITS).variables == variables


def test_results_of_tools_come_back(client):
    conversation = [
        *ASKED,
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "x"},
            {"type": "tool_use", "id": "toolu_1", "name": "w", "input": {"a": 1}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sunny"}]},
            {"type": "text", "text": "So?"},
        ]},
    ]  # fmt: skip
    assert generation(client, messages=conversation, tools=TOOLS)["content"]


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": None},
        {"messages": []},
        {"thinking": {"type": "deep"}},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": 4}]}]},
        {"messages": [{"role": "assistant", "content": "alone"}]},
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]},
        {"tools": [{"type": "bash_20250124", "name": "bash"}]},
        {"tool_choice": {"type": "tool", "name": "unknown"}},
        {"tool_choice": {"type": "some"}},
        {"mcp_servers": [{}]},
        {"stop_sequences": [""]},
        {"output_format": {"type": "json_schema"}},
        {"temperature": -1},
    ],
    ids=str,
)
def test_errors_have_anthropics_shape(client, fields):
    answer = client.post("/v1/messages", json={"messages": ASKED, "max_tokens": 4, **fields})
    assert answer.status_code == 400, answer.text
    body = answer.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert next(iter(fields)).split(".")[0] in body["error"]["message"]


def test_a_failure_in_the_middle(live):
    import httpx

    running = live()
    given = {"messages": ASKED, "max_tokens": 9, "stream": True}
    with httpx.stream("POST", running.url + "/v1/messages", json=given, timeout=60) as answer:
        running.service.next().tell(Event("error", error=LookaheadError("it broke")))
        text = answer.read().decode()
    assert text.rstrip().split("\n")[-2:] == [
        "event: error",
        'data: {"type":"error","error":{"type":"api_error","message":"it broke"}}',
    ]
