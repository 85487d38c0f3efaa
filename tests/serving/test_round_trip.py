"""A conversation with calls and their results goes back into the prompt as the model wrote it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from ipex_lookahead.conversation.calls.base import Call
from ipex_lookahead.conversation.request import Conversation
from ipex_lookahead.conversation.thinking import Mode, marks_of
from ipex_lookahead.conversation.tools import Parser, numbered, ways_of
from ipex_lookahead.serving.conversation import prepare
from ipex_lookahead.serving.server import Served
from tests.support.tool_templates import TOOL_TEMPLATES

ARGUMENTS = {"city": "Köln am Rhein", "days": 3, "deep": {"a": [1, {"b": "c"}]}, "hot": True, "more": "5"}
PROPERTIES = {
    "city": {"type": "string"}, "days": {"type": "integer"}, "deep": {"type": "object"}, "hot": {"type": "boolean"},
    "more": {"type": "string"},
}  # fmt: skip
FUNCTIONS: list[dict[str, Any]] = [
    {"name": "w", "description": "weather", "parameters": {"type": "object", "properties": PROPERTIES}},
    {"name": "v", "parameters": {"type": "object", "properties": {}}},
]
CALLS = [("w", ARGUMENTS), ("v", {})]


def conversation(calls: Any = CALLS) -> list[dict[str, Any]]:
    made = [
        {"id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for at, (name, arguments) in enumerate(calls)
    ]
    results = [{"role": "tool", "tool_call_id": one["id"], "content": f"result {one['id']}"} for one in made]
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Rain?"}]
    return [*asked, {"role": "assistant", "content": "", "tool_calls": made}, *results]


@pytest.fixture
def serving(server: Any, model: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Served]:
    """The model with a family's template."""

    def made(family: str) -> Served:
        monkeypatch.setattr(model.tokenizer, "chat_template", TOOL_TEMPLATES[family])
        return Served(model, server.served.service)

    return made


@pytest.mark.parametrize("family", TOOL_TEMPLATES)
def test_calls_and_results_are_in_the_prompt(serving: Any, family: str) -> None:
    served = serving(family)
    prompt = prepare(served, Conversation(conversation(), FUNCTIONS)).prompt
    text = served.tokenizer.decode(list(prompt))
    before, _, behind = text.partition("Rain?")
    assert before.replace('<|"|>', '"').count('"weather"') == 1, "the tools are told once"
    assert before.count("Be brief.") == 1
    assert "result call_0" in behind
    assert "result call_1" in behind
    assert behind.index("result call_0") > behind.index("Rhein")
    written = behind[: behind.index("result call_0")]
    if family == "granite":  # nothing says where its list ends but the end of the turn
        written = written.partition("]<|end|>")[0] + "]"
    parts = Parser(ways_of(served.template).style, FUNCTIONS).put(written, last=True)
    assert [(one.name, json.loads(one.arguments)) for one in parts if isinstance(one, Call)] == CALLS


@pytest.mark.parametrize("family", TOOL_TEMPLATES)
def test_what_tools_have_said_is_no_mark(serving: Any, family: str) -> None:
    """Control tokens are the template's own, and those that the server writes for it; arguments stay text."""
    served = serving(family)
    end = served.special_tokens["<|im_end|>"]

    def ends(arguments: Any) -> int:
        prompt = prepare(served, Conversation(conversation([("w", arguments)]), FUNCTIONS)).prompt
        return list(prompt).count(end)

    assert ends({"city": "a<|im_end|>b"}) == ends({"city": "ab"})


@pytest.mark.parametrize(
    ("family", "variables", "mode"),
    [
        ("qwen3_5", {}, Mode.WITHIN),
        ("qwen3_5", {"enable_thinking": False}, Mode.NONE),
        ("lfm2_moe", {}, Mode.PERHAPS),
        ("granitemoehybrid", {}, Mode.NONE),
        ("nemotron_h", {}, Mode.WITHIN),
        ("glm4_moe", {}, Mode.PERHAPS),
        ("glm4_moe", {"enable_thinking": False}, Mode.NONE),
        ("deepseek_v3", {}, Mode.WITHIN),
        ("gemma4", {}, Mode.NONE),
        ("gemma4", {"enable_thinking": True}, Mode.PERHAPS),
    ],
)
def test_where_an_answer_begins(serving: Any, family: str, variables: dict[str, Any], mode: Mode) -> None:
    made = prepare(serving(family), Conversation(conversation()[:2], FUNCTIONS, variables=variables))
    assert made.reader.thinking == (mode is Mode.WITHIN)
    marks = marks_of(TOOL_TEMPLATES[family])
    begin, end = (marks.opening, marks.end) if marks else ("<think>", "</think>")
    said = made.reader.again().put(f"{begin}a{end}b", last=True)
    thought = {Mode.WITHIN: f"{begin}a", Mode.PERHAPS: "a", Mode.NONE: "a" if marks and marks.again else ""}[mode]
    assert [str(part) for part in said] == ([thought, "b"] if thought else [f"{begin}a{end}b"])


@pytest.mark.parametrize("family", ["gemma4", "gemma4, the first"])
@pytest.mark.parametrize("thinks", [False, True])
def test_gemma_goes_on_behind_the_results(serving: Any, family: str, thinks: bool) -> None:
    """Calls and results are one turn of the model's, with the functions' names; it may think before it goes on."""
    served = serving(family)
    made = prepare(served, Conversation(conversation(), FUNCTIONS, variables={"enable_thinking": thinks}))
    text = served.tokenizer.decode(list(made.prompt))
    assert text.startswith("<s><|turn>system\n<|think|>\nBe brief." if thinks else "<s><|turn>system\nBe brief.")
    results = "".join(
        f'<|tool_response>response:{name}{{value:<|"|>result call_{at}<|"|>}}<tool_response|>'
        for at, name in enumerate("wv")
    )
    opens = thinks and family == "gemma4"
    behind = "<|channel>thought\n" if opens else ""
    assert text.endswith(f"<|tool_call>call:v{{}}<tool_call|>{results}{behind}")
    assert made.reader.thinking == opens
    begun = "" if opens else "<|channel>thought"
    said = made.reader.again().put(f"{begun}\na\n<channel|><|tool_call>call:v{{}}<tool_call|>", last=True)
    assert [part.name if isinstance(part, Call) else str(part) for part in said] == ["a", "v"]


@pytest.mark.parametrize("family", ["gemma4", "gemma4, the first"])
def test_results_without_ids_are_told_apart(serving: Any, family: str) -> None:
    """By the function that they name, as Ollama's have it, else in order."""
    served = serving(family)
    names, results = ("v", "w", "v"), ({"content": "a", "name": "w"}, {"content": "b"}, {"content": "c"})
    calls = [{"type": "function", "function": {"name": name, "arguments": "{}"}} for name in names]
    messages = [
        {"role": "user", "content": "Rain?"}, {"role": "assistant", "content": "", "tool_calls": calls},
        *({"role": "tool", **one} for one in results),
    ]  # fmt: skip
    text = served.tokenizer.decode(list(prepare(served, Conversation(messages, FUNCTIONS)).prompt))
    assert re.findall(r'response:(\w)\{value:<\|"\|>(\w)', text) == [("w", "a"), ("v", "b"), ("v", "c")]


def test_ids_are_made_where_there_are_none() -> None:
    call = {"type": "function", "function": {"name": "w", "arguments": {}}}
    alone, answer = {"role": "tool", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call, call]}
    assert numbered([alone]) == [alone]
    found = numbered([answer, alone, alone, alone, {**answer, "tool_calls": [{**call, "id": "mine"}]}, alone])
    ids = [one["id"] for one in found[0]["tool_calls"]]
    assert len({*ids}) == 2
    assert all(len(one) == 9 and one.isalnum() for one in ids)
    assert [one.get("tool_call_id") for one in found[1:4]] == [*ids, None]
    assert (found[4]["tool_calls"][0]["id"], found[5]["tool_call_id"]) == ("mine", "mine")
    assert "id" not in call
    odd = [{**call, "id": {"a": [1]}}]
    assert numbered([{**answer, "tool_calls": odd}, alone])[1]["tool_call_id"] == {"a": [1]}
