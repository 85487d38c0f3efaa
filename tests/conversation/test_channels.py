"""Answers of messages with heads: thoughts, text and calls by their recipient, in any pieces, free and by grammar."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_lookahead.conversation.calls.base import Call
from ipex_lookahead.conversation.calls.elements import Addressed
from ipex_lookahead.conversation.reader import Reader
from ipex_lookahead.conversation.thinking import MESSAGES, Mode, Thought, marks_of, rule
from ipex_lookahead.conversation.tools import Parser, ways_of
from tests.conversation.calls.bytes_vocabulary import FIRST, MARKS, spell, takes, walked
from tests.conversation.calls.test_styles import FUNCTIONS, TYPED, VALUES, WEATHER, WHOLE
from tests.gates import cases

STYLE = Addressed()
NEXT = "<|eom|><|start|>assistant"
BLOCK = (
    '<atem:function_calls>\n<atem:invoke name="weather">\n<atem:parameter name="city">Köln</atem:parameter>\n'
    '<atem:parameter name="unit">C</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
)
CALL = f" to=weather<|message|>{BLOCK}"
WEATHER_CALL = ("call", '{"city": "Köln", "unit": "C"}')
TOKENS = pytest.mark.parametrize("tokens", [False, True], ids=["letters", "tokens"])


def parts_of(
    text: str,
    cuts: Iterable[int] = (),
    mode: Mode = Mode.PERHAPS,
    functions: Sequence[Any] | None = FUNCTIONS,
    **more: bool,
) -> list[tuple[str, str]]:
    """What a reader makes of a text in pieces, in order."""
    reader = Reader(mode, None if functions is None else Parser(STYLE, functions, **more), MESSAGES)
    found: list[tuple[str, str]] = []
    at = 0
    for cut in [*sorted({min(cut, len(text)) for cut in cuts}), None]:
        for part in reader.put(text[at:cut], last=cut is None):
            kind = "call" if isinstance(part, Call) else "thought" if isinstance(part, Thought) else "text"
            said = part.arguments if isinstance(part, Call) else str(part)
            joins = not part.begins if isinstance(part, Call) else bool(found) and found[-1][0] == kind
            if joins:
                found[-1] = (kind, found[-1][1] + said)
            else:
                found.append((kind, said))
        at = cut or 0
    return found


CASES = [
    (Mode.PERHAPS, " to=user<|message|>Hi <b>", [("text", "Hi <b>")]),
    (Mode.PERHAPS, "<|message|>Hi", [("text", "Hi")]),
    (Mode.PERHAPS, "Hi to=self<|message|>", [("text", "Hi to=self<|message|>")]),
    (Mode.PERHAPS, f" to=self<|message|>hm\n{NEXT} to=user<|message|>Hi", [("thought", "hm"), ("text", "Hi")]),
    (Mode.PERHAPS, f" to=self<|message|>a{NEXT} to=self<|message|>b{NEXT}{CALL}",
     [("thought", "a\n\nb"), WEATHER_CALL]),
    (Mode.PERHAPS, f" to=user<|message|>a{NEXT}{CALL}{NEXT} to=user<|message|>b",
     [("text", "a"), WEATHER_CALL, ("text", "\n\nb")]),
    (Mode.PERHAPS, f" to=user<|message|>So:\n{BLOCK}", [("text", f"So:\n{BLOCK}")]),
    (Mode.PERHAPS, f" to=self<|message|>So: {BLOCK}{NEXT} to=user<|message|>Hi",
     [("thought", f"So: {BLOCK}"), ("text", "Hi")]),
    (Mode.PERHAPS, f"{CALL}{NEXT}{CALL}", [WEATHER_CALL, WEATHER_CALL]),
    (Mode.PERHAPS, f" to=self<|message|>a{NEXT} to=us", [("thought", "a")]),
    (Mode.PERHAPS, " to=self<|message|>a<|eo", [("thought", "a<|eo")]),
    (Mode.WITHIN, f"a{NEXT} to=user<|message|>Hi", [("thought", "a"), ("text", "Hi")]),
    (Mode.NONE, f" there{NEXT}{CALL}", [("text", " there"), WEATHER_CALL]),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "text", "parts"), CASES)
def test_parts_by_recipient(mode: Mode, text: str, parts: list[tuple[str, str]]) -> None:
    for cuts in (range(0), range(len(text)), range(0, len(text), 7)):
        assert parts_of(text, cuts, mode) == parts


def test_without_tools_a_call_is_text() -> None:
    assert parts_of(CALL, functions=None) == [("text", BLOCK)]


PIECES = st.sampled_from(
    [" to=self", " to=user", " to=weather", "<|message|>", "<|eom|>", "<|start|>assistant", "<|start", " to", "\n", "a",
     "é", "<", "|>", BLOCK, "<atem:function_calls>", "</atem:function_calls>", CALL, NEXT]
)  # fmt: skip


@pytest.mark.rotating(1)
@settings(max_examples=cases(150, 1_200), deadline=None, derandomize=True)
@given(
    st.sampled_from(Mode), st.lists(PIECES, max_size=10).map("".join), st.lists(st.integers(0, 200), max_size=12),
    st.booleans(),
)  # fmt: skip
def test_parts_do_not_hang_on_the_pieces(mode: Mode, text: str, cuts: list[int], tools: bool) -> None:
    functions = FUNCTIONS if tools else None
    whole = parts_of(text, [], mode, functions)
    assert parts_of(text, cuts, mode, functions) == whole
    assert parts_of(text, range(len(text)), mode, functions) == whole


@pytest.mark.rotating(1)
@settings(max_examples=cases(60, 300), deadline=None, derandomize=True)
@given(
    st.lists(st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 400), max_size=20),
)
def test_any_arguments_come_back_whole_and_in_pieces(calls: list[dict[str, Any]], cuts: list[int]) -> None:
    functions = []
    for at, arguments in enumerate(calls):
        kinds = {key: next((kind for kind, cls in TYPED if type(one) is cls), "null") for key, one in arguments.items()}
        properties = {key: {"type": kind} for key, kind in kinds.items()}
        functions.append({"name": f"f{at}", "parameters": {"type": "object", "properties": properties}})
    text = "".join(STYLE.spelled([(f"f{at}", arguments) for at, arguments in enumerate(calls)]))
    whole = parts_of(text, functions=functions)
    assert [(kind, json.loads(said)) for kind, said in whole] == [("call", arguments) for arguments in calls]
    every = list(range(len(text)))
    for pieces in (cuts, every):
        assert parts_of(text, pieces, functions=functions, certain=True, only=True) == whole


def test_a_long_text_comes_as_it_is_written() -> None:
    text = "".join(STYLE.spelled([("weather", {"city": "x" * 60, "unit": "C"})]))
    reader = Reader(Mode.PERHAPS, Parser(STYLE, FUNCTIONS, certain=True, only=True), MESSAGES)
    assert sum(bool(reader.put(sign, last=False)) for sign in text) > 60


def test_one_call_alone() -> None:
    text = "".join(STYLE.spelled([("weather", WHOLE), ("now", {})]))
    for cuts in ((), range(len(text))):
        (found,) = parts_of(f"{text}{NEXT} to=user<|message|>a", cuts, one=True)
        assert json.loads(found[1]) == WHOLE


def forced(tokens: bool, mode: Mode, *, one: bool = False, functions: Any = FUNCTIONS) -> str:
    ids = {mark: FIRST + MARKS.index(mark) for mark in MESSAGES.spelled if tokens and mark in MARKS}
    before = "thought? " if mode is Mode.PERHAPS else "thought "
    calls = STYLE.grammar(functions, lambda text: spell(text, tokens), one=one)
    return f"start: {before}calls\n{calls}{rule(mode, MESSAGES, ids)}"


@TOKENS
@pytest.mark.parametrize(
    "calls",
    [
        [("weather", WHOLE)],
        [("now", {}), ("weather", {"city": "5", "unit": "C", "limit": 5}), ("now", {})],
        [("any.thing-1", {"a": 1, "b_c": "x y"})],
    ],
    ids=["whole", "several", "open"],
)
def test_what_is_written_is_allowed_and_found(tokens: bool, calls: list[Any]) -> None:
    text = "".join(STYLE.spelled(calls))
    thought = f"I may <atem:invoke it.{NEXT}"
    single = len(calls) == 1
    for one in (False, True):
        grammar = forced(tokens, Mode.PERHAPS, one=one)
        assert takes(grammar, text, tokens) == (single or not one)
        assert takes(grammar, f" to=self<|message|>{thought}{text}", tokens) == (single or not one)
        assert not takes(grammar, f" to=user<|message|>{thought}{text}", tokens)
    assert takes(forced(tokens, Mode.WITHIN), thought + text, tokens)
    assert [json.loads(said) for _, said in parts_of(text)] == [arguments for _, arguments in calls]


@TOKENS
def test_what_the_schema_forbids_is_not_written(tokens: bool) -> None:
    for name, arguments in (
        ("other", {}),
        ("weather", {"city": "x"}),
        ("weather", {"city": "x", "unit": "K"}),
        ("weather", {"city": "x", "unit": "C", "days": 10}),
        ("weather", {"city": "x", "unit": "C", "more": 1}),
        ("now", {"a": 1}),
    ):
        text = "".join(STYLE.spelled([(name, arguments)]))
        assert not takes(forced(tokens, Mode.PERHAPS), text, tokens), (name, arguments)


@TOKENS
def test_what_is_drawn_at_random_is_a_call_that_validates(tokens: bool) -> None:
    properties: Any = WEATHER["properties"]
    parameters = {**WEATHER, "required": list(properties)}
    functions = [{"name": name, "parameters": parameters} for name in ("f", "g")]
    calls = "start: calls\n" + STYLE.grammar(functions, lambda text: spell(text, tokens), one=False)
    whole = 0
    for seed in range(6):
        text = walked(calls, seed, tokens, letters=["</atem:parameter>\n"])
        if text:
            found = parts_of(text, functions=functions)
            assert found, text
            for kind, arguments in found:
                assert kind == "call"
                jsonschema.validate(json.loads(arguments), parameters)
            whole += 1
    assert whole >= 3


def test_a_template_is_recognized() -> None:
    template = "{{ '<|start|>assistant to=self<|message|>' }}<|eom|><atem:function_calls>\"parameters\" tools"
    assert marks_of(template) is MESSAGES
    assert isinstance(ways_of(template).style, Addressed)
    assert marks_of(template.replace("to=self", "")) is None
