"""Objects of JSON schemas that name their keys and leave ``additionalProperties`` out: they get no other keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipex_lookahead.conversation.references import SAID
from ipex_lookahead.conversation.schema_numbers import schemas

_ABOUT = SAID | {"$schema", "$id", "$anchor", "$defs", "definitions", "deprecated", "readOnly", "writeOnly"}
"""Keys of a schema that constrain nothing."""
_OBJECT = frozenset({"type", "properties", "required", "patternProperties"})
"""Keys of a schema that can be closed. Others, such as ``minProperties``, may require keys that have no name."""
_COMBINED = ("anyOf", "allOf", "oneOf", "not", "if", "$ref")
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_INNER = ("items", "additionalProperties")


def closed(schema: Any) -> Any:
    """Return a JSON schema in which an object has no other keys than those that its schema names.

    JSON schema allows any other keys where ``additionalProperties`` is left out, and small models add keys until the
    answer is cut. A schema stays open where it names no key, has ``minProperties``, or is combined with another one
    (``allOf``, ``oneOf``): everything that it requires stays possible.
    """
    closer = _Closer()
    found = closer.closed(schema)
    # A definition is referred to by itself everywhere, or it may be combined with another schema somewhere.
    references = sum("$ref" in node for node in schemas(schema))
    return found if closer.references == references else schema


class _Closer:
    """Closes schemas that are not combined with another one, and counts the references among them."""

    def __init__(self) -> None:
        self.references = 0

    def closed(self, schema: Any) -> Any:
        """Return the schema with ``additionalProperties`` set to False in each object that can be closed."""
        if not isinstance(schema, Mapping):
            return schema
        found = dict(schema)
        said = found.keys() - _ABOUT
        self.references += said == {"$ref"}
        several = said & set(_COMBINED)
        for key in _BY_NAME:
            if isinstance(inner := found.get(key), Mapping) and (not several or key in _ABOUT):
                found[key] = {name: self.closed(one) for name, one in inner.items()}
        if several:
            parts = found.get(key := "anyOf" if "anyOf" in said else "allOf")
            if said == {key} and isinstance(parts, list) and (key == "anyOf" or len(parts) == 1):
                found[key] = [self.closed(one) for one in parts]
            return found
        found |= {key: self.closed(found[key]) for key in _INNER if key in found}
        if isinstance(items := found.get("prefixItems"), list):
            found["prefixItems"] = [self.closed(one) for one in items]
        named, required = found.get("properties"), found.get("required", [])
        if not said <= _OBJECT or not isinstance(named, Mapping) or not named or not isinstance(required, list):
            return found
        others = [name for name in required if isinstance(name, str) and name not in named]
        if others and "patternProperties" in found:  # which may constrain their values
            return found
        return {**found, "properties": {**named, **dict.fromkeys(others, {})}, "additionalProperties": False}
