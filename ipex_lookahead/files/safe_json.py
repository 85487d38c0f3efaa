"""Strict JSON for untrusted files: bounded, unambiguous, with byte offsets in errors.

The standard library's C parser does the work, but it accepts duplicate keys, NaN, Infinity and lone surrogates, and
records no positions. Programs that interpret a file differently can be exploited to load something other than what was
checked, so all of these are errors here. Positions are found by the library's slow Python decoder, on demand only.
"""

from __future__ import annotations

import codecs
import json
import math
import os
import re
import stat
from collections.abc import Callable, Mapping
from itertools import chain
from json import decoder, scanner
from os import PathLike
from typing import Any, NoReturn

from ipex_lookahead.errors import ModelFormatError

MAX_DEPTH = 64
MAX_NUMBER = 64
"""Maximum number of characters of a number: the conversion time of longer ones grows quadratically."""
MAX_CONTAINERS = 2 << 20
"""Maximum number of objects and arrays: an empty one takes two bytes in the file and eighty in memory."""
MAX_VALUES = 16 << 20
EXPLAINED = 1 << 20
"""Maximum number of values in a text for which positions are determined, at a few microseconds each."""

File = str | PathLike[str]

_DIGITS_AS_ZEROS = bytes(0x30 if 0x30 <= byte <= 0x39 else byte for byte in range(256))
_LONG_NUMBER = b"0" * MAX_NUMBER
LONE_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_FLOAT, _NOT_FINITE = "__float__", ("NaN", "Infinity", "-Infinity")
_HALF_PAIR = "has half a surrogate pair"
_decoder: Any = decoder  # the Python implementations are untyped
_scanner: Any = scanner
_Scan = Callable[[str, int], tuple[Any, int]]


class JsonObject(dict[str, Any]):
    """A JSON object; ``at`` maps each key to the byte offset of its value in the file."""

    __slots__ = ("_number", "_text")

    def __init__(self, pairs: Any = (), text: _Text | None = None, number: int = 0) -> None:
        super().__init__(pairs)
        self._text, self._number = text, number

    @property
    def at(self) -> Mapping[str, int]:
        """Byte offsets, determined at the first access; in very long texts all are the start of the text."""
        if self._text is None:
            return {}
        if self._text.values > EXPLAINED:
            return dict.fromkeys(self, self._text.start)
        return self._text.places()[self._number]


def read_file(path: File, limit: int) -> bytes:
    """Return the content of a regular file of at most ``limit`` bytes; raise ModelFormatError for anything else."""
    try:
        # O_NONBLOCK keeps the opening of a named pipe from waiting for a writer; regular files ignore it.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ModelFormatError(path, "file", None, f"cannot be opened: {reason}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ModelFormatError(path, "file", None, "is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            data = stream.read(status.st_size + 1) if status.st_size <= limit else None
            if data is not None and len(data) > status.st_size:  # the file grew
                data += stream.read(limit + 1 - len(data))
    except OSError as error:
        raise ModelFormatError(path, "file", None, f"cannot be read: {error}") from None
    finally:
        os.close(descriptor)
    if data is None or len(data) > limit:
        raise ModelFormatError(path, "file", None, f"has {status.st_size} bytes; the maximum is {limit}")
    return data


def load_object(path: File, limit: int, *, max_depth: int = MAX_DEPTH, any_float: bool = False) -> JsonObject:
    """Return the JSON object in a file of at most ``limit`` bytes, see :func:`parse`; raise ModelFormatError."""
    name = os.path.basename(os.fspath(path))
    value = parse(read_file(path, limit), path, name, max_depth=max_depth, any_float=any_float)
    if not isinstance(value, JsonObject):
        raise ModelFormatError(path, name, 0, f"is {kind(value)}; it must be a JSON object")
    return value


def parse(
    data: bytes,
    file: File,
    field: str = "JSON",
    *,
    start: int = 0,
    max_depth: int = MAX_DEPTH,
    max_values: int = MAX_VALUES,
    any_float: bool = False,
) -> Any:
    """Parse JSON strictly; objects are returned as :class:`JsonObject`. Time and memory are linear in ``len(data)``.

    Args:
        data: the text in UTF-8. A byte order mark at the start of a file is skipped, as RFC 8259 allows.
        file: the file, for errors.
        field: name of the text, for errors.
        start: offset of ``data`` in the file.
        max_depth: maximum nesting.
        max_values: maximum number of values.
        any_float: accept NaN and infinities, as written by transformers 4 (``Infinity``) and 5
            (``{"__float__": "Infinity"}``).

    Raises:
        ModelFormatError: for anything that RFC 8259 does not allow, and for duplicate keys, numbers of more than 64
            characters or beyond float64, lone surrogates, and more than 2 Mi objects and arrays.
    """
    mark = len(codecs.BOM_UTF8) if start == 0 and data.startswith(codecs.BOM_UTF8) else 0
    return _Text(data[mark:] if mark else data, file, field, start + mark, max_depth, max_values, any_float).value()


def spelled(value: Any) -> Any:
    """Replace NaN and infinities by objects, as transformers 5 writes them; ``any_float`` reads them back."""
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    if isinstance(value, dict):
        return {key: spelled(inner) for key, inner in value.items()}
    return [spelled(inner) for inner in value] if isinstance(value, list | tuple) else value


def kind(value: Any) -> str:
    """Return the kind of a JSON value in words."""
    names = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "null")


_CONTAINERS = frozenset({JsonObject, dict, list})


class _Text:
    """A text and its C parser."""

    def __init__(
        self, data: bytes, file: File, field: str, start: int, max_depth: int, max_values: int, any_float: bool
    ) -> None:
        self.data, self.file, self.field, self.start, self.max_depth = data, file, field, start, max_depth
        self.any_float = any_float
        openings = data.count(b"{") + data.count(b"[")
        self.values = openings + data.count(b",") + 1  # an upper bound, because strings may contain these characters
        self._flat = openings <= max_depth
        self._objects = 0
        self._places: list[dict[str, int]] | None = None
        if openings > MAX_CONTAINERS or self.values > max_values:
            most = f"{MAX_CONTAINERS} objects and arrays" if openings > MAX_CONTAINERS else f"{max_values} values"
            raise self.error(f"has more than {most}", 0)

    def error(self, problem: str, at: int | None) -> ModelFormatError:
        return ModelFormatError(self.file, self.field, None if at is None else self.start + at, problem)

    def value(self) -> Any:
        parse_int = integer if has_long_number(self.data) else None  # the default needs no Python call per number
        try:
            text = self.data.decode("utf-8")
            value = json.loads(
                text,
                object_pairs_hook=self._object,
                parse_constant=float if self.any_float else refuse_constant,
                parse_float=finite,
                parse_int=parse_int,
            )
        except UnicodeDecodeError as error:
            raise self.error("is not valid UTF-8", error.start) from None
        except json.JSONDecodeError as error:
            raise self.error(f"is not valid JSON: {error.msg}", len(text[: error.pos].encode("utf-8"))) from None
        except RecursionError:
            raise self._placed(_deeper(self.max_depth), text) from None
        except ValueError as error:  # raised by the hooks below
            raise self._placed(str(error), text) from None
        if not self._flat and depth_exceeds(value, self.max_depth):
            raise self._placed(_deeper(self.max_depth), text)
        if LONE_SURROGATE_ESCAPE.search(self.data) and has_surrogate(value):
            raise self._placed(_HALF_PAIR, text)
        return value

    def _object(self, pairs: list[tuple[str, Any]]) -> JsonObject | float:
        found = JsonObject(pairs, self, self._objects)
        self._objects += 1
        if len(found) != len(pairs):
            raise ValueError("has the same key twice")
        if self.any_float and len(pairs) == 1 and pairs[0][0] == _FLOAT and pairs[0][1] in _NOT_FINITE:
            return float(pairs[0][1])
        return found

    def _placed(self, problem: str, text: str) -> ModelFormatError:
        """Return the error with the position of the invalid value, or without it if the search would take too long."""
        if self.values > EXPLAINED:
            return self.error(problem, None)
        finder = _Finder(self.max_depth, self.any_float)
        try:
            finder.decode(text)
        except ValueError as error:
            problem = str(error)
        return self.error(problem, len(text[: finder.at].encode("utf-8")))

    def places(self) -> list[dict[str, int]]:
        """Return the offsets of all values by key, for each object, in the order in which the objects end."""
        if self._places is None:
            finder = _Finder(self.max_depth, self.any_float)
            # One character per byte makes indices offsets; the keys themselves come from the C parser.
            finder.decode(self.data.decode("latin-1"))
            keys: list[list[str]] = []
            json.loads(self.data, object_pairs_hook=lambda pairs: keys.append([key for key, _ in pairs]))
            self._places = [
                {key: self.start + at for key, at in zip(own, places, strict=True)}
                for own, places in zip(keys, finder.places, strict=True)
            ]
        return self._places


class _Finder(json.JSONDecoder):
    """Finds the positions of values, and the first invalid one: the standard library's decoder in Python."""

    def __init__(self, max_depth: int, any_float: bool) -> None:
        super().__init__(parse_float=finite, parse_int=integer, parse_constant=float if any_float else refuse_constant)
        self.at, self.places = 0, list[list[int]]()
        self._depth, self._max_depth = 0, max_depth
        self.parse_object, self.parse_array, self.parse_string = self._object, self._array, self._string
        self.scan_once = _scanner.py_make_scanner(self)  # reads the parse_* attributes above

    def _object(self, start: tuple[str, int], strict: bool, scan: _Scan, *_: Any) -> tuple[Any, int]:
        places: list[int] = []
        pairs, end = self._inside(_decoder.JSONObject, start, strict, self._noting(scan, places), None, list)
        keys = set()
        for (key, _value), self.at in zip(pairs, places, strict=True):
            if key in keys:
                raise ValueError(f"has the key {key[:60]!r} twice")
            if LONE_SURROGATE.search(key):
                raise ValueError(_HALF_PAIR)
            keys.add(key)
        self.places.append(places)
        return pairs, end

    def _array(self, start: tuple[str, int], scan: _Scan) -> Any:
        return self._inside(_decoder.JSONArray, start, self._noting(scan, []))

    def _string(self, text: str, start: int, strict: bool) -> tuple[str, int]:
        found, end = _decoder.scanstring(text, start, strict)
        if LONE_SURROGATE.search(found):
            raise ValueError(_HALF_PAIR)
        return found, end

    def _inside(self, parse: Callable[..., Any], *arguments: Any) -> Any:
        if self._depth == self._max_depth:
            raise ValueError(_deeper(self._max_depth))
        self._depth += 1
        found = parse(*arguments)
        self._depth -= 1
        return found

    def _noting(self, scan: _Scan, places: list[int]) -> _Scan:
        def noted(text: str, at: int) -> tuple[Any, int]:
            self.at = at
            places.append(at)
            return scan(text, at)

        return noted


def _deeper(limit: int) -> str:
    return f"is nested deeper than {limit}"


def has_long_number(data: bytes) -> bool:
    """Return True if a JSON text contains ``MAX_NUMBER`` consecutive digits, in a number or elsewhere."""
    return _LONG_NUMBER in data.translate(_DIGITS_AS_ZEROS)


def refuse_constant(name: str) -> NoReturn:
    """Raise ValueError: hook of ``json.loads`` for NaN and infinities."""
    raise ValueError(f"has {name}, which is not a JSON number")


def integer(digits: str) -> int:
    """Return the number; raise ValueError for more than ``MAX_NUMBER`` characters."""
    return int(_short(digits))


def finite(digits: str) -> float:
    """Return the number; raise ValueError for more than ``MAX_NUMBER`` characters, or if it exceeds float64."""
    value = float(_short(digits))
    if not math.isfinite(value):
        raise ValueError(f"has the number {digits}, which is too large")
    return value


def _short(digits: str) -> str:
    if len(digits) > MAX_NUMBER:
        raise ValueError(f"has a number of {len(digits)} characters; the maximum is {MAX_NUMBER}")
    return digits


def depth_exceeds(value: Any, limit: int) -> bool:
    """Return True if a JSON value has more than ``limit`` levels of objects and arrays."""
    level = [value] if type(value) in _CONTAINERS else []
    for _ in range(limit):
        inside = [outer.values() if isinstance(outer, dict) else outer for outer in level]
        if _CONTAINERS.isdisjoint(map(type, chain.from_iterable(inside))):  # fast path for most values
            return False
        level = [item for items in inside for item in items if type(item) in _CONTAINERS]
    return True


def has_surrogate(value: Any) -> bool:
    """Return True if a string in a JSON value has a lone surrogate; iterative, because values may be deeply nested."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            if LONE_SURROGATE.search(item):
                return True
        elif isinstance(item, dict):
            pending.extend(item)
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return False
