"""Objects of schemas without ``additionalProperties`` get no invented keys, and all that a schema requires is kept."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest

from ipex_lookahead.conversation.schema_keys import closed

NAMED = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]}
OTHER = {"properties": {"c": {}}, "required": ["c"]}


def takes(schema: Any, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


@pytest.mark.parametrize(
    ("schema", "value", "invented"),
    [
        (NAMED, {"a": 1}, {"a": 1, "x": 1}),
        ({"properties": {"a": {}}, "required": ["b", "c"]}, {"b": 1, "c": 2}, {"b": 1, "c": 2, "d": 3}),
        ({"properties": {"a": NAMED}}, {"a": {"a": 1}}, {"a": {"a": 1, "x": 1}}),
        ({"type": "array", "items": NAMED}, [{"a": 1}], [{"a": 1, "x": 1}]),
        ({"prefixItems": [NAMED]}, [{"a": 1}], [{"a": 1, "x": 1}]),
        ({"additionalProperties": NAMED}, {"k": {"a": 1}}, {"k": {"a": 1, "x": 1}}),
        ({"anyOf": [NAMED, OTHER]}, {"c": 1}, {"c": 1, "d": 1}),
        ({"title": "T", "allOf": [NAMED]}, {"a": 1}, {"a": 1, "x": 1}),
        ({"$ref": "#/$defs/n", "$defs": {"n": NAMED}}, {"a": 1}, {"a": 1, "x": 1}),
        ({"$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}}}, "items": {"$ref": "#/$defs/n"}},
         [{"n": {}}], [{"n": {"x": 1}}]),
        ({**NAMED, "patternProperties": {"^x": {"type": "integer"}}}, {"a": 1, "x1": 1}, {"a": 1, "y": 1}),
    ],
)  # fmt: skip
def test_what_is_named_is_all_that_comes(schema: Any, value: Any, invented: Any) -> None:
    before = copy.deepcopy(schema)
    found = closed(schema)
    assert [takes(one, given) for one in (schema, found) for given in (value, invented)] == [True, True, True, False]
    assert schema == before
    assert closed(found) == found


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "object"},
        {"type": "object", "properties": {}},
        {**NAMED, "additionalProperties": True},
        {**NAMED, "additionalProperties": {"type": "integer"}},
        {**NAMED, "minProperties": 3},
        {**NAMED, "unevaluatedProperties": False},
        {"allOf": [NAMED, OTHER]},
        {"oneOf": [NAMED, OTHER]},
        {**NAMED, "anyOf": [OTHER, {"required": ["d"]}]},
        {**NAMED, "$ref": "#/$defs/o", "$defs": {"o": {"allOf": [OTHER, NAMED]}}},
        {"$defs": {"n": NAMED}, "items": {"$ref": "#/$defs/n"}, "contains": {"allOf": [{"$ref": "#/$defs/n"}, OTHER]}},
        {"properties": {"a": {"const": 1}}, "required": ["xy"], "patternProperties": {"^x": {"type": "integer"}}},
        {"const": {"properties": {"a": 1}}},
        {"properties": 4},
        {"properties": {"a": {}}, "required": "a"},
    ],
    ids=str,
)
def test_what_may_require_other_keys_stays_open(schema: Any) -> None:
    assert closed(schema) == schema


def test_a_definition_that_is_combined_somewhere_stays_open_everywhere() -> None:
    combined = {"allOf": [{"$ref": "#/$defs/n"}, OTHER]}
    schema = {"$defs": {"n": NAMED}, "properties": {"x": combined, "y": {"$ref": "#/$defs/n"}}}
    assert takes(closed(schema), {"x": {"a": 1, "c": 1}})
