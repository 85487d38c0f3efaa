"""``/v1/chat/completions``: OpenAI's chat."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from fastapi import APIRouter, Request, Response

from ipex_lookahead.conversation.answer import Delta, Whole
from ipex_lookahead.conversation.calls.base import Call
from ipex_lookahead.conversation.request import Conversation, Form, Message
from ipex_lookahead.serving.answers import Answers
from ipex_lookahead.serving.body import JsonRoute
from ipex_lookahead.serving.conversation import FUNCTION, decided, functions_of, prepared, text_of, thinking_variables
from ipex_lookahead.serving.failures import refused
from ipex_lookahead.serving.fields import Body, no_effect, only, refused_unless, required, supported
from ipex_lookahead.serving.handling import answer, checked, identity_of, openai_head
from ipex_lookahead.serving.limits import MOST_MESSAGES, Limits
from ipex_lookahead.serving.logprobs import chat_logprobs, draft_trace, token_ids
from ipex_lookahead.serving.pictures import Pictures, content_of
from ipex_lookahead.serving.sampling import BUDGET, EFFORT, MINUS_ONE, VERBOSITY, Budget, Most, Sampled, stops
from ipex_lookahead.serving.server import Served, Server
from ipex_lookahead.serving.structured import schema_form
from ipex_lookahead.serving.usage import timings, usage
from ipex_lookahead.serving.writers import ChoiceWriter

router = APIRouter(route_class=JsonRoute)


class ChatMessage(Body):
    """One of ``messages``."""

    handed_back: ClassVar[bool] = True
    role: Literal["system", "developer", "user", "assistant", "tool", "function"] = required("the speaker")
    content: str | list[dict[str, Any]] | None = supported(
        "text, or parts of the types text and, in messages of the user and in results of tools, `image_url`: a `data:`"
        " URL, or one of an allowed host; `detail`: low, high or auto"
    )
    name: str | None = supported("given to the chat template")
    tool_calls: list[dict[str, Any]] | None = supported("calls that the assistant made")
    tool_call_id: str | None = supported("id of the call with this result")
    reasoning_content: str | None = supported("given to the chat template")
    token_ids: list[int] | None = supported(
        "tokens of the answer so far (`return_token_ids`), instead of `content`; with `continue_final_message`, the"
        " answer is exactly the rest"
    )
    refusal: Any = no_effect("the content has the text")
    annotations: Any = no_effect("citations are not supported")
    audio: Any = refused_unless("only text is supported")
    function_call: Any = refused_unless("replaced by `tool_calls`")


class JsonSchema(Body):
    """``response_format.json_schema``."""

    name: str | None = no_effect("the chat template does not use it")
    description: str | None = no_effect("put the description into a message")
    schema_: dict[str, Any] | bool | None = supported(
        "a schema that llguidance can compile; 400 for others", alias="schema"
    )
    strict: bool | None = no_effect("schemas are always enforced")


class ResponseFormat(Body):
    """``response_format``."""

    type: Literal["text", "json_object", "json_schema"] = required("text, json_object or json_schema")
    json_schema: JsonSchema | None = supported("the schema")


class Tool(Body):
    """One of ``tools``."""

    type: Literal["function"] = required("only functions are supported")
    function: dict[str, Any] = required(
        "`name`, `description`, `parameters`, `strict`; 400 for a schema that cannot be compiled"
    )


class Prediction(Body):
    """``prediction``."""

    type: Literal["content"] = required("content")
    content: str | list[dict[str, Any]] = required("the expected text of the answer")


class ChatRequest(Sampled):
    """A request for chat."""

    messages: list[ChatMessage] = required(
        "the conversation; `developer` is the same as `system`", min_length=1, max_length=MOST_MESSAGES
    )
    max_completion_tokens: Most | None = supported(
        f"maximum number of tokens; default: the model's own, else up to the end of the context; {MINUS_ONE}"
    )
    max_tokens: Most | None = supported("older name of the same field")
    logprobs: bool | None = supported("log probabilities of the raw logits, before temperature and penalties")
    top_logprobs: int | None = supported("0 to 20, with `logprobs`", ge=0)
    response_format: ResponseFormat | None = supported("text, json_object or json_schema; enforced")
    tools: list[Tool] | None = supported(
        "functions for the chat template; listed in a system message if the template has no tools"
    )
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] | None = supported(
        "auto, none, required or a function; the last two are enforced; `allowed_tools` restricts the functions"
    )
    parallel_tool_calls: bool | None = supported("false: the answer ends after its first call")
    prediction: Prediction | None = supported("an additional source of drafts; never changes the answer")
    reasoning_effort: str | None = supported(EFFORT)
    thinking_budget: Budget | None = supported(BUDGET)
    reasoning_budget: Budget | None = supported("llama-server's name of `thinking_budget`")
    chat_template_kwargs: dict[str, Any] | None = supported("additional variables of the chat template")
    metadata: Any = no_effect("requests are not stored")
    store: Any = no_effect("requests are not stored")
    service_tier: Any = no_effect("only one value exists")
    prompt_cache_key: Any = no_effect("the cache is keyed by tokens and API key")
    prompt_cache_retention: Any = no_effect("the least recently used prompts are evicted first")
    prompt_cache_options: Any = no_effect("all prompts are cached the same way")
    safety_identifier: Any = no_effect("users are not recorded")
    modalities: list[str] | None = refused_unless("only text is supported", ["text"])
    audio: Any = refused_unless("only text is supported")
    functions: Any = refused_unless("replaced by `tools`")
    function_call: Any = refused_unless("replaced by `tool_choice`")
    verbosity: str | None = supported(VERBOSITY)
    web_search_options: Any = refused_unless("web search is not supported")
    moderation: Any = refused_unless("moderation is not supported")
    add_generation_prompt: bool | None = supported(
        "start a new assistant message; false requires `continue_final_message` (vLLM)"
    )
    continue_final_message: bool | None = supported(
        "continue the final assistant message, and return only the continuation (vLLM)"
    )
    echo: bool | None = supported("with `continue_final_message`: the answer begins with that message (vLLM)")
    return_token_ids: bool | None = supported("add the new tokens, `token_ids`, to each choice (vLLM)")
    enable_thinking: bool | None = supported("`enable_thinking` of the chat template, as in `chat_template_kwargs`")

    def to_conversation(self, limits: Limits) -> Conversation:
        """The conversation, checked. Raises ApiError."""
        for at, tool in enumerate(self.tools or ()):
            only(tool.function, FUNCTION, f"tools.{at}.function.")
        functions = functions_of([tool.function for tool in self.tools or ()], limits)
        choice, allowed = decided(self.tool_choice, functions, nested=True)
        pictures = Pictures(limits)
        messages = [_message(message, at, pictures) for at, message in enumerate(self.messages)]
        begun, answered = self._begun(messages)
        one_call = self.parallel_tool_calls is False
        conversation = Conversation(
            messages,
            functions,
            choice,
            one_call,
            self._form(limits),
            self._variables(),
            begun,
            allowed,
            answered,
            bool(self.echo),
            self.thinking_budget if self.reasoning_budget is None else self.reasoning_budget,
            images=pictures.found,
        )
        self.check_end(constrained=conversation.form is not None or conversation.may_call)
        return conversation

    def alternatives(self, limits: Limits) -> int | None:
        """How many alternatives are given for each token; None for no log probabilities."""
        if not self.logprobs:
            if self.top_logprobs:
                raise refused("top_logprobs", "it needs logprobs: true")
            return None
        count = self.top_logprobs or 0
        if count > limits.top_logprobs:
            raise refused("top_logprobs", f"it is {count}; it must be 0 to {limits.top_logprobs}")
        return count

    def _begun(self, messages: list[Message]) -> tuple[str, Sequence[int]]:
        """Remove the assistant's last message if the answer continues it; return its text, or its tokens."""
        given = next((at for at, one in enumerate(self.messages) if one.token_ids is not None), None)
        if given is not None and not (self.continue_final_message and given == len(messages) - 1):
            said = "only the last message may have it, with continue_final_message: true"
            raise refused(f"messages.{given}.token_ids", said)
        if not self.continue_final_message:
            if self.add_generation_prompt is False:
                said = "it is false, but the assistant answers next; continue_final_message: true continues its message"
                raise refused("add_generation_prompt", said)
            if self.echo:
                raise refused("echo", "it repeats the message that continue_final_message: true continues")
            return "", ()
        if self.add_generation_prompt:
            raise refused("continue_final_message", "add_generation_prompt must be false or absent with it")
        if len(messages) < 2 or messages[-1]["role"] != "assistant" or messages[-1].get("tool_calls"):
            said = "the last message must be the assistant's, without tool calls, and not the first message"
            raise refused("continue_final_message", said)
        text, ids = str(messages.pop()["content"]), self.messages[-1].token_ids
        return (text, ()) if ids is None else ("", ids)

    def _form(self, limits: Limits) -> Form | None:
        wanted, form = self.response_format, self.form(limits)
        if wanted is None or wanted.type == "text":
            return form
        if form is not None:
            raise refused("response_format", "another field already constrains the answer; give one")
        if wanted.type == "json_object":
            return Form("response_format", {"type": "object"})
        if wanted.json_schema is None or wanted.json_schema.schema_ is None:
            raise refused("response_format.json_schema.schema", "json_schema needs a schema")
        return schema_form(wanted.json_schema.schema_, limits, "response_format.json_schema.schema")

    def _variables(self) -> dict[str, Any]:
        given = self.chat_template_kwargs or {}
        taken = {"messages", "tools", "add_generation_prompt"} & given.keys()
        if taken:
            raise refused("chat_template_kwargs", f"{min(taken)!r} is set by the server")
        of_effort = thinking_variables(self.reasoning_effort, self.verbosity)
        if self.enable_thinking is None:
            return {**of_effort, **given}
        own = {"enable_thinking": self.enable_thinking}
        for said, other in (("chat_template_kwargs.enable_thinking", given), ("reasoning_effort", of_effort)):
            if other.get("enable_thinking", self.enable_thinking) != self.enable_thinking:
                raise refused("enable_thinking", f"it is {json.dumps(self.enable_thinking)}, and {said} differs")
        return {**of_effort, **given, **own}


def _message(message: ChatMessage, at: int, pictures: Pictures) -> Message:
    """A message as chat templates take it; its images are added to ``pictures``."""
    role = {"developer": "system", "function": "tool"}.get(message.role, message.role)
    may = pictures if role in ("user", "tool") else None
    found: Message = {"role": role, "content": content_of(message.content, f"messages.{at}.content", may)}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            found[name] = value
    if message.tool_calls:
        found["tool_calls"] = [
            _earlier(call, f"messages.{at}.tool_calls.{i}") for i, call in enumerate(message.tool_calls)
        ]
    return found


def _earlier(call: Mapping[str, Any], param: str) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise refused(param, 'it must be {"id", "type": "function", "function": {"name", "arguments"}}')
    arguments = function.get("arguments") or "{}"
    if not isinstance(arguments, str):
        raise refused(f"{param}.function.arguments", "it must be a string that holds JSON")
    return {"id": call.get("id"), "type": "function", "function": {"name": function["name"], "arguments": arguments}}


@router.post("/v1/chat/completions", openapi_extra={"x-streams": True})
@router.post("/chat/completions", include_in_schema=False)
async def chat(request: Request, body: ChatRequest) -> Response:
    """Go on with a conversation."""
    server, served = checked(request, body, body.model)
    limits = server.limits
    conversation, count, alternatives = body.to_conversation(limits), body.answers(limits), body.alternatives(limits)
    options = body.options(served, limits)
    likely = text_of(body.prediction.content, "prediction.content") if body.prediction else ""
    made = await prepared(request, conversation)
    if likely:
        options["prediction"] = await server.prepare(lambda: served.encode(likely))
    requested = body.max_completion_tokens or body.max_tokens
    params = body.params(served, len(made.prompt), requested, stops(body.stop, limits))
    options |= {**identity_of(request, body.cache_salt), "top_logprobs": alternatives}
    options["silent_too"] = bool(body.return_token_ids)
    answers = server.start([replace(made, params=params, sequence=i, **options) for i in range(count)], body.id_slot)
    writer = _Writer(server, served, body, answers, conversation.begun if conversation.echo else "")
    return await answer(request, server, answers, writer, stream=bool(body.stream))


class _Writer(ChoiceWriter):
    """One request's answers in OpenAI's shapes; ``echo`` is text that precedes each of them."""

    def __init__(self, server: Server, served: Served, body: ChatRequest, answers: Answers, echo: str) -> None:
        super().__init__(openai_head(server, body, answers, "chatcmpl-", "chat.completion"), served, body, answers)
        self._calls = [0] * len(answers.requests)
        self._echo = echo

    def _opening(self) -> Iterator[dict[str, Any]]:
        for index in range(len(self._calls)):
            yield _choice_of(index, {"role": "assistant", "content": self._echo})

    def _nothing(self) -> dict[str, Any]:
        return _choice_of(0, {})

    def _new(self, delta: Delta) -> list[dict[str, Any]]:  # no chunk has an empty ``content``
        found: list[dict[str, Any]] = []
        silent = self._silent[delta.index]
        silent += delta.pieces
        if delta.text or delta.thought:
            said = {"content": delta.text} if delta.text else {}
            if delta.thought:
                said["reasoning_content"] = delta.thought
            found.append({"choices": [_choice_of(delta.index, said)]})
        for call in delta.calls:
            self._calls[delta.index] += call.begins
            number = {"index": self._calls[delta.index] - 1}
            parts = [{**number, **_call(call, "")}] if call.begins else []
            parts += [{**number, "function": {"arguments": call.arguments}}] if call.arguments else []
            found += [{"choices": [_choice_of(delta.index, {"tool_calls": [part]})]} for part in parts]
        if delta.finish is not None:
            choice = _choice_of(delta.index, {}) | delta.finish.fields()
            found.append({"choices": [choice], "timings": timings(delta.finish)})
        if found and silent and self._body.logprobs:
            found[0]["choices"][0]["logprobs"] = chat_logprobs(silent, self._served.tokens)
        if found and silent and self._body.return_token_ids:
            found[0]["choices"][0]["token_ids"] = token_ids(silent)
        return self._traced(found, silent)

    def _choices(self, answers: Sequence[Whole]) -> list[dict[str, Any]]:
        choices = []
        for index, one in enumerate(answers):
            text = self._echo + one.text
            message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
            if one.thought:
                message["reasoning_content"] = one.thought
            if one.calls:
                message["content"] = text or None
                message["tool_calls"] = [_call(call, call.arguments) for call in one.calls]
            choice = {"index": index, "message": message, **one.finish.fields(), "logprobs": None}
            if self._body.logprobs:
                choice["logprobs"] = chat_logprobs(one.pieces, self._served.tokens)
            if self._body.return_draft_trace:
                choice["draft_trace"] = draft_trace(one.pieces)
            if self._body.return_token_ids:
                choice["token_ids"] = token_ids(one.pieces)
            choices.append(choice)
        return choices

    def _usage(self) -> dict[str, int]:
        return usage(self._answers.finished, len(self._calls), self._answers.thought)


def _choice_of(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": None, "logprobs": None}


def _call(call: Call, arguments: str) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
