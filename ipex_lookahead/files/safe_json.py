"""JSON from files that nobody vouches for: bounded, unambiguous, and with the byte offset of what is wrong.

The standard library parses, in C; but it keeps the last of two equal keys, takes NaN, Infinity and half a surrogate
pair, and forgets where things were. Two programs that read one file differently is how a checked file comes to load
something else, so here every such text is an error. Where in the file it is, and where any value was, is looked for by
a second, slow parser, and only when somebody asks: after a failure.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Mapping
from itertools import chain
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
"""Most values of a text in which the slow parser looks for a fault, or for where things are; of a larger one the fast
one's word is taken."""

File = str | PathLike[str]

_SPACE = re.compile(rb"[ \t\n\r]*")
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_DIGITS_AS_ZEROS = bytes(0x30 if 0x30 <= byte <= 0x39 else byte for byte in range(256))
_LONG_NUMBER = b"0" * MAX_NUMBER
_STRING = re.compile(rb'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*"')
_ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]*')
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_ANY_ESCAPE = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_WORDS = ((b"true", True), (b"false", False), (b"null", None))
_FLOAT, _NOT_FINITE = "__float__", ("NaN", "Infinity", "-Infinity")
_FLOATS = tuple((word.encode(), float(word)) for word in _NOT_FINITE)


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
    write them.
    Time and memory are linear in ``len(data)``.
    """
    return _Text(data, file, field, start, max_depth, max_values, any_float).value()


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


_CONTAINERS = frozenset({JsonObject, list})


class _Text:
    """One text, parsed in C; the slow parser only says where things are."""

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
        long = _LONG_NUMBER in self.data.translate(_DIGITS_AS_ZEROS)
        whole = _whole if long else None  # else Python's own, without a call for each
        try:
            text = self.data.decode("utf-8")
            value = json.loads(
                text,
                object_pairs_hook=self._object,
                parse_constant=float if self.any_float else _refuse,
                parse_float=_finite,
                parse_int=whole,
            )
        except UnicodeDecodeError as error:
            raise self._explained("is not valid UTF-8", error.start) from None
        except json.JSONDecodeError as error:
            raise self._explained(f"is not valid JSON: {error.msg}", len(text[: error.pos].encode("utf-8"))) from None
        except RecursionError:
            raise self._explained(f"is nested deeper than {self.max_depth}", None) from None
        except ValueError as error:  # ours
            raise self._explained(str(error), None) from None
        if not self._flat and _depth_exceeds(value, self.max_depth):
            raise self._explained(f"is nested deeper than {self.max_depth}", None)
        if _SURROGATE_ESCAPE.search(self.data) and has_surrogate(value):
            raise self._explained("has half a surrogate pair", None)
        return value

    def _object(self, pairs: list[tuple[str, Any]]) -> JsonObject | float:
        found = JsonObject(pairs, self, self._objects)
        self._objects += 1
        if len(found) != len(pairs):
            raise ValueError("has the same key twice")
        if self.any_float and len(pairs) == 1 and pairs[0][0] == _FLOAT and pairs[0][1] in _NOT_FINITE:
            return float(pairs[0][1])
        return found

    def _explained(self, problem: str, at: int | None) -> ModelFormatError:
        """The error with its place, or as the fast parser has it where it would take too long to look for that."""
        if self.values <= EXPLAINED:
            try:
                _Parser(self).whole()
            except ModelFormatError as error:
                return error
        return self.error(problem, at)

    def places(self) -> list[dict[str, int]]:
        """For each object, in the order in which they end, the offset of each key's value."""
        if self._places is None:
            parser = _Parser(self)
            parser.whole()
            self._places = parser.places
        return self._places


class _Parser:
    """Finds the first fault, and where every value is. Its steps are the interpreter's, so it is slow."""

    def __init__(self, text: _Text) -> None:
        self.text, self.data, self.at = text, text.data, 0
        self.places: list[dict[str, int]] = []

    def error(self, problem: str, at: int | None = None) -> ModelFormatError:
        return self.text.error(problem, self.at if at is None else at)

    def whole(self) -> Any:
        if self.data.startswith(b"\xef\xbb\xbf"):
            raise self.error("starts with a byte order mark; JSON is UTF-8 without one")
        value = self._value(1)
        if self._peek() != -1:
            raise self.error("has text after the end of the JSON value")
        return value

    def _peek(self) -> int:
        """The next byte that is not space, -1 at the end."""
        match = _SPACE.match(self.data, self.at)
        assert match is not None  # it matches the empty string
        self.at = match.end()
        return self.data[self.at] if self.at < len(self.data) else -1

    def _value(self, depth: int) -> Any:
        first = self._peek()
        if first in (0x7B, 0x5B):  # { [
            if depth > self.text.max_depth:
                raise self.error(f"is nested deeper than {self.text.max_depth}")
            return self._object(depth) if first == 0x7B else self._array(depth)
        if first == 0x22:  # "
            return self._string()
        for word, meaning in (*_WORDS, *(_FLOATS if self.text.any_float else ())):
            if self.data.startswith(word, self.at):
                self.at += len(word)
                return meaning
        return self._number()

    def _object(self, depth: int) -> JsonObject:
        found: dict[str, Any] = {}
        places: dict[str, int] = {}
        self.at += 1
        ended = self._peek() == 0x7D
        self.at += ended
        while not ended:
            if self._peek() != 0x22:
                raise self.error("is not valid JSON: a key in double quotes must stand here")
            key_at = self.at
            key = self._string()
            if key in found:
                raise self.error(f"has the key {key[:60]!r} twice", key_at)
            if self._peek() != 0x3A:
                raise self.error("is not valid JSON: a colon must stand here")
            self.at += 1
            self._peek()
            places[key] = self.text.start + self.at
            found[key] = self._value(depth + 1)
            ended = self._ends(0x7D)
        self.places.append(places)
        return JsonObject(found, self.text, len(self.places) - 1)

    def _array(self, depth: int) -> list[Any]:
        found: list[Any] = []
        self.at += 1
        if self._peek() == 0x5D:
            self.at += 1
            return found
        while True:
            found.append(self._value(depth + 1))
            if self._ends(0x5D):
                return found

    def _ends(self, closing: int) -> bool:
        following = self._peek()
        if following not in (closing, 0x2C):
            raise self.error(f"is not valid JSON: a comma or '{chr(closing)}' must stand here")
        self.at += 1
        return following == closing

    def _number(self) -> int | float:
        match = _NUMBER.match(self.data, self.at)
        if match is None:
            raise self.error("is not valid JSON: a value must stand here")
        digits = match.group()
        if len(digits) > MAX_NUMBER:
            raise self.error(f"has a number of {len(digits)} characters; at most {MAX_NUMBER} are read")
        number = float(digits) if any(c in digits for c in b".eE") else int(digits)
        if not math.isfinite(number):
            raise self.error(f"has the number {digits.decode()}, which is too large")
        self.at = match.end()
        return number

    def _string(self) -> str:
        """The string whose opening quote is next."""
        at = self.at
        match = _STRING.match(self.data, at)
        if match is None:
            raise self._string_fault()
        try:
            match.group().decode()
        except UnicodeDecodeError as error:
            raise self.error("is not valid UTF-8", at + error.start) from None
        self.at = match.end()
        found: str = json.loads(match.group())
        if _SURROGATE.search(found):
            raise self.error("has half a surrogate pair", self._half_pair(at))
        return found

    def _half_pair(self, at: int) -> int:
        """Where the string from ``at`` to here escapes a surrogate without its other half."""
        high: int | None = None
        for escape in _ANY_ESCAPE.finditer(self.data, at, self.at):
            code = int(escape[1] or b"0", 16)
            if 0xDC00 <= code < 0xE000:
                if high is None or escape.start() != high + 6:
                    return escape.start()
                high = None
            elif high is not None:
                return high
            elif 0xD800 <= code < 0xDC00:
                high = escape.start()
        return at if high is None else high

    def _string_fault(self) -> ModelFormatError:
        """What is wrong with the string that begins here, and has no right end."""
        at = self.at + 1
        while True:
            match = _PLAIN.match(self.data, at)
            assert match is not None  # it matches the empty string
            at = match.end()
            if at >= len(self.data):
                return self.error("is not valid JSON: a string has no end", at)
            if self.data[at] != 0x5C:
                return self.error("is not valid JSON: a string holds a control character", at)
            if not _ESCAPE.match(self.data, at):
                return self.error("is not valid JSON: unknown escape in a string", at)
            at += 2


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"has {name}, which is no JSON number")


def _whole(digits: str) -> int:
    if len(digits) > MAX_NUMBER:
        raise ValueError(f"has a number of {len(digits)} characters; at most {MAX_NUMBER} are read")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if len(digits) > MAX_NUMBER or not math.isfinite(value):
        raise ValueError(f"has the number {digits[:40]}, which is too long or too large")
    return value


def _depth_exceeds(value: Any, limit: int) -> bool:
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
            if _SURROGATE.search(item):
                return True
        elif isinstance(item, dict):
            pending.extend(item)
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return False
