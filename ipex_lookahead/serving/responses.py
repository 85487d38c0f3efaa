"""``/v1/responses``: OpenAI's newer API, where a request may continue an earlier response."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field

from ipex_lookahead.conversation.answer import LOOPS, Finish
from ipex_lookahead.conversation.calls.base import Call, as_json
from ipex_lookahead.conversation.reader import Part
from ipex_lookahead.conversation.request import Conversation, Form, Message
from ipex_lookahead.conversation.thinking import Thought
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.serving.answers import Answers
from ipex_lookahead.serving.body import JsonRoute
from ipex_lookahead.serving.conversation import (
    counted,
    decided,
    fitted,
    functions_of,
    prepared,
    thinking_variables,
)
from ipex_lookahead.serving.failures import ApiError, refused
from ipex_lookahead.serving.fields import Body, no_effect, only, refused_unless, required, supported
from ipex_lookahead.serving.handling import answer, checked, identity_of, memory_of, now
from ipex_lookahead.serving.limits import MOST_MESSAGES, Limits
from ipex_lookahead.serving.pictures import Pictures, content_of
from ipex_lookahead.serving.remembered import Item, Remembered
from ipex_lookahead.serving.sampling import EFFORT, LOOKAHEAD, MINUS_ONE, SALT, VERBOSITY, Most, Sampler, drafting
from ipex_lookahead.serving.server import Server
from ipex_lookahead.serving.sse import comments, event
from ipex_lookahead.serving.structured import schema_form
from ipex_lookahead.serving.toolbox import CUSTOM_INPUT, CustomInput, Toolbox
from ipex_lookahead.serving.usage import cached, timings
from ipex_lookahead.serving.writers import BlockWriter

Keep = Callable[[Mapping[str, Any]], None]
"""Remembers a response."""

router = APIRouter(route_class=JsonRoute)
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_CUTS = {"length": "max_output_tokens", LOOPS: LOOPS}
"""Reasons for which a response is incomplete."""
_DROPPED = ("reasoning", "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call")
"""Items that are not given to the model: templates have no place for earlier thoughts and for hosted tools."""


class TextConfig(Body):
    """``text``."""

    format: dict[str, Any] | None = supported("text, json_object or json_schema")
    verbosity: str | None = supported(VERBOSITY)


class Reasoning(Body):
    """``reasoning``."""

    effort: str | None = supported(EFFORT)
    summary: Any = no_effect("the full reasoning is returned")
    generate_summary: Any = no_effect("the full reasoning is returned")
    context: Any = no_effect("earlier reasoning is not given to the model")
    mode: Any = no_effect("only one value exists")


class ResponsesRequest(Sampler):
    """A request for a response."""

    model: str | None = supported("a name of `/v1/models`; default: the served model; 404 for other names")
    input: str | Annotated[list[dict[str, Any]], Field(max_length=MOST_MESSAGES)] = required(
        "text, or a list of message, function_call, function_call_output and item_reference items; messages of the user"
        " and outputs may have `input_image` parts: a `data:` URL, or one of an allowed host; `detail`: low, high, auto"
    )
    instructions: str | None = supported("the system prompt")
    max_output_tokens: Most | None = supported(
        f"maximum number of tokens; default: the model's own, else up to the end of the context; {MINUS_ONE}"
    )
    stream: bool | None = supported("server-sent events")
    tools: list[dict[str, Any]] | None = supported(
        "functions for the chat template, also in a `namespace`; `custom` tools become functions with one text;"
        " other types are left out, and `x-ignored-fields` names them"
    )
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] | None = supported(
        "auto, none, required or a function; the last two are enforced; `allowed_tools` restricts the functions"
    )
    parallel_tool_calls: bool | None = supported("false: the response ends after its first call")
    text: TextConfig | None = supported("`format` (text, json_object or json_schema) and `verbosity`")
    reasoning: Reasoning | None = supported("`effort`: as `reasoning_effort` of `/v1/chat/completions`")
    lookahead: int | Literal["auto"] | None = supported(LOOKAHEAD)
    metadata: Any = no_effect("requests are not stored")
    store: bool | None = supported("false: later requests cannot refer to this response")
    user: Any = no_effect("users are not recorded")
    service_tier: Any = no_effect("only one value exists")
    cache_salt: str | None = supported(SALT, min_length=1, max_length=1024)
    prompt_cache_key: Any = no_effect("the cache is keyed by tokens and API key")
    prompt_cache_retention: Any = no_effect("the least recently used prompts are evicted first")
    safety_identifier: Any = no_effect("users are not recorded")
    prompt_cache_options: Any = no_effect("all prompts are cached the same way")
    context_management: Any = no_effect("conversations are never shortened")
    stream_options: Any = no_effect("streams are not padded")
    include: Any = refused_unless("no additional output is available", [], ["reasoning.encrypted_content"])
    previous_response_id: str | None = supported(
        "continue the conversation of this response; stored in memory per API key and salt"
    )
    conversation: Any = refused_unless("conversations are not stored; send the whole conversation as `input`")
    background: Any = refused_unless("background responses are not supported", False)
    truncation: Literal["auto", "disabled"] | None = supported(
        "auto: drop the oldest messages if the conversation exceeds the context"
    )
    top_logprobs: Any = refused_unless("use `/v1/chat/completions`", 0)
    max_tool_calls: Any = refused_unless("the server calls no tools itself")
    prompt: Any = refused_unless("prompts are not stored")
    moderation: Any = refused_unless("moderation is not supported")

    def items(self, remembered: Remembered, owner: Mapping[str, str]) -> list[Item]:
        """The whole conversation: what ``previous_response_id`` names, and the input. Raises ApiError."""
        found: list[Item] = []
        if self.previous_response_id is not None:
            before = remembered.conversation(number=self.previous_response_id, **owner)
            if before is None:
                said = "this response is no longer stored; send the whole conversation as input"
                raise refused("previous_response_id", said)
            found += before
        given = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        parsed: dict[str, Item | None] = {}  # one may be named many times
        for at, item in enumerate(given):
            if item.get("type") == "item_reference" or item.keys() == {"id"}:
                number = str(item.get("id"))
                if number not in parsed:
                    parsed[number] = remembered.item(number=number, **owner)
                named = parsed[number]
                if named is None:
                    raise refused(f"input.{at}.id", "this item is no longer stored; send the item itself")
                found.append(named)
            else:
                found.append(item)
        if len(found) > MOST_MESSAGES:
            raise refused("input", f"the conversation has {len(found):,} items; at most {MOST_MESSAGES:,} are allowed")
        return found

    def to_conversation(self, limits: Limits, items: Sequence[Item], toolbox: Toolbox) -> Conversation:
        """The conversation, checked. Raises ApiError."""
        messages: list[Message] = []
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        pictures = Pictures(limits)
        before = len(items) - (1 if isinstance(self.input, str) else len(self.input))
        for at, item in enumerate(items):
            _add(messages, item, f"input.{at - before}", toolbox, pictures)
        if not any(message["role"] != "system" for message in messages):
            raise refused("input", "there is nothing to respond to; give a text, or a message")
        functions = functions_of(toolbox.functions, limits, "parameters", toolbox.places)
        choice, allowed = decided(toolbox.choice(self.tool_choice), functions, nested=False)
        effort, verbosity = (self.reasoning or Reasoning()).effort, (self.text or TextConfig()).verbosity
        variables, one_call = thinking_variables(effort, verbosity), self.parallel_tool_calls is False
        form, images = self._form(limits), pictures.found
        return Conversation(messages, functions, choice, one_call, form, variables, allowed=allowed, images=images)

    def _form(self, limits: Limits) -> Form | None:
        wanted = (self.text.format if self.text else None) or {"type": "text"}
        only(wanted, ("type", "name", "schema", "strict", "description"), "text.format.")
        kind = wanted.get("type")
        if kind == "text":
            return None
        if kind == "json_object":
            return Form("text.format", {"type": "object"})
        if kind != "json_schema" or "schema" not in wanted:
            raise refused("text.format", "it must be text, json_object, or json_schema with a schema")
        return schema_form(wanted["schema"], limits, "text.format.schema")


def _add(messages: list[Message], item: Mapping[str, Any], param: str, toolbox: Toolbox, pictures: Pictures) -> None:
    """An item of the input, behind the messages so far; calls that follow each other are one message's."""
    kind = item.get("type", "message")
    if kind == "message":
        role = _ROLES.get(str(item.get("role")))
        if role is None:
            raise refused(f"{param}.role", f"{item.get('role')!r} is unknown; it must be one of {', '.join(_ROLES)}")
        content = content_of(item.get("content"), f"{param}.content", pictures if role == "user" else None)
        messages.append({"role": role, "content": content})
    elif kind in ("function_call", "custom_tool_call"):
        field, default = ("arguments", "{}") if kind == "function_call" else ("input", "")
        given = item.get(field, default)
        if not isinstance(item.get("name"), str) or not isinstance(given, str):
            holds = " that holds JSON" if kind == "function_call" else ""
            raise refused(param, f"{kind} needs a name, and {field} as a string{holds}")
        arguments = given if kind == "function_call" else as_json({CUSTOM_INPUT: given})
        name = toolbox.name_of(item["name"], item.get("namespace"))
        call = {"id": item.get("call_id"), "type": "function", "function": {"name": name, "arguments": arguments}}
        if messages and messages[-1]["role"] == "assistant":
            messages[-1].setdefault("tool_calls", []).append(call)
        else:
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
    elif kind in ("function_call_output", "custom_tool_call_output"):
        content = content_of(item.get("output"), f"{param}.output", pictures)
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
    elif kind not in _DROPPED:
        raise refused(f"{param}.type", f"{kind!r} is not supported here")


@router.post("/v1/responses")
@router.post("/responses", include_in_schema=False)
async def responses(request: Request, body: ResponsesRequest) -> Response:
    """Respond to a conversation."""
    server, served = checked(request, body, body.model)
    owner = memory_of(request, body.cache_salt)
    items, toolbox = body.items(server.remembered, owner), Toolbox(body.tools or ())
    request.scope["ignored"] += toolbox.left_out
    conversation = body.to_conversation(server.limits, items, toolbox)
    body.check_end(constrained=conversation.form is not None or conversation.may_call)
    options = {**drafting(body.lookahead), **body.processors(served, server.limits)}
    options |= identity_of(request, body.cache_salt)
    build = partial(fitted, requested=body.max_output_tokens) if body.truncation == "auto" else None
    made = await prepared(request, conversation, build)
    params = served.model.resolved(body.params(served, len(made.prompt), body.max_output_tokens))
    answers = server.start([replace(made, params=params, **options)])

    def keep(response: Mapping[str, Any]) -> None:
        if body.store is not False:
            fields = {name: value for name, value in response.items() if name != "output"}
            key, salt, number = owner["key"], owner["salt"], str(response["id"])
            server.remembered.keep(key, salt, number, items, response["output"], fields)

    writer = _Writer(server, body, params, answers, toolbox, keep)
    return await answer(request, server, answers, writer, stream=bool(body.stream))


@router.post("/v1/responses/input_tokens")
@router.post("/responses/input_tokens", include_in_schema=False)
async def input_tokens(request: Request, body: ResponsesRequest) -> dict[str, Any]:
    """How many tokens the prompt of a response has."""
    server, _ = checked(request, body, body.model)
    items, toolbox = body.items(server.remembered, memory_of(request, body.cache_salt)), Toolbox(body.tools or ())
    request.scope["ignored"] += toolbox.left_out
    prompt = await counted(request, body.to_conversation(server.limits, items, toolbox))
    return {"object": "response.input_tokens", "input_tokens": len(prompt)}


class _Writer(BlockWriter):
    """One response in OpenAI's shapes."""

    def __init__(
        self,
        server: Server,
        body: ResponsesRequest,
        params: SamplingParams,
        answers: Answers,
        toolbox: Toolbox,
        keep: Keep,
    ) -> None:
        super().__init__(answers)
        self._toolbox = toolbox
        self._keep = keep
        self._output: list[dict[str, Any]] = []
        self._texts: list[str] = []
        self._input = CustomInput()
        self._number = 0
        self._id = "resp_" + secrets.token_hex(12)
        self._head = {
            "id": self._id,
            "object": "response",
            "created_at": now(),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": body.model or server.settings.names[0],
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "store": body.store is not False,
            "system_fingerprint": server.fingerprint_of(answers.requests[0].adapter),
            "temperature": params.temperature,
            "text": {"format": (body.text.format if body.text else None) or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": params.top_p,
            "truncation": body.truncation or "disabled",
            "usage": None,
            "metadata": body.metadata if isinstance(body.metadata, dict) else {},
        }

    async def whole(self) -> dict[str, Any]:
        """All in one."""
        (one,) = await self._answers.whole()
        return self._ended([self._item(part) for part in one.parts or [""]], one.finish)

    def _ended(self, output: list[dict[str, Any]], finish: Finish) -> dict[str, Any]:
        cut, stats = finish.reason in _CUTS, finish.stats
        ended = {
            **self._head,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": _CUTS[finish.reason]} if cut else None,
            "output": output,
            "usage": {
                "input_tokens": stats.prompt_tokens,
                "input_tokens_details": {"cached_tokens": cached(stats)},
                "output_tokens": stats.tokens,
                "output_tokens_details": {"reasoning_tokens": finish.thought},
                "total_tokens": stats.prompt_tokens + stats.tokens,
            },
            "timings": timings(finish),
        }
        self._keep(ended)
        return ended

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield server-sent events."""
        yield self._event("response.created", response=self._head)
        yield self._event("response.in_progress", response=self._head)
        try:
            async for deltas in self._answers:
                for part in comments(deltas):
                    yield part
                written = False
                for delta in deltas:
                    for part in self._blocks(delta):
                        yield part
                        written = True
                if self._pulse.due(written=written):  # Codex counts events, not comments
                    yield self._event("response.in_progress", response=self._head)
        except ApiError as error:
            failure = {"code": "server_error", "message": error.message}
            yield self._event("response.failed", response={**self._head, "status": "failed", "error": failure})

    def _event(self, kind: str, **data: Any) -> bytes:
        self._number += 1
        return event({"type": kind, "sequence_number": self._number - 1, **data}, kind)

    def _item(self, part: Part) -> dict[str, Any]:
        """A message, a thought or a call as an item of the output."""
        item: dict[str, Any]
        status = "completed"
        if isinstance(part, Call):
            item, status = self._toolbox.item(part), "completed" if part.ends else "incomplete"
            item = {"id": ("fc_" if item["type"] == "function_call" else "ctc_") + secrets.token_hex(12), **item}
        elif isinstance(part, Thought):
            item = {"id": "rs_" + secrets.token_hex(12), "type": "reasoning", "summary": []}
            item["content"] = [_part(item, part)]
        else:
            item = {"id": "msg_" + secrets.token_hex(12), "type": "message", "role": "assistant"}
            item["content"] = [_part(item, part)]
        return {**item, "status": status}

    def _at(self) -> dict[str, Any]:
        """Return the position of the block that is being written."""
        return {"item_id": self._output[-1]["id"], "output_index": self._place}

    def _begin(self, kind: str) -> Iterator[bytes]:
        item = self._item("" if kind == "text" else Thought())
        self._output.append(item)
        self._texts = []
        begun = {**item, "status": "in_progress", "content": []}
        yield self._event("response.output_item.added", output_index=self._place, item=begun)
        yield self._event("response.content_part.added", **self._at(), content_index=0, part=_part(item, ""))

    def _add(self, kind: str, text: str) -> Iterator[bytes]:
        self._texts.append(text)
        more: dict[str, Any] = {"logprobs": []} if kind == "text" else {}
        name = f"response.{_kind(self._output[-1])}.delta"
        yield self._event(name, **self._at(), content_index=0, delta=text, **more)

    def _complete(self) -> Iterator[bytes]:
        item, text = self._output[-1], "".join(self._texts)
        item["content"] = [_part(item, text)]
        at = {**self._at(), "content_index": 0}
        more: dict[str, Any] = {"logprobs": []} if item["type"] == "message" else {}
        yield self._event(f"response.{_kind(item)}.done", **at, text=text, **more)
        yield self._event("response.content_part.done", **at, part=_part(item, text))
        yield self._event("response.output_item.done", output_index=self._place, item=item)

    def _begin_call(self, call: Call) -> Iterator[bytes]:
        item = self._item(Call(call.name, "", call.id, ends=False))
        self._output.append(item)
        self._input = CustomInput()
        begun = {**item, "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=self._place, item=begun)

    def _add_call(self, arguments: str) -> Iterator[bytes]:
        kind = "function_call_arguments"
        if self._output[-1]["type"] != "function_call":
            kind, arguments = "custom_tool_call_input", self._input.put(arguments)
        if arguments:
            yield self._event(f"response.{kind}.delta", **self._at(), delta=arguments)

    def _complete_call(self, call: Call) -> Iterator[bytes]:
        item = self._output[-1] = {**self._item(call), "id": self._output[-1]["id"]}
        if call.ends:  # otherwise a client would run the call
            kind, field = "custom_tool_call_input", "input"
            called = {}
            if item["type"] == "function_call":
                kind, field = "function_call_arguments", "arguments"
                called = {"name": item["name"]}
            yield self._event(f"response.{kind}.done", **self._at(), **called, **{field: item[field]})
        yield self._event("response.output_item.done", output_index=self._place, item=item)

    def _finish(self, finish: Finish) -> Iterator[bytes]:
        ended = self._ended(self._output or [self._item("")], finish)
        yield self._event(f"response.{ended['status']}", response=ended)


def _kind(item: Mapping[str, Any]) -> str:
    return "output_text" if item["type"] == "message" else "reasoning_text"


def _part(item: Mapping[str, Any], text: str) -> dict[str, Any]:
    more: dict[str, Any] = {"annotations": [], "logprobs": []} if item["type"] == "message" else {}
    return {"type": _kind(item), "text": text, **more}
