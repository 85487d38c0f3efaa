"""Grammars of values that are written as texts between marks, by their JSON schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ipex_lookahead.errors import InputError
from ipex_lookahead.serving.calls.base import as_json
from ipex_lookahead.serving.calls.typed import resolved, types_of
from ipex_lookahead.serving.grammar import inlined, pattern

ABOUT = frozenset({"title", "description", "$comment", "examples", "default", "deprecated", "format", "readOnly"})
"""Keys that forbid nothing; ``format`` is a note as well, as JSON schema has it unless told otherwise."""
TEXT = frozenset({"type", "pattern", "minLength", "maxLength"})
WHOLE = frozenset({"type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema", "$id"})
_MOST_COUNTED = 64
"""Characters of a text up to which its length and the absence of an end in it are looked for at once."""
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

    @property
    def written(self) -> str:
        """With the white space, in a grammar."""
        return f"{json.dumps(self.before)} {self.spelled}" if self.before else self.spelled


def checked(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """A function's schema that can be kept to by one rule a parameter. Raises InputError for others."""
    schema: Mapping[str, Any] = resolved(parameters, parameters)
    other = sorted(set(schema) - WHOLE - ABOUT)
    if other or schema.get("type", "object") != "object" or not isinstance(schema.get("properties", {}), Mapping):
        told = ", ".join(other) or "a type that is not object"
        raise InputError(
            f"the grammar cannot be compiled: the parameters of a function have {told}, to which this model's calls"
            " cannot be kept",
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
        return f"{name}: /(.|\\n)*/ {end.spelled}\n" if end.token else f"{name}[lazy]: /(.|\\n)*/ {end.spelled}\n"
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
            raise InputError("the grammar cannot be compiled: a parameter's schema allows nothing")
        return True
    if "const" in schema or "enum" in schema:
        return False
    types, keys = types_of(schema, root), set(schema) - ABOUT
    if types is not None and "string" not in types:
        return False
    if keys - (TEXT if types == _STRING else {"type"}):
        raise InputError(
            f"the grammar cannot be compiled: a parameter that may be a text has {', '.join(sorted(keys - TEXT))}",
            hint="give it a type of its own",
        )
    return keys <= {"type"}


def _rule(name: str, schema: Mapping[str, Any], root: Mapping[str, Any], end: End) -> str:
    if "const" in schema or "enum" in schema:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        if not isinstance(values, list) or not values:
            raise InputError("the grammar cannot be compiled: a parameter's enum is empty")
        written = (json.dumps(one if isinstance(one, str) else as_json(one), ensure_ascii=False) for one in values)
        return f"{name}: ({' | '.join(dict.fromkeys(written))}) {end.written}\n"
    types = types_of(schema, root) or frozenset()
    if types == _STRING:
        return _text(name, schema, end)
    words = [json.dumps(word) for kind in sorted(types) for word in _WORDS.get(kind, ())]
    return (
        f"{name}: ({' | '.join([f'{name}_json', *words])}) {end.written}\n"
        f"{name}_json: %json {inlined(with_definitions(schema, root))}\n"
    )


def _text(name: str, schema: Mapping[str, Any], end: End) -> str:
    """A text with a length or a pattern. The end is part of the terminal, which could not know where to stop."""
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if not all(type(one) is int for one in (least, most or 0)):
        raise InputError("the grammar cannot be compiled: the length of a text is no whole number")
    kept = (
        []
        if least == 0 and most is None and "pattern" in schema
        else [f"/(.|\\n){{{least},{'' if most is None else most}}}/"]
    )
    if isinstance(regex := schema.get("pattern"), str):
        before = "" if regex.startswith("^") else "(.|\\n)*"
        behind = "" if regex.endswith("$") and not regex.endswith("\\$") else "(.|\\n)*"
        inner = regex.removeprefix("^")[: None if behind else -1]
        kept.append(f"/{before}({pattern(inner)}){behind}/")
    terminal = name.upper()
    if end.token:
        return f"{name}: {terminal} {end.written}\n{terminal}: {' & '.join(kept)}\n"
    if max(least, most or 0) > _MOST_COUNTED and len(kept) == 1:  # up to the first end: the library cannot count so far
        return f"{name}[lazy]: {kept[0]} {end.written}\n"
    kept.append(f"~(/(.|\\n)*/ {end.spelled} /(.|\\n)*/)")
    return f"{name}: {terminal}\n{terminal}: ({' & '.join(kept)}) {end.written}\n"


def with_definitions(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a schema by itself, with what its ``$ref`` point to."""
    if '"$ref"' not in json.dumps(schema):
        return dict(schema)
    return {**{key: root[key] for key in ("$defs", "definitions") if key in root}, **schema}
