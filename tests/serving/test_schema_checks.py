"""Schemas and grammars that ask for too much are refused by our own code, before a library reads them."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_lookahead.conversation.schema_numbers import MAX_EXACT, check_numbers
from ipex_lookahead.errors import InputError
from ipex_lookahead.serving.failures import ApiError
from ipex_lookahead.serving.limits import Limits
from ipex_lookahead.serving.schema_checks import check_repetitions, check_structure
from tests.support.grammar_attacks import LINKS, chain, in_every_api

LIMITS = Limits()


@pytest.mark.parametrize("link", LINKS, ids=lambda link: json.dumps(link(0))[:30])
def test_chains_of_references_are_bounded(link):
    check_structure(chain(LIMITS.schema_chain, link), LIMITS, "x")
    for length in (LIMITS.schema_chain + 1, 1600):
        with pytest.raises(ApiError, match=r"x: (a chain of [\d,]+ \$ref|the schema is nested)"):
            check_structure(chain(length, link), LIMITS, "x")


def test_references_that_come_back_are_no_chain():
    kids = {"type": "array", "items": {"$ref": "#"}}
    either = {"anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/n"}]}
    tree = {"type": "object", "properties": {"kids": kids, "n": {"$ref": "#/$defs/n"}}, "$defs": {"n": either}}
    check_structure(tree, LIMITS, "x")


@pytest.mark.parametrize(
    ("schema", "limits", "said"),
    [
        ({"enum": [1, 2, 3]}, {"alternatives": 2}, "enum has 3 entries; at most 2"),
        ({"items": {"anyOf": [{}, {}, {}]}}, {"alternatives": 2}, "anyOf has 3 entries"),
        ({"properties": {"a": {}, "b": {}, "c": {}}}, {"schema_properties": 2}, "properties has 3 entries"),
        ({"anyOf": [{"$ref": "#/a"}, {"$ref": "#/a"}], "a": {}}, {"schema_references": 1}, r"has 2 \$ref; at most 1"),
        ({"items": {"items": {"items": {}}}}, {"schema_depth": 3}, "nested 4 levels deep; at most 3"),
        ({"properties": {"a": {"pattern": "[0-9]{3,70}"}}}, {"repetitions": 69}, "repeated 70 times; at most 69"),
        ({"patternProperties": {"a{70}": {}}}, {"repetitions": 69}, "repeated 70 times"),
    ],
    ids=str,
)
def test_what_is_over_a_limit_is_named(schema, limits, said):
    check_structure(schema, LIMITS, "x")
    with pytest.raises(ApiError, match=said):
        check_structure(schema, replace(LIMITS, **limits), "x")


@pytest.mark.parametrize(
    ("text", "grammar"),
    [
        (r"\{70000\}", False),
        ("[{70000}]", False),
        ('root ::= "{70000}" [{70000}] # {70000}', True),
        ("a{60000}", False),
        (r"[a-b]\x{100000}\u{100000}", False),
    ],
)
def test_braces_that_repeat_nothing_are_passed_over(text, grammar):
    check_repetitions(text, LIMITS, "x", grammar=grammar)


@pytest.mark.parametrize("text", ['root ::= "a"{1000000}', "root ::= [a-z]{0,70000}", 'x ::= ("a" "b"){70000,}'])
def test_repetitions_of_grammars_are_bounded(text):
    with pytest.raises(ApiError, match="repetitions are allowed"):
        check_repetitions(text, LIMITS, "x", grammar=True)


BOUNDS = st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "const", "maxLength"])
WRAPS = st.lists(
    st.sampled_from([
        lambda schema: {"type": "array", "items": schema},
        lambda schema: {"anyOf": [{"type": "null"}, schema]},
        lambda schema: {"properties": {"const": schema, "properties": {}}},
        lambda schema: {"$defs": {"enum": schema}},
    ]),
    max_size=4,
)  # fmt: skip


@given(
    key=BOUNDS, wraps=WRAPS, number=st.one_of(st.integers(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False))
)
def test_a_number_that_would_be_changed_is_refused_wherever_it_is(key, wraps, number):
    schema = {key: number}
    for wrap in wraps:
        schema = wrap(schema)
    digits = len(Decimal(repr(number)).normalize().as_tuple().digits) if isinstance(number, float) else 0
    if abs(number) > MAX_EXACT:
        with pytest.raises(InputError, match=f"{key} has .*kept exactly"):
            check_numbers(schema)
    elif digits > 15 and key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        with pytest.raises(InputError, match=f"{key} has .* at most 15 digits"):
            check_numbers(schema)
    elif key != "minProperties":
        check_numbers(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [1, {"a": [2**53 + 1]}]},
        {"multipleOf": 0},
        {"multipleOf": 2**33},
        {"multipleOf": float("inf")},
        {"anyOf": [{"multipleOf": factor} for factor in range(1, 15)]},
        {"allOf": [{"type": "integer", "multipleOf": 65537}, {"multipleOf": 65539}]},
    ],
    ids=str,
)
def test_numbers_that_the_library_computes_wrongly_are_refused(schema):
    with pytest.raises(InputError, match="cannot be compiled: "):
        check_numbers(schema)


@pytest.mark.parametrize(
    ("low", "high", "taken"),
    [(0, 0.5, False), (0, 1, True), (0.5, 0.75, True), (-0.5, 0, False), (-1, -0.5, True), (7.0, 7.25, False)],
)
def test_open_bounds_that_the_library_takes_for_closed_are_refused(low, high, taken):
    open_ = {"exclusiveMinimum": low, "exclusiveMaximum": high}
    check_numbers({"type": "number", "minimum": low, "maximum": high})
    check_numbers({"type": "integer", **open_})
    if taken:
        check_numbers({"type": "number", **open_})
    else:
        with pytest.raises(InputError, match="exclusiveM[a-z]+ has .* less than 1 away"):
            check_numbers({"type": "number", **open_})


@pytest.mark.parametrize("more", [{"minProperties": 1}, {"required": ["a"]}, {"additionalProperties": False}], ids=str)
def test_names_that_come_once_are_counted(more):
    check_numbers({"minProperties": 2, **more})


@pytest.mark.parametrize("more", [{}, {"additionalProperties": False, "patternProperties": {"a": {}}}], ids=str)
def test_names_that_may_come_twice_are_not_counted(more):
    with pytest.raises(InputError, match="minProperties has 2; it must be at most 1"):
        check_numbers({"minProperties": 2, **more})


@given(st.one_of(st.integers(-MAX_EXACT, MAX_EXACT), st.sampled_from([MAX_EXACT, -MAX_EXACT, MAX_EXACT - 1])))
@settings(max_examples=15)
def test_a_number_that_is_taken_is_kept_exactly(server, number):
    for schema in ({"const": number}, {"enum": [number]}, {"type": "integer", "minimum": number, "maximum": number}):
        process, _ = server.served.grammars.json_schema(schema).constrain(0)
        singles = {token: i for i, token in enumerate(server.served.tokens) if len(token) == 1}
        ids = np.array([singles[sign.encode()] for sign in str(number)], np.int64)
        for done, token in enumerate(ids):
            allowed = process(ids[:done], np.zeros(server.served.vocab_size, np.float32))
            others = [singles[str(digit).encode()] for digit in range(10) if singles[str(digit).encode()] != token]
            assert np.isfinite(allowed[token])
            assert not np.isfinite(allowed[others]).any()


@pytest.mark.parametrize("schema", [
    {"type": "integer", "minimum": -(2**63), "maximum": -(2**63)},
    {"type": "integer", "minimum": -1e30, "maximum": -1e29},
    {"type": "object", "properties": {"id": {"const": 1234567890123456789}}, "required": ["id"]},
    chain(3000, LINKS[0]), chain(1600, LINKS[1]),
], ids=lambda schema: json.dumps(schema)[:60])  # fmt: skip
def test_every_api_refuses_them_and_goes_on(client, schema):
    for path, body in in_every_api(schema):
        answer = client.post(path, json=body)
        assert answer.status_code == 400, (path, answer.text)
        assert any(word in answer.text for word in ("kept exactly", "$ref", "nested")), (path, answer.text)
    assert client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200
