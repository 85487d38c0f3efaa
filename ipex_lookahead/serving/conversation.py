"""Messages and tools -> the prompt's tokens, and what the answer must keep to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ipex_lookahead.errors import InputError
from ipex_lookahead.serving.answers import Ask
from ipex_lookahead.serving.failures import ApiError, refused
from ipex_lookahead.serving.grammar import Grammar, inlined
from ipex_lookahead.serving.limits import Limits
from ipex_lookahead.serving.reader import Reader
from ipex_lookahead.serving.server import Served
from ipex_lookahead.serving.thinking import BEGIN, END, TAIL, Mode, mode_of, rule
from ipex_lookahead.serving.tools import Function, Parser, Spell, Style, in_words, style_of
from ipex_lookahead.tokenization.prompts import build_prompt

Message = dict[str, Any]
"""``{"role": "system" | "user" | "assistant" | "tool", "content": text, "tool_calls"?: [...], ...}``"""


@dataclass(slots=True)
class Talk:
    """A conversation that is to go on, in the words of no API.

    Attributes:
        messages: see :data:`Message`.
        functions: tools that may be called.
        choice: "auto", "none", "required", or the name of the function that is to be called.
        one_call: at most one call.
        schema: a JSON schema that the answer follows; None for any text.
        variables: further ones of the chat template.
        begun: the answer's beginning, which the model goes on from.
    """

    messages: list[Message]
    functions: Sequence[Function] = ()
    choice: str = "auto"
    one_call: bool = False
    schema: Any = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    begun: str = ""

    @property
    def may_call(self) -> bool:
        """Whether the answer may hold calls."""
        return bool(self.functions) and self.choice != "none"


@dataclass(slots=True)
class Prepared:
    """What a conversation becomes: everything that takes time, done once for all answers."""

    prompt: list[int]
    grammar: Grammar | None
    style: Style | None
    markers: dict[int, str]
    thinking: Mode = Mode.NONE

    def ask(self, talk: Talk, **fields: Any) -> Ask:
        """One answer; ``fields`` are :class:`Ask`'s others."""
        names = [function["name"] for function in talk.functions]
        return Ask(
            self.prompt,
            reader=Reader(self.thinking, None if self.style is None else Parser(self.style, names, one=talk.one_call)),
            markers=self.markers,
            constrain=None if self.grammar is None else self.grammar.constrain,
            **fields,
        )


def prepare(served: Served, talk: Talk) -> Prepared:
    """Render, tokenize, compile. Takes tens of milliseconds: for a thread.

    Raises InputError where the template refuses the messages or a schema cannot be compiled.
    """
    served.check_length([*talk.messages, *(talk.functions if talk.may_call else ()), talk.begun])
    template = served.template
    style, knows_tools = style_of(template)
    given = [_spoken(one) for one in talk.functions] if talk.may_call else []
    ids_of = partial(_encoded, served, talk)
    spoken_of = bool(given) or any(m["role"] == "tool" or m.get("tool_calls") for m in talk.messages)
    if not template:
        ids = _without_template(served, talk)
    elif spoken_of and not knows_tools:
        ids = ids_of(in_words(talk.messages, given), None)
    else:
        tools = [{"type": "function", "function": dict(one)} for one in given] or None
        messages = [_with_objects(message) for message in talk.messages]
        ids = ids_of(messages, tools)
    thinking = mode_of(template, served.tokenizer.decode(ids[-TAIL - len(talk.begun.encode()) :]), talk.begun)
    written = [*style.markers, style.end] if given else []
    markers = _markers(served, [*written, *(() if thinking is Mode.NONE else (BEGIN, END))])
    grammar = _grammar(served, talk, style, markers, thinking)
    return Prepared(ids, grammar, style if given else None, markers, thinking)


def _encoded(served: Served, talk: Talk, messages: Sequence[Message], tools: Any) -> list[int]:
    variables = {**talk.variables, "add_generation_prompt": True, "tools": tools}
    return served.tokenizer.prompt_ids(messages, variables, talk.begun)


def _without_template(served: Served, talk: Talk) -> list[int]:
    """Llama-2's format, or plain text, for one question: more says nothing to a model without a template."""
    roles = [message["role"] for message in talk.messages]
    if roles not in (["user"], ["system", "user"]) or talk.may_call:
        raise InputError(
            "this model has no chat template; only one user message, after at most one system message, and no tools,"
            " can be put to it",
            hint="use /v1/completions",
        )
    system = talk.messages[0]["content"] if len(roles) == 2 else None
    ids = build_prompt(served.tokenizer, served.model.config, talk.messages[-1]["content"], system)
    return ids + (served.tokenizer.encode_content(talk.begun, add_special_tokens=False) if talk.begun else [])


def _with_objects(message: Message) -> Message:
    """Arguments of earlier calls as objects: templates write them as JSON themselves."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    changed = []
    for call in calls:
        function = dict(call["function"])
        try:
            arguments = json.loads(function.get("arguments") or "{}")
        except ValueError:
            arguments = function["arguments"]
        changed.append({**call, "function": {**function, "arguments": arguments}})
    return {**message, "tool_calls": changed}


def _markers(served: Served, spelled: Sequence[str]) -> dict[int, str]:
    """Ids of the special tokens that a call or a thought is written with."""
    vocabulary = served.tokenizer.get_vocab()
    found = {vocabulary[text]: text for text in spelled if text in vocabulary}
    return {i: text for i, text in found.items() if i in served.tokenizer.silent_ids}


def _grammar(served: Served, talk: Talk, style: Style, markers: Mapping[int, str], thinking: Mode) -> Grammar | None:
    """What the answer must keep to, behind what is thought."""
    forced = talk.may_call and talk.choice != "auto"
    if talk.schema is None and not talk.may_call:
        return None
    ids = {text: i for i, text in markers.items()}
    thought = "" if thinking is Mode.NONE else rule(thinking, ids)
    before = {Mode.NONE: "", Mode.PERHAPS: "thought? ", Mode.WITHIN: "thought "}[thinking]

    def spell(text: str) -> str:
        return f"<[{ids[text]}]>" if text in ids else json.dumps(text)

    if not talk.may_call:
        if not thought:
            return served.grammars.json_schema(talk.schema)
        return served.grammars.lark(f"start: {before}answer\n{thought}answer: %json {inlined(talk.schema)}\n")
    if talk.schema is None and not forced:
        # A thought that is not certain, and whose markers are text, is text like any other here: that is free anyway.
        certain = thinking is Mode.WITHIN or {BEGIN, END} <= ids.keys()
        return _at_will(served, talk.functions, style, spell, *((before, thought) if certain else ("", "")))
    wanted = [one for one in talk.functions if talk.choice in ("auto", "required", one["name"])]
    rules = style.grammar(wanted, spell, one=talk.one_call or talk.choice not in ("auto", "required")) + thought
    if forced:
        return served.grammars.lark(f"start: {before}calls\n{rules}")
    return served.grammars.lark(f"start: {before}(calls | answer)\n{rules}answer: %json {inlined(talk.schema)}\n")


def _at_will(
    served: Served, functions: Sequence[Function], style: Style, spell: Spell, before: str, thought: str
) -> Grammar | None:
    """For calls that the model makes where it likes. None where their beginning cannot be told from text.

    A function that is not ``strict`` may have any object for arguments where its schema cannot be compiled: agents send
    schemas of many kinds, and one that is odd should not end every request.
    """

    def compiled(functions: Sequence[Function]) -> Grammar | None:
        rules = style.at_will(functions, spell)
        if rules is None:
            return None
        return served.grammars.lark(rules.replace("start: ", f"start: {before}", 1) + thought)

    try:
        return compiled(functions)
    except InputError:
        return compiled([one if one.get("strict") or _compiles(served, one) else _loose(one) for one in functions])


def _compiles(served: Served, function: Function) -> bool:
    try:
        served.grammars.json_schema(function.get("parameters") or {})
    except InputError:
        return False
    return True


def _loose(function: Function) -> Function:
    return {key: value for key, value in function.items() if key != "parameters"}


def _spoken(function: Function) -> Function:
    """A function as templates are given it: ``strict`` is for the server."""
    return {key: value for key, value in function.items() if key != "strict"}


def functions_of(tools: Sequence[Mapping[str, Any]], limits: Limits, param: str = "tools") -> list[Function]:
    """Functions with names and bounded schemas: ``{"name", "description"?, "parameters"?, "strict"?}``, checked."""
    if len(tools) > limits.tools:
        raise refused(param, f"{len(tools)} tools are too many; at most {limits.tools} are taken")
    found: list[Function] = []
    size = 0
    for at, tool in enumerate(tools):
        name = tool.get("name")
        if not isinstance(name, str) or not 1 <= len(name) <= 128 or not set(name) <= _NAME:
            raise refused(f"{param}.{at}", f"its name is {name!r}; it must be 1 to 128 letters, digits, _, - or .")
        parameters = tool.get("parameters")
        if parameters is not None and not isinstance(parameters, dict):
            raise refused(f"{param}.{at}.parameters", "it must be a JSON schema, an object")
        size += bounded(parameters, limits, f"{param}.{at}.parameters")
        if size > limits.schemas_bytes:
            raise refused(
                param, f"their schemas have over {limits.schemas_bytes:,} bytes, which is as much as is taken"
            )
        kept = {key: tool[key] for key in ("name", "description", "parameters") if tool.get(key) is not None}
        if tool.get("strict") is True:
            kept["strict"] = True
        if any(one["name"] == name for one in found):
            raise refused(f"{param}.{at}", f"there are two functions {name!r}; names must differ")
        found.append(kept)
    return found


FUNCTION = ("name", "description", "parameters", "strict")
"""What OpenAI's functions have."""
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


_SAID = frozenset({"title", "description", "$comment", "examples", "default"})
"""Keys of a schema whose texts no answer is compared with."""
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keys behind which names stand, not keys."""


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
            kept = [key for key in one if names or key not in _SAID]
            longest = max([longest, *map(len, kept)])
            left.extend((one[key], not names and key in _NAMED) for key in kept)
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
        raise refused(param, f"the schema has {size:,} bytes; at most {limits.schema_bytes:,} are taken")
    if (longest := _longest(schema)) > limits.schema_text:
        raise refused(
            param, f"a constant, pattern or name has {longest:,} characters; at most {limits.schema_text:,} are taken"
        )
    return size


def chosen(choice: str, functions: Sequence[Function], param: str = "tool_choice") -> str:
    """``choice``, where it can be followed. Raises ApiError where there is no such function."""
    names = [function["name"] for function in functions]
    if choice in ("auto", "none"):
        return choice
    if choice == "required" and names:
        return choice
    if choice not in names:
        raise refused(param, f"{choice!r} cannot be called; tools has {', '.join(names) or 'nothing'}")
    return choice


def text_of(content: Any, param: str) -> str:
    """The text of a message's content: a string, null, or a list of parts that are text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise refused(param, "it must be a text, or a list of parts")
    texts = []
    for at, part in enumerate(content):
        kind = part.get("type")
        if kind not in ("text", "input_text", "output_text", "refusal"):
            raise refused(f"{param}.{at}.type", f"{kind!r} is not supported here; the model takes text")
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise refused(f"{param}.{at}.text", "it must be a string")
        texts.append(text)
    return "".join(texts)
