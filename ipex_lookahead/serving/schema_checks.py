"""Limits of the structure of schemas and grammars, checked before any library reads them."""

from __future__ import annotations

import re
from typing import Any

from ipex_lookahead.conversation.references import NAMED, target
from ipex_lookahead.conversation.schema_numbers import schemas
from ipex_lookahead.serving.failures import refused
from ipex_lookahead.serving.limits import Limits

_LISTS = ("enum", "anyOf", "oneOf", "allOf", "prefixItems", "required", "type")
_REPETITION = re.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}")
_IN_REGEX = re.compile(r"\\[xuU]\{[^}]*\}|\\.|\[(?:\\.|[^\]\\])*\]", re.DOTALL)
_IN_GRAMMAR = re.compile(r'"(?:\\.|[^"\\\n])*"|\[(?:\\.|[^\]\\\n])*\]|\\.|#[^\n]*', re.DOTALL)
"""What holds braces that repeat nothing: escaped characters, classes, quoted texts, comments."""


def check_structure(schema: Any, limits: Limits, param: str) -> None:
    """Raise ApiError for a schema that nests, refers or lists more than the limits allow.

    Takes time in proportion to the schema's size, whatever it refers to.
    """
    references = 0
    for node in schemas(schema):
        references += isinstance(node.get("$ref"), str)
        for key in _LISTS:
            if isinstance(node.get(key), list) and len(node[key]) > limits.alternatives:
                raise refused(
                    param, f"{key} has {len(node[key]):,} entries; at most {limits.alternatives:,} are allowed"
                )
        for key in NAMED:
            if isinstance(node.get(key), dict) and len(node[key]) > limits.schema_properties:
                raise refused(
                    param, f"{key} has {len(node[key]):,} entries; at most {limits.schema_properties:,} are allowed"
                )
        if isinstance(node.get("pattern"), str):
            check_repetitions(node["pattern"], limits, param)
        patterns = node.get("patternProperties")
        for regex in patterns if isinstance(patterns, dict) else ():
            check_repetitions(regex, limits, param)
    if references > limits.schema_references:
        raise refused(param, f"the schema has {references:,} $ref; at most {limits.schema_references:,} are allowed")
    depth, chain = _depth(schema)
    if depth > limits.schema_depth:
        raise refused(param, f"the schema is nested {depth} levels deep; at most {limits.schema_depth} are allowed")
    if chain > limits.schema_chain:
        raise refused(
            param, f"a chain of {chain:,} $ref leads from one schema to the next; at most {limits.schema_chain} may"
        )


def check_repetitions(text: str, limits: Limits, param: str, *, grammar: bool = False) -> None:
    """Raise ApiError for a pattern, or a grammar, that repeats a part more often than the limit."""
    bare = (_IN_GRAMMAR if grammar else _IN_REGEX).sub("", text)
    for found in _REPETITION.finditer(bare):
        digits = max(found[1] or "", found[2] or "", key=len)
        if len(digits) > 18 or int(digits or 0) > limits.repetitions:
            raise refused(
                param, f"a part is repeated {digits[:18]} times; at most {limits.repetitions:,} repetitions are allowed"
            )


def _depth(schema: Any) -> tuple[int, int]:
    """Levels of lists and objects, and the most ``$ref`` in a row that lead from one part of a schema to another."""
    deepest, levels = 0, [(schema, 1)]
    while levels:
        one, level = levels.pop()
        if isinstance(one, dict | list):
            deepest = max(deepest, level)
            levels.extend((value, level + 1) for value in (one.values() if isinstance(one, dict) else one))
    chains: dict[int, int] = {}  # by id: of a part, when all that it leads to is known; 0 meanwhile
    path: list[tuple[Any, list[tuple[Any, int]], int]] = []

    def enter(part: Any) -> None:
        chains[id(part)] = 0
        inner = [(value, 0) for value in (part.values() if isinstance(part, dict) else part)]
        if isinstance(part, dict) and isinstance(part.get("$ref"), str):
            inner.append((target(schema, part["$ref"]), 1))
        path.append((part, inner, 0))

    if isinstance(schema, dict | list):
        enter(schema)
    while path:
        part, inner, longest = path[-1]
        while inner:
            other, more = inner[-1]
            if isinstance(other, dict | list) and id(other) not in chains:
                break
            inner.pop()
            longest = max(longest, more + chains.get(id(other), -more))
        path[-1] = (part, inner, longest)
        if inner:
            enter(inner[-1][0])
        else:
            chains[id(part)] = longest
            path.pop()
    return deepest, max(chains.values(), default=0)
