"""Grammars of values that are written as texts between marks, by their JSON schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ipex_lookahead.conversation.calls.base import ANY_TEXT, as_json, without
from ipex_lookahead.conversation.calls.typed import resolved, types_of
from ipex_lookahead.conversation.grammar import inlined, pattern
from ipex_lookahead.conversation.references import with_root
from ipex_lookahead.errors import InputError

ABOUT = frozenset({"title", "description", "$comment", "examples", "default", "deprecated", "format", "readOnly"})
"""Keys that forbid nothing; ``format`` is a note as well, as in JSON schema by default."""
TEXT = frozenset({"type", "pattern", "minLength", "maxLength"})
WHOLE = frozenset({"type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema", "$id"})
_MAX_COUNTED = 64
"""Characters of a text up to which its length and the absence of an end in it are looked for at once."""
_MAX_WHOLE = 24
"""The same, of those that a text must have: at 30 llguidance runs out of its steps in some texts."""
_STRING = frozenset({"string"})
_WORDS = {"boolean": ("True", "False"), "null": ("None",)}


@dataclass(frozen=True, slots=True)
class End:
    """What ends a value.

    Attributes:
        mark: as it is written.
        spelled: as a grammar spells it.
        before: white space that belongs before it.
    """

    mark: str
    spelled: str
    before: str = ""

    @property
    def token(self) -> bool:
        """Whether it is a token by itself, which no text can hold."""
        return self.spelled.startswith("<[")

    def kept(self, value: Any) -> str:
        """A value as it is written before the mark. Raises InputError for a text that holds it."""
        if isinstance(value, str):
            if self.mark in value:
                raise self.refused("value", value)
            return value
        written = as_json(value)
        return written.replace(self.mark[0], f"\\u{ord(self.mark[0]):04x}") if self.mark in written else written

    def refused(self, kind: str, text: str) -> InputError:
        """The error for a constant or a pattern that holds the mark."""
        return InputError(
            f"the grammar cannot be compiled: the {kind} {text[:80]!r} holds {self.mark!r}, which ends values in this"
            " model's calls",
            hint="use another one",
        )

    @property
    def written(self) -> str:
        """With the white space, in a grammar."""
        return f"{json.dumps(self.before)} {self.spelled}" if self.before else self.spelled


def checked(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """A function's schema that can be kept to by one rule a parameter. Raises InputError for others."""
    schema: Mapping[str, Any] = resolved(parameters, parameters)
    other = sorted(set(schema) - WHOLE - ABOUT)
    if other or schema.get("type", "object") != "object" or not isinstance(schema.get("properties", {}), Mapping):
        types = ", ".join(other) or "a type that is not object"
        raise InputError(
            f"the grammar cannot be compiled: the parameters of a function have {types}, which this model's call"
            " format cannot enforce",
            hint="describe an object with properties and required, or leave tool_choice at auto without strict",
        )
    return schema


def value(name: str, schema: Any, root: Mapping[str, Any], end: End) -> str:
    """The rule ``name``, with those that it needs: a value and its end.

    Args:
        name: of the rule, in small letters.
        schema: of the value.
        root: the schema that ``$ref`` is looked up in.
        end: what ends it.

    Raises InputError for a schema that no text can be kept to.
    """
    parts = _parts(schema, root)
    if any(_free(part, root) for part in parts):
        if end.token:
            return f"{name}: {name.upper()} {end.spelled}\n{name.upper()}: {without(end.mark)}\n"
        return f"{name}[lazy]: {ANY_TEXT} {end.spelled}\n"
    rules = [_rule(f"{name}_{at}", part, root, end) for at, part in enumerate(parts)]
    return f"{name}: {' | '.join(f'{name}_{at}' for at in range(len(parts)))}\n" + "".join(rules)


def _parts(schema: Any, root: Mapping[str, Any]) -> list[Any]:
    """The alternatives of a schema. Raises InputError where there are too many."""
    found: list[Any] = []
    left, seen = [schema], 0
    while left:
        one = resolved(left.pop(0), root)
        seen += 1
        if seen > 256:
            raise InputError("the grammar cannot be compiled: a parameter has more than 256 alternatives")
        either = next((one[key] for key in ("anyOf", "oneOf") if isinstance(one, Mapping) and key in one), None)
        if isinstance(either, list) and not set(one) - {"anyOf", "oneOf"} - ABOUT:
            left = [*either, *left]
        else:
            found.append(one)
    return found


def _free(schema: Any, root: Mapping[str, Any]) -> bool:
    """Whether any text is a value. Raises InputError where what forbids some is not understood."""
    if not isinstance(schema, Mapping):
        if schema is False:
            raise InputError("the grammar cannot be compiled: a parameter's schema allows no value")
        return True
    if "const" in schema or "enum" in schema:
        return False
    types, keys = types_of(schema, root), set(schema) - ABOUT
    if types is not None and "string" not in types:
        return False
    if keys - (TEXT if types == _STRING else {"type"}):
        raise InputError(
            f"the grammar cannot be compiled: a parameter that may be a text has {', '.join(sorted(keys - TEXT))}",
            hint="give the parameter a type",
        )
    return keys <= {"type"}


def _rule(name: str, schema: Mapping[str, Any], root: Mapping[str, Any], end: End) -> str:
    if "const" in schema or "enum" in schema:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        if not isinstance(values, list) or not values:
            raise InputError("the grammar cannot be compiled: a parameter's enum is empty")
        written = (json.dumps(end.kept(one), ensure_ascii=False) for one in values)
        return f"{name}: ({' | '.join(dict.fromkeys(written))}) {end.written}\n"
    types = types_of(schema, root) or frozenset()
    if types == _STRING:
        return _text(name, schema, end)
    words = [json.dumps(word) for kind in sorted(types) for word in _WORDS.get(kind, ())]
    return (
        f"{name}: ({' | '.join([f'{name}_json', *words])}) {end.written}\n"
        f"{name}_json: %json {inlined(with_root(schema, root))}\n"
    )


def _text(name: str, schema: Mapping[str, Any], end: End) -> str:
    """A text with a length or a pattern. The end is part of the terminal, which could not know where to stop."""
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if not all(type(one) is int for one in (least, most or 0)):
        raise InputError("the grammar cannot be compiled: the length of a text is not a whole number")
    kept = (
        []
        if least == 0 and most is None and "pattern" in schema
        else [f"/(.|\\n){{{least},{'' if most is None else most}}}/"]
    )
    if isinstance(regex := schema.get("pattern"), str):
        if re.escape(end.mark) in regex.replace("\\/", "/"):
            raise end.refused("pattern", regex)
        before = "" if regex.startswith("^") else "(.|\\n)*"
        behind = "" if regex.endswith("$") and not regex.endswith("\\$") else "(.|\\n)*"
        inner = regex.removeprefix("^")[: None if behind else -1]
        kept.append(f"/{before}({pattern(inner)}){behind}/")
    terminal, other = name.upper(), f"~({ANY_TEXT} {json.dumps(end.mark)} {ANY_TEXT})"
    if "pattern" not in schema and (most is None or most > _MAX_COUNTED):
        return _counted(name, least, most, end)
    if end.token:
        return f"{name}: {terminal} {end.written}\n{terminal}: {' & '.join([*kept, other])}\n"
    return f"{name}: {terminal}\n{terminal}: ({' & '.join([*kept, other])}) {end.written}\n"


def _counted(name: str, least: int, most: int | None, end: End) -> str:
    """A text of a length that the library cannot count while it looks for the absence of an end.

    So the text goes on up to its first end, and the absence is looked for only where the text could not stop yet.
    """
    mark = json.dumps(end.mark)
    before = f"{json.dumps(end.before)}? " if end.before else ""
    bound = least + len(end.before + end.mark)  # an end that begins up to ``least`` ends before this
    other = f"~({ANY_TEXT} {mark} {ANY_TEXT})"
    rest = "" if most is None else most - (least if not least or least > _MAX_WHOLE else bound)
    more = f"/(.|\\n){{0,{rest}}}/"
    sign = re.escape(end.mark[0])
    if not least:
        texts, ended = [more], [f"{more} {before}{mark}"]
    elif least > _MAX_WHOLE:  # no end begins in what must be there
        texts = [f"/[^{sign}]{{{least - 1}}}[^{sign}\\n]/ {more}"]
        ended = [f"{texts[0]} {before}{mark}"]
    else:
        first = f"(/(.|\\n){{{least}}}/ & {other})"
        next_ = f"(/(.|\\n){{{least + 1},{bound}}}/ & {other})"
        whole = f"(/(.|\\n){{{bound}}}/ & {other}) {more}"
        texts = [first, next_, whole]
        ended = [
            f"{first} {json.dumps(end.before)} {mark}" if end.before else f"{first} {mark}",
            f"{next_} {before}{mark}",
            f"{whole} {before}{mark}",
        ]
    up = name.upper()
    lazy = f"{name}e[lazy]: {up}E\n{up}E: {' | '.join(ended)}\n"
    if not end.token:
        return f"{name}: {name}e\n{lazy}"
    return f"{name}: {up} {end.spelled} | {name}e\n{up}: {' | '.join(texts)}\n{lazy}"
