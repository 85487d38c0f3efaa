"""JSON from files that nobody vouches for: bounded, unambiguous, and with the byte offset of what is wrong.

The standard library parses, in C; but it keeps the last of two equal keys, takes NaN, Infinity and half a surrogate
pair, and forgets where things were. Two programs that read one file differently is how a checked file comes to load
something else, so here every such text is an error. Where in the file it is, and where any value was, the library's
decoder in Python finds, slowly, and only after a failure.
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
"""Most characters of a number: converting a longer one takes time that grows with its square, and means nothing."""
MAX_CONTAINERS = 2 << 20
"""Most objects and arrays: an empty one takes two bytes in the file, and forty times as many in memory."""
MAX_VALUES = 16 << 20
EXPLAINED = 1 << 20
"""Most values of a text in which places are looked for: that takes a few microseconds for each."""

File = str | PathLike[str]

_DIGITS_AS_ZEROS = bytes(0x30 if 0x30 <= byte <= 0x39 else byte for byte in range(256))
_LONG_NUMBER = b"0" * MAX_NUMBER
LONE_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_FLOAT, _NOT_FINITE = "__float__", ("NaN", "Infinity", "-Infinity")
_HALF_PAIR = "has half a surrogate pair"
_decoder: Any = decoder  # their parts in Python have no types
_scanner: Any = scanner
_Scan = Callable[[str, int], tuple[Any, int]]


class JsonObject(dict[str, Any]):
    """A JSON object; ``at`` gives the byte offset in the file of each key's value."""

    __slots__ = ("_number", "_text")

    def __init__(self, pairs: Any = (), text: _Text | None = None, number: int = 0) -> None:
        super().__init__(pairs)
        self._text, self._number = text, number

    @property
    def at(self) -> Mapping[str, int]:
        """Looked for at the first call, in the whole text; in a very long one each stands for where the text begins."""
        if self._text is None:
            return {}
        if self._text.values > EXPLAINED:
            return dict.fromkeys(self, self._text.start)
        return self._text.places()[self._number]


def read_file(path: File, limit: int) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes. Raises ModelFormatError for anything else."""
    try:
        # Opening a named pipe must not wait for its writer; regular files do not care about O_NONBLOCK.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ModelFormatError(path, "file", None, f"cannot be opened: {reason}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ModelFormatError(path, "file", None, "is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            data = stream.read(limit + 1) if status.st_size <= limit else None
    except OSError as error:
        raise ModelFormatError(path, "file", None, f"cannot be read: {error}") from None
    finally:
        os.close(descriptor)
    if data is None or len(data) > limit:
        raise ModelFormatError(path, "file", None, f"has {status.st_size} bytes; at most {limit} are allowed")
    return data


def load_object(path: File, limit: int) -> JsonObject:
    """The JSON object in a file of at most ``limit`` bytes. Raises ModelFormatError."""
    value = parse(read_file(path, limit), path)
    if not isinstance(value, JsonObject):
        raise ModelFormatError(path, "JSON", 0, f"holds {kind(value)}; it must be an object")
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
    """The value that the whole of ``data`` spells, whose first byte lies at offset ``start`` of ``file``.

    Objects come back as :class:`JsonObject`. Raises ModelFormatError, naming ``field`` and the offset, for anything
    that RFC 8259 does not allow, and for duplicate keys, numbers of more than 64 characters or too large for a float,
    lone surrogates, nesting deeper than ``max_depth``, and more than ``max_values`` values or 2 Mi objects and arrays.
    ``any_float``: NaN and infinities are read, as transformers 4 (``Infinity``) and 5 (``{"__float__": "Infinity"}``)
    write them. A byte order mark at the head of a file is no part of the text, as RFC 8259 allows.
    Time and memory are linear in ``len(data)``.
    """
    mark = len(codecs.BOM_UTF8) if start == 0 and data.startswith(codecs.BOM_UTF8) else 0
    return _Text(data[mark:] if mark else data, file, field, start + mark, max_depth, max_values, any_float).value()


def spelled(value: Any) -> Any:
    """A value for ``json.dumps`` with NaN and infinities as transformers 5 writes them, which ``any_float`` reads."""
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    if isinstance(value, dict):
        return {key: spelled(inner) for key, inner in value.items()}
    return [spelled(inner) for inner in value] if isinstance(value, list | tuple) else value


def kind(value: Any) -> str:
    """What a JSON value is, in words."""
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
    """One text, parsed in C."""

    def __init__(
        self, data: bytes, file: File, field: str, start: int, max_depth: int, max_values: int, any_float: bool
    ) -> None:
        self.data, self.file, self.field, self.start, self.max_depth = data, file, field, start, max_depth
        self.any_float = any_float
        openings = data.count(b"{") + data.count(b"[")
        self.values = openings + data.count(b",") + 1  # at most so many; strings may hold some of these too
        self._flat = openings <= max_depth
        self._objects = 0
        self._places: list[dict[str, int]] | None = None
        if openings > MAX_CONTAINERS or self.values > max_values:
            most = f"{MAX_CONTAINERS} objects and arrays" if openings > MAX_CONTAINERS else f"{max_values} values"
            raise self.error(f"holds more than {most}", 0)

    def error(self, problem: str, at: int | None) -> ModelFormatError:
        return ModelFormatError(self.file, self.field, None if at is None else self.start + at, problem)

    def value(self) -> Any:
        parse_int = integer if has_long_number(self.data) else None  # else Python's own, without a call for each
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
        except ValueError as error:  # ours
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
        """The error with where the value begins that breaks a rule, or without where that would take too long."""
        if self.values > EXPLAINED:
            return self.error(problem, None)
        finder = _Finder(self.max_depth, self.any_float)
        try:
            finder.decode(text)
        except ValueError as error:
            problem = str(error)
        return self.error(problem, len(text[: finder.at].encode("utf-8")))

    def places(self) -> list[dict[str, int]]:
        """For each object, in the order in which they end, the offset of each key's value."""
        if self._places is None:
            finder = _Finder(self.max_depth, self.any_float)
            # A character a byte, so that an index is an offset; the keys' letters are the fast parser's.
            finder.decode(self.data.decode("latin-1"))
            keys: list[list[str]] = []
            json.loads(self.data, object_pairs_hook=lambda pairs: keys.append([key for key, _ in pairs]))
            self._places = [
                {key: self.start + at for key, at in zip(own, places, strict=True)}
                for own, places in zip(keys, finder.places, strict=True)
            ]
        return self._places


class _Finder(json.JSONDecoder):
    """Finds where every value is, and which one breaks a rule: the standard library's decoder in Python, so slow."""

    def __init__(self, max_depth: int, any_float: bool) -> None:
        super().__init__(parse_float=finite, parse_int=integer, parse_constant=float if any_float else refuse_constant)
        self.at, self.places = 0, list[list[int]]()
        self._depth, self._max_depth = 0, max_depth
        self.parse_object, self.parse_array, self.parse_string = self._object, self._array, self._string
        self.scan_once = _scanner.py_make_scanner(self)  # it takes from here what each kind of value is parsed by

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
    """Return whether a JSON text has a row of ``MAX_NUMBER`` digits, in a number or elsewhere."""
    return _LONG_NUMBER in data.translate(_DIGITS_AS_ZEROS)


def refuse_constant(name: str) -> NoReturn:
    """Raise ValueError: the hook of ``json.loads`` for NaN and infinities."""
    raise ValueError(f"has {name}, which is no JSON number")


def integer(digits: str) -> int:
    """Return the number. Raises ValueError for more than ``MAX_NUMBER`` characters."""
    return int(_short(digits))


def finite(digits: str) -> float:
    """Return the number. Raises ValueError for more than ``MAX_NUMBER`` characters, or one too large for a float."""
    value = float(_short(digits))
    if not math.isfinite(value):
        raise ValueError(f"has the number {digits}, which is too large")
    return value


def _short(digits: str) -> str:
    if len(digits) > MAX_NUMBER:
        raise ValueError(f"has a number of {len(digits)} characters; at most {MAX_NUMBER} are read")
    return digits


def depth_exceeds(value: Any, limit: int) -> bool:
    """Return whether a JSON value has more than ``limit`` levels of objects and arrays."""
    level = [value] if type(value) in _CONTAINERS else []
    for _ in range(limit):
        inside = [outer.values() if isinstance(outer, dict) else outer for outer in level]
        if _CONTAINERS.isdisjoint(map(type, chain.from_iterable(inside))):  # of most of the values, without a loop
            return False
        level = [item for items in inside for item in items if type(item) in _CONTAINERS]
    return True


def has_surrogate(value: Any) -> bool:
    """Whether a text in a JSON value holds half a surrogate pair; without recursion, for values may be deep."""
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
