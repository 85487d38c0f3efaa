"""Messages and tools -> the prompt's tokens, and what the answer must keep to."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ipex_lookahead.conversation.calls.base import DECODER, Function, Spell, Style, json_of
from ipex_lookahead.conversation.grammar import Grammar, Grammars, inlined
from ipex_lookahead.conversation.references import local
from ipex_lookahead.conversation.thinking import TAIL, Marks, Mode, marks_of, mode_of, rule
from ipex_lookahead.conversation.tools import (
    Parser,
    Ways,
    in_words,
    numbered,
    ways_of,
    with_calls,
    with_results,
    with_tools,
)
from ipex_lookahead.errors import ContextLengthError, InputError, ModelFormatError
from ipex_lookahead.runtime.request import Request
from ipex_lookahead.serving.failures import refused
from ipex_lookahead.serving.limits import Limits
from ipex_lookahead.serving.reader import Reader
from ipex_lookahead.serving.server import Served
from ipex_lookahead.serving.structured import Form, bounded
from ipex_lookahead.tokenization.prompts import build_prompt

Message = dict[str, Any]
"""``{"role": "system" | "user" | "assistant" | "tool", "content": text, "tool_calls"?: [...], ...}``"""


@dataclass(slots=True)
class Conversation:
    """A conversation that is to go on, in the words of no API.

    Attributes:
        messages: see :data:`Message`.
        functions: tools that may be called.
        choice: "auto", "none", "required", or the name of the function that is to be called.
        one_call: at most one call.
        form: what the answer must look like; None for any text.
        variables: further ones of the chat template.
        begun: the answer's beginning, which the model goes on from.
        allowed: names of those functions that may be called, of all that the model knows of; None for all.
    """

    messages: list[Message]
    functions: Sequence[Function] = ()
    choice: str = "auto"
    one_call: bool = False
    form: Form | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    begun: str = ""
    allowed: Collection[str] | None = None

    @property
    def open(self) -> Sequence[Function]:
        """The functions that may be called."""
        return [one for one in self.functions if self.allowed is None or one["name"] in self.allowed]

    @property
    def may_call(self) -> bool:
        """Whether the answer may hold calls."""
        return bool(self.functions) and self.choice != "none"


def prepare(served: Served, conversation: Conversation) -> Request:
    """Render and tokenize: returns a request without sampling parameters and without a compiled grammar.

    Takes tens of milliseconds: for a thread, and once for all answers of a conversation.

    Raises InputError where the template refuses the messages.
    """
    served.check_length([*conversation.messages, *conversation.functions, conversation.begun])
    template = served.template
    ways = ways_of(template)
    style = ways.style
    # A prompt has all functions, whatever the choice, so that the prefix cache finds the conversation again.
    given = [_described(one) for one in conversation.functions]
    ids = _rendered(served, conversation, ways, given) if template else _without_template(served, conversation)
    marks = marks_of(template)
    thinking = mode_of(
        marks, served.tokenizer.decode(ids[-TAIL - len(conversation.begun.encode()) :]), conversation.begun
    )
    written = [*style.markers, *style.inner, style.end] if conversation.may_call else []
    if marks is not None and (thinking is not Mode.NONE or marks.again):
        written += [marks.begin, marks.end]
    markers = _markers(served, written)
    constraint = None
    if conversation.form is not None or conversation.may_call:
        constraint = partial(_grammar, conversation, style, markers, thinking, marks)
    parser = Parser(style, conversation.open, one=conversation.one_call) if conversation.may_call else None
    return Request(ids, reader=Reader(thinking, parser, marks), markers=markers, constraint=constraint)


def fitted(served: Served, conversation: Conversation, requested: int | None) -> Request:
    """As :func:`prepare`, without the oldest messages where the prompt leaves no room for the answer.

    What is left begins with a message of the user's, so that no result is without its call; system messages stay.

    Args:
        served: the model.
        conversation: the conversation.
        requested: most tokens of the answer, for which room is made, up to half of the context; None or -1 means an
            eighth of it.

    Raises ContextLengthError where the last of the user's messages does not fit by itself, and as ``prepare``.
    """
    context = served.max_context
    room = min(context // 8 if requested is None or requested < 0 else requested, context // 2)
    first = [message for message in conversation.messages if message["role"] == "system"]
    rest = [message for message in conversation.messages if message["role"] != "system"]
    begins = [0, *(at for at, message in enumerate(rest) if at and message["role"] == "user")]

    def of(number: int) -> Request | None:
        messages = conversation.messages if number == 0 else [*first, *rest[begins[number] :]]
        try:
            made = prepare(served, replace(conversation, messages=messages))
        except ContextLengthError:
            if number == len(begins) - 1:
                raise
            return None
        return made if len(made.prompt) + room <= context or number == len(begins) - 1 else None

    found, low, high = of(0), 1, len(begins) - 1
    while found is None:  # the longest that fits, by halves: the last one always ends it
        middle = (low + high) // 2
        made = of(middle)
        if made is None:
            low = middle + 1
        elif middle == low:
            found = made
        else:
            high = middle
    return found


def _rendered(served: Served, conversation: Conversation, ways: Ways, given: Sequence[Function]) -> list[int]:
    """The prompt by the chat template, and in words where that knows nothing of tools."""
    ids_of = partial(_encoded, served, conversation)
    called = any(m["role"] == "tool" or m.get("tool_calls") for m in conversation.messages)
    if not given and not called:
        return ids_of(conversation.messages, None)
    messages: list[Any] = numbered([_with_objects(message) for message in conversation.messages])
    if not ways.known:
        return ids_of(in_words(messages, given, ways.style), None)
    if not ways.repeats:
        messages = with_calls(messages, ways.style)
    elif ways.needs_none:
        messages = [{**m, "content": m["content"] or None} if m.get("tool_calls") else m for m in messages]
    if ways.gathers:
        messages = with_results(messages)
    tools = [{"type": "function", "function": dict(one)} for one in given] or None
    if not ways.lists:
        messages, tools = with_tools(messages, given, ways.style), None
    try:
        return ids_of(messages, tools)
    except ModelFormatError:  # there are templates that write arguments as the text that they came as
        if not called:
            raise
    try:
        return ids_of([_with_texts(message) for message in messages], tools)
    except ModelFormatError:
        _check_arguments(conversation.messages)
        raise


def _encoded(served: Served, conversation: Conversation, messages: Sequence[Message], tools: Any) -> list[int]:
    variables = {**conversation.variables, "add_generation_prompt": True, "tools": tools}
    return served.tokenizer.prompt_ids(messages, variables, conversation.begun)


def _without_template(served: Served, conversation: Conversation) -> list[int]:
    """Llama-2's format, or plain text, for one question: a model without a template knows no turns."""
    roles = [message["role"] for message in conversation.messages]
    if roles not in (["user"], ["system", "user"]) or conversation.may_call:
        raise InputError(
            "this model has no chat template; only one user message, after at most one system message, and no tools,"
            " can be put to it",
            hint="use /v1/completions",
        )
    system = conversation.messages[0]["content"] if len(roles) == 2 else None
    ids = build_prompt(served.tokenizer, served.model.config, conversation.messages[-1]["content"], system)
    return ids + (
        served.tokenizer.encode_content(conversation.begun, add_special_tokens=False) if conversation.begun else []
    )


def _with_objects(message: Message) -> Message:
    """Arguments of earlier calls as objects: templates write them as JSON themselves."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    changed = []
    for call in calls:
        function = dict(call["function"])
        try:
            arguments = DECODER.decode(function.get("arguments") or "{}")
        except (ValueError, RecursionError):
            arguments = function["arguments"]
        changed.append({**call, "function": {**function, "arguments": arguments}})
    return {**message, "tool_calls": changed}


def _check_arguments(messages: Sequence[Message]) -> None:
    """Raise ApiError for an earlier call with arguments that are no object, which most templates cannot render."""
    for message in messages:
        for call in message.get("tool_calls") or ():
            name, given = call["function"]["name"], call["function"].get("arguments") or "{}"
            if not isinstance(json_of(given), dict):
                param = "tool_calls.function.arguments"
                raise refused(param, f"the earlier call of {name!r} has {given[:60]!r}; this model needs a JSON object")


def _with_texts(message: Message) -> Message:
    """Arguments of earlier calls as JSON text."""

    def text_of(function: Mapping[str, Any]) -> str:
        arguments = function["arguments"]
        return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)

    calls = message.get("tool_calls") or ()
    changed = [{**one, "function": {**one["function"], "arguments": text_of(one["function"])}} for one in calls]
    return {**message, "tool_calls": changed} if changed else message


def _markers(served: Served, spelled: Sequence[str]) -> dict[int, str]:
    """Ids of the special tokens that a call or a thought is written with."""
    return {served.special_tokens[text]: text for text in spelled if text in served.special_tokens}


def _grammar(
    conversation: Conversation,
    style: Style,
    markers: Mapping[int, str],
    thinking: Mode,
    marks: Marks | None,
    grammars: Grammars,
) -> Grammar | None:
    """What the answer must keep to, behind what is thought."""
    forced = conversation.may_call and conversation.choice != "auto"
    ids = {text: i for i, text in markers.items()}
    thought = "" if marks is None or thinking is Mode.NONE else rule(thinking, marks, ids)
    before = {Mode.NONE: "", Mode.PERHAPS: "thought? ", Mode.WITHIN: "thought "}[thinking]

    def spell(text: str) -> str:
        return f"<[{ids[text]}]>" if text in ids else json.dumps(text)

    if not conversation.may_call and conversation.form is not None:
        return grammar_of(grammars, conversation.form, before, thought)
    if conversation.form is None and not forced:
        # An optional thought with markers that are text is ordinary text here, which is unconstrained anyway.
        certain = thinking is Mode.WITHIN or (marks is not None and {marks.begin, marks.end} <= ids.keys())
        return _at_will(grammars, conversation.open, style, spell, *((before, thought) if certain else ("", "")))
    wanted = [one for one in conversation.open if conversation.choice in ("auto", "required", one["name"])]
    form = conversation.form
    answer, other = ("", "") if forced or form is None else _answer(form)
    try:
        params = style.grammar(wanted, spell, one=conversation.one_call or conversation.choice not in _SEVERAL)
        if not answer:
            return grammars.lark(f"start: {before}calls\n{params}{thought}")
        start = f"start: {before}(calls | answer)\n{params}{thought}{answer}"
        return grammars.lark(start, other, given=bool(form and form.grammar))
    except InputError as error:
        for one in wanted:
            _check(grammars, style, spell, one)
        if answer and form is not None:
            grammar_of(grammars, form)
        raise _of("tools", "", error) from None


_SEVERAL = ("auto", "required")
"""Choices that allow more than one call."""


def grammar_of(grammars: Grammars, form: Form, before: str = "", thought: str = "") -> Grammar:
    """What keeps an answer in its form, behind what ``before`` names and the rules of ``thought``.

    Raises InputError, which names the field, where the form cannot be compiled.
    """
    try:
        if not (before or form.lark or form.grammar):
            return grammars.json_schema(form.schema)
        answer, other = _answer(form)
        return grammars.lark(f"start: {before}answer\n{thought}{answer}", other, given=bool(form.grammar))
    except InputError as error:
        raise _of(form.param, "", error) from None


def _answer(form: Form) -> tuple[str, str]:
    """The rule ``answer``, and the grammar that it calls ``@form``."""
    other = form.lark or form.grammar
    return ("answer: @form\n", other) if other else (f"answer: %json {inlined(form.schema)}\n", "")


def _at_will(
    grammars: Grammars, functions: Sequence[Function], style: Style, spell: Spell, before: str, thought: str
) -> Grammar | None:
    """For calls that the model makes where it likes. None where their beginning cannot be distinguished from text.

    A function that is not ``strict`` may have any object for arguments where its schema cannot be compiled: agents send
    schemas of many kinds, and one that is odd should not end every request.
    """

    def compiled(functions: Sequence[Function]) -> Grammar | None:
        params = style.at_will(functions, spell)
        if params is None:
            return None
        return grammars.lark(params.replace("start: ", f"start: {before}", 1) + thought)

    def kept(function: Function) -> Function:
        try:
            _check(grammars, style, spell, function)
        except InputError:
            if function.get("strict"):
                raise
            return {**function, "parameters": {"type": "object"}, "local": None}
        return function

    try:
        return compiled(functions)
    except InputError:
        return compiled([kept(one) for one in functions])


def _check(grammars: Grammars, style: Style, spell: Spell, function: Function) -> None:
    """Raise InputError, which names the function and its field, where its schema cannot be compiled by itself."""
    try:
        grammars.lark(f"start: calls\n{style.grammar([function], spell, one=True)}")
    except InputError as error:
        raise _of(function.get("param", "tools"), f"tool {function['name']!r}: ", error) from None


def _of(param: str, name: str, error: InputError) -> InputError:
    """An error that names the field that it is about."""
    return type(error)(f"{param}: {name}{error}", argument=param, hint=error.hint)


def _described(function: Function) -> Function:
    """A function as chat templates are given it."""
    return {key: value for key, value in function.items() if key in ("name", "description", "parameters")}


def functions_of(
    tools: Sequence[Mapping[str, Any]], limits: Limits, field: str = "function.parameters"
) -> list[Function]:
    """Functions with names and bounded schemas, checked.

    Args:
        tools: ``{"name", "description"?, "parameters"?, "strict"?}`` each.
        limits: of the server.
        field: what the API calls the schema in one of ``tools``.

    Returns the functions with ``param``, the field of the request that has the schema.
    """
    if len(tools) > limits.tools:
        raise refused("tools", f"{len(tools)} tools are too many; at most {limits.tools} are taken")
    found: list[Function] = []
    size = 0
    for at, tool in enumerate(tools):
        name = tool.get("name")
        if not isinstance(name, str) or not 1 <= len(name) <= 128 or not set(name) <= _NAME:
            raise refused(f"tools.{at}", f"its name is {name!r}; it must be 1 to 128 letters, digits, _, - or .")
        parameters, param = tool.get("parameters"), f"tools.{at}.{field}"
        if parameters is not None and not isinstance(parameters, dict):
            raise refused(param, f"tool {name!r}: it must be a JSON schema, an object")
        size += bounded(parameters, limits, param)
        if size > limits.schemas_bytes:
            raise refused(
                "tools", f"their schemas have over {limits.schemas_bytes:,} bytes, which is as much as is taken"
            )
        kept = {key: tool[key] for key in ("name", "description", "parameters") if tool.get(key) is not None}
        if (pointing := local(parameters)) is not parameters:
            kept["local"] = pointing
        if tool.get("strict") is True:
            kept["strict"] = True
        if any(one["name"] == name for one in found):
            raise refused(f"tools.{at}", f"there are two functions {name!r}; names must differ")
        found.append({**kept, "param": param})
    return found


FUNCTION = ("name", "description", "parameters", "strict")
"""What OpenAI's functions have."""
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


def decided(
    given: str | Mapping[str, Any] | None, functions: Sequence[Function], *, nested: bool
) -> tuple[str, Collection[str] | None]:
    """OpenAI's ``tool_choice`` -> :class:`Conversation`'s ``choice`` and ``allowed``.

    Args:
        given: the field.
        functions: those of the request.
        nested: whether the name of a function is inside an object ``function``.
    """
    if isinstance(given, Mapping) and given.get("type") == "allowed_tools":
        allowed = given.get("allowed_tools", given)
        tools = allowed.get("tools") if isinstance(allowed, dict) else None
        if not isinstance(tools, list) or not tools or allowed.get("mode") not in ("auto", "required"):
            raise refused("tool_choice", "allowed_tools needs a mode, auto or required, and a list of tools")
        return allowed["mode"], [chosen(_named(tool), functions) for tool in tools]
    if isinstance(given, Mapping):
        function = given.get("function") if nested else given
        name = function.get("name") if isinstance(function, dict) else None
        if given.get("type") != "function" or not isinstance(name, str):
            inner = '"function": {"name": ...}' if nested else '"name": ...'
            raise refused("tool_choice", f'it must be auto, none, required or {{"type": "function", {inner}}}')
        given = name
    return chosen(given or "auto", functions) if functions or given is not None else "none", None


def _named(tool: Any) -> str:
    """A tool of ``allowed_tools``, as ``/v1/chat/completions`` or as ``/v1/responses`` has it."""
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or tool.get("type") != "function" or name in ("auto", "none", "required"):
        raise refused("tool_choice", "a tool of allowed_tools needs the type function, and the name of one")
    return name


def chosen(choice: str, functions: Sequence[Function], param: str = "tool_choice") -> str:
    """``choice``, where it can be followed. Raises ApiError where there is no such function."""
    names = [function["name"] for function in functions]
    if choice not in ("auto", "none", *names) and not (choice == "required" and names):
        raise refused(param, f"{choice!r} cannot be called; tools has {', '.join(names) or 'nothing'}")
    return choice


def thinking_variables(effort: str | None, verbosity: str | None) -> dict[str, Any]:
    """What the chat template gets of OpenAI's ``reasoning_effort`` and ``verbosity``."""
    given = {"reasoning_effort": effort, "verbosity": verbosity}
    found: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return found if effort is None else {**found, "enable_thinking": effort not in ("none", "minimal")}


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
