"""Calls of tools are found in any pieces of text, and text that is no call stays text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_lookahead.serving.tools import Bare, Listed, Parser, Tagged, in_words, style_of

ARGUMENTS = {"city": "Zürich", "days": 3, "deep": {"a": [1, {"b": "}</tool"}]}}
WRITTEN = [
    (Tagged(), 'I look.\n<tool_call>\n{"name": "w", "arguments": %s}\n</tool_call>', "I look.\n", 1),
    (
        Tagged(),
        '<tool_call>\n{"name": "w", "arguments": %s}\n</tool_call>\n'
        '<tool_call>\n{"name": "w", "parameters": %s}\n</tool_call>',
        "",
        2,
    ),
    (Bare(), '{"name": "w", "parameters": %s}', "", 1),
    (Bare(), '<|python_tag|>{"name": "w", "parameters": %s}', "", 1),
    (Listed(), '[TOOL_CALLS][{"name": "w", "arguments": %s}, {"name": "w", "arguments": %s}]', "", 2),
    (Listed(), "[TOOL_CALLS]w[ARGS]%s", "", 1),
    (Listed(), "Well. [TOOL_CALLS]w%s[TOOL_CALLS]w%s", "Well. ", 2),
]
NO_CALLS = [
    (Tagged(), "a < b and <tool> is not </tool_call>"),
    (Tagged(), '<tool_call>{"name": "other", "arguments": {}}</tool_call>'),
    (Tagged(), '<tool_call>{"name": "w", "arguments": 4}</tool_call> and on'),
    (Tagged(), "<tool_call>not JSON</tool_call>"),
    (Tagged(), '<tool_call>{"name": "w", "argum'),
    (Bare(), '{"a": 1} is JSON'),
    (Bare(), 'Say {"name": "w", "parameters": {}}'),
    (Listed(), "[TOOL_CALLS][]"),
    (Listed(), "[TOOL_CALLS]w(1)"),
]


def parsed(style, text, cuts):
    parser, shown, calls, at = Parser(style, ["w"]), "", [], 0
    for cut in sorted({min(cut, len(text)) for cut in cuts}):
        new, found = parser.put(text[at:cut], last=False)
        shown, calls, at = shown + new, calls + found, cut
    new, found = parser.put(text[at:], last=True)
    return shown + new, calls + found


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(WRITTEN), st.lists(st.integers(0, 200), max_size=12))
def test_calls_are_found(written, cuts):
    style, text, before, count = written
    text = text.replace("%s", json.dumps(ARGUMENTS, ensure_ascii=False))
    shown, calls = parsed(style, text, cuts)
    assert shown.strip() == before.strip()
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("w", ARGUMENTS)] * count
    assert len({call.id for call in calls}) == count


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.sampled_from(NO_CALLS), st.lists(st.integers(0, 80), max_size=12))
def test_what_is_no_call_is_text(written, cuts):
    style, text = written
    assert parsed(style, text, cuts) == (text, [])


@pytest.mark.parametrize(
    ("template", "style", "knows"),
    [
        ("... <tool_call> ...", Tagged, True),
        ("... [TOOL_CALLS] ...", Listed, True),
        ("{'name': function name, \"parameters\": dict}", Bare, True),
        ("{{ messages }}", Tagged, False),
    ],
)
def test_styles_are_told_by_the_template(template, style, knows):
    found, known = style_of(template)
    assert (type(found), known) == (style, knows)


def test_a_template_without_tools_is_told_in_words():
    calls = [{"id": "x", "type": "function", "function": {"name": "w", "arguments": "{}"}}]
    messages = [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "sunny", "tool_call_id": "x"},
    ]
    told = in_words(messages, [{"name": "w", "description": "weather"}])
    assert [message["role"] for message in told] == ["system", "user", "assistant", "user"]
    assert told[0]["content"].startswith("Be brief")
    assert '"name": "w"' in told[0]["content"]
    assert "<tool_call>" in told[2]["content"]
    assert told[3]["content"] == "<tool_response>\nsunny\n</tool_response>"
    assert [m["role"] for m in in_words(messages[1:2], [{"name": "w"}])] == ["system", "user"]
