"""Schemas and grammars that are meant to do harm: to whoever compiles them, or keeps an answer to them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

HI = [{"role": "user", "content": "Hi"}]
LINKS: list[Callable[[Any], Any]] = [
    lambda schema: schema,
    lambda schema: {"type": "array", "items": schema},
    lambda schema: {"type": "object", "properties": {"a": schema}, "required": ["a"]},
    lambda schema: {"anyOf": [schema, {"type": "null"}]},
    lambda schema: {"allOf": [schema]},
]
"""What may stand between two references of a chain."""


def chain(length: int, link: Callable[[Any], Any]) -> dict[str, Any]:
    """A schema of ``length`` references, each to a schema that holds the next."""
    links = {f"d{n}": link({"$ref": f"#/$defs/d{n + 1}"}) for n in range(length - 1)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length - 1}": {"type": "string"}}}


def in_every_api(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """(path, body) of requests of which each must keep to the schema."""
    few = {"messages": HI, "max_tokens": 4}
    inside = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    if isinstance(schema, dict) and "$defs" in schema:
        inside["$defs"] = schema["$defs"]
    named = {"name": "x", "schema": schema}
    tool = {"type": "function", "function": {"name": "f", "parameters": inside}}
    yield "/v1/completions", {"prompt": "x", "max_tokens": 4, "json_schema": schema}
    yield "/v1/completions", {"prompt": "x", "max_tokens": 4, "guided_json": schema}
    yield "/v1/chat/completions", {**few, "structured_outputs": {"json": schema}}
    yield "/v1/chat/completions", {**few, "response_format": {"type": "json_schema", "json_schema": named}}
    yield "/v1/chat/completions", {**few, "tools": [tool], "tool_choice": "required"}
    anthropic = {"name": "f", "input_schema": inside}
    yield "/v1/messages", {**few, "tools": [anthropic], "tool_choice": {"type": "any"}}
    form = {"format": {"type": "json_schema", **named}}
    yield "/v1/responses", {"input": "x", "max_output_tokens": 4, "text": form}
    options = {"num_predict": 4}
    yield "/api/chat", {"model": "tiny", "messages": HI, "format": schema, "options": options, "stream": False}
    yield "/completion", {"prompt": "x", "n_predict": 4, "json_schema": schema}


def _objects(count: int, chance: random.Random) -> dict[str, Any]:
    found = {f"p{n}": chance.choice([{"type": "integer"}, {"type": "string"}, {}]) for n in range(count)}
    return {"type": "object", "properties": found, "additionalProperties": chance.random() < 0.5}


def _nested(depth: int, chance: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        found = chance.choice(LINKS)(found)
    return found


def _number(chance: random.Random) -> Any:
    edge = chance.choice([2**31, 2**32, 2**53, 2**63, 2**64, 10**18, 10**19, 10**30, 10**300])
    return chance.choice([1, -1]) * (edge + chance.choice([-1, 0, 1, 0.5])) if edge < 2**65 else float(edge)


def _bounds(chance: random.Random) -> dict[str, Any]:
    keys = chance.sample(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"], 2)
    return {"type": chance.choice(["integer", "number"]), **{key: _number(chance) for key in keys}}


def schema(chance: random.Random) -> Any:
    """A schema of which some part is large, deep or hard."""
    big = chance.choice([10, 100, 1000, 3000])
    part = "".join(chance.choice(["a", "b", ".", "[a-z]", "(a|b)", "\\d", "é"]) for _ in range(3))
    count = chance.choice([2, 30, 1000, 60_000, 1_000_000, 10**12])
    patterns = [
        f"({part}){{{count}}}",
        f"(.*{part}){{{count % 100}}}",
        f"({part})*{part}.{{{count % 400}}}",
        f"(({part}{{{count % 1000}}}){{1000}}){{0,1000}}",
        "(" * min(count, 4000),
        f"[{part}]{{,{count}}}",
    ]
    pattern = chance.choice(patterns)
    return chance.choice([
        lambda: {"type": "integer", "multipleOf": chance.choice([7, 9973, 99_991, 999_983, 2**31 - 1, 1e-9, 0.1])},
        lambda: _bounds(chance),
        lambda: {"const": _number(chance)},
        lambda: chain(big, chance.choice(LINKS)),
        lambda: _objects(big, chance),
        lambda: _nested(big % 150, chance),
        lambda: {"type": "string", "pattern": pattern},
        lambda: {"type": "object", "patternProperties": {pattern: {}, part: {"type": "integer"}}},
        lambda: {"type": "string", "pattern": part, "minLength": count, "maxLength": count + 5},
        lambda: {"type": "array", "items": _objects(3, chance), "minItems": count, "maxItems": 2 * count},
        lambda: {"enum": [f"{part} {n}" for n in range(big)]},
        lambda: {"anyOf": [_objects(n % 5, chance) for n in range(big)]},
        lambda: {"allOf": [{"anyOf": [_objects(3, chance) for _ in range(4)]} for _ in range(big % 30)]},
        lambda: {"allOf": [{"type": "integer", "multipleOf": chance.randrange(1, 99)} for _ in range(big % 30)]},
        lambda: {"$ref": "#"},
        lambda: {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#"}]}}, "$ref": "#/$defs/a"},
        lambda: {"$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(big % 99)},
                 "$ref": "#/$defs/d0"},
    ])()  # fmt: skip


def grammar(chance: random.Random) -> str:
    """A grammar in GBNF or Lark of which some part is large, deep, ambiguous or hard."""
    count = chance.choice([3, 50, 1000, 5000])
    return chance.choice([
        lambda: f'root ::= "a"{{{count * 1000}}}',
        lambda: f'root ::= ("a" "b"? [c-e]*){{0,{count}}}',
        lambda: 'root ::= s\ns ::= s s s | s s | "a" | ""',
        lambda: "root ::= " + "(" * count + '"a"' + ")" * count,
        lambda: "root ::= r0\n" + "".join(f"r{n} ::= r{n + 1}\n" for n in range(count)) + f'r{count} ::= "a"',
        lambda: "start: R0\n" + "".join(f"R{n}: R{n + 1} | R{n + 1}\n" for n in range(count)) + f'R{count}: "a"',
        lambda: f"start: T\nT: /.*a.{{{count % 60}}}/ & ~(/.*b.{{22}}c.*/)",
        lambda: "start: " + " | ".join(f"/x{n}[a-z]*/" for n in range(count)),
        lambda: "start: (" + " | ".join(f"/[a-z ]*{c}[a-z ]{{{count % 400}}}/" for c in "abcdefgh") + ")*",
        lambda: f"start: a* \na: b*\nb: (\"x\"? /y{{0,{count}}}/)*",
        lambda: "start: %json " + json.dumps(schema(chance)),
        lambda: 'start: start "a" | start start |',
    ])()  # fmt: skip


def bomb(number: int, seed: int) -> tuple[str, str, dict[str, Any]]:
    """(what it is, path, body): always the same of that number."""
    chance = random.Random(f"{seed} {number}")
    few = {"prompt": "x", "max_tokens": chance.choice([1, 4, 40]), "temperature": chance.choice([0, 2])}
    kind = chance.randrange(4)
    if kind == 0:
        text = grammar(chance)
        return f"grammar {number}: {text[:60]!r}", "/v1/completions", {**few, "grammar": text}
    if kind == 1:
        texts = [f"{chance.choice('abc')} {n}" for n in range(chance.choice([2, 2005, 30_000]))]
        return f"choice {number}", "/v1/completions", {**few, "structured_outputs": {"choice": texts}}
    made = schema(chance)
    path, body = chance.choice(list(in_every_api(made)))
    return f"schema {number} to {path}: {json.dumps(made)[:60]}", path, body
