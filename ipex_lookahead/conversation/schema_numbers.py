"""Numbers in JSON schemas that llguidance, which computes in double precision, would not keep exactly."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeGuard

from ipex_lookahead.conversation.references import NAMED, SAID
from ipex_lookahead.errors import InputError

MAX_EXACT = 2**53
"""The largest number up to which llguidance, which computes in double precision, keeps every whole number."""
_MAX_FACTOR = 2**32 - 1
"""The largest ``multipleOf``, in units of its last digit, that llguidance computes with."""
_MAX_DIGITS = 15
"""Digits of a bound that is not a whole number, up to which llguidance does not round it."""
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_MERGING = ("allOf", "anyOf", "oneOf", "$ref")
"""Keys by which two ``multipleOf`` may come to be one."""
_JSON = re.compile(r"%json\s*")
_DECODER = json.JSONDecoder()


def schemas_of(lark: str) -> Iterator[Any]:
    """The schemas behind ``%json`` in a grammar in Lark. Text that is not JSON is left to the library that reads it."""
    for found in _JSON.finditer(lark):
        with suppress(ValueError):
            yield _DECODER.raw_decode(lark, found.end())[0]


def check_numbers(schema: Any) -> None:
    """Raise InputError for a number of a schema that the grammar would not keep to.

    Such are numbers beyond 2**53, bounds of many digits, factors that are not computed with, and the least number of
    properties where a text may have the same one twice.
    """
    factors: set[Fraction] = set()
    merging = False
    for node in schemas(schema):
        merging = merging or any(key in node for key in _MERGING)
        for key in (*_BOUNDS, *_COUNTS):
            _check_number(key, node.get(key))
        for key in _BOUNDS:
            bound = node.get(key)
            if isinstance(bound, float) and len(Decimal(repr(bound)).normalize().as_tuple().digits) > _MAX_DIGITS:
                raise _inexact(key, bound, f"a number of at most {_MAX_DIGITS} digits", hint="round it")
        _check_open_bounds(node)
        _check_least_properties(node)
        for key in ("const", "enum"):
            for value in _leaves(node.get(key)):
                _check_number(key, value)
        factor = node.get("multipleOf")
        _check_number("multipleOf", factor)
        if _is_number(factor):
            if factor <= 0:
                raise _inexact("multipleOf", factor, "above 0")
            factors.add(Fraction(str(factor)))
    if any(factor.numerator > _MAX_FACTOR for factor in factors):
        raise _inexact("multipleOf", float(max(factors)), f"at most {_MAX_FACTOR:,} units of its last digit")
    if merging and len(factors) > 1 and _product(factors) > _MAX_FACTOR:
        raise InputError(
            "the grammar cannot be compiled: the schema has several multipleOf and combines schemas; their product may"
            f" be at most {_MAX_FACTOR:,}",
            hint="leave some of them out",
        )


def _product(factors: set[Fraction]) -> int:
    """Of the factors in units of the last digit that any of them has; some number over the limit for many."""
    if len(factors) > 12:  # 13 different whole numbers have a product over the limit
        return _MAX_FACTOR + 1
    unit = math.lcm(*(factor.denominator for factor in factors))
    return math.prod(int(factor * unit) for factor in factors)


def _check_number(key: str, value: Any) -> None:
    if _is_number(value) and not -MAX_EXACT <= value <= MAX_EXACT:
        raise _inexact(key, value, f"from -{MAX_EXACT} to {MAX_EXACT} (2**53), the numbers that can be kept exactly")


def _check_open_bounds(node: Mapping[str, Any]) -> None:
    """llguidance takes an open bound that is whole, such as 0 of (0, 0.5), where the other is less than 1 away."""
    if node.get("type") == "integer":
        return
    for key, others, sign in (("exclusiveMinimum", _BOUNDS[1::2], 1), ("exclusiveMaximum", _BOUNDS[0::2], -1)):
        bound = node.get(key)
        if not _is_number(bound) or bound != int(bound) or sign * bound < 0:
            continue
        if any(_is_number(other := node.get(name)) and sign * (other - bound) < 1 for name in others):
            closed = key.replace("exclusiveM", "m")
            raise _inexact(
                key, bound, "no whole number where the other bound is less than 1 away", f"give a {closed} instead"
            )


def _check_least_properties(node: Mapping[str, Any]) -> None:
    least, required = node.get("minProperties"), node.get("required")
    if node.get("additionalProperties") is False and "patternProperties" not in node:
        return  # each name comes once
    most = 1 + (len(required) if isinstance(required, list) else 0)
    if _is_number(least) and least > most:
        raise _inexact("minProperties", least, f"at most {most}, one more than are required, as others may come twice")


def _inexact(key: str, value: Any, allowed: str, hint: str = "leave it out, or choose a smaller one") -> InputError:
    hint = "give such numbers as strings" if key in ("const", "enum") else hint
    return InputError(f"the grammar cannot be compiled: {key} has {value!r:.60}; it must be {allowed}", hint=hint)


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def schemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """All objects in a schema that may be schemas."""
    left = [(schema, False)]
    while left:
        one, names = left.pop()
        if isinstance(one, list):
            left.extend((value, False) for value in one)
        elif isinstance(one, dict):
            if not names:
                yield one
            passed = ("const", "enum", *SAID) if not names else ()
            left.extend((value, not names and key in NAMED) for key, value in one.items() if key not in passed)


def _leaves(value: Any) -> Iterator[Any]:
    """All values in lists and objects."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, list):
            left.extend(one)
        elif isinstance(one, dict):
            left.extend(one.values())
        else:
            yield one
