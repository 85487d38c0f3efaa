"""Grammars of values with bare keys and marked texts (``bare_values.py``), by their JSON schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ipex_lookahead.conversation.calls.bare_values import QUOTE, keyed, ordered, written
from ipex_lookahead.conversation.calls.base import Function, Spell, parameters_of
from ipex_lookahead.conversation.calls.scanner import MOST_DEEP
from ipex_lookahead.conversation.calls.typed import resolved
from ipex_lookahead.conversation.calls.values import ABOUT, TEXT, WHOLE, End, checked, value
from ipex_lookahead.conversation.grammar import inlined
from ipex_lookahead.errors import InputError
from ipex_lookahead.tokenization.content import Own

_NUMBER = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_LIST = frozenset({"items", "minItems", "maxItems"})
_OBJECT = WHOLE - {"type"}
_KNOWN = {
    "string": TEXT, "integer": _NUMBER, "number": _NUMBER, "boolean": frozenset(), "null": frozenset(),
    "array": _LIST, "object": _OBJECT,
}  # fmt: skip
"""Type -> the keys of a schema that say something of it."""
_ANY = """any: text | anynumber | "true" | "false" | "null" | "[" (any ("," any)*)? "]" | anyobject
anyobject: "{" (anypair ("," anypair)*)? "}"
anypair: KEY ":" any
KEY: /[A-Za-z_][A-Za-z0-9_.-]{0,63}/
"""


class Rules:
    """Collects the rules of functions, and of all values in them.

    An object has the keys that its schema names, in the template's order, and others only where it names none.

    Args:
        spell: see :data:`Spell`.
    """

    def __init__(self, spell: Spell) -> None:
        self._spell = spell
        self._end = End(QUOTE, spell(QUOTE))
        self._root: Mapping[str, Any] = {}
        self._references: dict[str, str] = {}
        self._count = 0
        free = value("freetext", {"type": "string"}, {}, self._end)
        number = f"anynumber: %json {inlined({'type': 'number'})}\n"
        self._rules = [f"text: {self._end.spelled} freetext\n{free}{number}{_ANY}"]

    @property
    def text(self) -> str:
        """The rules so far."""
        return "".join(self._rules)

    def function(self, rule: str, function: Function) -> None:
        """Add a call of a function. Raises InputError for a schema that such calls cannot be kept to."""
        self._root, self._references = checked(parameters_of(function)), {}
        arguments = self._object(self._root, 0)
        self._rules.append(f"{rule}: {json.dumps(function['name'])} {arguments}\n")

    def _rule(self, alternatives: Sequence[str]) -> str:
        """The name of a new rule."""
        name = self._name()
        self._rules.append(f"{name}: {' | '.join(alternatives)}\n")
        return name

    def _name(self) -> str:
        self._count += 1
        return f"r{self._count}"

    def _value(self, schema: Any, depth: int) -> str:
        """The name of the rule of a value."""
        if schema is False:
            raise InputError("the grammar cannot be compiled: a parameter's schema allows no value")
        if depth > MOST_DEEP:
            raise InputError("the grammar cannot be compiled: a parameter's schema is nested too deeply")
        if not isinstance(schema, Mapping):
            return "any"
        if "$ref" not in schema:
            return self._of(schema, depth)
        said = json.dumps(schema)
        if said not in self._references:  # a rule of its own, for it may come again inside itself
            name = self._references[said] = self._name()
            self._rules.append(f"{name}: {self._of(resolved(schema, self._root), depth)}\n")
        return self._references[said]

    def _of(self, schema: Any, depth: int) -> str:
        said = set(schema) - ABOUT
        if "$ref" in said:
            raise InputError(f"the grammar cannot be compiled: {schema['$ref']!r:.80} has no target")
        if "const" in said or "enum" in said:
            return self._either_of([schema["const"]] if "const" in said else schema["enum"])
        parts = next((schema[key] for key in ("anyOf", "oneOf", "allOf") if said == {key}), None)
        if isinstance(parts, list) and parts and (len(parts) == 1 or "allOf" not in said):
            return self._rule([self._value(one, depth + 1) for one in parts])
        if not said:
            return "any"
        types = schema.get("type", list(_KNOWN))
        types = [types] if isinstance(types, str) else types
        if not isinstance(types, list) or not types or not all(isinstance(one, str) and one in _KNOWN for one in types):
            raise InputError(f"the grammar cannot be compiled: {types!r:.80} is not a type")
        if other := said - {"type"} - frozenset[str]().union(*(_KNOWN[one] for one in types)):
            raise InputError(
                f"the grammar cannot be compiled: a parameter has {', '.join(sorted(other))}, which this model's"
                " call format cannot enforce",
                hint="give the parameter a type",
            )
        return self._rule([self._typed(one, schema, depth) for one in dict.fromkeys(types)])

    def _typed(self, kind: str, schema: Mapping[str, Any], depth: int) -> str:
        if kind == "boolean":
            return '"true" | "false"'
        if kind == "null":
            return '"null"'
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._list(schema, depth)
        own = {"type": kind, **{key: schema[key] for key in _KNOWN[kind] if key in schema and key != "type"}}
        name = self._name()
        if kind == "string":
            self._rules.append(value(name, own, self._root, self._end))
            return f"{self._end.spelled} {name}"
        self._rules.append(f"{name}: %json {inlined(own)}\n")
        return name

    def _either_of(self, values: Any) -> str:
        if not isinstance(values, list) or not values:
            raise InputError("the grammar cannot be compiled: a parameter's enum is empty")
        parts = [written(one) for one in values]
        for part in (part for one in parts for part in one if not isinstance(part, Own)):
            self._end.kept(part)
        return self._rule(list(dict.fromkeys(map(self._spelled, parts))))

    def _key(self, name: str) -> str:
        if QUOTE in name:
            raise InputError(f"the grammar cannot be compiled: the parameter name {name[:80]!r} is invalid")
        return self._spelled(keyed(name))

    def _spelled(self, parts: Sequence[str]) -> str:
        """Parts in a grammar."""
        return " ".join(
            self._spell(one) if isinstance(one, Own) else json.dumps(one, ensure_ascii=False) for one in parts if one
        )

    def _list(self, schema: Mapping[str, Any], depth: int) -> str:
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if not all(type(one) is int and one >= 0 for one in (least, least if most is None else most)):
            raise InputError("the grammar cannot be compiled: the length of a list is not a whole number")
        item = self._value(schema.get("items", True), depth + 1)
        if most is not None and most < least:
            raise InputError(f"the grammar cannot be compiled: minItems is {least}, above maxItems, which is {most}")
        if most == 0:
            return '"[" "]"'
        rest = f'("," {item})' + ("*" if most is None else f"{{0,{most - 1}}}")
        if least > 1:
            rest = f'("," {item}){{{least - 1},{"" if most is None else most - 1}}}'
        more = item if most == 1 else f"{item} {rest}"
        return f'"[" {more if least else f"({more})?"} "]"'

    def _object(self, schema: Mapping[str, Any], depth: int) -> str:
        """Members in order, with a comma between any two: ``a`` before the first that is there, ``b`` behind one."""
        properties, required = schema.get("properties") or {}, schema.get("required") or []
        named = isinstance(required, list) and all(isinstance(one, str) for one in required)
        if not isinstance(properties, Mapping) or not named:
            raise InputError("the grammar cannot be compiled: properties must be an object, required a list of names")
        other = schema.get("additionalProperties", True)
        names = ordered(dict.fromkeys([*properties, *required]))
        if not names and other is not False:
            pair = f'KEY ":" {self._value(other, depth + 1)}'
            return "anyobject" if other is True else f'"{{" ({pair} ("," {pair})*)? "}}"'
        values = [self._value(properties.get(name, other), depth + 1) for name in names]
        rule = self._name()
        for at, name in enumerate(names):
            key = self._key(name)
            given = f'{key} ":" {values[at]} {rule}b{at + 1}'
            for before, comma in (("a", ""), ("b", '"," ')) if at else (("a", ""),):
                skipped = "" if name in required else f" | {rule}{before}{at + 1}"
                self._rules.append(f"{rule}{before}{at}: {comma}{given}{skipped}\n")
        self._rules.append(f'{rule}a{len(names)}: ""\n' + (f'{rule}b{len(names)}: ""\n' if names else ""))
        return f'"{{" {rule}a0 "}}"'
