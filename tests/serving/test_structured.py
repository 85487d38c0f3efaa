"""Answers in the forms that vLLM's and llama.cpp's fields ask for: on any path, whatever is drafted."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

ASKED = [{"role": "user", "content": "Hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
SUM = """# a sum, as llama.cpp writes grammars
root  ::= term ([-+*/] term)+ "=" ws
term  ::= num | "(" num ")"
num   ::= [0-9]{1,3}
ws    ::= [ \\t\\n]*
"""
CHOICES = ["Zürich", 'a "quoted"\nline\t\\', "東京"]


def is_json(text: str) -> None:
    jsonschema.validate(json.loads(text), SCHEMA)


def is_sum(text: str) -> None:
    assert re.fullmatch(r"(\d{1,3}|\(\d{1,3}\))([-+*/](\d{1,3}|\(\d{1,3}\)))+=[ \t\n]*", text), text


def is_date(text: str) -> None:
    assert re.fullmatch(r"\d{4}/\d\d", text), text


def is_choice(text: str) -> None:
    assert text in CHOICES


FORMS: list[tuple[dict[str, Any], Any]] = [
    ({"guided_json": SCHEMA}, is_json),
    ({"guided_json": json.dumps(SCHEMA)}, is_json),
    ({"structured_outputs": {"json": SCHEMA}}, is_json),
    ({"json_schema": SCHEMA}, is_json),
    ({"structured_outputs": {"json_object": True}}, json.loads),
    ({"guided_regex": r"[0-9]{4}/\d\d"}, is_date),
    ({"structured_outputs": {"regex": r"[0-9]{4}/\d\d"}}, is_date),
    ({"guided_choice": CHOICES}, is_choice),
    ({"structured_outputs": {"choice": CHOICES}}, is_choice),
    ({"grammar": SUM}, is_sum),
    ({"guided_grammar": SUM}, is_sum),
    ({"grammar": f"\ufeff{SUM}", "structured_outputs": {"grammar": ""}}, is_sum),
    ({"structured_outputs": {"grammar": 'start: /[0-9]{4}/ "/" /[0-9]{2}/'}}, is_date),
]


def said(client: Any, path: str, **fields: Any) -> Any:
    given = {"messages": ASKED} if path == "chat/completions" else {"prompt": "Hi"}
    answer = client.post(f"/v1/{path}", json={**given, "max_tokens": 400, "temperature": 9, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize(
    ("fields", "check"), FORMS, ids=[" ".join(fields)[:40] + f" {at}" for at, (fields, _) in enumerate(FORMS)]
)
@pytest.mark.rotating(12)
def test_an_answer_has_the_form_that_was_asked_for(client, path, fields, check):
    for seed in range(3):
        found = [said(client, path, seed=seed, lookahead=lookahead, **fields) for lookahead in (0, 4)]
        assert found[0] == found[1]
        if found[0]["finish_reason"] == "stop":
            check(found[0]["text"] if path == "completions" else found[0]["message"]["content"])
        else:
            assert "object" in str(fields), "only any JSON object may be long"


def test_a_form_beside_tools_is_what_is_said_where_none_is_called(client):
    tools = [{"type": "function", "function": {"name": "w", "parameters": SCHEMA}}]
    called = 0
    for seed in range(6):
        found = said(client, "chat/completions", seed=seed, tools=tools, guided_choice=CHOICES)["message"]
        if found.get("tool_calls"):
            called += 1
            is_json(found["tool_calls"][0]["function"]["arguments"])
        else:
            is_choice(found["content"])
    assert called < 6


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("structured_outputs.choice", {"structured_outputs": {"choice": []}}),
        ("structured_outputs.regex", {"structured_outputs": {"json": {}, "regex": "a"}}),
        ("guided_regex", {"structured_outputs": {"json": {}}, "guided_regex": "a"}),
        ("grammar", {"guided_regex": "a", "grammar": SUM}),
        ("guided_regex", {"guided_regex": ""}),
        ("guided_regex", {"guided_regex": "a" * 4097}),
        ("guided_choice", {"guided_choice": ["a" * 4097]}),
        ("guided_json", {"guided_json": "{"}),
        ("guided_json", {"guided_json": 4}),
        ("json_schema", {"json_schema": False}),
        ("grammar", {"grammar": "x" * 300_000}),
        ("grammar", {"grammar": 'start: %json {"const": 9007199254740993}'}),
        ("guided_grammar", {"guided_grammar": "start: %json" + '{"items": ' * 101 + "{}" + "}" * 101}),
        ("guided_grammar", {"guided_grammar": "start: %json" + '{"items": ' * 1500 + "{}"}),
        ("structured_outputs.structural_tag", {"structured_outputs": {"structural_tag": "{}"}}),
        ("structured_outputs.jsn", {"structured_outputs": {"jsn": {}}}),
    ],
    ids=lambda value: str(value)[:60],
)
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_what_is_no_form_is_named(client, path, param, fields):
    given = {"messages": ASKED} if path == "chat/completions" else {"prompt": "Hi"}
    answer = client.post(f"/v1/{path}", json={**given, "max_tokens": 1, **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(param)


@pytest.mark.parametrize(
    "fields",
    [{"guided_regex": "(?<=a)b"}, {"guided_regex": "("}, {"grammar": "start: %json {"}, {"grammar": "root ::= root"}],
)
def test_what_cannot_be_compiled_is_refused(client, fields):
    for path, given in (("chat/completions", {"messages": ASKED}), ("completions", {"prompt": "Hi"})):
        answer = client.post(f"/v1/{path}", json={**given, "max_tokens": 1, **fields})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["message"]


def test_a_form_and_a_response_format_are_one_too_many(client):
    asked = {"messages": ASKED, "response_format": {"type": "json_object"}, "guided_regex": "a"}
    answer = client.post("/v1/chat/completions", json=asked)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format")
