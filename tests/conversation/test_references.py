"""References of a schema mean the same where it becomes part of another, and whatever its names are."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipex_lookahead.conversation.calls.base import arguments_of, one_of
from ipex_lookahead.conversation.references import local, target, with_root

SEVEN = {"const": 7}
POINTING: dict[str, Any] = {
    "pointer": {"$defs": {"x": SEVEN}, "properties": {"a": {"$ref": "#/$defs/x"}}},
    "escaped": {"definitions": {"é/b~c %": SEVEN}, "properties": {"a": {"$ref": "#/definitions/%C3%A9~1b~0c%20%25"}}},
    "anchor": {"$defs": {"x": {"$anchor": "seven", **SEVEN}}, "properties": {"a": {"$ref": "#seven"}}},
    "anchor of draft 7": {"definitions": {"x": {"$id": "#seven", **SEVEN}}, "properties": {"a": {"$ref": "#seven"}}},
    "id": {"$id": "https://a.example/s", "$defs": {"x": SEVEN}, "properties": {"a": {"$ref": "#/$defs/x"}}},
    "whole id": {"$id": "https://a.example/s", "$defs": {"x": SEVEN},
                 "properties": {"a": {"$ref": "https://a.example/s#/$defs/x"}}},
    "urn": {"$id": "urn:example:s", "$defs": {"x": SEVEN}, "properties": {"a": {"$ref": "#/$defs/x"}}},
    "inner id": {"$id": "https://a.example/s", "properties": {"a": {"$ref": "seven"}},
                 "$defs": {"x": {"$id": "seven", "$ref": "#/$defs/y", "$defs": {"y": SEVEN}}}},
}  # fmt: skip


@pytest.mark.parametrize("schema", POINTING.values(), ids=POINTING)
def test_references_of_each_kind_survive_in_a_call(schema):
    call = one_of([{"name": "f", "parameters": local({**schema, "required": ["a"]})}] * 2, "arguments")
    validator = jsonschema.Draft202012Validator(call)
    assert validator.is_valid({"name": "f", "arguments": {"a": 7}})
    assert not validator.is_valid({"name": "f", "arguments": {"a": 8}})


@given(
    st.sampled_from(
        ["default", "const", "enum", "examples", "properties", "$defs", "$id", "$anchor", "$ref", "a/b~ é%"]
    )
)
def test_names_that_are_keys_elsewhere_are_names(name):
    schema = {"$id": "s", "$defs": {name: SEVEN}, "required": [name]}
    step = name.replace("~", "~0").replace("/", "~1").replace("%", "%25")
    parameters = {**schema, "properties": {name: {"$ref": f"#/$defs/{step}"}}}
    validator = jsonschema.Draft202012Validator(one_of([{"name": "f", "parameters": local(parameters)}], "arguments"))
    assert validator.is_valid({"name": "f", "arguments": {name: 7}})
    assert not validator.is_valid({"name": "f", "arguments": {name: 8}})


def test_values_are_no_references():
    schema = {"$id": "s", "enum": [{"$ref": "#/a", "$id": "b"}], "const": {"$ref": "#"}, "examples": [{"$ref": "#/c"}]}
    assert local(schema) == {key: schema[key] for key in ("enum", "const", "examples")}


def test_what_is_not_in_the_schema_stays():
    schema = {"$anchor": "a", "items": [{"$ref": name} for name in ("http://[", "other.json", "#none", "%zz")]}
    assert local(schema) == {"items": schema["items"]}


def test_a_part_has_the_whole_that_it_refers_to():
    root = {"type": "object", "properties": {"up": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["up"]}
    validator = jsonschema.Draft202012Validator(with_root(root["properties"]["up"], root))
    assert validator.is_valid({"up": {"up": None}})
    assert not validator.is_valid({"up": {}})


@pytest.mark.parametrize(
    ("reference", "found"), [("#", True), ("#/a/1", 3), ("#/a/9", None), ("#a", None), ("x#/a", None)]
)
def test_a_pointer_finds_its_target(reference, found):
    schema = {"a": [2, 3]}
    assert target(schema, reference) == (schema if found is True else found)


@pytest.mark.parametrize("parameters", [
    {}, {"type": ["object", "null"]}, {"anyOf": [{"type": "string"}, {"type": "object"}]},
    {"$ref": "#/$defs/x", "$defs": {"x": {}}},
], ids=str)  # fmt: skip
def test_arguments_are_objects_whatever_the_schema_allows(parameters):
    function = {"name": "f", "parameters": parameters}
    call = jsonschema.Draft202012Validator(one_of([function], "arguments"))
    alone = jsonschema.Draft202012Validator(arguments_of(function))
    for value, good in (({}, True), ("x", False), (None, False)):
        assert call.is_valid({"name": "f", "arguments": value}) == alone.is_valid(value) == good
