"""Calls of tools are found in any pieces of text, and text that is no call stays text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_lookahead.conversation.calls.bare_keys import BareKeys
from ipex_lookahead.conversation.calls.elements import Coder, Keyed, Params
from ipex_lookahead.conversation.calls.json_calls import Bare, Bracketed, Listed, Sectioned, Tagged
from ipex_lookahead.conversation.calls.pythonic import Pythonic
from ipex_lookahead.conversation.tools import Parser, in_words, ways_of
from ipex_lookahead.decoding.events import Event, TokenLogprob
from tests.gates import cases

FUNCTIONS = [{"name": "w"}, {"name": "v"}]
ARGUMENTS = {"city": "Zürich", "days": 3, "deep": {"a": [1, {"b": "}</tool"}]}}
TOOLCALL, GRANITE = Bracketed("<TOOLCALL>", "</TOOLCALL>"), Bracketed("<|tool_call|>")
FENCED, PLAIN = Sectioned(fenced=True), Sectioned(fenced=False)
BEGIN, END = FENCED.markers[0], FENCED.end
ONE, SEP, OUT = FENCED.inner
CODER = "<tool_call>\n<function=w>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
STYLES = [
    Tagged(), Bare(), Listed(), TOOLCALL, GRANITE, FENCED, PLAIN, Pythonic(), Coder(), Keyed("\n"), Keyed(""),
    BareKeys(), Params(),
]  # fmt: skip
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
    (
        TOOLCALL,
        'Well.\n<TOOLCALL>[{"name": "w", "arguments": %s}, {"name": "w", "arguments": %s}]</TOOLCALL>',
        "Well.\n",
        2,
    ),
    (GRANITE, '<|tool_call|>[{"name": "w", "arguments": %s}]', "", 1),
    (
        FENCED,
        f"{BEGIN}{ONE}function{SEP}w\n```json\n%s\n```{OUT}\n{ONE}function{SEP}w\n```json\n%s\n```{OUT}{END}",
        "",
        2,
    ),
    (PLAIN, f"Well.{BEGIN}{ONE}w{SEP}%s{OUT}{ONE}w{SEP}%s{OUT}{END}", "Well.", 2),
    (FENCED, f"{BEGIN}{ONE}w{SEP}%s{OUT}{END}", "", 1),
    (Pythonic(), '<|tool_call_start|>[{"name": "w", "arguments": %s}]<|tool_call_end|>', "", 1),
]
NO_CALLS = [
    (Tagged(), "a < b and <tool> is not </tool_call>"),
    (Tagged(), '<tool_call>{"name": "other", "arguments": {}}</tool_call>'),
    (Tagged(), '<tool_call>{"name": "w", "arguments": 4}</tool_call> and on'),
    (Tagged(), "<tool_call>not JSON</tool_call>"),
    (Tagged(), '<tool_call>{"name": "w", "argum'),
    (Tagged(), '<tool_call>{"name": "w", "arguments": {"a": NaN}}</tool_call>'),
    (Bare(), '{"a": 1} is JSON'),
    (Bare(), 'Say {"name": "w", "parameters": {}}'),
    (Listed(), "[TOOL_CALLS][]"),
    (Listed(), "[TOOL_CALLS]w(1)"),
    (TOOLCALL, '<TOOLCALL>[{"name": "other", "arguments": {}}]</TOOLCALL>'),
    (TOOLCALL, "<TOOLCALL>[]</TOOLCALL> and on"),
    (TOOLCALL, '<TOOLCALL>[{"name": "w", "arguments": {}}'),
    (GRANITE, "<|tool_call|>[] and on"),
    (FENCED, f"{BEGIN}{ONE}function{SEP}w\n```json\n[]\n```{OUT}{END}"),
    (FENCED, f"{BEGIN}{ONE}function{SEP}w\n```json\n{{}}\n```"),
    (PLAIN, f"{BEGIN}{ONE}w{SEP}{{}}{END}"),
    (PLAIN, f"{BEGIN}{ONE}w{SEP}{{}}{OUT} so{END}"),
    (PLAIN, f"{BEGIN}w{SEP}{{}}{END}"),
    (Pythonic(), "<|tool_call_start|>[w(1)]<|tool_call_end|>"),
    (Pythonic(), "<|tool_call_start|>[w(a=b)]<|tool_call_end|>"),
    (Pythonic(), "<|tool_call_start|>[w(a=1), ]<|tool_call_end|>"),
    (Pythonic(), "<|tool_call_start|>[x(a=1)]<|tool_call_end|>"),
    (Pythonic(), "<|tool_call_start|>[w(a=1)] w<|tool_call_end|>"),
    (Pythonic(), f"<|tool_call_start|>[w(a={'[' * 99})]<|tool_call_end|>"),
    (Coder(), "<tool_call>\n<function=x>\n</function>\n</tool_call>"),
    (Coder(), "<tool_call>\n<function=w>\n<parameter=a>\n1\n</function>\n</tool_call>"),
    (Coder(), "<tool_call>\nw\n</tool_call>"),
    (Coder(), "<tool_call>\n<function=w>\n</function>\nso\n</tool_call>"),
    (Coder(), "<tool_call>\n<function=w>\n</function>\n<parameter=a>\n1</parameter></tool_call>"),
    (Keyed("\n"), "<tool_call>x</tool_call>"),
    (Keyed("\n"), "<tool_call>w\n<arg_key>a</arg_key>\n</tool_call>"),
    (Keyed(""), "<tool_call>w<arg_key>a</arg_key><arg_value>1</tool_call>"),
    (Keyed(""), "<tool_call>w<arg_key>a</arg_key><arg_value>1</arg_value> and</tool_call>"),
    (BareKeys(), "<|tool_call>call:x{}<tool_call|>"),
    (BareKeys(), "<|tool_call>w{}<tool_call|>"),
    (BareKeys(), "<|tool_call>call:w<tool_call|>"),
    (BareKeys(), "<|tool_call>call:w{a:}<tool_call|>"),
    (BareKeys(), "<|tool_call>call:w{a}<tool_call|>"),
    (BareKeys(), "<|tool_call>call:w{a:1 b:2}<tool_call|>"),
    (BareKeys(), "<|tool_call>call:w{a:1,}<tool_call|>"),
    (BareKeys(), "<|tool_call>call:w{a:Köln}<tool_call|>"),
    (BareKeys(), "<|tool_call>call:w{a:[1,2}<tool_call|>"),
    (BareKeys(), '<|tool_call>call:w{a:<|"|>x}<tool_call|>'),
    (BareKeys(), "<|tool_call>call:w{a:1} so<tool_call|>"),
    (BareKeys(), "<|tool_call>call:w{a:1}"),
    (BareKeys(), f"<|tool_call>call:w{{a:{'[' * 99}<tool_call|>"),
    (BareKeys(), f"<|tool_call>call:w{{a:{'[' * 99}{']' * 99}}}<tool_call|>"),
]


def parsed(style, text, cuts, *, one=False):
    """What a parser makes of a text in pieces: texts and (name, arguments), in order."""
    parser, found, at = Parser(style, FUNCTIONS, one=one), [], 0
    for cut in [*sorted({min(cut, len(text)) for cut in cuts}), None]:
        for part in parser.put(text[at:cut], last=cut is None):
            if isinstance(part, str) and found and isinstance(found[-1], str):
                found[-1] += part
            else:
                found.append(part if isinstance(part, str) else (part.name, part.arguments))
        at = cut
    return found


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.sampled_from(WRITTEN), st.lists(st.integers(0, 200), max_size=12))
def test_calls_are_found(written, cuts):
    style, text, before, count = written
    text = text.replace("%s", json.dumps(ARGUMENTS, ensure_ascii=False))
    found = parsed(style, text, cuts)
    assert found == [*([before] if before else []), *[("w", json.dumps(ARGUMENTS, ensure_ascii=False))] * count]


def test_calls_have_ids_of_their_own():
    style, text, _, count = WRITTEN[4]
    calls = Parser(style, FUNCTIONS).put(text.replace("%s", "{}"), last=True)
    assert len({call.id for call in calls}) == count


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.sampled_from(NO_CALLS), st.lists(st.integers(0, 80), max_size=12))
def test_what_is_no_call_is_text(written, cuts):
    style, text = written
    assert parsed(style, text, cuts) == [text]


PIECES = (
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "[ARGS]", "<tool", "_call>", "[TOOL_", "<|py",
    '{"name": "w", "arguments": {}}', '{"name": "v", "parameters": {"a": "</tool_call>"}}', '{"name": "x"}',
    "<TOOLCALL>", "</TOOLCALL>", "<|tool_call|>", BEGIN, END, ONE, SEP, OUT, "function", "```json\n", "```",
    '[{"name": "w", "arguments": {"a": 1}}]', "<|tool_call_start|>", "<|tool_call_end|>", "[w(a=1)]", 'w(a="x",b=[1])',
    "w(", "a=", ")", "'", "<function=w>", "</function>", "<parameter=a>", "</parameter>", "<arg_key>", "</arg_key>",
    "<arg_value>", "</arg_value>", CODER, "<|tool_call>", "<tool_call|>", '<|"|>', "call:w{", 'a:<|"|>x<|"|>}', "a:1,",
    '<|tool_call>call:w{a:<|"|>x<|"|>}<tool_call|>', "<|tool_call>call:w{", "}<tool_call|>",
    "<tool_call>w<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>", f"{BEGIN}{ONE}w{SEP}{{}}{OUT}{END}",
    'w{"a": 1}', "v{}", "[", "]", ",", ";", "{", "}", '"', "\\", "\n", "\n\n", " ", "\t", "Done.", "\u00e9", "w",
)  # fmt: skip
"""What calls are made of, whole and broken."""
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=14).map("".join)


@pytest.mark.rotating(1)
@settings(max_examples=cases(150, 4_000), deadline=None, derandomize=True)
@given(st.sampled_from(STYLES), TEXTS, st.lists(st.integers(0, 120), max_size=20), st.booleans())
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
        (TOOLCALL, '<TOOLCALL>[{"name": "w", "arguments": {}}', ', {"name": "v", "arguments": {}}]</TOOLCALL>'),
        (GRANITE, '<|tool_call|>[{"name": "w", "arguments": {}}', "]"),
        (FENCED, f"{BEGIN}{ONE}function{SEP}w\n```json\n{{}}\n```{OUT}", f"{ONE}v{SEP}{{}}{OUT}{END}"),
        (PLAIN, f"{BEGIN}{ONE}w{SEP}{{}}{OUT}", END),
        (Pythonic(), "<|tool_call_start|>[w()", ", v()]<|tool_call_end|>"),
        (Coder(), "<tool_call>\n<function=w>\n</function>\n</tool_call>", "\nDone."),
        (Keyed("\n"), "<tool_call>w\n</tool_call>", "\n<tool_call>v\n</tool_call>"),
        (BareKeys(), "<|tool_call>call:w{}<tool_call|>", "<|tool_call>call:v{}<tool_call|>"),
    ],
)
def test_a_single_call_ends_the_answer_at_its_last_character(style, text, call):
    parser = Parser(style, FUNCTIONS, one=True)
    for character in text:
        assert not parser.ended
        found = parser.put(character, last=False)
    assert parser.ended
    assert [(one.name, one.arguments) for one in found] == [("w", "{}")]
    assert parser.put(call, last=True) == []
    assert not parser.again().ended


def test_what_a_template_knows_of_tools():
    joined = """{{- "</arg_key>" -}}\n      {{- "<arg_value>" -}}"""
    gaps = [ways_of(f"<tool_call><arg_key>{one}").style.between for one in (joined, joined.replace("-", ""))]
    assert gaps == [("",), ("\n",)]
    assert isinstance(ways_of("""'<function name="' ~ n ~ '">' '<param name="' """).style, Params)
    nothing = ways_of("{{ messages }}")
    assert (type(nothing.style), nothing.known, nothing.lists, nothing.repeats) == (Tagged, False, False, False)
    whole = ways_of("{{ tools }} <tool_call> {{ message.tool_calls }}")
    assert (whole.known, whole.lists, whole.repeats, whole.needs_none) == (True, True, True, False)
    deepseek = "<｜tool▁calls▁begin｜> {% if message['content'] is none %}"
    assert ways_of(deepseek).needs_none
    assert not ways_of(deepseek.replace("<｜tool▁calls▁begin｜>", "<tool_call>")).needs_none
    first = "<|tool_call>call: {% if message['tool_responses'] %}"
    assert ways_of(first).gathers
    assert not ways_of(first + "{{ message.get('tool_call_id') }}").gathers


def test_a_template_without_tools_is_told_in_words():
    calls = [{"id": "x", "type": "function", "function": {"name": "w", "arguments": {}}}]
    messages = [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "sunny", "tool_call_id": "x"},
    ]
    told = in_words(messages, [{"name": "w", "description": "weather"}], Tagged())
    assert [message["role"] for message in told] == ["system", "user", "assistant", "user"]
    assert told[0]["content"].startswith("Be brief")
    assert '"name": "w"' in told[0]["content"]
    assert "<tool_call>" in told[2]["content"]
    assert told[3]["content"] == "<tool_response>\nsunny\n</tool_response>"
    assert [m["role"] for m in in_words(messages[1:2], [{"name": "w"}], Tagged())] == ["system", "user"]


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
@pytest.mark.rotating(5)
def test_calls_of_llama_and_mistral_are_found_where_the_model_may_call(
    live, model, monkeypatch, mark, written, text, calls, stream
):
    """With ``tool_choice`` auto: from the token that they begin with, and free text otherwise."""
    monkeypatch.setattr(model.tokenizer, "chat_template", model.tokenizer.chat_template + "{# " + mark + " #}")
    running = live()
    tools = [{"type": "function", "function": {"name": "w"}}]
    asked = {"messages": [{"role": "user", "content": "Hi"}], "tools": tools, "tool_choice": "auto", "stream": stream}
    ticket, answer = running.ask("/v1/chat/completions", asked)
    assert ticket.request.draft_filter is None, "no grammar keeps it"
    ticket.say(*running.server.served.encode(written))
    ticket.finish()
    if stream:
        chunks = [json.loads(line[6:]) for line in answer().text.split("\n") if line.startswith("data: {")]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        said = "".join(delta.get("content") or "" for delta in deltas)
        parts = [part["function"] for delta in deltas for part in delta.get("tool_calls", ())]
        arguments = [part["arguments"] for part in parts if "name" not in part]
    else:
        message = answer().json()["choices"][0]["message"]
        said = message["content"]
        arguments = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
    assert (said, arguments) == (text, calls)


OPENAI = [{"type": "function", "function": {"name": "w", "parameters": {"type": "object"}}}]
HI = [{"role": "user", "content": "Hi"}]
WITHOUT_CALLS = {
    "/v1/chat/completions": ({"messages": HI, "tools": OPENAI, "tool_choice": "none"}, "prompt_tokens"),
    "/v1/responses": ({"input": "Hi", "tools": [{"type": "function", **OPENAI[0]["function"]}], "tool_choice": "none"},
                      "input_tokens"),
    "/v1/messages": ({"messages": HI, "max_tokens": 4, "tool_choice": {"type": "none"},
                      "tools": [{"name": "w", "input_schema": {"type": "object"}}]}, "input_tokens"),
}  # fmt: skip
CALL = '<tool_call>\n{"name": "w", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize("path", WITHOUT_CALLS)
def test_where_no_call_may_be_made_the_prompt_is_the_same_and_calls_are_text(client, live, path):
    given, counted = WITHOUT_CALLS[path]
    limit = {"max_output_tokens" if path.endswith("responses") else "max_tokens": 2, "temperature": 0}
    free = {name: value for name, value in given.items() if name != "tool_choice"}
    used = [client.post(path, json={**one, **limit, "cache_salt": path}).json()["usage"] for one in (given, free)]
    whole = [one[counted] + one.get("cache_read_input_tokens", 0) for one in used]
    assert whole[0] == whole[1]
    plain = client.post(path, json={**free, **limit, "tools": None}).json()["usage"][counted]
    assert whole[0] > plain
    running = live()
    ticket, told = running.ask(path, given)
    assert not ticket.request.processors
    ticket.say(*running.server.served.encode(CALL))
    ticket.finish()
    answer = told().json()
    (part,) = answer.get("choices") or answer.get("output") or [answer]
    said = part["message"]["content"] if "message" in part else part["content"][0]["text"]
    assert said == CALL
    assert not any(name in told().text for name in ("tool_use", '"tool_calls"', '"function_call"'))


@pytest.mark.parametrize("more", [{}, {"logprobs": True}, {"return_draft_trace": True}], ids=str)
def test_no_chunk_has_empty_content_while_a_call_is_made(live, more):
    running = live()
    ticket, answer = running.ask("/v1/chat/completions", {"messages": HI, "tools": OPENAI, "stream": True, **more})
    tokens = running.server.served.encode(f"I look. {CALL}")
    for token in tokens:
        logprobs = [TokenLogprob(token, -0.5, ())] if "logprobs" in more else None
        ticket.tell(Event("tokens", tokens=[token], origins=[None], logprobs=logprobs))
    ticket.finish()
    chunks = [json.loads(line[6:]) for line in answer().text.split("\n") if line.startswith("data: {")]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert all(choice["delta"].get("content") != "" for choice in choices[1:])
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "I look. "
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    assert [call["function"].get("name") for call in calls if call["function"].get("name")] == ["w"]
    assert len(calls) > 2
    told = [one for choice in choices for one in (choice["logprobs"] or {"content": []})["content"]]
    traced = [one for chunk in chunks for one in chunk.get("draft_trace", ())]
    assert len(told) == (len(tokens) if "logprobs" in more else 0)
    assert bool(traced) == ("return_draft_trace" in more)


def test_the_products_own_prompt_has_the_characters_that_were_given(client):
    """For a template that lists no tools: descriptions, earlier calls and their results, in every API."""
    said = "获取天气 — météo 😀"
    schema = {"type": "object", "properties": {said: {"type": "string", "description": said}}}
    tools = [{"type": "function", "function": {"name": "f", "description": said, "parameters": schema}}]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({said: said})}}
    messages = [
        *HI,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": said},
    ]
    prompt = client.post("/apply-template", json={"messages": messages, "tools": tools}).json()["prompt"]
    assert prompt.count(said) == 6
    assert "\\u" not in prompt
