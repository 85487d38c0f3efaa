"""Calls in a text that is still being written: each name and each piece of the arguments as soon as it is certain.

A style's ``read`` is a generator over a :class:`Flow`. It waits for more text by yielding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Iterator
from typing import Any

from ipex_lookahead.conversation.calls.base import DECODER, MAX_DEPTH, Call, Functions, as_json

Reading = Generator[None, None, None]
Write = Callable[[str], None]
"""Takes the next piece of JSON text."""
_CHUNK = re.compile(r'[^"\\\x00-\x1f]+')
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_NUMBER = frozenset("+-0123456789.eE_")
_MAX_NUMBER = 5000
"""Characters of a number; Python converts no longer ones."""
_HEX = frozenset("0123456789abcdefABCDEF")


def quoted(text: str) -> str:
    """Return a text as in JSON, without the quotes around it."""
    return as_json(text)[1:-1]


def unwritten(_: str) -> None:
    """Drop a piece: of the value of a key that the object has already."""


class Flow:
    """The text of one or several calls, up to a place that moves on.

    Args:
        read: generator of the style, for this flow.
        functions: functions that may be called.

    Attributes:
        calls: of each call so far the name, the id, the arguments in pieces, and whether it is complete.
    """

    def __init__(self, read: Callable[[Flow, Functions], Reading], functions: Functions) -> None:
        self.calls: list[tuple[str, str, list[str], bool]] = []
        self._text = ""
        self._at = 0
        self._functions = functions
        self._new: list[Call] = []
        self._reading: Iterator[None] | None = read(self, functions)

    def put(self, text: str) -> list[Call]:
        """Return what is certain of calls with more text. Nothing comes behind text that is not of a call."""
        if self._reading is None or not text:
            return []
        self._text, self._at = self._text[self._at :] + text, 0
        try:
            next(self._reading)
        except (StopIteration, ValueError):
            self._reading = None
        found, self._new = self._new, []
        return found

    # ---- of a style's reading ----------------------------------------------------------------------------------------

    def begin(self, name: str) -> None:
        """Begin a call. Raises ValueError for an unknown function."""
        if name not in self._functions:
            raise ValueError(name)
        call = Call(name, "", ends=False)
        self.calls.append((name, call.id, [], False))
        self._new.append(call)

    def write(self, piece: str) -> None:
        """Add a piece of the arguments of the call that was begun last."""
        self._add(piece, ends=False)

    def end(self) -> None:
        """Complete the call that was begun last."""
        self._add("", ends=True)

    def _add(self, piece: str, *, ends: bool) -> None:
        if not (piece or ends):
            return
        name, number, pieces, _ = self.calls[-1]
        pieces.append(piece)
        self.calls[-1] = name, number, pieces, ends
        self._new.append(Call(name, piece, number, begins=False, ends=ends))

    def peek(self) -> Generator[None, None, str]:
        """Return the next character."""
        while self._at >= len(self._text):
            yield
        return self._text[self._at]

    def taken(self) -> Generator[None, None, str]:
        """Return the next character and go on behind it."""
        sign = yield from self.peek()
        self._at += 1
        return sign

    def sign(self) -> Generator[None, None, str]:
        """Return the next character that is not white space."""
        while (sign := (yield from self.peek())).isspace():
            self._at += 1
        return sign

    def some(self, signs: Collection[str], most: int) -> Generator[None, None, str]:
        """Return the next characters that are among some, at most a number of them, and go on behind them."""
        found = ""
        while len(found) < most and (yield from self.peek()) in signs:
            found += yield from self.taken()
        return found

    def either(self, *signs: str) -> Generator[None, None, str]:
        """Go on behind one of some signs, and white space before it; return which. Raises ValueError for others."""
        yield from self.sign()
        while True:
            for sign in signs:
                if self._text.startswith(sign, self._at):
                    self._at += len(sign)
                    return sign
            rest = self._text[self._at :]
            if not any(sign.startswith(rest) for sign in signs):
                raise ValueError(rest)
            yield

    def opens(self, mark: str) -> Generator[None, None, bool]:
        """Return whether a mark comes next, and go on behind it if it does."""
        while len(rest := self._text[self._at : self._at + len(mark)]) < len(mark) and mark.startswith(rest):
            yield
        self._at += len(mark) if rest == mark else 0
        return rest == mark

    def until(self, mark: str) -> Generator[None, None, str]:
        """Return the text up to a mark, and go on behind it."""
        pieces: list[str] = []
        yield from self.verbatim(mark, pieces.append)
        return "".join(pieces)

    def verbatim(self, mark: str, write: Write, *, trimmed: bool = False) -> Reading:
        """Write the text up to a mark; ``trimmed``: without a line's end at its beginning and at its end."""
        begun = not trimmed
        while (at := self._text.find(mark, self._at)) < 0:
            end = len(self._text) - begins(self._text[self._at :], mark)
            if not begun and end > self._at:
                begun = True
                self._at += self._text[self._at] == "\n"
            if trimmed and end > self._at and self._text[end - 1] == "\n":
                end -= 1
            if end > self._at:
                write(self._text[self._at : end])
                self._at = end
            yield
        text, self._at = self._text[self._at : at], at + len(mark)
        text = text if begun else text.removeprefix("\n")
        write(text.removesuffix("\n") if trimmed else text)

    def chunk(self, pattern: re.Pattern[str]) -> str:
        """Return what a pattern matches here, of the text so far, and go on behind it."""
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return found[0] if found else ""


def begins(text: str, mark: str) -> int:
    """Return the number of characters at the end of a text that may begin a mark."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0)


class Members:
    """Writes the keys of an object, of which the first of several with one name counts."""

    def __init__(self, flow: Flow, write: Write | None = None) -> None:
        self._write = flow.write if write is None else write
        self._seen: set[str] = set()

    def begin(self, key: str) -> Write:
        """Write a key; return what takes its value."""
        if key in self._seen:
            return unwritten
        self._write(f"{', ' if self._seen else ''}{as_json(key)}: ")
        self._seen.add(key)
        return self._write


class Values:
    """Reads values of JSON and writes them as :func:`as_json` does. Subclasses read other spellings of them.

    All of it raises ValueError where something else comes.
    """

    words = {"true": "true", "false": "false", "null": "null"}
    lists = {"[": "]"}
    most_deep = MAX_DEPTH
    trailing = False
    """Whether a comma may come before the end of a list or an object."""

    def value(self, flow: Flow, write: Write, depth: int = 0) -> Reading:
        """Read a value."""
        sign = yield from flow.sign()
        if depth > self.most_deep:
            raise ValueError("nested too deeply")
        if sign == "{":
            yield from flow.taken()
            yield from self.mapping(flow, write, depth)
        elif sign in self.lists:
            yield from flow.taken()
            yield from self._list(flow, write, depth, self.lists[sign])
        elif self.begins_text(sign):
            write('"')
            yield from self.text(flow, write)
            write('"')
        elif sign.isalpha():
            write((yield from self._word(flow)))
        else:
            write((yield from self._number(flow)))

    def begins_text(self, sign: str) -> bool:
        """Whether a text begins with a sign."""
        return sign == '"'

    def text(self, flow: Flow, write: Write) -> Reading:
        """Read a text with its quotes, and write it without."""
        yield from self.string(flow, write)

    def string(self, flow: Flow, write: Write) -> Reading:
        """Read a text as JSON has it, and write it without quotes."""
        yield from flow.taken()
        high = ""
        while True:
            sign = yield from flow.peek()
            if high and sign != "\\":
                write("\ufffd")
                high = ""
            if sign == '"':
                yield from flow.taken()
                return
            if sign != "\\":
                if not (found := flow.chunk(_CHUNK)):
                    raise ValueError(sign)
                write(found)
                continue
            yield from flow.taken()
            code = yield from flow.taken()
            if code == "u":
                digits = yield from flow.some(_HEX, 4)
                if len(digits) < 4:
                    raise ValueError(digits)
                high = surrogates(write, high, int(digits, 16))
                continue
            write(("\ufffd" if high else "") + quoted(_ESCAPES[code] if code in _ESCAPES else _raised(code)))
            high = ""

    def key(self, flow: Flow) -> Generator[None, None, str]:
        """Return an object's next key."""
        if (yield from flow.sign()) != '"':
            raise ValueError("a key")
        pieces: list[str] = []
        yield from self.string(flow, pieces.append)
        key: str = DECODER.decode(f'"{"".join(pieces)}"')
        return key

    def mapping(self, flow: Flow, write: Write, depth: int) -> Reading:
        """Read an object behind its brace. The first of several members with one key counts."""
        members = Members(flow, write)
        write("{")
        sign = yield from flow.sign()
        while sign != "}":
            key = yield from self.key(flow)
            yield from flow.either(":")
            yield from self.value(flow, members.begin(key), depth + 1)
            sign = yield from self._next(flow, "}")
        yield from flow.taken()
        write("}")

    def _list(self, flow: Flow, write: Write, depth: int, end: str) -> Reading:
        write("[")
        comma = ""
        sign = yield from flow.sign()
        while sign != end:
            write(comma)
            comma = ", "
            yield from self.value(flow, write, depth + 1)
            sign = yield from self._next(flow, end)
        yield from flow.taken()
        write("]")

    def _next(self, flow: Flow, end: str) -> Generator[None, None, str]:
        """Return the sign behind a comma, or the end."""
        sign = yield from flow.sign()
        if sign == end:
            return sign
        yield from flow.either(",")
        sign = yield from flow.sign()
        if sign == end and not self.trailing:
            raise ValueError(sign)
        return sign

    def _word(self, flow: Flow) -> Generator[None, None, str]:
        found = ""
        while (yield from flow.peek()).isalpha():
            found += yield from flow.taken()
        if found not in self.words:
            raise ValueError(found)
        return self.words[found]

    def _number(self, flow: Flow) -> Generator[None, None, str]:
        return as_json(self.number((yield from flow.some(_NUMBER, _MAX_NUMBER))))

    def number(self, text: str) -> Any:
        """Return the number that a text is."""
        return DECODER.decode(text)


JSON = Values()


def _raised(sign: str) -> str:
    raise ValueError(sign)


def surrogates(write: Write, high: str, code: int) -> str:
    """Write a UTF-16 code unit.

    Args:
        write: takes the character.
        high: first half of a surrogate pair before it, or "".
        code: the code unit.

    Returns:
        The first half of a pair, which waits for the other, or "".
    """
    if high and 0xDC00 <= code < 0xE000:
        write((high + chr(code)).encode("utf-16", "surrogatepass").decode("utf-16"))
        return ""
    write("\ufffd" if high else "")
    if 0xD800 <= code < 0xDC00:
        return chr(code)
    write(quoted(chr(code)))
    return ""


def call_object(flow: Flow, key: str) -> Reading:
    """Read ``{"name": ..., key: {...}}`` as a call."""
    begun = given = False
    yield from flow.either("{")
    while True:
        name = yield from JSON.key(flow)
        yield from flow.either(":")
        if name == "name" and not begun:
            flow.begin((yield from JSON.key(flow)))
            begun = True
        elif name == key and begun and not given:
            yield from flow.either("{")
            yield from JSON.mapping(flow, flow.write, 0)
            given = True
        else:
            raise ValueError(name)
        if (yield from flow.either(",", "}")) == "}":
            break
    if begun and not given:
        flow.write("{}")
    flow.end()


def call_list(flow: Flow) -> Reading:
    """Read a list of such objects behind its bracket."""
    more = ","
    while more == ",":
        yield from call_object(flow, "arguments")
        more = yield from flow.either(",", "]")
