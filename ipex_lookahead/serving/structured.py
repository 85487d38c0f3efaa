"""What an answer must look like, by the fields of vLLM and of llama.cpp: JSON, a pattern, a choice, or a grammar."""

from __future__ import annotations

import json
from typing import Any

from ipex_lookahead.conversation.gbnf import is_lark
from ipex_lookahead.conversation.grammar import pattern
from ipex_lookahead.conversation.references import NAMED, SAID
from ipex_lookahead.conversation.request import Form
from ipex_lookahead.conversation.schema_numbers import schemas_of
from ipex_lookahead.serving.body import parsed
from ipex_lookahead.serving.failures import ApiError, refused
from ipex_lookahead.serving.fields import Body, no_effect, refused_unless, supported
from ipex_lookahead.serving.limits import Limits
from ipex_lookahead.serving.schema_checks import check_repetitions, check_structure

GRAMMAR = "a grammar in llama.cpp's GBNF or llguidance's Lark; enforced"


class StructuredOutputs(Body):
    """``structured_outputs``."""

    json_: dict[str, Any] | str | bool | None = supported("a JSON schema, as an object or as text", alias="json")
    regex: str | None = supported("a pattern that the whole answer matches")
    choice: list[str] | None = supported("the answer is one of these texts", min_length=1)
    grammar: str | None = supported(GRAMMAR)
    json_object: bool | None = supported("true: any JSON object")
    structural_tag: Any = refused_unless("use `tool_choice`")
    disable_any_whitespace: Any = no_effect("whitespace in JSON is always bounded")
    disable_additional_properties: Any = refused_unless("set `additionalProperties` in the schema", False)
    disable_fallback: Any = no_effect("llguidance is the only backend")
    whitespace_pattern: Any = no_effect("whitespace in JSON is always bounded")


class Structured(Body):
    """The fields of a request that say what its answers must look like."""

    structured_outputs: StructuredOutputs | None = supported(
        "one of `json`, `regex`, `choice`, `grammar`, `json_object`; enforced (vLLM)"
    )
    guided_json: dict[str, Any] | str | bool | None = supported("older name of `structured_outputs.json` (vLLM)")
    guided_regex: str | None = supported("older name of `structured_outputs.regex` (vLLM)")
    guided_choice: list[str] | None = supported("older name of `structured_outputs.choice` (vLLM)", min_length=1)
    guided_grammar: str | None = supported("older name of `structured_outputs.grammar` (vLLM)")
    guided_decoding_backend: Any = no_effect("llguidance is the only backend")
    guided_whitespace_pattern: Any = no_effect("whitespace in JSON is always bounded")
    json_schema: dict[str, Any] | str | bool | None = supported("a JSON schema; enforced (llama.cpp)")
    grammar: str | None = supported(f"{GRAMMAR} (llama.cpp)")

    def form(self, limits: Limits) -> Form | None:
        """Return the requested constraint, None for any text. Raises ApiError for an invalid one, or several."""
        nested = self.structured_outputs or StructuredOutputs()
        given = {
            "structured_outputs.json": nested.json_, "structured_outputs.regex": nested.regex,
            "structured_outputs.choice": nested.choice, "structured_outputs.grammar": nested.grammar or None,
            "structured_outputs.json_object": nested.json_object or None,
            "guided_json": self.guided_json, "guided_regex": self.guided_regex, "guided_choice": self.guided_choice,
            "guided_grammar": self.guided_grammar or None, "json_schema": self.json_schema,
            "grammar": self.grammar or None,
        }  # fmt: skip
        said = [(name, value) for name, value in given.items() if value is not None]
        if len(said) > 1:
            raise refused(said[1][0], f"{said[0][0]} already constrains the answer; give one of them")
        return _form(*said[0], limits) if said else None


def _form(name: str, value: Any, limits: Limits) -> Form:
    kind = name.rpartition(".")[2].removeprefix("guided_")
    if kind == "json_object":
        return Form(name, {"type": "object"})
    if kind in ("json", "json_schema"):
        if isinstance(value, str):
            try:
                value = parsed(value[: limits.schema_bytes + 1], name)
            except (ValueError, RecursionError):
                raise refused(name, "it is not valid JSON; give a JSON schema") from None
        return schema_form(value, limits, name)
    if kind == "grammar":
        value = value.removeprefix("\ufeff")
        most = 4 * limits.schema_text
        if len(value) > most:
            raise refused(name, f"the grammar has {len(value):,} characters; at most {most:,} are allowed")
        check_repetitions(value, limits, name, grammar=True)
        try:
            for schema in schemas_of(value) if is_lark(value) else ():
                check_structure(schema, limits, name)
        except RecursionError:
            raise refused(name, "a schema in it is nested too deeply") from None
        return Form(name, grammar=value)
    if kind == "choice" and len(value) > limits.alternatives:
        raise refused(name, f"there are {len(value):,} texts; at most {limits.alternatives:,} are allowed")
    if kind == "choice" and (size := sum(map(len, value))) > limits.choice_characters:
        raise refused(name, f"the texts have {size:,} characters; at most {limits.choice_characters:,} are allowed")
    longest = max(map(len, [value] if isinstance(value, str) else value))
    if longest > limits.schema_text:
        raise refused(name, f"a text has {longest:,} characters; at most {limits.schema_text:,} are allowed")
    if kind == "choice":
        # One terminal: its alternatives are one automaton, which has no limit of alternatives at one place.
        texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in dict.fromkeys(value))
        return Form(name, lark=f"start: CHOICE\nCHOICE: {texts}")
    if not value:
        raise refused(name, "the pattern is empty; give one that an answer can match")
    check_repetitions(value, limits, name)
    return Form(name, lark=f"start: /{pattern(value)}/")


def schema_form(schema: Any, limits: Limits, param: str) -> Form:
    """What answers in a JSON schema look like. Raises ApiError as :func:`bounded`."""
    bounded(schema, limits, param)
    return Form(param, schema)


def _longest(schema: Any) -> int:
    """Characters of the longest text in a schema that answers are compared with."""
    longest, left = 0, [(schema, False)]
    while left:
        one, names = left.pop()
        if isinstance(one, str):
            longest = max(longest, len(one))
        elif isinstance(one, list):
            left.extend((value, False) for value in one)
        elif isinstance(one, dict):
            kept = [key for key in one if names or key not in SAID]
            longest = max([longest, *map(len, kept)])
            left.extend((one[key], not names and key in NAMED) for key in kept)
    return longest


def bounded(schema: Any, limits: Limits, param: str) -> int:
    """Bytes of a schema. Raises ApiError for what is none, for a large one, and for one that nothing can satisfy."""
    if schema is not None and schema is not True and not isinstance(schema, dict):
        raise refused(param, f"it is {json.dumps(schema)[:80]}; a JSON schema here is an object, or true")
    try:
        size = len(json.dumps(schema))
    except (ValueError, RecursionError):
        raise ApiError(400, f"{param}: the schema is nested too deeply", param=param) from None
    if size > limits.schema_bytes:
        raise refused(param, f"the schema has {size:,} bytes; at most {limits.schema_bytes:,} are allowed")
    if (longest := _longest(schema)) > limits.schema_text:
        raise refused(
            param, f"a constant, pattern or name has {longest:,} characters; at most {limits.schema_text:,} are allowed"
        )
    check_structure(schema, limits, param)
    return size
