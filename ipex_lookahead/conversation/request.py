"""Messages and tools -> the prompt's tokens, and what the answer must keep to.

The file has more than 500 lines because tools, schemas, images and thoughts all change the one rendered prompt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ipex_lookahead.conversation.calls.base import DECODER, Function, Spell, Style, json_of
from ipex_lookahead.conversation.calls.decided import decided
from ipex_lookahead.conversation.grammar import Grammar, Grammars, inlined
from ipex_lookahead.conversation.image_parts import Picture, behind_results, check_spelled
from ipex_lookahead.conversation.model import ChatModel
from ipex_lookahead.conversation.pictures import Expansion
from ipex_lookahead.conversation.reader import Reader
from ipex_lookahead.conversation.references import local
from ipex_lookahead.conversation.thinking import TAIL, Marks, Mode, budget_of, marks_of, mode_of, rule
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
from ipex_lookahead.engines.images import PromptImage
from ipex_lookahead.errors import InputError, ModelFormatError
from ipex_lookahead.runtime.request import Request
from ipex_lookahead.tokenization.content import Own, Woven
from ipex_lookahead.tokenization.prompts import build_prompt

Message = dict[str, Any]
"""``{"role": "system" | "user" | "assistant" | "tool", "content": text, "tool_calls"?: [...], ...}``.

The content of a user's message with images is a list of ``{"type": "text", "text": ...}`` and ``{"type": "image"}``.
"""


@dataclass(frozen=True, slots=True)
class Form:
    """What an answer must look like; one of the three.

    Attributes:
        param: the field with the constraint.
        schema: a JSON schema.
        lark: a grammar in llguidance's dialect of Lark, with a rule ``start``.
        grammar: one that the client has written, in that dialect or in llama.cpp's GBNF.
    """

    param: str
    schema: Any = None
    lark: str = ""
    grammar: str = ""


@dataclass(slots=True)
class Conversation:
    """A conversation that is to go on, in the words of no API.

    Attributes:
        messages: see :data:`Message`.
        functions: tools that the prompt lists, and that may be called.
        choice: "auto", "none", "required", or the name of the function that is to be called.
        one_call: at most one call.
        form: what the answer must look like; None for any text.
        variables: further ones of the chat template.
        begun: the answer's beginning, which the model goes on from.
        allowed: names of those functions that may be called, of all that the model knows of; None for all.
        answered: the answer's first tokens, where ``begun`` is empty: the answer is exactly the rest.
        echo: whether the reported answer includes its beginning.
        think_budget: most tokens of thought, -1 for no limit; None: by the effort in ``variables``, or the model's own.
        think_sentence: text that ends a thought at its budget; None: the model's own.
        loaded: tools that may be called and that a message describes, so that the start of the prompt stays as it was.
        images: the images, or the contents of their files, in the order of the parts ``{"type": "image"}`` of messages.
    """

    messages: list[Message]
    functions: Sequence[Function] = ()
    choice: str = "auto"
    one_call: bool = False
    form: Form | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    begun: str = ""
    allowed: Collection[str] | None = None
    answered: Sequence[int] = ()
    echo: bool = False
    think_budget: int | None = None
    think_sentence: str | None = None
    loaded: Sequence[Function] = ()
    images: Sequence[bytes | Picture] = ()

    @property
    def open(self) -> Sequence[Function]:
        """The functions that may be called."""
        every = (*self.functions, *self.loaded)
        return [one for one in every if self.allowed is None or one["name"] in self.allowed]

    @property
    def may_call(self) -> bool:
        """Whether the answer may hold calls."""
        return bool(self.functions or self.loaded) and self.choice != "none"


def request_for(model: ChatModel, conversation: Conversation, *, counting: bool = False) -> Request:
    """Render and tokenize: returns a request without sampling parameters and without a compiled grammar.

    Takes tens of milliseconds, and longer with images: for a thread, and once for all answers of a conversation.

    Args:
        model: the model.
        conversation: the conversation.
        counting: only the prompt's length is needed: of the images' files the headers are read, and the request has no
            images.

    Raises InputError where the template refuses the messages.
    """
    template = model.template
    ways = ways_of(template)
    style = ways.style
    # A prompt has all functions, whatever the choice, so that the prefix cache finds the conversation again.
    given = [_described(one) for one in conversation.functions]
    images: Sequence[PromptImage] = ()
    expansion = None
    if conversation.images:
        _check_images(model, conversation, ways)
        expansion = Expansion(model, conversation.images)
    if not template:
        ids = _without_template(model, conversation)
    elif expansion is None:
        ids = _rendered(model, conversation, ways, given, None)
    else:
        ids = _with_places(model, conversation, ways, given, expansion.text)
        ids, images = expansion.prompt(ids, counting=counting)
    made = thinking_request(
        model,
        ids,
        conversation.begun,
        budget=conversation.think_budget,
        effort=conversation.variables.get("reasoning_effort"),
        sentence=conversation.think_sentence,
    )
    marks, thinking = marks_of(template), made.reader.mode
    written = [*style.markers, *style.inner, style.end] if conversation.may_call else []
    markers = {**_markers(model, written), **(made.markers or {})}
    constraint = None
    if conversation.form is not None or conversation.may_call:
        constraint = partial(_grammar, conversation, style, markers, thinking, marks)
    parser = _parser(conversation, style) if conversation.may_call else None
    return replace(
        made,
        prompt=[*ids, *conversation.answered],
        answered=len(conversation.answered),
        echo=conversation.echo,
        reader=Reader(thinking, parser, marks),
        markers=markers,
        constraint=constraint,
        images=images,
    )


def _check_images(model: ChatModel, conversation: Conversation, ways: Ways) -> None:
    """Raise InputError if the model takes no images, or its template cannot write this conversation with images."""
    model.check_images()
    calls = conversation.may_call or any(m["role"] == "tool" or m.get("tool_calls") for m in conversation.messages)
    if calls and not (ways.known and ways.lists and ways.repeats):
        raise InputError("the model's chat template has no tools, and images cannot be combined with tools in words")


def _with_places(
    model: ChatModel,
    conversation: Conversation,
    ways: Ways,
    given: Sequence[Function],
    rewrite: Callable[[str], str],
) -> list[int]:
    """The prompt with a place for each image; those of results are moved if the template does not write them."""
    check_spelled(model, [conversation.messages, conversation.begun])
    if any(m["role"] == "tool" and isinstance(m["content"], list) for m in conversation.messages):
        if not ways.gathers:
            with suppress(InputError, ModelFormatError):
                return _rendered(model, conversation, ways, given, rewrite)
        conversation = replace(conversation, messages=behind_results(conversation.messages))
    return _rendered(model, conversation, ways, given, rewrite)


def _parser(conversation: Conversation, style: Style) -> Parser:
    """The parser of an answer that may call."""
    forced = conversation.choice != "auto"
    certain = forced or (conversation.form is None and style.guarded)
    return Parser(style, conversation.open, one=conversation.one_call, certain=certain, only=forced)


def thinking_request(
    model: ChatModel,
    ids: Sequence[int],
    begun: str = "",
    *,
    budget: int | None = None,
    effort: Any = None,
    sentence: str | None = None,
) -> Request:
    """Return the request of a prompt by the chat template, with what is known of the thoughts in its answer.

    Args:
        model: the model.
        ids: the prompt.
        begun: text at the end of the prompt that begins the answer.
        budget: most tokens of thought; see :func:`budget_of`, also for ``effort``.
        effort: reasoning effort.
        sentence: text that ends a thought at its budget; None: the model's.
    """
    marks = marks_of(model.template)
    thinking = mode_of(marks, model.tokenizer.decode(list(ids[-TAIL - len(begun.encode()) :])), begun)
    request = Request(ids, reader=Reader(thinking, None, marks))
    if marks is not None and (thinking is not Mode.NONE or marks.again):
        request.markers = _markers(model, marks.spelled)
        request.think_budget = budget_of(model.template, budget, effort, model.think_budget)
        if request.think_budget is not None:
            request.think_ending = _ending(model, marks, model.think_sentence if sentence is None else sentence)
    return request


def _ending(model: ChatModel, marks: Marks, sentence: str) -> list[int]:
    """The tokens that end a thought: the sentence, and the mark on a line of its own."""
    said = model.tokenizer.encode(f"{sentence}\n", add_special_tokens=False)
    end = model.special_tokens.get(marks.end)
    return [*said, *(model.tokenizer.encode(marks.end, add_special_tokens=False) if end is None else (end,))]


def _rendered(
    model: ChatModel,
    conversation: Conversation,
    ways: Ways,
    given: Sequence[Function],
    rewrite: Callable[[str], str] | None,
) -> list[int]:
    """The prompt by the chat template, and in words where that knows nothing of tools."""
    ids_of = partial(_encoded, model, conversation, rewrite)
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


def _encoded(
    model: ChatModel,
    conversation: Conversation,
    rewrite: Callable[[str], str] | None,
    messages: Sequence[Message],
    tools: Any,
) -> list[int]:
    variables = {**conversation.variables, "add_generation_prompt": True, "tools": tools}
    begun, marks = conversation.begun, marks_of(model.template)
    if begun and marks is not None and marks.said:
        begun = Woven([Own("".join(marks.said)), begun])
    return model.tokenizer.prompt_ids(messages, variables, begun, rewrite)


def _without_template(model: ChatModel, conversation: Conversation) -> list[int]:
    """Llama-2's format, or plain text, for one question: a model without a template knows no turns."""
    roles = [message["role"] for message in conversation.messages]
    if roles not in (["user"], ["system", "user"]) or conversation.may_call:
        raise InputError(
            "this model has no chat template; only one user message, after at most one system message, and no tools,"
            " can be passed to it",
            hint="send the text itself as a prompt: /v1/completions, or LLM.generate in Python",
        )
    system = conversation.messages[0]["content"] if len(roles) == 2 else None
    ids = build_prompt(model.tokenizer, model.model.config, conversation.messages[-1]["content"], system)
    return ids + (
        model.tokenizer.encode_content(conversation.begun, add_special_tokens=False) if conversation.begun else []
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
        except (ValueError, RecursionError):  # such as those of a call that the end of an answer cut
            arguments = decided(function["arguments"]) or function["arguments"]
        changed.append({**call, "function": {**function, "arguments": arguments}})
    return {**message, "tool_calls": changed}


def _check_arguments(messages: Sequence[Message]) -> None:
    """Raise InputError for an earlier call with arguments other than an object, which most templates cannot render."""
    for message in messages:
        for call in message.get("tool_calls") or ():
            name, given = call["function"]["name"], call["function"].get("arguments") or "{}"
            if not isinstance(json_of(given), dict):
                param = "tool_calls.function.arguments"
                said = f"{param}: the earlier call of {name!r} has {given[:60]!r}; this model needs a JSON object"
                raise InputError(said, argument=param)


def _with_texts(message: Message) -> Message:
    """Arguments of earlier calls as JSON text."""

    def text_of(function: Mapping[str, Any]) -> str:
        arguments = function["arguments"]
        return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)

    calls = message.get("tool_calls") or ()
    changed = [{**one, "function": {**one["function"], "arguments": text_of(one["function"])}} for one in calls]
    return {**message, "tool_calls": changed} if changed else message


def _markers(model: ChatModel, spelled: Sequence[str]) -> dict[int, str]:
    """Ids of the special tokens that a call or a thought is written with."""
    return {model.special_tokens[text]: text for text in spelled if text in model.special_tokens}


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

    # Where each part of an answer is a message: what comes before a call, and before text. NONE: it is within text.
    within = thinking is Mode.NONE
    said, turn = (" ".join(map(spell, parts)) + " " if parts else "" for parts in _heads(marks, within=within))
    if not conversation.may_call and conversation.form is not None:
        return grammar_of(grammars, conversation.form, before + said, thought)
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
            return grammars.lark(f"start: {before}{turn}calls\n{params}{thought}")
        start = f"start: {before}({turn}calls | {said}answer)\n{params}{thought}{answer}"
        return grammars.lark(start, other, given=bool(form and form.grammar))
    except InputError as error:
        for one in wanted:
            _check(grammars, style, spell, one)
        if answer and form is not None:
            grammar_of(grammars, form)
        raise _of("tools", "", error) from None


def _heads(marks: Marks | None, *, within: bool) -> tuple[Sequence[str], Sequence[str]]:
    """Return the text before what is said, and that before a call, in parts; ``within``: behind what was said."""
    if marks is None:
        return (), ()
    return ((), marks.turn) if within else (marks.said, ())


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
    return ("answer: @form\n", other) if other else (f"answer: %json {inlined(form.schema, in_call=False)}\n", "")


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


def function_of(
    tool: Mapping[str, Any],
    place: str,
    schema_field: str,
    others: Sequence[Function],
    check: Callable[[Any, str], None] = lambda schema, param: None,
) -> Function:
    """Return a checked function with ``param``, the place of its schema in the caller's request.

    Args:
        tool: ``{"name", "description"?, "parameters"?, "strict"?}``.
        place: name of the tool in errors, such as "tools.0".
        schema_field: the caller's name of ``parameters`` within the tool.
        others: the functions before it.
        check: called with the schema and its place, before the schema is read.

    Raises InputError, which names the place.
    """
    name, parameters, param = tool.get("name"), tool.get("parameters"), f"{place}.{schema_field}"
    if not isinstance(name, str) or not 1 <= len(name) <= 128 or not set(name) <= _NAME:
        said = f"{place}: its name is {name!r}; it must be 1 to 128 letters, digits, _, - or ."
        raise InputError(said, argument=place)
    if parameters is not None and not isinstance(parameters, dict):
        raise InputError(f"{param}: tool {name!r}: it must be a JSON schema, an object", argument=param)
    check(parameters, param)
    found = {key: tool[key] for key in ("name", "description", "parameters") if tool.get(key) is not None}
    if (pointing := local(parameters)) is not parameters:
        found["local"] = pointing
    if tool.get("strict") is True:
        found["strict"] = True
    if any(one["name"] == name for one in others):
        raise InputError(f"{place}: there are two functions {name!r}; names must differ", argument=place)
    return {**found, "param": param}


_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


def choice_of(choice: str, functions: Sequence[Function], param: str = "tool_choice") -> str:
    """Return ``choice`` if it can be followed. Raises InputError if there is no such function."""
    names = [function["name"] for function in functions]
    if choice not in ("auto", "none", *names) and not (choice == "required" and names):
        said = f"{param}: {choice!r} cannot be called; tools has {', '.join(names) or 'nothing'}"
        allowed = ", ".join(map(repr, ("auto", "none", "required", *names)))
        hint = f"choose one of {allowed}" if names else "choose 'auto' or 'none', or add tools"
        raise InputError(said, argument=param, hint=hint)
    return choice


def _described(function: Function) -> Function:
    """A function as chat templates are given it."""
    return {key: value for key, value in function.items() if key in ("name", "description", "parameters")}
