"""Values that spell the marks of calls come back as they are, or are refused by name; drawn ones never end a call."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_lookahead.conversation.calls.base import Call, Style
from ipex_lookahead.conversation.calls.json_calls import Bare, Listed
from ipex_lookahead.conversation.tools import Parser
from ipex_lookahead.errors import InputError
from tests.conversation.calls.bytes_vocabulary import spell, takes, walked
from tests.conversation.calls.test_styles import ELEMENTS, STYLES, TOKENS, found, of
from tests.gates import cases

EVERY_STYLE: dict[str, Style] = {**STYLES, "llama 3": Bare(), "mistral": Listed()}
EVERY = pytest.mark.parametrize("style", EVERY_STYLE.values(), ids=EVERY_STYLE)

ENDS = ("</parameter>", "</arg_value>", '<|"|>')
"""What ends values that are written without quotes; no such value can hold its own."""


def marks_of(style: Style) -> list[str]:
    own = [mark for mark in (*style.markers, style.end, *style.inner) if len(mark) > 1]
    return [*own, "</parameter>", "</function>", "<parameter=a>\n", "```", "};", "; {", "'", '"', "\\", "]", ")", "\n"]


def forced(style: Style, tokens: bool, functions: Any) -> str:
    return "start: calls\n" + style.grammar(functions, lambda text: spell(text, tokens), one=True)


def texts(style: Style) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from([*marks_of(style), "a", "<", " "]), max_size=4).map("".join)


@pytest.mark.rotating(1)
@settings(max_examples=cases(60, 300), deadline=None, derandomize=True)
@given(st.sampled_from(sorted(EVERY_STYLE)), st.booleans(), st.data())
def test_constants_come_back_or_are_refused(name: str, tokens: bool, data: st.DataObject) -> None:
    style = EVERY_STYLE[name]
    text = data.draw(texts(style))
    value = data.draw(st.sampled_from([text, [text], {"k": text}, {"k": {"l": [text, 1]}}, {text or "x": 1}]))
    schema: Any = data.draw(st.sampled_from([{"const": value}, {"enum": ["x", value]}, {"enum": [value, None]}]))
    functions = of(schema, additionalProperties=False)
    refused = ""
    try:
        grammar = forced(style, tokens, functions)
    except InputError as error:
        refused = str(error)
    if refused:
        assert any(f"holds {mark!r}" in refused and mark in text for mark in ENDS)
        return
    drawn = {walked(grammar, seed, tokens) for seed in range(4)} - {""}
    assert drawn
    for one in drawn:
        calls = found(style, one, functions)
        assert len(calls) == 1, one
        assert calls[0][1]["a"] in (value, *schema.get("enum", ())), one


@EVERY
@TOKENS
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "string", "minLength": 1},
        {"type": "string", "minLength": 30},
        {"type": "string", "maxLength": 40},
        {"type": "string", "minLength": 2, "maxLength": 10_000},
        {"type": "string", "pattern": "^(a|<|/|>|=|\\||[a-z_])*$"},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"type": "array", "items": {"type": "string"}},
        {"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"], "additionalProperties": False},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": ["string", "boolean", "null"]},
    ],
    ids=str,
)
@pytest.mark.rotating(60)
def test_drawn_values_are_one_call(style: Style, tokens: bool, schema: dict[str, Any]) -> None:
    functions = of(schema, additionalProperties=False)
    parameters = functions[0]["parameters"]
    grammar = forced(style, tokens, functions)
    for seed in range(4):
        text = walked(grammar, seed, tokens, letters=marks_of(style))
        if text:
            calls = found(style, text, functions)
            assert len(calls) == 1, text
            assert isinstance(calls[0], tuple), text
            jsonschema.validate(calls[0][1], parameters)


@pytest.mark.rotating(1)
@settings(max_examples=cases(60, 300), deadline=None, derandomize=True)
@given(st.sampled_from(sorted(EVERY_STYLE)), st.data(), st.integers(0, 1000))
def test_arguments_that_spell_marks_are_found_in_any_pieces(name: str, data: st.DataObject, seed: int) -> None:
    """All but texts that hold the end of values, for which such calls have no spelling."""
    style = EVERY_STYLE[name]
    free = texts(style).filter(lambda text: not any(mark in text for mark in ENDS))
    values = st.fixed_dictionaries({"a": free}, optional={"b": free, "c": st.lists(texts(style), max_size=2)})
    if name == "gemma 4":
        values = st.fixed_dictionaries({"a": free}, optional={"b": free, "c": st.lists(free, max_size=2)})
    calls = [("f", data.draw(values)) for _ in range(data.draw(st.integers(1, 2)))]
    kinds = {"a": {"type": "string"}, "b": {"type": "string"}, "c": {"type": "array", "items": {"type": "string"}}}
    functions = [{"name": "f", "parameters": {"type": "object", "properties": kinds}}]
    text = "".join(style.spelled(calls))
    assert found(style, text, functions) == calls
    chance, parser, parts, at = random.Random(seed), Parser(style, functions), [], 0
    while at < len(text):
        size = chance.randint(1, 6)
        parts += parser.put(text[at : at + size], last=False)
        at += size
    parts += parser.put("", last=True)
    assert [(one.name, json.loads(one.arguments)) if isinstance(one, Call) else one for one in parts] == calls


@ELEMENTS
@TOKENS
def test_a_value_that_its_end_would_cut_is_named(style: Style, tokens: bool) -> None:
    mark = style.value_end[1]
    for schema in (
        {"const": f"x{mark}"},
        {"enum": ["a", f"x{mark}"]},
        {"anyOf": [{"const": f"x{mark}"}, {"type": "null"}]},
    ):
        with pytest.raises(InputError, match=f"the value 'x{mark}' holds '{mark}'"):
            forced(style, tokens, of(schema))


@pytest.mark.parametrize(
    ("style", "pattern"),
    [
        (STYLES["qwen3.5"], "^a?</parameter>"), (STYLES["qwen3.5"], "<\\/parameter>"),
        (STYLES["glm 4.7"], "^x</arg_value>$"), (STYLES["gemma 4"], '<\\|"\\|>'),
    ],
)  # fmt: skip
def test_a_pattern_that_spells_the_end_is_named(style: Style, pattern: str) -> None:
    with pytest.raises(InputError, match="the pattern .* holds"):
        forced(style, False, of({"type": "string", "pattern": pattern}))


def test_a_pattern_of_the_signs_of_the_end_is_taken() -> None:
    functions = of({"type": "string", "pattern": '^(<|"|>)$'})
    grammar = forced(STYLES["gemma 4"], False, functions)
    assert takes(grammar, "".join(STYLES["gemma 4"].spelled([("f", {"a": '"'})])))


@EVERY
def test_a_call_that_was_cut_off_is_text(style: Style) -> None:
    """Where an answer ends inside a value that spells the end."""
    text = "".join(style.spelled([("f", {"a": f"x{style.end or style.markers[0]}y", "b": "z"})]))
    functions = [{"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}]
    for length in range(len(text) - 12, text.index("x"), -3):
        said = "".join(map(str, found(style, text[:length], functions)))
        assert said == text[:length] or isinstance(found(style, text[:length], functions)[0], tuple)


def test_text_of_a_call_is_not_held_back_for_an_open_quote() -> None:
    style = STYLES["hermes"]
    parser = Parser(style, [{"name": "f"}])
    said = parser.put('<tool_call>it is "so</tool_call> and on', last=False)
    assert said == ['<tool_call>it is "so</tool_call> and on']


def test_takes_what_json_escapes() -> None:
    style, functions = STYLES["qwen3.5"], of({"const": {"k": "</parameter>"}})
    grammar = forced(style, False, functions)
    text = (
        '<tool_call>\n<function=f>\n<parameter=a>\n{"k": "\\u003c/parameter>"}\n</parameter>\n</function>\n</tool_call>'
    )
    assert takes(grammar, text)
    assert found(style, text, functions) == [("f", {"a": {"k": "</parameter>"}})]
