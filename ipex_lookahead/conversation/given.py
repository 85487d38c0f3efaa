"""Messages, tools and constraints as callers in Python give them, checked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ipex_lookahead.conversation.calls.base import Function
from ipex_lookahead.conversation.image_parts import Picture
from ipex_lookahead.conversation.pictures import image_file, of_data_url
from ipex_lookahead.conversation.request import Conversation, Form, choice_of, function_of
from ipex_lookahead.conversation.schema_numbers import schemas
from ipex_lookahead.errors import InputError
from ipex_lookahead.files.safe_json import has_surrogate
from ipex_lookahead.runtime.checks import integer

_ROLES = ("system", "user", "assistant", "tool")


def check_text(text: str) -> None:
    """Raise InputError for a text that is not Unicode."""
    if has_surrogate(text):
        raise InputError("the text holds a lone surrogate, which is not a character; it must be valid Unicode")


def form_of(schema: Any, grammar: str | None) -> Form | None:
    """Return the constraint of an answer, or None. Raises InputError for two, or an invalid one."""
    if schema is None and grammar is None:
        return None
    if schema is not None and grammar is not None:
        raise InputError("schema and grammar exclude each other; leave one of them out")
    if grammar is not None:
        if not isinstance(grammar, str) or not grammar.strip():
            raise InputError(argument="grammar", got=grammar, allowed="a grammar as text, in GBNF or Lark")
        return Form("grammar", grammar=grammar)
    if isinstance(schema, type) and hasattr(schema, "model_json_schema"):
        found = schema.model_json_schema()
        for node in schemas(found):  # pydantic ignores other keys, so that the model need not write them
            if isinstance(node, dict) and "properties" in node:
                node.setdefault("additionalProperties", False)
        return Form("schema", found)
    if schema is not True and not isinstance(schema, dict):
        raise InputError(argument="schema", got=schema, allowed="a JSON schema as a dict, or a pydantic model class")
    return Form("schema", schema)


def conversation_of(prompt: Any, extras: Mapping[str, Any], form: Form | None) -> Conversation:
    """Return the checked conversation. Raises InputError, which names the message or tool."""
    system, think = extras.get("system"), extras.get("think")
    given = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not isinstance(given, Sequence) or not given or not all(isinstance(one, Mapping) for one in given):
        said = 'chat takes a text, or a list of messages {"role": ..., "content": ...}'
        several = isinstance(given, Sequence) and given and all(isinstance(one, str) for one in given)
        raise InputError(said, hint="complete_batch answers several texts" if several else 'llm.chat("Hello")')
    files: list[Picture] = []
    messages = [_message(one, f"messages[{at}]", files) for at, one in enumerate(given)]
    if images := extras.get("images"):
        files += _put_images(messages, images)
    if system is not None:
        if messages[0]["role"] == "system":
            raise InputError("both system and a system message are given; leave one of them out")
        messages.insert(0, {"role": "system", "content": system})
    if messages[-1]["role"] not in ("user", "tool"):
        raise InputError(f"the last message has the role {messages[-1]['role']!r}; it must be 'user' or 'tool'")
    functions: list[Function] = []
    for at, tool in enumerate(extras.get("tools") or ()):
        inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(inner, Mapping):
            said = f'tools[{at}] must be {{"type": "function", "function": {{"name": ..., ...}}}}'
            hint = "describe the function and its parameters as a dict, as for OpenAI's API" if callable(tool) else ""
            raise InputError(f"{said}, got {type(tool).__name__}", hint=hint)
        functions.append(function_of(inner, f"tools[{at}]", "parameters", functions))
    choice = extras.get("tool_choice", "auto")
    if functions or choice not in ("auto", "none"):
        choice = choice_of(choice, functions)
    variables = {} if think is None else {"enable_thinking": bool(think)}
    budget, sentence = extras.get("think_budget"), extras.get("think_sentence")
    if budget is not None:
        integer("think_budget", budget, 0)
    if sentence is not None:
        if not isinstance(sentence, str):
            raise InputError(argument="think_sentence", got=sentence, allowed="a text")
        check_text(sentence)
    return Conversation(
        messages,
        functions,
        choice,
        form=form,
        variables=variables,
        think_budget=budget,
        think_sentence=sentence,
        images=files,
    )


def _put_images(messages: list[dict[str, Any]], images: Any) -> list[Picture]:
    """Put images before the text of the last message, and return them."""
    if isinstance(images, str | bytes) or not isinstance(images, Sequence):
        raise InputError(argument="images", got=type(images).__name__, allowed="a list of paths or bytes")
    last = messages[-1]
    if last["role"] != "user":
        raise InputError(f"images belong to a user's message; the last one is of the role {last['role']!r}")
    content = last["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if any(part["type"] == "image" for part in parts):
        raise InputError("the last message has images of its own; put those of images= there as well")
    last["content"] = [*({"type": "image"} for _ in images), *parts]
    places = [f"images[{at}]" for at in range(len(images))]
    return [Picture(image_file(one, place), place=place) for one, place in zip(images, places, strict=True)]


def _parts(content: Sequence[Any], place: str, files: list[Picture]) -> list[dict[str, Any]] | None:
    """Return text and image parts as chat templates take them, or None for others; add the files of images."""
    found: list[dict[str, Any]] = []
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text":
            text = str(part.get("text", ""))
            check_text(text)
            found.append({"type": "text", "text": text})
        elif kind in ("image", "image_url"):
            given, where = part.get(kind), f"{place}.content[{at}].{kind}"
            given = given.get("url") if isinstance(given, Mapping) else given
            file = of_data_url(given, where) if kind == "image_url" else image_file(given, where)
            files.append(Picture(file, place=where))
            found.append({"type": "image"})
        else:
            return None
    return found


def _message(message: Mapping[str, Any], place: str, files: list[Picture]) -> dict[str, Any]:
    """Return a message as chat templates take it; add its image files. Raises InputError, which names the place."""
    role, content = message.get("role"), message.get("content")
    role = "system" if role == "developer" else role
    if role not in _ROLES:
        raise InputError(f"{place}: role is {role!r}; it must be one of {', '.join(_ROLES)}")
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text", "")) for part in content)
    if content is None and role == "assistant":
        content = ""
    if role == "user" and isinstance(content, list) and (parts := _parts(content, place, files)) is not None:
        return {"role": role, "content": parts, **({"name": name} if (name := message.get("name")) else {})}
    if not isinstance(content, str):
        raise InputError(
            f"{place}: content is {_kind_of(content)}; it must be a text or a list of text parts; users may add images"
        )
    check_text(content)
    found: dict[str, Any] = {"role": role, "content": str.__str__(content)}
    found |= {name: message[name] for name in ("name", "tool_call_id", "reasoning_content") if message.get(name)}
    if calls := message.get("tool_calls"):
        found["tool_calls"] = [_call(call, f"{place}.tool_calls[{at}]") for at, call in enumerate(calls)]
    return found


def _kind_of(content: Any) -> str:
    """Return the first part of a content that is not a text part, or its type, for a message."""
    parts = content if isinstance(content, list) else ()
    kinds = [part.get("type") if isinstance(part, Mapping) else type(part).__name__ for part in parts]
    other = next((kind for kind in kinds if kind != "text"), None)
    return type(content).__name__ if other is None else f"a list with a part of the type {other!r}"


def _call(call: Any, place: str) -> dict[str, Any]:
    """Return an earlier call with its arguments as JSON text. Raises InputError, which names the place."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InputError(f'{place} must be {{"id", "type": "function", "function": {{"name", "arguments"}}}}')
    arguments = function.get("arguments") or {}
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    named = {"name": function["name"], "arguments": written}
    return {"id": call.get("id"), "type": "function", "function": named}
