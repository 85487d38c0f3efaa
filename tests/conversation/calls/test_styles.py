"""Every way of writing calls: what is written is taken by its grammar, and found again with the types it had."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_lookahead.conversation.calls.bare_keys import BareKeys
from ipex_lookahead.conversation.calls.base import Call, Style
from ipex_lookahead.conversation.calls.elements import Coder, Keyed, Params
from ipex_lookahead.conversation.calls.json_calls import Bracketed, Numbered, Sectioned, Tagged
from ipex_lookahead.conversation.calls.pythonic import Pythonic
from ipex_lookahead.conversation.reader import Reader
from ipex_lookahead.conversation.thinking import CHANNEL, Mode, Thought
from ipex_lookahead.conversation.tools import Parser
from ipex_lookahead.errors import InputError
from tests.conversation.calls.bytes_vocabulary import MARKS, matcher_of, spell, takes, walked
from tests.gates import cases

STYLES: dict[str, Style] = {
    "hermes": Tagged(),
    "nemotron 2": Bracketed("<TOOLCALL>", "</TOOLCALL>"),
    "granite 3": Bracketed("<|tool_call|>"),
    "deepseek 3": Sectioned(fenced=True),
    "deepseek 3.1": Sectioned(fenced=False),
    "kimi": Numbered(),
    "lfm2": Pythonic(),
    "qwen3.5": Coder(),
    "glm 4.5": Keyed("\n"),
    "glm 4.7": Keyed(""),
    "minicpm5": Params(),
    "gemma 4": BareKeys(),
}
EVERY = pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
TOKENS = pytest.mark.parametrize("tokens", [False, True], ids=["letters", "tokens"])
CITY = {"type": "string"}
WEATHER = {
    "type": "object",
    "properties": {
        "city": CITY,
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
        "hot": {"type": "boolean"},
        "where": {"$ref": "#/$defs/place"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        "limit": {"type": ["integer", "null"]},
        "factor": {"type": "number", "minimum": -1000, "maximum": 1000},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "name": {"type": "string", "maxLength": 4}},
            "required": ["x"],
            "additionalProperties": False,
        }
    },
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
FUNCTIONS = [
    {"name": "weather", "parameters": WEATHER},
    {"name": "now", "parameters": NOTHING},
    {"name": "any.thing-1", "parameters": {"type": "object"}},
]
WHOLE = {
    "city": "Köln \"am\" Rhein's\nUfer", "unit": "C", "days": 3, "hot": True, "where": {"x": 1, "name": "a"},
    "tags": ["a", "b"], "limit": None, "factor": -1.5,
}  # fmt: skip


def forced(style: Style, tokens: bool = False, *, one: bool = False, functions: Any = FUNCTIONS) -> str:
    return "start: calls\n" + style.grammar(functions, lambda text: spell(text, tokens), one=one)


def at_will(style: Style, tokens: bool = False, functions: Any = FUNCTIONS) -> str:
    made = style.at_will(functions, lambda text: spell(text, tokens))
    assert made is not None
    return made


def found(style: Style, text: str, functions: Any = FUNCTIONS) -> list[Any]:
    parts = Parser(style, functions).put(text, last=True)
    return [(one.name, json.loads(one.arguments)) if isinstance(one, Call) else one for one in parts]


@EVERY
@TOKENS
@pytest.mark.parametrize(
    "calls",
    [
        [("weather", {"city": "", "unit": "F"})],
        [("weather", WHOLE)],
        [("now", {}), ("weather", {"city": "5", "unit": "C", "limit": 5}), ("now", {})],
        [("any.thing-1", {"a": 1, "b_c": "x y"})],
        [("any.thing-1", {})],
    ],
    ids=["least", "whole", "several", "open", "bare"],
)
@pytest.mark.rotating(20)
def test_what_is_written_is_allowed_and_found(style: Style, tokens: bool, calls: list[Any]) -> None:
    text = "".join(style.spelled(calls))
    assert takes(forced(style, tokens), text, tokens)
    assert takes(forced(style, tokens, one=True), text, tokens) == (len(calls) == 1)
    assert takes(at_will(style, tokens), text, tokens)
    assert takes(at_will(style, tokens), "I look.\n" + text, tokens)
    assert found(style, "I look.\n" + text)[1:] == calls


NUMBERS = st.integers(-(10**9), 10**9) | st.floats(-1e6, 1e6)


def values(keys: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """JSON whose objects have such keys."""
    return st.recursive(
        st.none() | st.booleans() | NUMBERS | st.text("abc é\n\"'{}[],:\\", max_size=6),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=6,
    )


VALUES = values(st.text("ab'\" ", max_size=3))
WORDS = st.sampled_from(["a", "b_c", "d1"])
TYPED = [("string", str), ("boolean", bool), ("integer", int), ("number", float), ("array", list), ("object", dict)]


@pytest.mark.rotating(1)
@settings(max_examples=cases(60, 300), deadline=None, derandomize=True)
@given(st.sampled_from(list(STYLES.values())), st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4))
def test_any_arguments_come_back(style: Style, arguments: dict[str, Any]) -> None:
    """By a schema that names the type of each; text is kept as it is, but for line ends around it."""
    kinds = {key: next((kind for kind, cls in TYPED if type(one) is cls), "null") for key, one in arguments.items()}
    function = {"name": "f", "parameters": {"type": "object", "properties": {k: {"type": t} for k, t in kinds.items()}}}
    assert found(style, "".join(style.spelled([("f", arguments)])), [function]) == [("f", arguments)]


@EVERY
@TOKENS
@pytest.mark.parametrize("more", [{}, {"parameters": None}, {"parameters": {}}], ids=str)
def test_a_function_without_parameters_takes_none(style: Style, tokens: bool, more: dict[str, Any]) -> None:
    functions = [{"name": "now", **more}]
    for arguments, right in (({}, True), ({"a": 1}, False)):
        text = "".join(style.spelled([("now", arguments)]))
        assert takes(forced(style, tokens, functions=functions), text, tokens) == right
        assert takes(at_will(style, tokens, functions=functions), text, tokens) == right


@EVERY
@TOKENS
@pytest.mark.rotating(10)
def test_what_the_schema_forbids_is_not_written(style: Style, tokens: bool) -> None:
    for name, arguments in (
        ("other", {}),
        ("weather", {"city": "x"}),
        ("weather", {"city": "x", "unit": "K"}),
        ("weather", {"city": "x", "unit": "C", "days": 10}),
        ("weather", {"city": "x", "unit": "C", "days": "three"}),
        ("weather", {"city": "x", "unit": "C", "where": {"name": "a"}}),
        ("weather", {"city": "x", "unit": "C", "where": {"x": 1, "name": "abcde"}}),
        ("weather", {"city": "x", "unit": "C", "more": 1}),
        ("now", {"a": 1}),
    ):
        text = "".join(style.spelled([(name, arguments)]))
        assert not takes(forced(style, tokens), text, tokens), (name, arguments)
        assert not takes(at_will(style, tokens), text, tokens), (name, arguments)


@EVERY
@TOKENS
@pytest.mark.rotating(10)
def test_what_is_drawn_at_random_is_a_call_that_validates(style: Style, tokens: bool) -> None:
    parameters = {**WEATHER, "required": list(WEATHER["properties"])}
    functions = [{"name": name, "parameters": parameters} for name in ("f", "g")]
    whole = 0
    for seed in range(6):
        text = walked(forced(style, tokens, functions=functions), seed, tokens)
        if text:
            calls = found(style, text, functions)
            assert calls, text
            for name, arguments in calls:
                assert name in ("f", "g")
                jsonschema.validate(arguments, parameters)
            whole += 1
    assert whole >= 3


@EVERY
def test_text_is_free_until_a_call_begins(style: Style) -> None:
    grammar = at_will(style)
    for text in ("", "No call, but < and <tool> and é.", "{}", "I look.\n<tool_call", "[weather()]", "name\n"):
        assert takes(grammar, text)
    assert not takes(grammar, style.markers[0])
    assert not takes(grammar, style.markers[0] + " so")


@EVERY
def test_every_mark_is_named(style: Style) -> None:
    """What may be a special token has to be shown as text."""
    text = "".join(style.spelled([("weather", {"city": "x", "unit": "C"})]))
    marks = [mark for mark in MARKS if mark in text]
    assert set(marks) <= {*style.markers, *style.inner, style.end}


ELEMENTS = pytest.mark.parametrize(
    "style", [Coder(), Keyed("\n"), Keyed(""), Params()], ids=["qwen3.5", "glm 4.5", "glm 4.7", "minicpm5"]
)


def of(schema: Any, **more: Any) -> list[Any]:
    return [{"name": "f", "parameters": {"type": "object", "properties": {"a": schema}, "required": ["a"], **more}}]


@ELEMENTS
@TOKENS
@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "pattern": "^[a-c]{2}$"}, ["ab"], ["abc", "xy", ""]),
        ({"type": "string", "pattern": "b+"}, ["b", "abba"], ["a", ""]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "abc", "é\n"], ["a", "abcd"]),
        ({"type": "string", "minLength": 0}, ["", "a"], []),
        ({"type": "string", "minLength": 3, "maxLength": 40_000}, ["abc", "x" * 3000], ["ab"]),
        ({"type": "string", "maxLength": 64}, ["", "x" * 64], ["x" * 65]),
        ({"type": "string", "format": "date", "title": "When"}, ["any"], []),
        ({"const": "x"}, ["x"], ["y"]),
        ({"enum": ["x", 1, None, True]}, ["x", 1, None, True], ["2", 2]),
        ({"anyOf": [{"type": "integer"}, {"enum": ["all"]}]}, [1, "all"], ["none", 1.5]),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, [1, "all"], []),
        ({"type": "boolean"}, [True, False], ["yes", 1]),
        ({}, ["x", 1, [1]], []),
        (True, ["x", {"b": 1}], []),
        ({"$ref": "#/$defs/n"}, [{"n": {"n": {}}}, {}], [1, "x"]),
        ({"type": "array", "items": {"$ref": "#/$defs/n"}}, [[{"n": {}}], []], [1, [1]]),
        ({"type": "array", "items": {"$ref": "#"}}, [[{"a": [{"a": []}]}]], [1, [1]]),
        ({"$ref": "#/$defs/%6e"}, [{"n": {"n": {}}}, {}], [1, "x"]),
    ],
)
@pytest.mark.rotating(20)
def test_values_keep_to_their_schema(style: Style, tokens: bool, schema: Any, good: Any, bad: Any) -> None:
    more = {
        "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "additionalProperties": False}}
    }
    grammar, functions = forced(style, tokens, functions=of(schema, **more)), of(schema, **more)
    for value in good:
        text = "".join(style.spelled([("f", {"a": value})]))
        assert takes(grammar, text, tokens), value
        assert found(style, text, functions) == [("f", {"a": value})]
    for value in bad:
        assert not takes(grammar, "".join(style.spelled([("f", {"a": value})])), tokens), value


@ELEMENTS
@pytest.mark.parametrize(
    "function",
    [
        {"name": "f", "parameters": {"type": "object", "anyOf": [{"required": ["a"]}]}},
        {"name": "f", "parameters": {"type": "object", "properties": {"a<b": {}}}},
        {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string", "not": {}}}}},
        {"name": "f", "parameters": {"type": "object", "properties": {"a": {"enum": []}}}},
        {"name": "f", "parameters": {"type": "object", "properties": {"a": False}}},
        {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string", "minLength": "x"}}}},
        {"name": "f", "parameters": {"type": "object", "properties": {"a": {"anyOf": [{}] * 999}}}},
    ],
    ids=lambda function: json.dumps(function["parameters"])[18:60],
)
def test_what_cannot_be_kept_to_is_refused(style: Style, function: Any) -> None:
    with pytest.raises(InputError, match="cannot be compiled"):
        forced(style, functions=[function])


@ELEMENTS
def test_many_functions_of_many_parameters_compile(style: Style) -> None:
    properties = {
        f"p{at}": {"type": "string", "minLength": at % 3, "maxLength": 10_000} if at % 2 else {"type": "integer"}
        for at in range(20)
    }
    functions = [{"name": f"f{at}", "parameters": {"type": "object", "properties": properties}} for at in range(40)]
    matcher_of(at_will(style, functions=functions))


SCHEMAS = [
    ({"type": "string", "pattern": "^[a-c]{2}$"}, ["ab"], ["abc", "xy", ""]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "abc", "é\n"], ["a", "abcd"]),
    ({"type": "string", "minLength": 3, "maxLength": 40_000}, ["abc", "x" * 3000], ["ab"]),
    ({"type": "string", "format": "date", "title": "When"}, ["any", ""], [1]),
    ({"const": {"a": [1, "x"]}}, [{"a": [1, "x"]}], [{"a": [1]}, "x"]),
    ({"enum": ["x", 1, None, True, ""]}, ["x", 1, None, True, ""], ["2", 2, False]),
    ({"anyOf": [{"type": "integer"}, {"enum": ["all"]}]}, [1, "all"], ["none", 1.5]),
    ({"type": ["integer", "string", "null"]}, [1, "all", None], [True, [1]]),
    ({"allOf": [{"type": "boolean"}], "description": "x"}, [True, False], ["true", 1]),
    ({"type": "number", "exclusiveMinimum": 0}, [0.5, 3], [0, -1, "1"]),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [[1, 2], [1, 2, 3]], [[1], [], [1, "x"]]),
    ({"type": "array", "items": {"type": "string"}, "maxItems": 1}, [[], ["a"]], [["a", "b"], [1], "a"]),
    ({"type": "array", "minItems": 1, "maxItems": 3}, [[1], ["a", None, {}]], [[], [1, 2, 3, 4]]),
    ({"type": "array", "maxItems": 0}, [[]], [[1]]),
    ({"type": "array", "items": {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}},
     [[], [{"b": 1}, {"b": 2}]], [[{}], [{"b": "1"}], [{"b": 1, "c": 1}]]),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, [{}, {"x": 1, "y_z": 2}], [{"x": "1"}, 1]),
    ({"type": "object", "properties": {"B": {}, "a": {}, "c": {}}, "required": ["c"]},
     [{"c": 1}, {"a": [1], "B": {"x": "y"}, "c": None}, {"B": 1, "c": 2}], [{}, {"a": 1}, {"a": 1, "B": 2}]),
    ({"type": "object", "properties": {"my key": {}, "x:y": {}, "": {}, '"': {}, "ü": {}}},
     [{}, {"my key": 1, "x:y": 2, "": 3, '"': 4, "ü": 5}], [{"other": 1}]),
    ({"type": "object"}, [{}, {"a": {"b": [1, True, None, "x"]}}], [[], "x"]),
    ({}, ["x", 1, -2.5, [1], {"a": "b"}, None], []),
    (True, ["x", {"b": 1}], []),
    ({"$ref": "#/$defs/n"}, [{"n": {"n": {}}}, {}], [1, "x", {"m": 1}]),
    ({"anyOf": [{"$ref": "#/$defs/m"}, {"type": "null"}]},
     [None, {"l": None, "r": {"l": None}}], [{"l": 1}, {"x": None}]),
]  # fmt: skip
DEFINITIONS = {
    "n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}},
    "m": {"type": "object", "properties": {
        side: {"anyOf": [{"$ref": "#/$defs/m", "description": side}, {"type": "null"}]} for side in "lr"
    }},
}  # fmt: skip


@TOKENS
@pytest.mark.parametrize(("schema", "good", "bad"), SCHEMAS)
@pytest.mark.rotating(15)
def test_values_with_bare_keys_keep_to_their_schema(tokens: bool, schema: Any, good: Any, bad: Any) -> None:
    functions = of(schema, **{"$defs": DEFINITIONS})
    grammar = forced(BareKeys(), tokens, functions=functions)
    for value in good:
        text = "".join(BareKeys().spelled([("f", {"a": value})]))
        assert takes(grammar, text, tokens), text
        assert found(BareKeys(), text, functions) == [("f", {"a": value})]
    for value in bad:
        text = "".join(BareKeys().spelled([("f", {"a": value})]))
        assert not takes(grammar, text, tokens), text


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"enum": []},
        {"enum": "x"},
        {"$ref": "#/$defs/nowhere"},
        {"type": "word"},
        {"type": [{}]},
        {"type": "string", "not": {}},
        {"type": "array", "uniqueItems": True},
        {"type": "array", "minItems": -1},
        {"type": "array", "minItems": 3, "maxItems": 2},
        {"type": "object", "required": 5},
        {"type": "object", "properties": {'<|"|>': {}}},
        {"type": "object", "patternProperties": {}},
        {"allOf": [{}, {}]},
    ],
    ids=str,
)
def test_what_bare_keys_cannot_keep_to_is_refused(schema: Any) -> None:
    with pytest.raises(InputError, match="cannot be compiled"):
        forced(BareKeys(), functions=of(schema))


def test_deep_schemas_and_arguments_are_refused() -> None:
    schema: Any = {}
    value: Any = 1
    for _ in range(900):
        schema, value = {"type": "array", "items": schema}, [value]
    with pytest.raises(InputError, match="nested too deeply"):
        forced(BareKeys(), functions=of(schema))
    with pytest.raises(InputError, match="more than 64 deep"):
        BareKeys().spelled([("f", {"a": value})])


@pytest.mark.parametrize(
    ("style", "text", "calls"),
    [
        (Coder(), "<tool_call><function=f><parameter=a>x</parameter></function></tool_call>", [("f", {"a": "x"})]),
        (Coder(), "<tool_call><function=f><parameter=a>\n\nx\n\n</parameter></tool_call>", [("f", {"a": "\nx\n"})]),
        (
            Coder(),
            "<tool_call><function=f><parameter=n>\n 5 </parameter></function>\n<function=f></function></tool_call>",
            [("f", {"n": 5}), ("f", {})],
        ),
        (Coder(), "<tool_call><function=f><parameter=a>5</parameter></function></tool_call>", [("f", {"a": "5"})]),
        (Coder(), "<tool_call><function=f><parameter=b>True</parameter></function></tool_call>", [("f", {"b": True})]),
        (Coder(), "<tool_call><function=f><parameter=n>six</parameter></function></tool_call>", [("f", {"n": "six"})]),
        (Coder(), "<tool_call><function=f><parameter=z>[1]</parameter></function></tool_call>", [("f", {"z": [1]})]),
        (Keyed("\n"), "<tool_call>f<arg_key>n</arg_key><arg_value>5</arg_value></tool_call>", [("f", {"n": 5})]),
        (Keyed(""), "<tool_call>f\n<arg_key> a </arg_key>\n<arg_value>\n5</arg_value>\n</tool_call>",
         [("f", {"a": "\n5"})]),
        (Pythonic(), "<|tool_call_start|>[ f( a = 'x' , n=5, ) ]<|tool_call_end|>", None),
        (Pythonic(), "<|tool_call_start|>[f(a='it\\'s', b=True), f(n=-1_000)]<|tool_call_end|>",
         [("f", {"a": "it's", "b": True}), ("f", {"n": -1000})]),
        (Pythonic(), "<|tool_call_start|>[f(z={'k': [1, (2, 3), None, true,], \"e\": 1e3})]<|tool_call_end|>",
         [("f", {"z": {"k": [1, [2, 3], None, True], "e": 1000.0}})]),
        (Pythonic(), '<|tool_call_start|>[f(a="\\u00e9\n\\x41\\q\\ud83d\\ude42")]<|tool_call_end|>',
         [("f", {"a": "é\nA\\q🙂"})]),
        (BareKeys(), '<|tool_call> call : f { a : <|"|> x <|"|> , n : -5 }<tool_call|>',
         [("f", {"a": " x ", "n": -5})]),
        (BareKeys(), '<|tool_call>call:f{"a":"it\'s",<|"|>n<|"|>:5,b:True}<tool_call|>',
         [("f", {"a": "it's", "n": 5, "b": True})]),
        (BareKeys(), '<|tool_call>call:f{z:{k:[1,[2.5e3],None,null],é:false},my key:<|"|>{"a":1}\n<|"|>}<tool_call|>',
         [("f", {"z": {"k": [1, [2500.0], None, None], "é": False}, "my key": '{"a":1}\n'})]),
        (BareKeys(), "<|tool_call>call:f{a:5}<tool_call|><|tool_call>call:f{}<tool_call|>",
         [("f", {"a": 5}), ("f", {})]),
        (Pythonic(), '<|tool_call_start|>{"name": "f", "arguments": {"n": 5}}<|tool_call_end|>', [("f", {"n": 5})]),
    ],
)  # fmt: skip
def test_what_models_write_besides(style: Style, text: str, calls: list[Any] | None) -> None:
    properties = {"a": {"type": "string"}, "n": {"type": "integer"}, "b": {"type": "boolean"}}
    functions = [{"name": "f", "parameters": {"type": "object", "properties": properties}}]
    assert found(style, text, functions) == ([text] if calls is None else calls)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.dictionaries(WORDS, values(WORDS), max_size=3), st.booleans())
def test_transformers_finds_the_same_calls_of_gemma_4(arguments: dict[str, Any], thinks: bool) -> None:
    """By its own parser of the family's answers, for which keys are words."""
    parsing = pytest.importorskip("transformers.utils.chat_parsing")
    utils = pytest.importorskip("transformers.cli.serving.utils")
    (template,) = (one for families, one in utils._RESPONSE_TEMPLATE_FALLBACKS.items() if "gemma4" in families)
    text = "".join(BareKeys().spelled([("f", arguments), ("g", {})]))
    thought = "<|channel>thought\nhm\n<channel|>" if thinks else ""
    theirs = parsing.parse_response(f"{thought}{text}<|tool_response>", template, prefix="<|turn>model\n")
    ours = Reader(Mode.PERHAPS, Parser(BareKeys(), [{"name": "f"}, {"name": "g"}]), CHANNEL).put(
        thought + text, last=True
    )
    calls = [(one.name, json.loads(one.arguments)) for one in ours if isinstance(one, Call)]
    assert [(one["function"]["name"], one["function"]["arguments"]) for one in theirs["tool_calls"]] == calls
    assert calls == [("f", arguments), ("g", {})]
    assert [str(one) for one in ours if isinstance(one, Thought)] == ["hm"] * thinks
    assert theirs.get("reasoning_content", "").strip() == "hm" * thinks


@pytest.mark.parametrize("text", ["a < b", "a & b\n", "</param>", "</function>", "]]>x", "<![CDATA[", ""])
def test_a_section_holds_any_text_but_its_own_end(text: str) -> None:
    """MiniCPM5's texts with markup; what the model writes without a section is taken as it is."""
    style, functions = Params(), of({"type": "string"})
    written = "".join(style.spelled([("f", {"a": text})]))
    assert ("CDATA" in written) == bool(set(text) & set("<&\n"))
    assert found(style, written, functions) == [("f", {"a": text})]
    plain = '<function name="f"><param name="a">a &lt; b</param></function>'
    assert found(style, plain, functions) == [("f", {"a": "a &lt; b"})]


def test_a_section_of_another_type_is_read_as_its_value() -> None:
    written = '<function name="f"><param name="a"><![CDATA[[1, 2]]]></param></function>'
    assert found(Params(), written, of({"type": "array"})) == [("f", {"a": [1, 2]})]
