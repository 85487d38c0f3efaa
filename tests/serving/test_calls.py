"""Calls in every way of writing, over HTTP: as they come, and forced upon a model of random weights."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tests.support.tool_templates import TOOL_TEMPLATES

PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"enum": ["x", "y"]}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("w", "t")]
ASKED = [{"role": "user", "content": "Hi"}]
OPEN, ONE, SEP, OUT, SHUT = (
    "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
)  # fmt: skip
WRITTEN = {
    "qwen3_5": "<tool_call>\n<function=w>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx\n</parameter>\n"
    "</function>\n</tool_call>\n<tool_call>\n<function=t>\n<parameter=a>\n2\n</parameter>\n</function>\n</tool_call>",
    "lfm2_moe": '<|tool_call_start|>[w(a=1, b="x"), t(a=2)]<|tool_call_end|>',
    "lfm2": '<|tool_call_start|>[{"name": "w", "arguments": {"a": 1, "b": "x"}}, {"name": "t", "arguments": {"a": 2}}]'
    "<|tool_call_end|>",
    "granitemoehybrid": '<tool_call>\n{"name": "w", "arguments": {"a": 1, "b": "x"}}\n</tool_call>\n<tool_call>\n'
    '{"name": "t", "arguments": {"a": 2}}\n</tool_call>',
    "granite": '<|tool_call|>[{"name": "w", "arguments": {"a": 1, "b": "x"}}, {"name": "t", "arguments": {"a": 2}}]',
    "nemotron_h": '<TOOLCALL>[{"name": "w", "arguments": {"a": 1, "b": "x"}}, {"name": "t", "arguments": {"a": 2}}]'
    "</TOOLCALL>",
    "glm4_moe": "<tool_call>w\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n<arg_value>x"
    "</arg_value>\n</tool_call>\n<tool_call>t\n<arg_key>a</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    "glm4_moe_lite": "<tool_call>w<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>b</arg_key><arg_value>x"
    "</arg_value></tool_call><tool_call>t<arg_key>a</arg_key><arg_value>2</arg_value></tool_call>",
    "deepseek_v3": f'{OPEN}{ONE}function{SEP}w\n```json\n{{"a": 1, "b": "x"}}\n```{OUT}\n{ONE}function{SEP}t\n```json\n'
    f'{{"a": 2}}\n```{OUT}{SHUT}',
    **dict.fromkeys(("gemma4", "gemma4, the first"), '<|tool_call>call:w{a:1,b:<|"|>x<|"|>}<tool_call|>'
                    "<|tool_call>call:t{a:2}<tool_call|>"),
    "deepseek_v3.1": f'{OPEN}{ONE}w{SEP}{{"a": 1, "b": "x"}}{OUT}{ONE}t{SEP}{{"a": 2}}{OUT}{SHUT}',
}  # fmt: skip


def put(client: Any, given: dict[str, Any]) -> Any:
    answer = client.post("/v1/chat/completions", json=given)
    assert answer.status_code == 200, answer.text
    return answer


def streamed(text: str) -> tuple[list[tuple[str, str]], str, str]:
    """Calls, text and reason of a stream of one answer."""
    chunks = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    parts = [part for delta in deltas for part in delta.get("tool_calls", ())]
    names = {part["index"]: part["function"]["name"] for part in parts if "name" in part["function"]}
    arguments = {i: "".join(p["function"].get("arguments", "") for p in parts if p["index"] == i) for i in names}
    said = "".join(delta.get("content") or "" for delta in deltas)
    return [(names[i], arguments[i]) for i in names], said, chunks[-1]["choices"][0]["finish_reason"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("family", TOOL_TEMPLATES)
@pytest.mark.rotating(10)
def test_calls_come_as_calls(live: Any, model: Any, monkeypatch: pytest.MonkeyPatch, family: str, stream: bool) -> None:
    monkeypatch.setattr(model.tokenizer, "chat_template", TOOL_TEMPLATES[family])
    running = live()
    ticket, answer = running.ask("/v1/chat/completions", {"messages": ASKED, "tools": TOOLS, "stream": stream})
    thinks = ticket.request.draft_filter is not None and "<think>\\n'" in TOOL_TEMPLATES[family]
    text = ("hm\n</think>\n\n" if thinks else "") + "I look.\n" + WRITTEN[family]
    ids = running.server.served.encode(text)
    assert ticket.request.processors, "a call that has begun is kept to its grammar"
    drafted = ticket.request.draft_filter(*drafts(ids))
    assert len(drafted) == len(ids), "which allows it"
    ticket.say(*ids)
    ticket.finish()
    expected = [("w", '{"a": 1, "b": "x"}'), ("t", '{"a": 2}')]
    if stream:
        calls, said, reason = streamed(answer().text)
    else:
        (choice,) = answer().json()["choices"]
        calls = [(one["function"]["name"], one["function"]["arguments"]) for one in choice["message"]["tool_calls"]]
        said, reason = choice["message"]["content"], choice["finish_reason"]
    assert (calls, said, reason) == (expected, "I look.\n", "tool_calls")


def drafts(ids: list[int]) -> Any:
    import numpy as np

    from ipex_lookahead.drafting.draft import Draft

    return np.array([], np.int64), Draft.chain(ids)


ODD_ARGUMENTS = ['{"a": 1', "no JSON", '{"a": NaN}', "[1]", '"x"', "5", "null", '{"a": [[[[[{}]]]]]}']


@pytest.mark.parametrize("family", TOOL_TEMPLATES)
def test_any_arguments_of_earlier_calls_are_answered_or_refused(
    client: Any, server: Any, model: Any, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    monkeypatch.setattr(server.served, "template", TOOL_TEMPLATES[family])
    monkeypatch.setattr(model.tokenizer, "chat_template", TOOL_TEMPLATES[family])
    for arguments in ODD_ARGUMENTS:
        call = {"id": "c", "type": "function", "function": {"name": "w", "arguments": arguments}}
        messages = [*ASKED, {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "c", "content": "x"}]  # fmt: skip
        for tools in (None, TOOLS):
            given = {"messages": messages, "tools": tools, "max_tokens": 1}
            answer = client.post("/v1/chat/completions", json=given)
            assert answer.status_code in (200, 400), (arguments, answer.text)
            if answer.status_code == 400:
                assert arguments != ODD_ARGUMENTS[-1]
                assert "arguments" in answer.json()["error"]["message"], answer.text


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", {"w", "t"}), ({"type": "function", "function": {"name": "t"}}, {"t"})],
    ids=["required", "named"],
)
@pytest.mark.parametrize("family", TOOL_TEMPLATES)
@pytest.mark.rotating(10)
def test_forced_calls_are_calls(
    client: Any, server: Any, model: Any, monkeypatch: pytest.MonkeyPatch, family: str, choice: Any, names: set[str]
) -> None:
    """With drafts as without: a model of random weights calls, with arguments that the schema allows."""
    monkeypatch.setattr(server.served, "template", TOOL_TEMPLATES[family])  # before what it would be made of
    monkeypatch.setattr(model.tokenizer, "chat_template", TOOL_TEMPLATES[family])
    given = {"messages": ASKED, "temperature": 30, "seed": 4, "max_tokens": 600, "tools": TOOLS, "tool_choice": choice,
             "parallel_tool_calls": False, "chat_template_kwargs": {"enable_thinking": False}}  # fmt: skip
    if "<think>" in TOOL_TEMPLATES[family]:
        given["messages"] = [{"role": "user", "content": "Hi /no_think"}]
    if family.startswith("deepseek") or family == "lfm2_moe":  # it always thinks, or if it likes
        begun = "</think>" if family.startswith("deepseek") else "So: "
        given["messages"] = [*ASKED, {"role": "assistant", "content": begun}]
        given["continue_final_message"] = True
    whole = put(client, given).json()["choices"][0]
    assert whole["finish_reason"] == "tool_calls", whole
    (call,) = whole["message"]["tool_calls"]
    assert call["function"]["name"] in names
    jsonschema.validate(json.loads(call["function"]["arguments"]), PARAMETERS)
    plain = put(client, {**given, "lookahead": 0}).json()["choices"][0]
    assert plain["message"]["tool_calls"][0]["function"] == call["function"]
    calls, _, reason = streamed(put(client, {**given, "stream": True}).text)
    assert calls == [(call["function"]["name"], call["function"]["arguments"])]
    assert reason == "tool_calls"
