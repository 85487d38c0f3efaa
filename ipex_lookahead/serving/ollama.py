"""``/api``: Ollama's API. Its answers come as lines of JSON, its options in a field of their own."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, ClassVar, Literal

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest
from starlette.responses import JSONResponse

from ipex_lookahead.conversation.answer import Delta, Finish
from ipex_lookahead.conversation.calls.base import Call, as_json
from ipex_lookahead.conversation.calls.decided import decided
from ipex_lookahead.conversation.request import Conversation, Form, Message, grammar_of
from ipex_lookahead.conversation.thinking import marks_of
from ipex_lookahead.runtime.request import Request
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.serving.answers import Answers
from ipex_lookahead.serving.body import JsonRoute
from ipex_lookahead.serving.conversation import FUNCTION, functions_of, prepared
from ipex_lookahead.serving.failures import refused
from ipex_lookahead.serving.fields import Body, no_effect, only, refused_unless, required, supported
from ipex_lookahead.serving.handling import answer, checked, identity_of, server_of
from ipex_lookahead.serving.limits import MOST_MESSAGES, Limits
from ipex_lookahead.serving.pictures import Content, Pictures
from ipex_lookahead.serving.purposes import TEXT
from ipex_lookahead.serving.sampling import LOOKAHEAD, SALT, Sampler, drafting, stops
from ipex_lookahead.serving.server import Served, Server
from ipex_lookahead.serving.sse import line
from ipex_lookahead.serving.structured import schema_form

router = APIRouter(route_class=JsonRoute)
_LATEST = ":latest"
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)", re.ASCII)
_OLLAMA = "0.13.5"
"""The reported version of Ollama. Codex needs 0.13.4 or newer."""


def keep_alive_seconds(value: Any) -> float | None:
    """Return the seconds of a ``keep_alive``: a number, or text such as "5m" or "1h30m"; negative: ``math.inf``.

    Returns None for None. Raises ApiError for other values.
    """
    if value is None:
        return None
    seconds: float | None = None
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(min(value, 1e12))
    elif isinstance(value, str) and len(value) <= 64:
        text = value.strip()
        sign, bare = (-1.0, text[1:]) if text[:1] == "-" else (1.0, text.removeprefix("+"))
        try:
            seconds = sign * float(bare) if re.fullmatch(r"[\d.]+", bare, re.ASCII) else None
        except ValueError:
            seconds = None
        if seconds is None and bare and not _PART.sub("", bare):
            seconds = sign * sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(bare))
    if seconds is None or math.isnan(seconds):
        said = f'{json.dumps(value, default=str)[:60]} is not a duration; give seconds, or text such as "5m" or "-1"'
        raise refused("keep_alive", said)
    return math.inf if seconds < 0 else seconds


class Options(Sampler):
    """``options``. Others are passed over, and named in the header, as Ollama does."""

    handed_back: ClassVar[bool] = True
    place: ClassVar[str] = "options."
    num_predict: int | None = supported("maximum number of tokens; 0 and below: up to the end of the context")
    stop: str | list[str] | None = supported("up to 16 texts")
    num_ctx: Any = no_effect("the server sets the context length")

    def made(self, served: Served, prompt: int, limits: Limits, ends: tuple[int, ...]) -> SamplingParams:
        """Return how the answer to a prompt of ``prompt`` tokens is made; ``ends`` as for ``params``."""
        requested = self.num_predict if self.num_predict is None or self.num_predict > 0 else -1
        return self.params(served, prompt, requested, stops(self.stop, limits, "options.stop"), ends)


class OllamaMessage(Body):
    """One of ``messages``."""

    handed_back: ClassVar[bool] = True
    role: Literal["system", "user", "assistant", "tool"] = required("the speaker")
    content: str | None = supported("text")
    thinking: str | None = supported("given to the chat template")
    images: list[str] | None = supported("images before the text, in base64; for roles user and tool")
    tool_calls: list[dict[str, Any]] | None = supported("calls that the assistant made")
    tool_name: str | None = supported("name of the function with this result")


class OllamaTool(Body):
    """One of ``tools``."""

    type: Literal["function"] | None = supported("only functions are supported")
    function: dict[str, Any] = required("`name`, `description`, `parameters`")


class OllamaRequest(Body):
    """What both ways of asking have in common."""

    model: str = required("a name of `/api/tags`, with or without `:latest`; 404 for other names")
    stream: bool | None = supported("newline-delimited JSON; default: true")
    format: str | dict[str, Any] | None = supported("`json` or a JSON schema; enforced")
    options: Options | None = supported("sampling fields, `num_predict` and `stop`")
    keep_alive: int | float | str | None = supported(
        'how long the model stays loaded: seconds, or text such as "5m"; negative: always; 0: unload it after the '
        "answer; a server of one model keeps it loaded"
    )
    think: bool | str | None = supported(
        "`enable_thinking` of the chat template; low, medium and high: its `reasoning_effort`"
    )
    lookahead: int | Literal["auto"] | None = supported(LOOKAHEAD)
    cache_salt: str | None = supported(SALT, min_length=1, max_length=1024)
    logprobs: Any = refused_unless("use `/v1/chat/completions`", False)
    top_logprobs: Any = refused_unless("use `/v1/chat/completions`", 0)
    truncate: Any = no_effect("a prompt that exceeds the context is an error")
    shift: Any = no_effect("an answer ends at the end of the context")

    def form(self, limits: Limits) -> Form | None:
        """What the answer must look like."""
        if not self.format:
            return None
        if isinstance(self.format, str):
            if self.format != "json":
                raise refused("format", f"{self.format[:40]!r} is neither 'json' nor a JSON schema")
            return Form("format", {"type": "object"})
        return schema_form(self.format, limits, "format")

    def variables(self) -> dict[str, Any]:
        """The variables of the chat template about thinking."""
        if isinstance(self.think, str):
            return {"enable_thinking": True, "reasoning_effort": self.think}
        return {} if self.think is None else {"enable_thinking": self.think}


class OllamaChat(OllamaRequest):
    """A request for chat."""

    messages: list[OllamaMessage] | None = supported(
        "the conversation; without messages, the request only checks that the model is loaded", max_length=MOST_MESSAGES
    )
    tools: list[OllamaTool] | None = supported("functions for the chat template")

    def to_conversation(self, limits: Limits) -> Conversation:
        """The conversation, checked. Raises ApiError."""
        for at, tool in enumerate(self.tools or ()):
            only(tool.function, FUNCTION, f"tools.{at}.function.")
        functions = functions_of([tool.function for tool in self.tools or ()], limits)
        pictures = Pictures(limits)
        messages = [_message(message, at, pictures) for at, message in enumerate(self.messages or ())]
        choice = "auto" if functions else "none"
        form, images = self.form(limits), pictures.found
        return Conversation(messages, functions, choice, form=form, variables=self.variables(), images=images)


class OllamaGenerate(OllamaRequest):
    """A request for an answer to one text."""

    prompt: str | None = supported("the text; without a prompt, the request only checks that the model is loaded")
    system: str | None = supported("the system prompt")
    raw: bool | None = supported("true: continue the text without the chat template")
    suffix: str | None = supported("the text after the gap, for models with fill-in-the-middle tokens; 400 for others")
    images: list[str] | None = supported("images before the text, in base64; not with `raw` and `suffix`")
    template: Any = refused_unless("the model's chat template is always used", "")
    context: Any = refused_unless("use `/api/chat` with the whole conversation", [])

    def to_conversation(self, limits: Limits) -> Conversation:
        """The text as a conversation."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        pictures = Pictures(limits)
        content = _content(self.prompt or "", self.images, "images", pictures)
        messages: list[Message] = [*system, {"role": "user", "content": content}]
        form, images = self.form(limits), pictures.found
        return Conversation(messages, choice="none", form=form, variables=self.variables(), images=images)


class Named(Body):
    """A request about a model."""

    model: str | None = supported("the name")
    name: str | None = supported("older name of the same field")
    verbose: Any = no_effect("all details are always returned")


def _content(text: str, images: Sequence[str] | None, place: str, pictures: Pictures) -> Content:
    """Return a text behind its images."""
    if not images:
        return text
    parts = [pictures.add(one, f"{place}.{at}", is_url=one.startswith("data:")) for at, one in enumerate(images)]
    return [*parts, {"type": "text", "text": text}] if text else parts


def _message(message: OllamaMessage, at: int, pictures: Pictures) -> Message:
    """A message as chat templates take it; its images are added to ``pictures``."""
    if message.images and message.role not in ("user", "tool"):
        raise refused(f"messages.{at}.images", f"a message of the role {message.role!r} has no images; move them")
    content = _content(message.content or "", message.images, f"messages.{at}.images", pictures)
    found: Message = {"role": message.role, "content": content}
    if message.thinking is not None:
        found["reasoning_content"] = message.thinking
    if message.tool_name is not None:
        found["name"] = message.tool_name
    calls = []
    for i, call in enumerate(message.tool_calls or ()):
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise refused(f"messages.{at}.tool_calls.{i}", 'it must be {"function": {"name", "arguments"}}')
        called = {"name": function["name"], "arguments": as_json(function.get("arguments") or {})}
        calls.append({"id": call.get("id"), "type": "function", "function": called})
    return {**found, "tool_calls": calls} if calls else found


def _checked(request: HttpRequest, body: Body, name: str | None) -> tuple[Server, Served]:
    """As ``checked``, for the model of a name that Ollama's clients say with a tag."""
    if isinstance(body, OllamaRequest):
        keep_alive_seconds(body.keep_alive)  # raises
    if name is not None and name not in server_of(request).names:
        name = name.removesuffix(_LATEST)
    return checked(request, body, name)


@router.post("/api/chat")
async def chat(request: HttpRequest, body: OllamaChat) -> Response:
    """Go on with a conversation."""
    server, _ = _checked(request, body, body.model)
    if not body.messages:
        return _loaded(body, {"message": {"role": "assistant", "content": ""}})
    conversation = body.to_conversation(server.limits)
    made = await prepared(request, conversation)
    constrained = conversation.form is not None or conversation.may_call
    return await _answered(request, body, made, chat=True, constrained=constrained)


@router.post("/api/generate")
async def generate(request: HttpRequest, body: OllamaGenerate) -> Response:
    """Answer a text, or go on with it."""
    server, served = _checked(request, body, body.model)
    if not body.prompt and not body.suffix:
        return _loaded(body, {"response": ""})
    if body.images and (body.raw or body.suffix):
        other = "raw" if body.raw else "suffix"
        raise refused("images", f"{other} uses no chat template, which places the images; leave one of them out")
    if body.suffix and not body.raw:
        return await _filled_in(request, body, server, served)
    if not body.raw:
        conversation = body.to_conversation(server.limits)
        made = await prepared(request, conversation)
        return await _answered(request, body, made, chat=False, constrained=conversation.form is not None)
    if body.suffix:
        raise refused("suffix", "with raw the prompt is the whole text; leave one of them out")
    text, form = body.prompt or "", body.form(server.limits)
    ids = await server.prepare(lambda: served.encode(text, special=True))
    grammar = None if form is None else await server.compile(request, lambda grammars: grammar_of(grammars, form))
    return await _answered(request, body, Request(ids, grammar=grammar), chat=False, constrained=form is not None)


async def _filled_in(request: HttpRequest, body: OllamaGenerate, server: Server, served: Served) -> Response:
    """Answer with what is missing between the prompt and the suffix."""
    if body.system:
        raise refused("suffix", "fill-in-the-middle uses no system prompt; leave one of them out")
    before, behind, form = body.prompt or "", body.suffix or "", body.form(server.limits)
    ids, ends = await server.prepare(lambda: served.filled_in("suffix", before, behind))
    grammar = None if form is None else await server.compile(request, lambda grammars: grammar_of(grammars, form))
    made = Request(ids, grammar=grammar)
    return await _answered(request, body, made, chat=False, constrained=form is not None, ends=ends)


async def _answered(
    request: HttpRequest,
    body: OllamaRequest,
    made: Request,
    *,
    chat: bool,
    constrained: bool,
    ends: tuple[int, ...] = (),
) -> Response:
    server, sampler = server_of(request), body.options or Options()
    served = server.served
    sampler.check_end(constrained=constrained)
    params = sampler.made(served, len(made.prompt), server.limits, ends)
    options = {**drafting(body.lookahead), **sampler.processors(served, server.limits)}
    options |= identity_of(request, body.cache_salt)
    answers = server.start([replace(made, params=params, **options)])
    writer = _Writer(body.model, answers, chat=chat)
    return await answer(request, server, answers, writer, stream=body.stream is not False, kind="application/x-ndjson")


def _loaded(body: OllamaRequest, said: dict[str, Any]) -> Response:
    """Return the answer to an empty prompt: the model is loaded, or, with ``keep_alive`` of 0, may be unloaded."""
    reason = "unload" if keep_alive_seconds(body.keep_alive) == 0 else "load"
    return JSONResponse({"model": body.model, "created_at": _now(), **said, "done": True, "done_reason": reason})


class _Writer:
    """One answer in Ollama's shapes."""

    def __init__(self, model: str, answers: Answers, *, chat: bool) -> None:
        self._model = model
        self._answers = answers
        self._chat = chat
        self._began = time.perf_counter_ns()
        self._calls = 0
        self._calling: Call | None = None  # a call without its end, which is sent as a whole

    def _said(self, text: str, thought: str = "", calls: Sequence[Call] = ()) -> dict[str, Any]:
        more: dict[str, Any] = {"thinking": thought} if thought else {}
        head = {"model": self._model, "created_at": _now()}
        if not self._chat:
            return {**head, "response": text, **more}
        if calls:
            more["tool_calls"] = [
                {"function": {"index": at, "name": call.name, "arguments": decided(call.arguments)}}
                for at, call in enumerate(calls, self._calls)
            ]
            self._calls += len(calls)
        return {**head, "message": {"role": "assistant", "content": text, **more}}

    def _ended(self, finish: Finish) -> dict[str, Any]:
        stats = finish.stats
        return {
            "done": True,
            "done_reason": "length" if finish.reason == "length" else "stop",
            "total_duration": time.perf_counter_ns() - self._began,
            "load_duration": 0,
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": round(stats.prefill_seconds * 1e9),
            "eval_count": stats.tokens,
            "eval_duration": round(stats.decode_seconds * 1e9),
        }

    def _whole(self, delta: Delta) -> list[Call]:
        """Return the calls that a delta completes, and at the end of the answer one that was cut."""
        found = []
        for call in delta.calls:
            self._calling = call if call.begins or self._calling is None else self._calling.joined(call)
            if call.ends:
                found.append(self._calling)
                self._calling = None
        if delta.finish is not None and self._calling is not None:
            found.append(self._calling)
        return found

    async def chunks(self) -> AsyncIterator[bytes]:
        """Lines of JSON."""
        async for deltas in self._answers:
            for delta in deltas:
                calls = self._whole(delta)
                if delta.text or delta.thought or calls:
                    yield line({**self._said(delta.text, delta.thought, calls), "done": False})
                if delta.finish is not None:
                    yield line({**self._said(""), **self._ended(delta.finish)})

    async def whole(self) -> dict[str, Any]:
        """All in one."""
        (one,) = await self._answers.whole()
        return {**self._said(one.text, one.thought, one.calls), **self._ended(one.finish)}


@router.get("/api/version")
async def version() -> dict[str, str]:
    """A version of Ollama with the API that is served here, which clients check, and this package's own."""
    from ipex_lookahead import __version__

    return {"version": _OLLAMA, "ipex_lookahead": __version__}


@router.post("/api/show")
async def show(request: HttpRequest, body: Named) -> dict[str, Any]:
    """What is known of the model."""
    if server_of(request).purpose != TEXT:
        return _shown_embedder(request, body)
    server, served = _checked(request, body, body.model or body.name)
    architecture = _architecture(served)
    capabilities = ["completion", *(["tools"] if served.template else [])]  # in words where the template has none
    capabilities += ["insert"] if served.fill_in is not None else []
    capabilities += ["vision"] if served.sees else []
    sampling = "\n".join(f"{name} {value}" for name, value in served.sampling.items() if value is not None)
    return {
        "modelfile": "",
        "parameters": sampling,
        "template": served.template,
        "details": _details(served),
        "model_info": {
            "general.architecture": architecture,
            f"{architecture}.context_length": served.max_context,
            f"{architecture}.vocab_size": served.vocab_size,
        },
        "capabilities": capabilities + (["thinking"] if marks_of(served.template) else []),
        "modified_at": when(server.created),
    }


def _shown_embedder(request: HttpRequest, body: Named) -> dict[str, Any]:
    """What is known of an embedding or reranking model."""
    server = server_of(request)
    name = body.model or body.name
    server.check_name(name if name in server.names else name and name.removesuffix(_LATEST))
    body.check(strict=server.settings.strict_fields)
    embedder = server.embedder()
    family = str(embedder.facts.get("architecture", "unknown"))
    model = embedder.model
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": _named_details(family, str(embedder.facts.get("low_bit", ""))),
        "model_info": {
            "general.architecture": family,
            f"{family}.context_length": model.max_length,
            f"{family}.embedding_length": model.dimensions,
        },
        "capabilities": [server.purpose],
        "modified_at": when(server.created),
    }


def _details(served: Served) -> dict[str, Any]:
    return _named_details(_architecture(served), str(served.facts.get("low_bit", "")))


def _named_details(family: str, level: str) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": level,
    }


def _architecture(served: Served) -> str:
    config: Mapping[str, Any] = served.model.config
    return str(config.get("model_type") or "unknown")


def when(seconds: float) -> str:
    """Return a time in seconds since 1970 in Ollama's format."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")


def _now() -> str:
    return when(time.time())
