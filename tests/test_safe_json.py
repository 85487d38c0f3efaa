"""JSON that nobody vouches for: what is refused, and that the rest is what Python reads."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_lookahead.errors import ModelFormatError
from ipex_lookahead.safe_json import load_object, parse, read_file

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_what_python_writes_is_read(value):
    assert parse(json.dumps(value).encode(), "f") == value


@pytest.mark.parametrize(
    ("text", "problem", "offset"),
    [
        (b"", "Expecting value", 0),
        (b'{"a": 1', "Expecting", 7),
        (b'"\xc3\xa9" x', "Extra data", 5),
        (b'"\xff"', "not UTF-8", 1),
        (b'\xef\xbb\xbf{}', "UTF-8 BOM", 0),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "'c' is there twice", None),
        (b"[NaN]", "NaN is no JSON number", None),
        (b"[-Infinity]", "-Infinity is no JSON number", None),
        (b"[1e999]", "too large", None),
        (b"[" + b"9" * 5000 + b"]", "digits", None),
        (b'["\\ud800"]', "lone surrogate", None),
        (b'{"\\udc00": 1}', "lone surrogate", None),
        (b"[" * 65 + b"]" * 65, "nested deeper than 64", None),
        (b"[" * 100000 + b"]" * 100000, "nested deeper than 64", None),
        (b'{"a":' * 100000, "nested deeper than 64", None),
        (b"[" + b"{}," * (2 << 20) + b"{}]", "more than", 0),
        (b"[" + b"0," * (16 << 20) + b"0," b"0]", "more than", 0),
    ],
    ids=lambda value: None if not isinstance(value, bytes) else value[:12].decode("latin-1"),
)  # fmt: skip
def test_refused(text, problem, offset):
    with pytest.raises(ModelFormatError, match=problem) as caught:
        parse(text, "file.json")
    assert caught.value.file == "file.json"
    assert caught.value.offset == offset


def test_64_levels_and_surrogate_pairs_are_fine():
    assert parse(b"[" * 64 + b"]" * 64, "f")
    assert parse(b'"\\ud83d\\ude42"', "f") == "🙂"
    assert parse(b" [1, 2] ", "f", offset=8) == [1, 2]


def test_files(tmp_path):
    good = tmp_path / "a.json"
    good.write_bytes(b'{"a": 1}')
    assert load_object(good, 8) == {"a": 1}
    with pytest.raises(ModelFormatError, match="has 8 bytes; at most 7"):
        load_object(good, 7)
    good.write_bytes(b"[1]")
    with pytest.raises(ModelFormatError, match="holds an array; it must be an object"):
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
