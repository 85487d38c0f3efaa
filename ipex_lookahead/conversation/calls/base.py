"""What every way of writing calls of tools has."""

from __future__ import annotations

import json
import re
import secrets
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ipex_lookahead.conversation.references import moved
from ipex_lookahead.files.safe_json import LONE_SURROGATE, depth_exceeds

LARGEST = sys.float_info.max
MAX_DEPTH = 128
"""Levels of objects and lists in a body, in a text of JSON inside it, and in the arguments of a call."""

Function = Mapping[str, Any]
"""``{"name": ..., "description": ..., "parameters": schema}``; the name is always there.

``local``, where it is there, is the schema with references of ``$id`` and anchors written as pointers.
"""
Spell = Callable[[str], str]
"""A mark as a grammar spells it: a text in quotes, or the id of a special token."""
Named = tuple[str, Any]
"""A function's name and its arguments."""

Functions = Mapping[str, Function]
"""Functions by their names."""
JSON_TEXT = r'"(?:[^"\\]|\\.)*\\?("?)'
"""A text in JSON; the group is empty where it has no end."""
_TEXT = re.compile(JSON_TEXT, re.DOTALL)
_OPENING = re.compile(r"[\[{]")


@dataclass(frozen=True, slots=True)
class Call:
    """A call, or a piece of one: its name first, then its arguments as they come.

    Attributes:
        name: of the function.
        arguments: JSON text, or the next piece of it.
        id: of the call, which its result repeats.
        begins: whether it is the first piece of the call, or the call.
        ends: whether the call is complete with it; the last piece of a call that was cut is not.
    """

    name: str
    arguments: str
    id: str = field(default_factory=lambda: "call_" + secrets.token_hex(12))
    begins: bool = True
    ends: bool = True

    def joined(self, other: Call) -> Call:
        """Return the call up to its next piece."""
        return Call(self.name, self.arguments + other.arguments, self.id, self.begins, other.ends)


class Written(dict[str, str]):
    """Arguments as texts, from a style without types: the function's schema determines each type."""


class Style(ABC):
    """A way of writing calls.

    Attributes:
        markers: spellings that a call, or several, may begin with.
        end: end marker of the calls; "" if there is none.
        inner: further marks between the two, which may be special tokens as well.
    """

    markers: tuple[str, ...] = ()
    end = ""
    inner: tuple[str, ...] = ()

    @abstractmethod
    def calls(self, body: str, functions: Functions) -> list[Named] | None:
        """Return name and arguments of each call in the text between marker and end; None if it is not a call."""

    def holds(self, body: str, functions: Functions) -> bool:
        """Return True if ``body`` ends inside a value, so that an end that comes next is part of that value."""
        return in_text(body)

    def first(self, body: str) -> tuple[Named, str] | None:
        """Return the first complete call after the marker, and the text up to its end.

        None where none is whole yet, and where each has a marker and an end of its own.
        """
        return None

    def read(self, flow: Any, functions: Functions) -> Generator[None, None, None]:
        """Read calls behind a marker as they are written, in the order and the form in which a grammar has them.

        ``flow`` is a :class:`~ipex_lookahead.conversation.calls.flow.Flow`. Yields where more text is needed. Raises
        ValueError for text that is not read before the call is whole.
        """
        yield from ()

    @property
    def guarded(self) -> bool:
        """Whether a grammar holds calls that the model makes where it likes: what begins as a call is one."""
        return type(self).at_will is not Style.at_will

    @abstractmethod
    def grammar(self, functions: Sequence[Function], spell: Spell, *, one: bool) -> str:
        """The rule ``calls`` in Lark, as llguidance reads it: one call, or one or more, and nothing else.

        Raises InputError for a schema that this way of writing cannot keep to.
        """

    def at_will(self, functions: Sequence[Function], spell: Spell) -> str | None:
        """The rule ``start``: any text, in which a call that has begun is one. None where beginnings say too little."""
        return None

    @abstractmethod
    def spelled(self, calls: Sequence[Named]) -> list[str]:
        """Calls as the model would have written them, in parts; marks are ``Own``, for they may be special tokens."""


def anywhere(begin: str, spell: Spell, behind: str) -> str:
    """The rule ``start`` of :meth:`Style.at_will`: text, and calls of which each is ``begin`` and then ``behind``."""
    # A marker of letters is looked for in the text; one that is a token is not spelled in letters.
    spelled = spell(begin)
    token = spelled.startswith("<[")
    head = f"head: TEXT {spelled}" if token else f"head[lazy]: TEXT {spelled}"
    text = f"TEXT: {without(begin) if token else ANY_TEXT}\n"
    return f"start: called* rest\nrest: TEXT\ncalled: head {behind}\n{head}\n{text}"


ANY_TEXT = "/(.|\\n)*/"


def without(mark: str) -> str:
    """Any text in which a mark is not spelled, as a terminal."""
    return f"{ANY_TEXT} & ~({ANY_TEXT} {json.dumps(mark)} {ANY_TEXT})"


def in_text(body: str, texts: re.Pattern[str] = _TEXT) -> bool:
    """Return True if ``body`` has a list or an object, and ends inside a text in it.

    Args:
        body: up to some place.
        texts: matches texts as far as they go; a group holds the end of one that has it.
    """
    begin = _OPENING.search(body)
    return begin is not None and any(not any(one.groups()) for one in texts.finditer(body, begin.start()))


def arguments_of(function: Function) -> dict[str, Any]:
    """The JSON schema of a function's arguments by itself."""
    parameters = parameters_of(function)
    if parameters.get("type") == "object":
        return dict(parameters)
    path = "#/$defs/root"
    return {"allOf": [{"type": "object"}, {"$ref": path}], "$defs": {"root": moved(parameters, path)}}


def one_of(functions: Sequence[Function], arguments: str) -> dict[str, Any]:
    """The JSON schema of a call of any of the functions; ``$defs`` has what their schemas' own references point to."""
    calls, definitions = [], {}
    for at, function in enumerate(functions):
        parameters: Any = parameters_of(function)
        is_object = parameters.get("type") == "object"
        if '"$ref"' in json.dumps(parameters):
            definitions[f"f{at}"] = moved(parameters, f"#/$defs/f{at}")
            parameters = {"$ref": f"#/$defs/f{at}"}
        if not is_object:  # an answer with other arguments would be no call
            parameters = {"allOf": [{"type": "object"}, parameters]}
        call = {
            "type": "object",
            "properties": {"name": {"const": function["name"]}, arguments: parameters},
            "required": ["name", arguments],
            "additionalProperties": False,
        }
        calls.append(call)
    found: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {**found, "$defs": definitions} if definitions else found


_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


def parameters_of(function: Function) -> Mapping[str, Any]:
    """The schema of a function's arguments; one that has none is called with no arguments."""
    return function.get("local") or function.get("parameters") or _NO_PARAMETERS


def nearest_float(number: str) -> float:
    """Return the float nearest to a number, of those that JSON has: the largest one for a number beyond it."""
    return max(-LARGEST, min(float(number), LARGEST))


def _refused(constant: str) -> float:
    raise ValueError(constant)


class _Decoder(json.JSONDecoder):
    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        found, end = super().raw_decode(s, idx)
        if depth_exceeds(found, MAX_DEPTH):
            raise ValueError("nested too deeply")
        return found, end


def _first(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        found.setdefault(key, value)
    return found


DECODER = _Decoder(parse_float=nearest_float, parse_constant=_refused, object_pairs_hook=_first)
"""Takes the first of several members with one key, as streamed arguments must.

A number beyond the floats is the largest float: a grammar cannot forbid it, and a call with it has begun already.
Refuses NaN and infinity, which JSON does not have, and nesting that a request may not have.
"""


def json_of(text: str) -> Any:
    """The value of a JSON text; None where it is none."""
    try:
        return DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def as_json(value: Any) -> str:
    """Return a value as JSON text in its own letters; U+FFFD for half a surrogate pair, which a model can spell."""
    return LONE_SURROGATE.sub("\ufffd", json.dumps(value, ensure_ascii=False))
