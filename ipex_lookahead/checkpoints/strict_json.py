"""JSON from files nobody vouches for: a strict parser that keeps the byte offset of every value.

The standard library's parser keeps the last of two equal keys, takes NaN and Infinity, recurses as deep as the text
says and forgets where things were. Two programs that read one file differently is how a checked file comes to load
something else, so here every such text is an error.
"""

from __future__ import annotations

import math
import re
from os import PathLike
from typing import Any

from ipex_lookahead.errors import ModelFormatError

MAX_NUMBER = 64
"""Most characters of a number: converting a longer one takes time that grows with its square, and means nothing."""

_SPACE = re.compile(rb"[ \t\n\r]*")
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]*')
_HEX4 = re.compile(rb"[0-9a-fA-F]{4}")
_ESCAPES = {0x22: '"', 0x5C: "\\", 0x2F: "/", 0x62: "\b", 0x66: "\f", 0x6E: "\n", 0x72: "\r", 0x74: "\t"}
_WORDS = ((b"true", True), (b"false", False), (b"null", None))


class JsonObject(dict[str, Any]):
    """A JSON object; ``at`` gives the byte offset in the file of each key's value."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[str, int] = {}


def parse(
    data: bytes,
    file: str | PathLike[str],
    field: str,
    *,
    start: int = 0,
    max_depth: int = 64,
    max_values: int = 1 << 20,
) -> Any:
    """Parse the whole of ``data``, whose first byte lies at offset ``start`` of ``file``.

    Objects come back as :class:`JsonObject`. Raises ModelFormatError, naming ``field`` and the offset, for anything
    that RFC 8259 does not allow, and for duplicate keys, numbers too large for a float, lone surrogates, nesting
    deeper than ``max_depth`` and more than ``max_values`` values and escapes. Time and memory are linear in
    ``len(data)``, and what is slow about them in ``max_values``.
    """
    if data.startswith(b"\xef\xbb\xbf"):
        raise ModelFormatError(file, field, start, "starts with a byte order mark; JSON is UTF-8 without one")
    parser = _Parser(data, file, field, start, max_depth, max_values)
    value = parser.value(1)
    parser.skip_space()
    if parser.at < len(data):
        raise parser.error("has text after the end of the JSON value")
    return value


class _Parser:
    def __init__(
        self, data: bytes, file: str | PathLike[str], field: str, start: int, max_depth: int, max_values: int
    ) -> None:
        self.data = data
        self.at = 0
        self._file, self._field, self._start = file, field, start
        self._max_depth, self._values_left, self._max_values = max_depth, max_values, max_values

    def error(self, problem: str, at: int | None = None) -> ModelFormatError:
        at = self.at if at is None else at
        return ModelFormatError(self._file, self._field, self._start + at, problem)

    def skip_space(self) -> None:
        match = _SPACE.match(self.data, self.at)
        assert match is not None  # it matches the empty string
        self.at = match.end()

    def _peek(self) -> int:
        """The next byte that is not space, -1 at the end."""
        self.skip_space()
        return self.data[self.at] if self.at < len(self.data) else -1

    def value(self, depth: int) -> Any:
        self._count()
        first = self._peek()
        if first in (0x7B, 0x5B):  # { [
            if depth > self._max_depth:
                raise self.error(f"is nested deeper than {self._max_depth}")
            return self._object(depth) if first == 0x7B else self._array(depth)
        if first == 0x22:  # "
            return self.string()
        for word, meaning in _WORDS:
            if self.data.startswith(word, self.at):
                self.at += len(word)
                return meaning
        return self._number()

    def _count(self) -> None:
        """Count what takes a step of the interpreter, so that a large file cannot take many of them."""
        self._values_left -= 1
        if self._values_left < 0:
            raise self.error(f"holds more than {self._max_values} values and escapes")

    def _object(self, depth: int) -> JsonObject:
        found = JsonObject()
        self.at += 1
        if self._peek() == 0x7D:
            self.at += 1
            return found
        while True:
            if self._peek() != 0x22:
                raise self.error("is not valid JSON: a key in double quotes must stand here")
            key_at = self.at
            key = self.string()
            if key in found:
                raise self.error(f"has the key {key[:60]!r} twice", key_at)
            if self._peek() != 0x3A:
                raise self.error("is not valid JSON: a colon must stand here")
            self.at += 1
            self.skip_space()
            found.at[key] = self._start + self.at
            found[key] = self.value(depth + 1)
            if self._ends(0x7D):
                return found

    def _array(self, depth: int) -> list[Any]:
        found: list[Any] = []
        self.at += 1
        if self._peek() == 0x5D:
            self.at += 1
            return found
        while True:
            found.append(self.value(depth + 1))
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

    def string(self) -> str:
        """The string whose opening quote is next."""
        self.at += 1
        parts: list[str] = []
        while True:
            match = _PLAIN.match(self.data, self.at)
            assert match is not None  # it matches the empty string
            try:
                parts.append(match.group().decode())
            except UnicodeDecodeError as error:
                raise self.error("is not valid UTF-8", self.at + error.start) from None
            self.at = match.end()
            if self.at >= len(self.data):
                raise self.error("is not valid JSON: a string has no end")
            if self.data[self.at] == 0x22:
                self.at += 1
                return "".join(parts)
            if self.data[self.at] != 0x5C:
                raise self.error("is not valid JSON: a string holds a control character")
            parts.append(self._escape())

    def _escape(self) -> str:
        self._count()
        at = self.at
        letter = self.data[at + 1] if at + 1 < len(self.data) else -1
        if letter in _ESCAPES:
            self.at += 2
            return _ESCAPES[letter]
        code = self._unicode_escape()
        if 0xD800 <= code < 0xDC00:
            low = self._unicode_escape()
            if not 0xDC00 <= low < 0xE000:
                raise self.error("has half a surrogate pair", at)
            return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00))
        if 0xDC00 <= code < 0xE000:
            raise self.error("has half a surrogate pair", at)
        return chr(code)

    def _unicode_escape(self) -> int:
        match = _HEX4.match(self.data, self.at + 2) if self.data.startswith(b"\\u", self.at) else None
        if match is None:
            raise self.error("is not valid JSON: unknown escape in a string")
        self.at = match.end()
        return int(match.group(), 16)
