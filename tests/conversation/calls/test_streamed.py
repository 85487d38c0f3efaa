"""Calls in pieces: put together they are the whole call, whatever pieces the text comes in, and where it is cut."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_lookahead.conversation.calls.base import Call, Style, as_json
from ipex_lookahead.conversation.calls.decided import decided
from ipex_lookahead.conversation.calls.json_calls import Bare, Listed
from ipex_lookahead.conversation.calls.pythonic import Pythonic
from ipex_lookahead.conversation.tools import Parser
from tests.conversation.calls.test_styles import FUNCTIONS, STYLES, TYPED, VALUES, WHOLE
from tests.gates import cases

EVERY_STYLE: dict[str, Style] = {**STYLES, "mistral": Listed(), "llama 3": Bare()}
EVERY = pytest.mark.parametrize("style", EVERY_STYLE.values(), ids=EVERY_STYLE)


def pieces_of(
    style: Style, text: str, cuts: Iterable[int], functions: Sequence[Any], *, only: bool = False, one: bool = False
) -> list[str | Call]:
    """What a parser gives for a text in pieces, in order; ``cuts`` are where they begin."""
    parser = Parser(style, functions, certain=True, only=only, one=one)
    found: list[str | Call] = []
    at = 0
    for cut in [*sorted({min(cut, len(text)) for cut in cuts}), None]:
        found += parser.put(text[at:cut], last=cut is None)
        at = len(text) if cut is None else cut
    return found


def joined(pieces: Sequence[str | Call]) -> list[tuple[Any, ...]]:
    """Texts, and calls with whether they are complete."""
    found: list[Any] = []
    for piece in pieces:
        last = found[-1] if found else None
        if isinstance(piece, Call):
            if piece.begins:
                found.append(piece)
            else:
                assert isinstance(last, Call)
                assert (last.id, last.ends) == (piece.id, False)
                found[-1] = last.joined(piece)
        elif isinstance(last, str):
            found[-1] = last + piece
        else:
            found.append(piece)
    return [(one.name, one.arguments, one.ends) if isinstance(one, Call) else (one,) for one in found]


def whole_of(style: Style, text: str, functions: Sequence[Any]) -> list[tuple[Any, ...]]:
    return joined(Parser(style, functions).put(text, last=True))


CUTS = st.lists(st.integers(0, 400), max_size=20)


@pytest.mark.rotating(1)
@settings(max_examples=cases(120, 1_500), deadline=None, derandomize=True)
@given(
    st.sampled_from(list(EVERY_STYLE.values())),
    st.lists(st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4), min_size=1, max_size=3),
    CUTS,
    st.booleans(),
)
def test_pieces_are_the_whole_and_a_cut_leaves_a_prefix(
    style: Style, calls: list[dict[str, Any]], cuts: list[int], typed: bool
) -> None:
    """By schemas that name the type of each argument, and by some that name none."""
    functions = []
    for at, arguments in enumerate(calls):
        kinds = {key: next((kind for kind, cls in TYPED if type(one) is cls), "null") for key, one in arguments.items()}
        properties = {key: {"type": kind} if typed else {} for key, kind in kinds.items()}
        functions.append({"name": f"f{at}", "parameters": {"type": "object", "properties": properties}})
    text = "".join(style.spelled([(f"f{at}", arguments) for at, arguments in enumerate(calls)]))
    whole = whole_of(style, text, functions)
    for only in (False, True):
        assert joined(pieces_of(style, text, cuts, functions, only=only)) == whole
        assert joined(pieces_of(style, text, range(len(text)), functions, only=only)) == whole
    for end in {min(cut, len(text)) for cut in cuts}:
        found = joined(pieces_of(style, text[:end], cuts, functions, only=True))
        assert len(found) <= len(whole)
        for one, expected in zip(found, whole, strict=False):
            assert one[0] == expected[0]
            assert one[1] == expected[1] if one[2] else expected[1].startswith(one[1])
            assert set(decided(one[1])) <= set(json.loads(expected[1]))


@EVERY
def test_a_long_text_comes_as_it_is_written(style: Style) -> None:
    said = 'Line "one"\\\n' + "é" * 20 + "\n</not> the end\n\n"
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
    text = "".join(style.spelled([("f", {"a": said})]))
    parser = Parser(style, [function], certain=True, only=True)
    names: list[str] = []
    arguments = ""
    latest = 0
    for sign in text:
        for piece in parser.put(sign, last=False):
            assert isinstance(piece, Call)
            names += [piece.name] if piece.begins else []
            arguments += piece.arguments
            latest += bool(piece.arguments)
    assert names == ["f"]
    assert latest > 30
    rest = parser.put("", last=True)
    assert arguments + "".join(one.arguments for one in rest if isinstance(one, Call)) == as_json({"a": said})


@EVERY
@pytest.mark.parametrize("only", [False, True])
def test_a_call_is_never_text_where_it_is_cut(style: Style, only: bool) -> None:
    """Outside forced calls, a marker that is incomplete may be text that begins like it."""
    text = "".join(style.spelled([("weather", WHOLE), ("weather", WHOLE)]))
    marker = next((one for one in style.markers if text.startswith(one)), "")
    for end in range(len(marker), len(text)):
        found = joined(pieces_of(style, text[:end], (), FUNCTIONS, only=only))
        assert [one for one in found if len(one) == 1 and (only or not marker[:-1].startswith(one[0]))] == []


@EVERY
def test_one_call_alone_and_no_piece_of_the_next(style: Style) -> None:
    text = "".join(style.spelled([("weather", WHOLE), ("now", {})]))
    for cuts in ((), range(len(text)), range(0, len(text), 7)):
        (found,) = joined(pieces_of(style, text, cuts, FUNCTIONS, one=True))
        assert (found[0], json.loads(found[1]), found[2]) == ("weather", WHOLE, True)


@EVERY
def test_text_around_calls_and_the_first_of_several_members_with_one_key(style: Style) -> None:
    if isinstance(style, Bare):
        return
    call = "".join(style.spelled([("any.thing-1", {"a": 1, "b": [True]})]))
    text = f"I look.\n{call.replace('b', 'a', 1) if isinstance(style, Listed) else call}\nDone."
    for cuts in ((), range(len(text)), range(0, len(text), 5)):
        assert joined(pieces_of(style, text, cuts, FUNCTIONS)) == whole_of(style, text, FUNCTIONS) or not style.end
    repeated = {"hermes": '<tool_call>{"name": "any.thing-1", "arguments": {"a": 1, "a": 2, "b": 3}}</tool_call>'}
    for text in repeated.values():
        expected = [("any.thing-1", '{"a": 1, "b": 3}', True)]
        assert whole_of(STYLES["hermes"], text, FUNCTIONS) == expected
        assert joined(pieces_of(STYLES["hermes"], text, range(len(text)), FUNCTIONS)) == expected


@pytest.mark.parametrize(
    "written",
    [
        r'"\u00e9\ud83d\ude00\ud83d"', r'"\ud83dx\udc00"', r'"\ud83d\ud83d\ude00\n\/\"\\"', r'"\x41\u12"',
        r"'it\'s \q\u00'",
        "1_000", "+5", "(1, 'a',)", "[None, True, null,]", "{'a': 1, \"b\": [],}", "-1.50e3", "''",
    ],
)  # fmt: skip
def test_pythons_spellings(written: str) -> None:
    text = f"<|tool_call_start|>[any.thing-1(a={written}, b=1)]<|tool_call_end|>"
    whole = whole_of(Pythonic(), text, FUNCTIONS)
    assert len(whole[0]) == 3
    for cuts in ((), range(len(text)), range(0, len(text), 3)):
        assert joined(pieces_of(Pythonic(), text, cuts, FUNCTIONS)) == whole


@pytest.mark.parametrize("escaped", [r"\u00e9\ud83d\ude00\ud83d", r"\ud83dx\udc00", r"\n\/\"\\\u0041", r"\u007f\u0000"])
def test_escapes_of_json(escaped: str) -> None:
    text = f'<tool_call>{{"name": "any.thing-1", "arguments": {{"{escaped}": ["{escaped}", 1.50, 1E2]}}}}</tool_call>'
    whole = whole_of(STYLES["hermes"], text, FUNCTIONS)
    assert len(whole[0]) == 3
    for cuts in ((), range(len(text)), range(0, len(text), 3)):
        assert joined(pieces_of(STYLES["hermes"], text, cuts, FUNCTIONS)) == whole


def test_a_number_beyond_the_floats_is_the_largest() -> None:
    """A grammar cannot forbid it."""
    largest = '{"a": 1.7976931348623157e+308, "b": -1.7976931348623157e+308}'
    hermes = '<tool_call>{"name": "any.thing-1", "arguments": {"a": 1e999, "b": -9.5E+4000}}</tool_call>'
    python = "<|tool_call_start|>[any.thing-1(a=1e999, b=-9.5E+4000)]<|tool_call_end|>"
    for style, text in ((STYLES["hermes"], hermes), (Pythonic(), python)):
        for found in (whole_of(style, text, FUNCTIONS), joined(pieces_of(style, text, range(len(text)), FUNCTIONS))):
            assert found == [("any.thing-1", largest, True)]
