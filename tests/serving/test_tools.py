"""Calls of tools are found in any pieces of text, and text that is no call stays text."""

from __future__ import annotations

import json
import threading

import httpx
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


def parsed(style, text, cuts, *, one=False):
    """What a parser makes of a text in pieces: texts and (name, arguments), in order."""
    parser, found, at = Parser(style, ["w", "v"], one=one), [], 0
    for cut in [*sorted({min(cut, len(text)) for cut in cuts}), None]:
        for part in parser.put(text[at:cut], last=cut is None):
            if isinstance(part, str) and found and isinstance(found[-1], str):
                found[-1] += part
            else:
                found.append(part if isinstance(part, str) else (part.name, part.arguments))
        at = cut
    return found


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(WRITTEN), st.lists(st.integers(0, 200), max_size=12))
def test_calls_are_found(written, cuts):
    style, text, before, count = written
    text = text.replace("%s", json.dumps(ARGUMENTS, ensure_ascii=False))
    found = parsed(style, text, cuts)
    assert found == [*([before] if before else []), *[("w", json.dumps(ARGUMENTS, ensure_ascii=False))] * count]


def test_calls_have_ids_of_their_own():
    style, text, _, count = WRITTEN[4]
    calls = Parser(style, ["w"]).put(text.replace("%s", "{}"), last=True)
    assert len({call.id for call in calls}) == count


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.sampled_from(NO_CALLS), st.lists(st.integers(0, 80), max_size=12))
def test_what_is_no_call_is_text(written, cuts):
    style, text = written
    assert parsed(style, text, cuts) == [text]


PIECES = (
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "[ARGS]", "<tool", "_call>", "[TOOL_", "<|py",
    '{"name": "w", "arguments": {}}', '{"name": "v", "parameters": {"a": "</tool_call>"}}', '{"name": "x"}',
    'w{"a": 1}', "v{}", "[", "]", ",", ";", "{", "}", '"', "\\", "\n", "\n\n", " ", "\t", "Done.", "\u00e9", "w",
)  # fmt: skip
"""What calls are made of, whole and broken."""
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=14).map("".join)


@settings(max_examples=1500, deadline=None, derandomize=True)
@given(st.sampled_from([Tagged(), Bare(), Listed()]), TEXTS, st.lists(st.integers(0, 120), max_size=20), st.booleans())
def test_what_is_found_does_not_hang_on_the_pieces(style, text, cuts, one):
    whole = parsed(style, text, [], one=one)
    assert parsed(style, text, cuts, one=one) == whole
    assert parsed(style, text, range(len(text)), one=one) == whole


@pytest.mark.parametrize(
    ("style", "text", "found"),
    [
        (Tagged(), '<tool_call>\n{"name": "w", "arguments": {}}\n</tool_call>\nDone.', [("w", "{}"), "Done."]),
        (Tagged(), '\n <tool_call>{"name": "w"}</tool_call>\n \n', [("w", "{}")]),
        (Tagged(), "A <tool_call>{}</tool_call>\nB", ["A <tool_call>{}</tool_call>\nB"]),
        (Tagged(), 'A\n<tool_call>{"name": "w"}</tool_call> \nB', ["A\n", ("w", "{}"), " \nB"]),
        (Tagged(), " \n", [" \n"]),
        (Bare(), " \n", [" \n"]),
    ],
)
def test_white_space_around_calls(style, text, found):
    for cuts in ([], range(len(text))):
        assert parsed(style, text, cuts) == found


@pytest.mark.parametrize(
    ("style", "text", "call"),
    [
        (Tagged(), '<tool_call>{"name": "w"}</tool_call>', '<tool_call>{"name": "v"}</tool_call>'),
        (Tagged(), '<tool_call>{"name": "w"}</tool_call>', "\nDone."),
        (Bare(), '{"name": "w", "parameters": {}}', '; {"name": "v", "parameters": {}}'),
        (Bare(), '<|python_tag|>{"name": "w"}', " is what I call"),
        (Listed(), '[TOOL_CALLS] [{"name": "w", "arguments": {}}', ', {"name": "v", "arguments": {}}]'),
        (Listed(), "[TOOL_CALLS]w{}", "[TOOL_CALLS]v{}"),
        (Listed(), "[TOOL_CALLS]w[CALL_ID]abc[ARGS]{}", "}"),
    ],
)
def test_a_single_call_ends_the_answer_at_its_last_character(style, text, call):
    parser = Parser(style, ["w", "v"], one=True)
    for character in text:
        assert not parser.ended
        found = parser.put(character, last=False)
    assert parser.ended
    assert [(one.name, one.arguments) for one in found] == [("w", "{}")]
    assert parser.put(call, last=True) == []
    assert not parser.again().ended


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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("mark", "written", "text", "calls"),
    [
        ("<|python_tag|>", 'I look. <|python_tag|>{"name": "w", "parameters": {"a": 1}}', "I look. ", ['{"a": 1}']),
        ("<|python_tag|>", "<|python_tag|>w.call(1)", "<|python_tag|>w.call(1)", []),
        ("<|python_tag|>", 'Say {"name": "w"}', 'Say {"name": "w"}', []),
        ("[TOOL_CALLS]", 'Well. [TOOL_CALLS]w[ARGS]{"a": 1}[TOOL_CALLS]w{}', "Well. ", ['{"a": 1}', "{}"]),
        ("[TOOL_CALLS]", "[TOOL_CALLS] is how I call", "[TOOL_CALLS] is how I call", []),
    ],
)
def test_calls_of_llama_and_mistral_are_found_where_the_model_may_call(
    live, model, monkeypatch, mark, written, text, calls, stream
):
    """With ``tool_choice`` auto: from the token that they begin with, and free text otherwise."""
    monkeypatch.setattr(model.tokenizer, "chat_template", model.tokenizer.chat_template + "{# " + mark + " #}")
    running, found = live(), []
    tools = [{"type": "function", "function": {"name": "w"}}]
    asked = {"messages": [{"role": "user", "content": "Hi"}], "tools": tools, "tool_choice": "auto", "stream": stream}
    path = running.url + "/v1/chat/completions"
    thread = threading.Thread(target=lambda: found.append(httpx.post(path, json=asked, timeout=60)))
    thread.start()
    ticket = running.service.next()
    assert ticket.request.draft_filter is None, "no grammar keeps it"
    ticket.say(*running.server.served.encode(written))
    ticket.finish()
    thread.join(60)
    if stream:
        chunks = [json.loads(line[6:]) for line in found[0].text.split("\n") if line.startswith("data: {")]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        said = "".join(delta.get("content") or "" for delta in deltas)
        parts = [part["function"] for delta in deltas for part in delta.get("tool_calls", ())]
        arguments = [part["arguments"] for part in parts if "name" not in part]
    else:
        message = found[0].json()["choices"][0]["message"]
        said = message["content"]
        arguments = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
    assert (said, arguments) == (text, calls)
