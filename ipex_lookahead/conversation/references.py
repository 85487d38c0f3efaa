"""``$ref`` of JSON schemas: where they point to, and how they stay right where a schema becomes part of another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urljoin

SAID = frozenset({"title", "description", "$comment", "examples", "default"})
"""Keys of a schema with text that does not constrain answers."""
NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keys behind which names stand, not keys."""
_VALUES = SAID | {"const", "enum"}
"""Keys behind which values stand, not schemas."""


def target(schema: Any, reference: str) -> Any:
    """Return the part of a schema that a pointer into it names; None for another reference, and where nothing is."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    found = schema
    for step in reference[1:].split("/")[1:]:
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(key)
        elif isinstance(found, list) and key.isascii() and key.isdigit() and len(key) < 10:
            found = found[int(key)] if int(key) < len(found) else None
        else:
            return None
    return found


def moved(schema: Any, path: str, *, names: bool = False) -> Any:
    """Return a schema with its internal pointers adjusted for its place ``path`` inside another schema.

    Args:
        schema: the schema, or a part of it.
        path: a pointer, such as "#/$defs/f0".
        names: whether the keys of ``schema`` are names.
    """
    if isinstance(schema, list):
        return [moved(one, path) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: moved(value, path) if names else
        path + value[1:] if key == "$ref" and isinstance(value, str) and value.startswith("#") else
        value if key in _VALUES else moved(value, path, names=key in NAMED)
        for key, value in schema.items()
    }  # fmt: skip


def with_root(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of a schema as one by itself: where it has a ``$ref``, all of ``root`` is among its ``$defs``."""
    if '"$ref"' not in json.dumps(schema):
        return dict(schema)
    path = "#/$defs/root"
    return {**moved(schema, path), "$defs": {"root": moved(root, path)}}


def local(schema: Any) -> Any:
    """Return a schema with references written as internal pointers, without the ``$id`` and anchors that they named.

    What a reference names that is not in the schema stays as it is.
    """
    said = json.dumps(schema)
    return _Resources(schema).written(schema, "") if '"$id"' in said or '"$anchor"' in said else schema


class _Resources:
    """Where in a schema its ``$id`` and anchors are: pointers by URI. The schema itself is at ""."""

    def __init__(self, schema: Any) -> None:
        self._places: dict[str, str] = {"": ""}
        self._read(schema, "", "", names=False)

    def _read(self, one: Any, place: str, base: str, *, names: bool) -> None:
        if isinstance(one, list):
            for at, value in enumerate(one):
                self._read(value, f"{place}/{at}", base, names=False)
        if not isinstance(one, Mapping):
            return
        if not names:
            base = _base(one, base)
            if isinstance(given := one.get("$id"), str):
                self._places.setdefault(given if given.startswith("#") else base, place)
                if given.startswith("#"):  # as anchors were written up to draft 7
                    self._places.setdefault(base + given, place)
            if isinstance(anchor := one.get("$anchor"), str):
                self._places.setdefault(f"{base}#{anchor}", place)
        for key, value in one.items():
            if names or key not in _VALUES:
                step = quote(key.replace("~", "~0").replace("/", "~1"), safe="~")
                self._read(value, f"{place}/{step}", base, names=not names and key in NAMED)

    def written(self, one: Any, base: str, *, names: bool = False) -> Any:
        """Return a part of the schema with the base URI ``base``."""
        if isinstance(one, list):
            return [self.written(value, base) for value in one]
        if not isinstance(one, Mapping):
            return one
        if names:
            return {key: self.written(value, base) for key, value in one.items()}
        base = _base(one, base)
        found: dict[str, Any] = {}
        for key, value in one.items():
            if key == "$ref" and isinstance(value, str):
                found[key] = self._pointer(value, base)
            elif key not in ("$id", "$anchor") or not isinstance(value, str):
                found[key] = value if key in _VALUES else self.written(value, base, names=key in NAMED)
        return found

    def _pointer(self, reference: str, base: str) -> str:
        uri, _, fragment = _joined(base, reference).partition("#")
        if fragment and not fragment.startswith("/"):
            uri, fragment = f"{uri}#{fragment}", ""
        return reference if uri not in self._places else f"#{self._places[uri]}{fragment}"


def _base(schema: Mapping[str, Any], base: str) -> str:
    """The base URI inside of a schema."""
    given = schema.get("$id")
    return urldefrag(_joined(base, given))[0] if isinstance(given, str) else base


def _joined(base: str, reference: str) -> str:
    if reference.startswith("#"):  # urljoin drops a base such as "urn:one"
        return base + reference
    try:
        return urljoin(base, reference)
    except ValueError:  # such as "http://["
        return reference
