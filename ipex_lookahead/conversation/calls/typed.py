"""Arguments that were written as texts -> the values that a function's schema means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipex_lookahead.conversation.calls.base import json_of
from ipex_lookahead.conversation.references import target

_WORDS = {"True": True, "False": False, "None": None}
"""What templates make of these values in Python's spelling."""
MOST_REFERENCES = 16


def typed(texts: Mapping[str, str], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name, each in a type that its schema allows; a text where it is of none, for the caller to refuse.

    Args:
        texts: as they were written.
        parameters: the function's JSON schema.
    """
    return {name: _value(text, schema_of(parameters, name), parameters) for name, text in texts.items()}


def schema_of(parameters: Mapping[str, Any], name: str) -> Any:
    """The schema of a parameter; ``additionalProperties`` of one that has none of its own, True of one with neither."""
    properties = parameters.get("properties")
    found = properties.get(name) if isinstance(properties, Mapping) else None
    return resolved(parameters.get("additionalProperties", True) if found is None else found, parameters)


def resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """A schema without ``$ref`` at its top. A reference to nothing or to itself stays unchanged."""
    found = schema
    for _ in range(MOST_REFERENCES):
        if not isinstance(found, Mapping) or not isinstance(found.get("$ref"), str):
            return found
        inner = target(root, found["$ref"])
        if not isinstance(inner, Mapping):
            return found
        found = {**inner, **{key: value for key, value in found.items() if key != "$ref"}}
    return schema


def types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str] | None:
    """The types that a schema allows, by JSON schema's names; None where it does not say."""
    found: set[str] = set()
    seen: set[str] = set()
    left = [schema]
    while left:
        one = left.pop()
        if isinstance(one, Mapping) and isinstance(one.get("$ref"), str):
            if one["$ref"] in seen:
                continue
            seen.add(one["$ref"])
            one = resolved(one, root)
        if not isinstance(one, Mapping):
            return None
        said = one.get("type")
        if "const" in one or isinstance(one.get("enum"), list):
            found.update(map(_type, [one["const"]] if "const" in one else one["enum"]))
        elif said is not None:
            found.update([said] if isinstance(said, str) else (kind for kind in said if isinstance(kind, str)))
        elif isinstance(parts := one.get("anyOf", one.get("oneOf")), list):
            left += parts
        else:
            return None
    return frozenset(found)


def _type(value: Any) -> str:
    """The narrowest type of a value."""
    if isinstance(value, float) and value.is_integer():
        return "integer"
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _value(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    types = types_of(schema, root)
    if types == frozenset({"string"}) or (isinstance(schema, Mapping) and text in _texts(schema)):
        return text
    bare = text.strip()
    value = _WORDS[bare] if bare in _WORDS else json_of(bare)
    if isinstance(value, str) or (value is None and bare not in ("null", "None")):
        return text  # text, with or without quotes, is taken verbatim
    kind = _type(value)
    fits = types is None or kind in types or (kind == "integer" and "number" in types)
    return value if fits else text


def _texts(schema: Mapping[str, Any]) -> list[str]:
    enum = schema.get("enum")
    return [one for one in (*(enum if isinstance(enum, list) else ()), schema.get("const")) if isinstance(one, str)]
