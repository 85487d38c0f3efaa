"""``/v1/messages``: Anthropic's chat, which coding agents speak."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from fastapi import APIRouter, Request, Response

from ipex_lookahead.conversation.answer import LOOPS, Finish
from ipex_lookahead.conversation.calls.base import Call, Function, as_json
from ipex_lookahead.conversation.calls.decided import decided
from ipex_lookahead.conversation.request import Conversation, Form, Message
from ipex_lookahead.conversation.thinking import Thought
from ipex_lookahead.serving.answers import Answers
from ipex_lookahead.serving.body import JsonRoute
from ipex_lookahead.serving.conversation import chosen, counted, functions_of, prepared, text_of
from ipex_lookahead.serving.failures import refused
from ipex_lookahead.serving.fields import Body, no_effect, only, refused_unless, required, supported
from ipex_lookahead.serving.handling import answer, checked, identity_of
from ipex_lookahead.serving.limits import MOST_MESSAGES, Limits
from ipex_lookahead.serving.pictures import Content, Pictures, joined, put_text
from ipex_lookahead.serving.sampling import LOOKAHEAD, MINUS_ONE, SALT, Most, Sampler, drafting, stops
from ipex_lookahead.serving.sse import comments, event
from ipex_lookahead.serving.structured import schema_form
from ipex_lookahead.serving.usage import cached, timings
from ipex_lookahead.serving.writers import BlockWriter

router = APIRouter(route_class=JsonRoute)
_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn", LOOPS: "end_turn"}
_TOOL = (
    "type", "name", "description", "input_schema", "strict", "cache_control", "eager_input_streaming", "defer_loading",
)  # fmt: skip
_BILLING = "x-anthropic-billing-header:"
"""How Claude Code's first block of ``system`` begins. It changes with every conversation, and is not for the model."""
_DROPPED = ("thinking", "redacted_thinking")
"""Parts of the assistant's earlier messages that are not fed back to the model."""


class Turn(Body):
    """One of ``messages``."""

    handed_back: ClassVar[bool] = True
    role: Literal["user", "assistant", "system"] = required("the speaker")
    content: str | list[dict[str, Any]] = required(
        "text, or blocks of type text, tool_use or tool_result (with `tool_reference`: the tool's definition is put"
        " there), and of type image, with a source of type base64, or url for allowed hosts, also in results; thinking"
        " blocks are dropped"
    )


class OutputConfig(Body):
    """``output_config``."""

    format: dict[str, Any] | None = supported("`json_schema`; enforced")
    effort: Any = no_effect("use `thinking`")


class CountRequest(Body):
    """The part of a messages request that the prompt is built from."""

    model: str | None = supported("a name of `/v1/models`; default: the served model; 404 for other names")
    messages: list[Turn] = required(
        "the conversation; a final assistant turn is continued", min_length=1, max_length=MOST_MESSAGES
    )
    system: str | list[dict[str, Any]] | None = supported(
        f"the system prompt; a first block or line that begins with `{_BILLING}` is dropped"
    )
    tools: list[dict[str, Any]] | None = supported(
        "functions for the chat template; listed in a system message if the template has no tools; those with"
        " `defer_loading` stay out of the prompt until a `tool_reference` names them"
    )
    tool_choice: dict[str, Any] | None = supported("auto, none, any or tool; the last two are enforced")
    thinking: dict[str, Any] | None = supported(
        "`enable_thinking` of the chat template: true for enabled and adaptive, else false; `budget_tokens`: the"
        " thought ends there"
    )
    mcp_servers: Any = refused_unless("the server makes no outgoing requests", [])
    output_format: dict[str, Any] | None = supported("`json_schema`; enforced")
    output_config: OutputConfig | None = supported("`format` as `output_format`; `effort` has no effect")
    cache_control: Any = no_effect("all prompts are cached the same way")
    context_management: Any = no_effect("conversations are never shortened")
    speed: Any = refused_unless("only one value exists", "standard")

    def to_conversation(self, limits: Limits) -> Conversation:
        """The conversation, checked. Raises ApiError."""
        tools = [_function(tool, at) for at, tool in enumerate(self.tools or ())]
        every = functions_of(tools, limits, "input_schema")
        deferred = {one["name"]: one for one, tool in zip(every, self.tools or (), strict=True) if _deferred(tool)}
        functions = [one for one in every if one["name"] not in deferred]
        loaded: dict[str, Function] = {}
        choice = self.tool_choice or {"type": "auto"}
        messages: list[Message] = []
        pictures = Pictures(limits)
        if system := _system(self.system):
            messages.append({"role": "system", "content": system})
        for at, turn in enumerate(self.messages):
            messages += _messages(turn, f"messages.{at}", deferred, loaded, pictures)
        open_ = [*functions, *loaded.values()]
        begun = ""
        if messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls"):
            begun = messages.pop()["content"]
        if not any(message["role"] != "system" for message in messages):
            raise refused("messages", "there is nothing to respond to; add a user message")
        return Conversation(
            messages,
            functions,
            chosen(_choice(choice), open_) if open_ or self.tool_choice is not None else "none",
            choice.get("disable_parallel_tool_use") is True,
            self._form(limits),
            self._variables(),
            begun=begun,
            think_budget=self._budget(),
            loaded=list(loaded.values()),
            images=pictures.found,
        )

    def _variables(self) -> dict[str, Any]:
        """The variables of the chat template about thinking."""
        if self.thinking is None:
            return {}
        kind = self.thinking.get("type")
        if kind not in ("enabled", "adaptive", "disabled"):
            raise refused("thinking", 'it must be {"type": "enabled", "adaptive" or "disabled"}')
        return {"enable_thinking": kind != "disabled"}

    def _budget(self) -> int | None:
        budget = (self.thinking or {}).get("budget_tokens")
        if budget is not None and (not isinstance(budget, int) or isinstance(budget, bool) or budget < 1):
            raise refused("thinking.budget_tokens", f"it is {str(budget)[:40]}; it must be a whole number from 1 on")
        return budget

    def _form(self, limits: Limits) -> Form | None:
        name, wanted = "output_format", self.output_format
        if self.output_config is not None and self.output_config.format is not None:
            name, wanted = "output_config.format", self.output_config.format
        if wanted is None:
            return None
        if wanted.get("type") != "json_schema" or "schema" not in wanted:
            raise refused(name, 'it must be {"type": "json_schema", "schema": ...}')
        return schema_form(wanted["schema"], limits, f"{name}.schema")


class MessagesRequest(CountRequest, Sampler):
    """A request for messages."""

    max_tokens: Most = required(f"maximum number of tokens; {MINUS_ONE}")
    stream: bool | None = supported("server-sent events")
    stop_sequences: list[str] | None = supported("up to 16 texts; the answer ends before the first occurrence of one")
    lookahead: int | Literal["auto"] | None = supported(LOOKAHEAD)
    metadata: Any = no_effect("users are not recorded")
    service_tier: Any = no_effect("only one value exists")
    container: Any = refused_unless("code execution is not supported")
    inference_geo: Any = no_effect("the model runs on this machine")
    user_profile_id: Any = no_effect("users are not recorded")
    workspace_id: Any = no_effect("users are not recorded")
    cache_salt: str | None = supported(SALT, min_length=1, max_length=1024)
    diagnostics: Any = no_effect("`usage` reports cached tokens")


def _function(tool: Mapping[str, Any], at: int) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise refused(
            f"tools.{at}.type", f"{tool['type']!r} is one of Anthropic's built-in tools; only functions can be called"
        )
    only(tool, _TOOL, f"tools.{at}.")
    return {
        "name": tool.get("name"), "description": tool.get("description"), "parameters": tool.get("input_schema"),
        "strict": tool.get("strict"),
    }  # fmt: skip


def _choice(given: Mapping[str, Any]) -> str:
    kind = given.get("type")
    if kind == "tool" and isinstance(given.get("name"), str):
        return str(given["name"])
    known = {"auto": "auto", "any": "required", "none": "none"}
    if not isinstance(kind, str) or kind not in known:
        raise refused("tool_choice", 'it must be {"type": "auto", "any" or "none"}, or {"type": "tool", "name": ...}')
    return known[kind]


def _deferred(tool: Mapping[str, Any]) -> bool:
    return tool.get("defer_loading") is True


def _system(given: str | list[dict[str, Any]] | None) -> str:
    """The system prompt, without the line for Anthropic's accounting."""
    if isinstance(given, list) and given and str(given[0].get("text", "")).startswith(_BILLING):
        given = given[1:]
    text = text_of(given, "system")
    return text.partition("\n")[2] if text.startswith(_BILLING) else text


def _result(
    content: Any, param: str, deferred: Mapping[str, Function], loaded: dict[str, Function], pictures: Pictures
) -> Content:
    """The content of a tool's result. A tool that it refers to becomes its definition, and one of ``loaded``."""
    if not isinstance(content, list):
        return text_of(content, param)
    parts: list[dict[str, Any]] = []
    for at, part in enumerate(content):
        if isinstance(part, dict) and part.get("type") == "image":
            parts.append(pictures.part(part, f"{param}.{at}"))
            continue
        if not isinstance(part, dict) or part.get("type") != "tool_reference":
            put_text(parts, text_of([part], param))
            continue
        name = part.get("tool_name")
        if not isinstance(name, str):
            raise refused(f"{param}.{at}.tool_name", "tool_reference needs the name of a tool")
        if name in deferred:
            loaded[name] = deferred[name]
            given = {key: deferred[name][key] for key in ("name", "description", "parameters") if key in deferred[name]}
            put_text(parts, f"<tool>{as_json({'type': 'function', 'function': given})}</tool>\n")
        else:  # one that the prompt lists already, or that is gone
            put_text(parts, f"<tool>{name}</tool>\n")
    return joined(parts)


def _messages(
    turn: Turn, param: str, deferred: Mapping[str, Function], loaded: dict[str, Function], pictures: Pictures
) -> list[Message]:
    """A turn as the messages of chat templates: results of tools are messages of their own, before the user's text."""
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    results: list[Message] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    # Images are in the order of messages.
    blocks = sorted(enumerate(turn.content), key=lambda one: one[1].get("type") != "tool_result")
    for at, block in blocks:
        place, kind = f"{param}.content.{at}", block.get("type")
        if kind == "text":
            put_text(parts, text_of([block], place), "\n")
        elif kind == "image" and turn.role == "user":
            parts.append(pictures.part(block, place))
        elif kind == "tool_use" and turn.role == "assistant":
            if not isinstance(block.get("name"), str) or not isinstance(block.get("input"), dict):
                raise refused(place, "tool_use needs a name, and an object as input")
            function = {"name": block["name"], "arguments": as_json(block["input"])}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result" and turn.role == "user":
            content = _result(block.get("content"), f"{place}.content", deferred, loaded, pictures)
            results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content})
        elif kind not in _DROPPED:
            raise refused(f"{place}.type", f"{kind!r} is not supported in a turn of the {turn.role}'s")
    said: Message = {"role": turn.role, "content": joined(parts)}
    if calls:
        said["tool_calls"] = calls
    return results + ([said] if parts or calls or not results else [])


@router.post("/v1/messages/count_tokens")
async def count_tokens(request: Request, body: CountRequest) -> dict[str, int]:
    """How many tokens a conversation has."""
    server, _ = checked(request, body, body.model)
    return {"input_tokens": len(await counted(request, body.to_conversation(server.limits)))}


@router.post("/v1/messages")
async def messages(request: Request, body: MessagesRequest) -> Response:
    """Go on with a conversation."""
    server, served = checked(request, body, body.model)
    conversation = body.to_conversation(server.limits)
    body.check_end(constrained=conversation.form is not None or conversation.may_call)
    options = {**drafting(body.lookahead), **body.processors(served, server.limits)}
    options |= identity_of(request, body.cache_salt)
    stop = stops(body.stop_sequences, server.limits, "stop_sequences")
    made = await prepared(request, conversation)
    params = body.params(served, len(made.prompt), body.max_tokens, stop)
    answers = server.start([replace(made, params=params, **options)])
    writer = _Writer(body.model or server.settings.names[0], len(made.prompt), answers, body.stop_sequences or ())
    return await answer(request, server, answers, writer, stream=bool(body.stream))


class _Writer(BlockWriter):
    """One answer in Anthropic's shapes."""

    def __init__(self, model: str, prompt: int, answers: Answers, stops: Sequence[str]) -> None:
        super().__init__(answers)
        self._stops = stops
        self._prompt = prompt
        self._cached = -1  # prompt tokens in the prefix cache; -1 until that is known
        self._head = {"id": "msg_" + secrets.token_hex(12), "type": "message", "role": "assistant", "model": model}

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield server-sent events."""
        async for deltas in self._answers:
            for part in comments(deltas):
                yield part
            written = False
            for delta in deltas:
                if self._cached < 0:  # known with the first delta: an earlier event would have another ``input_tokens``
                    self._cached = delta.cached if delta.finish is None else cached(delta.finish.stats)
                    begun: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
                    usage = _usage(self._prompt, self._cached, 0)
                    yield _event("message_start", message={**self._head, **begun, "usage": usage})
                for part in self._blocks(delta):
                    yield part
                    written = True
            if self._pulse.due(written=written):
                yield _event("ping")
        yield _event("message_stop")

    def _begin(self, kind: str) -> Iterator[bytes]:
        yield _event("content_block_start", index=self._place, content_block=_text_block(kind, ""))

    def _add(self, kind: str, text: str) -> Iterator[bytes]:
        yield _event("content_block_delta", index=self._place, delta={"type": f"{kind}_delta", kind: text})

    def _complete(self) -> Iterator[bytes]:
        yield _event("content_block_stop", index=self._place)

    def _begin_call(self, call: Call) -> Iterator[bytes]:
        yield _event("content_block_start", index=self._place, content_block=_block(call, {}))

    def _add_call(self, arguments: str) -> Iterator[bytes]:
        delta = {"type": "input_json_delta", "partial_json": arguments}
        yield _event("content_block_delta", index=self._place, delta=delta)

    def _complete_call(self, call: Call) -> Iterator[bytes]:
        yield _event("content_block_stop", index=self._place)

    def _finish(self, finish: Finish) -> Iterator[bytes]:
        used = _usage(self._prompt, self._cached, finish.stats.tokens)
        yield _event("message_delta", delta=_ended(finish, self._stops), usage=used)

    async def whole(self) -> dict[str, Any]:
        """Return the answer as one object."""
        (one,) = await self._answers.whole()
        content = [
            _block(part, decided(part.arguments))
            if isinstance(part, Call)
            else _text_block("thinking" if isinstance(part, Thought) else "text", part)
            for part in one.parts or [""]
        ]
        stats = one.finish.stats
        used = _usage(self._prompt, cached(stats), stats.tokens)
        ended = {**_ended(one.finish, self._stops), "usage": used, "timings": timings(one.finish)}
        return {**self._head, "content": content, **ended}


def _event(kind: str, **data: Any) -> bytes:
    return event({"type": kind, **data}, kind)


def _text_block(kind: str, text: str) -> dict[str, Any]:
    return {"type": kind, kind: text} | ({"signature": ""} if kind == "thinking" else {})


def _block(call: Call, given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id.replace("call_", "toolu_"), "name": call.name, "input": given}


def _ended(finish: Finish, stops: Sequence[str]) -> dict[str, Any]:
    """``stops`` are the request's own: at one of the model's generation config a turn just ends."""
    if finish.stop in stops and finish.reason == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": finish.stop}
    return {"stop_reason": _REASONS[finish.reason], "stop_sequence": None}


def _usage(prompt: int, found: int, output: int) -> dict[str, int]:
    """Anthropic's ``usage``: ``input_tokens`` leaves out the prompt tokens that were found in the prefix cache.

    A stream has it twice, in ``message_start`` and, cumulative, in ``message_delta``.
    """
    return {
        "input_tokens": prompt - found,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": found,
        "output_tokens": output,
    }
