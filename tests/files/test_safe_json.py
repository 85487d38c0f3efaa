"""JSON that nobody vouches for: what is taken is what the standard library takes; the rest is an error with a place."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipex_lookahead.errors import ModelFormatError
from ipex_lookahead.files import safe_json
from ipex_lookahead.files.safe_json import EXPLAINED, JsonObject, load_object, parse, read_file, spelled

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
)


def refused(text: str | bytes, **limits: int) -> ModelFormatError:
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(ModelFormatError) as caught:
        parse(data, "x.json", "x.json", **limits)
    assert caught.value.field == "x.json"
    return caught.value


WORDS = {"Infinity": "inf", "-Infinity": "-inf", "NaN": "nan"}


@pytest.mark.parametrize("word", WORDS)
def test_numbers_that_are_not_finite_as_transformers_writes_them(word: str) -> None:
    """A literal of release 4, an object of 5; and where things are behind it."""
    for written in (word, json.dumps({"__float__": word})):
        text = f'{{"a": [0.0, {written}], "b": {{"c": 1}}, "d": {written}}}'
        value = parse(text.encode(), "x.json", "x.json", any_float=True)
        assert [str(one) for one in (*value["a"], value["d"])] == ["0.0", WORDS[word], WORDS[word]]
        assert value["b"].at["c"] == text.index("1}")
        assert value.at["d"] == text.rindex(written)
    assert refused(f"[{word}]").offset == 1
    assert parse(json.dumps({"__float__": word}).encode(), "x.json") == {"__float__": word}


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    """At the head of a file alone; where things are counts its bytes."""
    mark = "\ufeff"
    text = f'{mark}{{"a": 1, "b": [2]}}'
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    found = load_object(tmp_path / "x.json", 100)
    assert found == {"a": 1, "b": [2]}
    assert found.at["b"] == text.encode().index(b"[2]")
    assert refused(f'{mark}{{"a": tru}}').offset == 3 + len('{"a": ')
    for other in (f"{mark}{mark}[1]", f"[{mark}1]"):
        refused(other)
    with pytest.raises(ModelFormatError):
        parse(f"{mark}[1]".encode(), "x.json", start=8)  # a header inside a file


@pytest.mark.parametrize(
    "text", ['{"__float__": "infinity"}', '{"__float__": 1}', '{"__float__": "NaN", "x": 1}', '{"__float": "NaN"}',
             '{"__float__": ["NaN"]}']
)  # fmt: skip
def test_other_objects_stay_objects(text: str) -> None:
    assert parse(text.encode(), "x.json", any_float=True) == json.loads(text)


def test_what_is_spelled_is_read_again() -> None:
    value = {"a": [1.5, float("inf"), {"b": float("-inf"), "c": (None, "x")}], "d": True}
    text = json.dumps(spelled(value), allow_nan=False)
    assert parse(text.encode(), "x.json", any_float=True) == json.loads(json.dumps(value))
    assert str(parse(json.dumps(spelled([float("nan")])).encode(), "x.json", any_float=True)) == "[nan]"


@pytest.mark.parametrize("text", ["Infinit", "+Infinity", "nan", "[NaN, ]", "--Infinity"])
def test_faults_beside_them_have_their_place(text: str) -> None:
    assert refused(text, any_float=True).offset is not None


@given(JSON, st.sampled_from([None, 1]), st.booleans())
def test_what_the_standard_library_writes(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    try:
        data = text.encode()
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8
        return
    if any(0xD800 <= ord(c) < 0xE000 for c in str(json.loads(text))):
        return
    assert parse(data, "x.json", "x.json") == value


@given(st.binary(max_size=40) | st.text(alphabet='{}[]",:\\u0019eE+-. truefalsn', max_size=40).map(str.encode))
def test_any_bytes_give_a_value_the_standard_library_gives_too_or_an_error(data: bytes) -> None:
    refusal: ModelFormatError | None = None
    value: Any = None
    try:
        value = parse(data, "x.json", "x.json")
    except ModelFormatError as error:
        refusal = error
    if refusal is None:
        assert value == json.loads(data)
    else:
        assert refusal.offset is not None
        assert 0 <= refusal.offset <= len(data)


@pytest.mark.parametrize(
    ("text", "offset", "words"),
    [
        ("", 0, "Expecting value"),
        ("{", 1, "property name"),
        ('{"a" 1}', 5, "delimiter"),
        ("{a:1}", 1, "property name"),
        ("[1 2]", 3, "delimiter"),
        ("[1]x", 3, "Extra data"),
        ('{"a":1,"a":2}', 11, "the key 'a' twice"),
        ('{"b":{"a":1,"\\u0061":2}, "c": [0]}', 21, "the key 'a' twice"),
        ('{"é":1,"\\u00e9":2}', 17, "the key 'é' twice"),
        ("[1, NaN]", 4, "NaN, which is not a JSON number"),
        ("-Infinity", 0, "-Infinity, which is not a JSON number"),
        ("[1e999]", 1, "too large"),
        ("01", 1, "Extra data"),
        ("+1", 0, "Expecting value"),
        ("[" + "9" * 65 + "]", 1, "65 characters"),
        ('"\t"', 1, "control character"),
        ('"abc', 0, "Unterminated string"),
        ('"\\x"', 1, "escape"),
        ('"\\ud800"', 0, "surrogate"),
        ('["\\ud83d\\ude42", "\\\\ud800 \\ud800"]', 17, "surrogate"),
        ('{"\\udc00": 1}', 11, "surrogate"),
        ('"é" x', 5, "Extra data"),
        ("[" + "9" * 5000 + "]", 1, "5000 characters"),
        ("[-" + "9" * 64 + "]", 1, "65 characters"),
        ("[0." + "9" * 64 + "]", 1, "66 characters"),
        (b'"\xff"', 1, "UTF-8"),
        (b'"\xed\xa0\x80"', 1, "UTF-8"),
        ("// c\n1", 0, "Expecting value"),
    ],
)
def test_what_is_refused(text: str | bytes, offset: int, words: str) -> None:
    """What the library's grammar refuses lies where it says; a value that breaks a rule, where that value begins."""
    error = refused(text)
    assert words in error.problem
    assert error.offset == offset


@pytest.mark.parametrize("text", ["[1,]", '{"a": 1,}', '"\\u12g4"'])
def test_where_releases_of_python_differ(text: str) -> None:
    assert refused(text).offset in range(len(text))


def test_depth_and_count_have_limits() -> None:
    assert parse(b"[" * 64 + b"]" * 64, "x", "x") is not None
    assert "deeper than 64" in str(refused("[" * 65 + "]" * 65))
    assert "deeper than 64" in str(refused("[" * 1_000_000))
    assert "deeper than 64" in str(refused('{"a":' * 100_000))
    assert refused("[" * 65 + "]" * 65).offset == 64
    assert "deeper than 2" in str(refused('{"a":{"b":{}}}', max_depth=2))
    assert "more than 3 values" in str(refused("[1,2,3]", max_values=3))
    assert "objects and arrays" in str(refused("[" + "{}," * (2 << 20) + "{}]"))
    assert "values" in str(refused("[" + "0," * (16 << 20) + "0]"))


@pytest.mark.parametrize(
    ("text", "words", "offset"),
    [("[1,]", "not valid JSON", 3), ('{"a":1,"a":2}', "twice", None), ("[1e999]", "too large", None),
     ("[" + "9" * 65 + "]", "65 characters", None), ("[NaN]", "NaN", None), ("[[[]]]", "deeper than 2", None)],
)  # fmt: skip
def test_in_a_huge_text_the_fault_is_named_if_not_placed(
    text: str, words: str, offset: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_json, "EXPLAINED", 0)
    error = refused(text, max_depth=2)
    assert words in error.problem
    assert error.offset == offset or error.offset is not None is not offset


def test_long_numbers_in_strings_are_none() -> None:
    assert parse(b'["' + b"9" * 100 + b'", 12]', "x") == ["9" * 100, 12]


def test_objects_know_where_their_values_are() -> None:
    data = '{"é": 1, "b": {"c": [true]}}'.encode()
    value = parse(data, "x", "x", start=100)
    assert isinstance(value, JsonObject)
    assert data[value.at["é"] - 100 :].startswith(b"1")
    assert data[value["b"].at["c"] - 100 :].startswith(b"[true]")


def test_places_are_those_of_equal_objects_too() -> None:
    data = b'[{"a": {}, "b": [{"c": 1}, {}]}, {"a": {"a": 2}}]'
    value = parse(data, "x")
    assert data[value[0].at["b"] :].startswith(b'[{"c"')
    assert data[value[0]["b"][0].at["c"] :].startswith(b"1}")
    assert dict(value[0]["b"][1].at) == {}
    assert data[value[1]["a"].at["a"] :].startswith(b"2}")


def test_escapes() -> None:
    assert parse(rb'"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"', "x", "x") == '"\\/\b\f\n\r\té😀'


def test_files(tmp_path: Path) -> None:
    good = tmp_path / "a.json"
    good.write_bytes(b'{"a": 1}')
    assert load_object(good, 8) == {"a": 1}
    with pytest.raises(ModelFormatError, match="has 8 bytes; the maximum is 7"):
        load_object(good, 7)
    good.write_bytes(b"[1]")
    with pytest.raises(ModelFormatError, match="is an array; it must be a JSON object"):
        load_object(good, 100)
    with pytest.raises(ModelFormatError, match="cannot be opened"):
        read_file(tmp_path / "missing", 100)
    with pytest.raises(ModelFormatError, match="cannot be opened|not a regular file"):
        read_file(tmp_path, 100)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFormatError, match="not a regular file"):
        read_file(tmp_path / "pipe", 100)
    with pytest.raises(ModelFormatError, match="not a regular file|has"):
        read_file("/dev/zero", 100)


def test_places_in_a_very_long_text_are_where_it_begins() -> None:
    """Its values are not looked for one by one: that would take the interpreter seconds."""
    text = b'{"a": [' + b"0," * (EXPLAINED + 1) + b'0], "b": {"c": 1}}'
    found = parse(text, "f", start=7)
    assert found.at == {"a": 7, "b": 7}
    assert found["b"].at == {"c": 7}


def test_a_copy_with_other_keys_knows_the_places_of_its_own() -> None:
    data = '{"ä\\u00e9": 1, "b": {"c": 2}}'.encode()
    whole = parse(data, "f")
    other = JsonObject({"b": 3, "new": 4}, whole._text, whole._number)
    assert other.at["b"] == whole.at["b"] == data.index(b'{"c"')
    assert whole.at["äé"] == data.index(b"1,")
