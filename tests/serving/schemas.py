"""JSON schemas of the shapes that servers have stumbled over, and whether they can be kept to."""

from __future__ import annotations

from typing import Any

_POINT = {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}, "required": ["x", "y"],
          "additionalProperties": False}  # fmt: skip
_TREE = {
    "$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"},
              "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}},
              "required": ["v", "kids"], "additionalProperties": False}},
    "$ref": "#/$defs/node",
}  # fmt: skip


def closed(**properties: Any) -> dict[str, Any]:
    """An object with just these."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def nested(depth: int) -> dict[str, Any]:
    return {"type": "integer"} if depth == 0 else closed(inner=nested(depth - 1))


KEPT: list[Any] = [
    {},
    True,
    {"type": "object"},
    {"type": "object", "properties": {}},
    {"type": "object", "properties": {}, "additionalProperties": False},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "string"},
    {"type": "string", "maxLength": 3},
    {"type": "string", "minLength": 2, "maxLength": 2},
    {"type": "string", "maxLength": 100_000},
    closed(text={"type": "string", "maxLength": 1_000_000}),
    {"type": "string", "pattern": "^[a-c]{2,4}$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "integer"},
    {"type": "integer", "minimum": -5, "maximum": 17},
    {"type": "number"},
    {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
    {"type": "boolean"},
    {"type": "null"},
    {"type": ["string", "null"]},
    {"enum": ["a", 1, None, True, {"b": []}]},
    {"enum": [f"value {i}" for i in range(4000)]},
    {"const": '漢字 é " \\ \n'},
    {"const": {"a": [1, {"b": None}]}},
    {"type": "array", "items": {"type": "integer"}},
    {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}], "items": False, "minItems": 2},
    {"type": "array", "items": _POINT, "maxItems": 3},
    {"type": "array", "items": {}, "maxItems": 0},
    _POINT,
    closed(a=_POINT, b=_POINT),
    {"anyOf": [{"type": "integer"}, _POINT]},
    {"anyOf": [closed(kind={"const": "a"}, n={"type": "integer"}), closed(kind={"const": "b"}, s={"type": "null"})]},
    {"oneOf": [{"type": "integer"}, {"type": "boolean"}]},
    {"allOf": [{"type": "integer"}, {"minimum": 3, "maximum": 9}]},
    _TREE,
    {"$defs": {"a": {"type": "boolean"}}, "type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1},
    nested(30),
    closed(**{f"k{i}": {"type": "boolean"} for i in range(60)}),
    {"type": "object", "properties": {f"o{i}": {"type": "null"} for i in range(20)}, "additionalProperties": False},
    closed(**{"ключ": {"type": "integer"}, 'a b"c': {"type": "integer"}, "": {"type": "integer"}}),
    {"title": "T", "description": '{ "quoted" } <|im_end|> \n ::=', **closed(a={"type": "integer"})},
    closed(a={"type": "integer", "description": "x" * 5000, "default": 4, "examples": [1]}),
    {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
]
"""Schemas that every answer validates against."""

REFUSED: list[Any] = [
    {"type": "nothing"},
    {"not": {"type": "string"}},
    {"$ref": "http://127.0.0.1:1/schema.json"},
    {"$ref": "#/$defs/missing"},
    {"type": "string", "pattern": "(?=a)b"},
    {"type": "string", "pattern": "("},
    {"type": "integer", "minimum": 5, "maximum": 4},
    {"type": "object", "properties": {"a": 4}},
    False,
    {"if": {"type": "string"}, "then": {"maxLength": 1}},
    {"type": "array", "uniqueItems": True},
    {"type": "string", "minLength": 9, "maxLength": 3},
]
"""Schemas that are a 400: wrong, unsatisfiable, or asking for what a grammar cannot say."""
