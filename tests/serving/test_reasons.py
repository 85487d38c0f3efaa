"""Errors of grammars name the construct, and the field and the tool that it is in; nothing of the library's own."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ipex_lookahead.conversation.reasons import placed, reason, without_place

LOOK = "look-around, including look-ahead and look-behind, is not supported"
SAID = "the grammar cannot be compiled: "
ASKED = [{"role": "user", "content": "Hi"}]
LOOKING = {"type": "object", "properties": {"code": {"type": "string", "pattern": "^(?=.*[0-9]).+$"}}}
PASSWORD = {"type": "object", "properties": {"key": {"type": "string", "format": "password"}}}
GOOD = {"type": "object", "properties": {"key": {"type": "string"}}}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("Unknown format: password", "Unknown format: password"),
        ("regex parse error:\n    ^(?=a)$\n     ^^^\nerror: " + LOOK, f"pattern ^(?=a)$: {LOOK}"),
        ("at 2(4): failed to compile JSON schema: regex parse error:\n    a(b\n     ^\nerror: unclosed group\n   1 | x",
         "line 2, column 4: pattern a(b: unclosed group"),
        ('at 1(8): invalid regex "a(?=b)" (in regex): regex parse error:\n    a(?=b)\n     ^^^\nerror: ' + LOOK
         + "\n   1 | start: /a(?=b)/\n              ^\n", f"line 1, column 8: pattern a(?=b): {LOOK}"),
        ('3(13): lexer error\n   1 | start: "a', "line 3, column 13: lexer error"),
        ("Unsatisfiable schema: Regex is empty:  (And (SearchRegex /^a$/) (Regex /(?s:.{5,})/))",
         "Unsatisfiable schema: Regex is empty"),
        ("panicked at /root/.cargo/registry/src/x-1.0/src/lib.rs:12:4: why", "panicked at why"),
        ("x" * 3000, "x" * 2000 + "..."),
        ("lexer error: too many expressions\nand its state", "lexer error: too many expressions"),
        ("", ""),
    ],
)  # fmt: skip
def test_the_reason_of_the_library(error: str, said: str) -> None:
    assert reason(error) == said


def test_places_are_the_callers_or_none() -> None:
    assert placed("x: line 2, column 4: y", [1, 7]) == "x: line 7, column 4: y"
    assert placed("x: line 3, column 4: y", [1, 7]) == "x: y"
    assert without_place("x: line 3, column 4: y") == "x: y"


def tools(*functions: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": one} for one in functions]


THREE = [("good", GOOD), ("odd", PASSWORD), ("fine", GOOD)]
REQUIRED = {"tool_choice": "required"}
STRICT = {"strict": True}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": LOOKING}}
CASES = [
    ("/v1/chat/completions",
     {"messages": ASKED, "tools": tools(*({"name": n, "parameters": p} for n, p in THREE)), **REQUIRED},
     "tools.1.function.parameters", f"tool 'odd': {SAID}Unknown format: password"),
    ("/v1/chat/completions",
     {"messages": ASKED, "tools": tools(*({"name": n, "parameters": p, **STRICT} for n, p in THREE))},
     "tools.1.function.parameters", f"tool 'odd': {SAID}Unknown format: password"),
    ("/v1/responses",
     {"input": "x", "tools": [{"type": "function", "name": n, "parameters": p} for n, p in THREE], **REQUIRED},
     "tools.1.parameters", f"tool 'odd': {SAID}Unknown format: password"),
    ("/v1/messages",
     {"messages": ASKED, "tools": [{"name": n, "input_schema": p} for n, p in THREE], "tool_choice": {"type": "any"}},
     "tools.1.input_schema", f"tool 'odd': {SAID}Unknown format: password"),
    ("/v1/chat/completions", {"messages": ASKED, "response_format": FORMAT},
     "response_format.json_schema.schema", f"{SAID}pattern ^(?=.*[0-9]).+$: {LOOK}"),
    ("/v1/chat/completions", {"messages": ASKED, "response_format": FORMAT, **REQUIRED,
                              "tools": tools({"name": "f", "parameters": {"type": "array", "uniqueItems": True}})},
     "tools.0.function.parameters", f"tool 'f': {SAID}"),
    ("/v1/chat/completions", {"messages": ASKED, "response_format": FORMAT, "tools": tools({"name": "f"})},
     "response_format.json_schema.schema", f"{SAID}pattern ^(?=.*[0-9]).+$: {LOOK}"),
    ("/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": LOOKING}}},
     "text.format.schema", f"{SAID}pattern ^(?=.*[0-9]).+$: {LOOK}"),
    ("/v1/completions", {"prompt": "x", "json_schema": LOOKING},
     "json_schema", f"{SAID}pattern ^(?=.*[0-9]).+$: {LOOK}"),
    ("/v1/completions", {"prompt": "x", "guided_json": PASSWORD}, "guided_json", f"{SAID}Unknown format: password"),
    ("/v1/completions", {"prompt": "x", "structured_outputs": {"json": PASSWORD}},
     "structured_outputs.json", f"{SAID}Unknown format: password"),
    ("/v1/completions", {"prompt": "x", "structured_outputs": {"regex": "a(?=b)"}},
     "structured_outputs.regex", f"{SAID}pattern a(?=b): {LOOK}"),
    ("/v1/completions", {"prompt": "x", "guided_regex": "a(b"}, "guided_regex", f"{SAID}pattern a(b: unclosed group"),
    ("/v1/completions", {"prompt": "x", "guided_grammar": 'root ::= "a"\n\nb ::= c'},
     "guided_grammar", "the grammar cannot be read: line 3, column 7, at 'c': there is no rule 'c'"),
    ("/v1/completions", {"prompt": "x", "grammar": "start: a\n\n\na: /x(?=y)/"},
     "grammar", f"{SAID}line 4, column 4: pattern x(?=y): {LOOK}"),
    ("/v1/completions", {"prompt": "x", "grammar": "root ::= <[123456]>"},
     "grammar", f"{SAID}Token range end too large: 123456"),
    ("/api/chat", {"model": "tiny", "messages": ASKED, "format": PASSWORD},
     "format", f"{SAID}Unknown format: password"),
    ("/api/generate", {"model": "tiny", "prompt": "x", "format": LOOKING}, "format", f"{SAID}pattern "),
    ("/completion", {"prompt": "x", "json_schema": PASSWORD}, "json_schema", f"{SAID}Unknown format: password"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "given", "param", "said"), CASES, ids=lambda one: one if isinstance(one, str) else "")
def test_errors_name_the_field_and_the_construct(
    client: Any, path: str, given: dict[str, Any], param: str, said: str
) -> None:
    limit = {} if path.startswith("/api") else {"max_output_tokens" if "responses" in path else "max_tokens": 1}
    answer = client.post(path, json={**given, **limit})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert message.startswith(f"{param}: {said}"), message
    assert not re.search(r"\n|/work|\.rs|\.py|\(And|\d \|", message)
    if isinstance(error, dict) and "param" in error:
        assert error["param"] == param
