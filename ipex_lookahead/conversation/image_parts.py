"""Images in messages: their parts ``{"type": "image"}``, and texts that look like a placeholder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ipex_lookahead.conversation.model import ChatModel
from ipex_lookahead.errors import InputError
from ipex_lookahead.vision.model import Layout

DETAILS = ("auto", "low", "high", "original")
"""Values of ``detail`` in OpenAI's APIs; "auto" and "original" mean the model's own number of tokens."""


@dataclass(slots=True)
class Picture:
    """An image of a conversation.

    Attributes:
        file: contents of the image file; empty until it is read from one of the next two.
        url, base64: the file as a request has it.
        detail: one of ``DETAILS``.
        place: its field in the request, for messages.
        layout: its tokens, once the file's header has been read.
    """

    file: bytes = b""
    url: str = ""
    base64: str = ""
    detail: str = "auto"
    place: str = ""
    layout: Layout | None = None


def behind_results(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages in which images of results are in the user's message behind them; each leaves "[image]".

    The order of images stays as it is. For templates that write results as text.
    """
    found: list[dict[str, Any]] = []
    waiting = 0

    def put(message: Mapping[str, Any] | None) -> None:
        nonlocal waiting
        images, waiting = [{"type": "image"}] * waiting, 0
        if message is None:
            found.extend([{"role": "user", "content": images}] if images else [])
            return
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        found.append({**message, "content": [*images, *parts] if images else content})

    for message in messages:
        content = message.get("content")
        if message["role"] == "tool":
            parts = [] if not isinstance(content, list) else content
            waiting += sum(part["type"] == "image" for part in parts)
            text = "".join("[image]" if part["type"] == "image" else part["text"] for part in parts)
            found.append({**message, "content": text if parts else content})
        elif message["role"] == "user":
            put(message)
        else:
            put(None)
            found.append(dict(message))
    put(None)
    return found


def check_spelled(model: ChatModel, messages: Any) -> None:
    """Raise InputError for a text that spells the placeholder if the tokenizer would read it as a placeholder.

    The place of an image comes from its part of a message, never from a text.
    """
    tokens = [model.image_token] if model.vision.marker is None else [model.image_token, model.vision.marker]
    words = [model.spelling(token) for token in tokens]
    if model.keeps_content_apart and all(word in model.special_tokens for word in words):
        return
    left = [messages]
    while left:
        one = left.pop()
        spelled = next((word for word in words if word in one), "") if isinstance(one, str) else ""
        if spelled:
            raise InputError(
                f"a text of the messages has {spelled}, the model's placeholder for images", hint="remove it"
            )
        if isinstance(one, Mapping):
            left.extend(one.values())
        elif isinstance(one, list | tuple):
            left.extend(one)
