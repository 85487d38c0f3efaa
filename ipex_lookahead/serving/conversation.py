"""Messages and tools of a request, checked, and the requests that they make."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ipex_lookahead.conversation.calls.base import Function
from ipex_lookahead.conversation.image_parts import Picture
from ipex_lookahead.conversation.request import Conversation, choice_of, function_of, request_for
from ipex_lookahead.errors import ContextLengthError, InputError
from ipex_lookahead.runtime.request import Request
from ipex_lookahead.serving.failures import ApiError, from_ours, refused
from ipex_lookahead.serving.handling import server_of
from ipex_lookahead.serving.limits import Limits
from ipex_lookahead.serving.pictures import content_of, read_files
from ipex_lookahead.serving.server import Served
from ipex_lookahead.serving.structured import bounded

if TYPE_CHECKING:
    from fastapi import Request as HttpRequest


async def prepared(
    request: HttpRequest, conversation: Conversation, build: Callable[[Served, Conversation], Request] | None = None
) -> Request:
    """Prepare an answer: read its images, render and tokenize it, and compile its grammar.

    Args:
        request: the request.
        conversation: as checked.
        build: makes the request; None: :func:`prepare`.

    Raises:
        ApiError: a message that cannot be answered.
        ClientGoneError: the client left.
    """
    made = await _built(request, conversation, build or prepare)
    if made.constraint is not None:
        made.grammar = await server_of(request).compile(request, made.constraint)
    return made


async def counted(request: HttpRequest, conversation: Conversation) -> Sequence[int]:
    """Return the tokens of a prompt; images are not decoded. Raises as :func:`prepared`."""
    return (await _built(request, conversation, partial(prepare, counting=True))).prompt


async def _built(
    request: HttpRequest, conversation: Conversation, build: Callable[[Served, Conversation], Request]
) -> Request:
    server = server_of(request)
    served = server.served
    if not conversation.images:
        return await server.prepare(lambda: build(served, conversation))
    return await seen(request, conversation.images, lambda: build(served, conversation))


async def seen(request: HttpRequest, images: Sequence[bytes | Picture], build: Callable[[], Request]) -> Request:
    """Read the files of images, and build a request of them in a thread. Raises as :func:`prepared`."""
    server = server_of(request)
    try:
        server.served.check_images()
    except InputError as error:
        place = getattr(images[0], "place", "")
        named = from_ours(error)
        raise ApiError(400, f"{place}: {named.message}", param=place or None, code="unsupported_value") from None
    await read_files(images, server.settings.image_hosts, server.limits)
    made = await server.with_images(request, build)
    server.metrics.seen(made.images)
    return made


def prepare(served: Served, conversation: Conversation, *, counting: bool = False) -> Request:
    """Return :func:`~ipex_lookahead.conversation.request.request_for` of texts that may fit the context.

    Raises ContextLengthError for texts that cannot, and InputError where the template refuses the messages.
    """
    served.check_length([*conversation.messages, *conversation.functions, conversation.begun])
    _check_answered(served, conversation.answered)
    return request_for(served, conversation, counting=counting)


def _check_answered(served: Served, ids: Sequence[int]) -> None:
    """Raise for an answer's first tokens that are outside the vocabulary, or more than the context holds."""
    if len(ids) > served.max_context:
        raise ContextLengthError(f"the answer has {len(ids):,} tokens and the model's context {served.max_context:,}")
    if wrong := [i for i in ids if not 0 <= i < served.vocab_size]:
        said = f"{wrong[0]} is not a token id; ids are 0 to {served.vocab_size - 1}"
        raise refused("messages.token_ids", said)


def fitted(served: Served, conversation: Conversation, requested: int | None) -> Request:
    """As :func:`prepare`, without the oldest messages where the prompt leaves no room for the answer.

    What is left begins with a message of the user's, so that no result is without its call; system messages stay. The
    images of dropped messages are dropped, and decoded neither.

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

    def shortened(number: int) -> Conversation:
        if number == 0:
            return conversation
        dropped = sum(map(_images_in, rest[: begins[number]]))
        messages = [*first, *rest[begins[number] :]]
        return replace(conversation, messages=messages, images=conversation.images[dropped:])

    def of(number: int) -> Request | None:
        try:
            made = prepare(served, shortened(number), counting=bool(conversation.images))
        except ContextLengthError:
            if number == len(begins) - 1:
                raise
            return None
        return made if len(made.prompt) + room <= context or number == len(begins) - 1 else None

    found, low, high, chosen = of(0), 1, len(begins) - 1, 0
    while found is None:  # the longest that fits, by halves: the last one always ends it
        middle = (low + high) // 2
        made = of(middle)
        if made is None:
            low = middle + 1
        elif middle == low:
            found, chosen = made, middle
        else:
            high = middle
    return prepare(served, shortened(chosen)) if conversation.images else found


def _images_in(message: Mapping[str, Any]) -> int:
    content = message.get("content")
    return sum(part["type"] == "image" for part in content) if isinstance(content, list) else 0


def functions_of(
    tools: Sequence[Mapping[str, Any]],
    limits: Limits,
    field: str = "function.parameters",
    places: Sequence[str] | None = None,
) -> list[Function]:
    """Functions with names and bounded schemas, checked.

    Args:
        tools: ``{"name", "description"?, "parameters"?, "strict"?}`` each.
        limits: of the server.
        field: what the API calls the schema in one of ``tools``.
        places: where they are in the request; None: ``tools.0`` and so on.

    Returns the functions with ``param``, the field of the request that has the schema.
    """
    if len(tools) > limits.tools:
        raise refused("tools", f"{len(tools)} tools are too many; at most {limits.tools} are allowed")
    found: list[Function] = []
    size = 0

    def check(schema: Any, param: str) -> None:
        nonlocal size
        size += bounded(schema, limits, param)
        if size > limits.schemas_bytes:
            raise refused("tools", f"their schemas exceed the limit of {limits.schemas_bytes:,} bytes")

    try:
        for at, tool in enumerate(tools):
            place = f"tools.{at}" if places is None else places[at]
            found.append(function_of(tool, place, field, found, check))
    except InputError as error:
        raise ApiError(400, str(error), param=error.argument, code="unsupported_value") from None
    return found


FUNCTION = ("name", "description", "parameters", "strict")
"""What OpenAI's functions have."""


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
    try:
        return choice_of(choice, functions, param)
    except InputError as error:
        raise ApiError(400, str(error), param=param, code="unsupported_value") from None


def thinking_variables(effort: str | None, verbosity: str | None) -> dict[str, Any]:
    """What the chat template gets of OpenAI's ``reasoning_effort`` and ``verbosity``."""
    given = {"reasoning_effort": effort, "verbosity": verbosity}
    found: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return found if effort is None else {**found, "enable_thinking": effort not in ("none", "minimal")}


def text_of(content: Any, param: str) -> str:
    """The text of a content without images. Raises ApiError for others."""
    found = content_of(content, param)
    assert isinstance(found, str)
    return found
