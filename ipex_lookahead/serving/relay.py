"""The application where no socket is: a request and its answer as values, which another process can hand on.

Ray Serve's front (``replicas.py``) sends requests to replicas this way, and chooses the replica by :func:`opening`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message

from ipex_lookahead.serving.body import parsed
from ipex_lookahead.serving.failures import ApiError

Headers = list[tuple[bytes, bytes]]
_OPENING = 1024
"""Characters of a prompt without messages that say where it belongs."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request of HTTP.

    Attributes:
        method: "GET", "POST", ...
        path, query: of the address, the query as it was sent.
        headers: names in lower case.
        body: all of it.
    """

    method: str
    path: str
    query: bytes
    headers: Headers
    body: bytes


async def relayed(app: ASGIApp, request: HttpRequest) -> AsyncIterator[tuple[int, Headers] | bytes]:
    """The answer's status and headers, and then the pieces of its body.

    Closing this is to the app what a client is that leaves. Raises what the app raises.
    """
    parts: asyncio.Queue[tuple[int, Headers] | bytes | None] = asyncio.Queue()
    left, begun = asyncio.Event(), False
    scope: dict[str, Any] = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": "",
        "method": request.method, "path": request.path, "raw_path": request.path.encode(),
        "query_string": request.query, "headers": request.headers, "client": None, "server": None,
    }  # fmt: skip

    async def receive() -> Message:
        nonlocal begun
        if not begun:
            begun = True
            return {"type": "http.request", "body": request.body, "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            parts.put_nowait((message["status"], list(message.get("headers", ()))))
        elif message.get("body"):
            parts.put_nowait(bytes(message["body"]))

    async def run() -> None:
        try:
            await app(scope, receive, send)
        finally:
            parts.put_nowait(None)

    running = asyncio.ensure_future(run())
    try:
        while (part := await parts.get()) is not None:
            yield part
        await running
    finally:
        left.set()
        if not running.done():
            running.cancel()
        with contextlib.suppress(BaseException):
            await running


def opening(body: bytes) -> str:
    """A name for how a prompt begins: all turns of a conversation have the same, so that one replica keeps its keys.

    It is a hash of the messages to the first of the user's, which other conversations have not even where they have the
    same system text; or of a prompt's first characters. "" for a body that has neither.
    """
    try:
        given = parsed(body)
    except (ApiError, ValueError, RecursionError):
        return ""
    if not isinstance(given, dict):
        return ""
    spoken = given.get("messages", given.get("input", given.get("prompt")))
    if isinstance(spoken, list) and all(isinstance(one, dict) for one in spoken):
        first = next((at for at, one in enumerate(spoken) if one.get("role") == "user"), len(spoken))
        spoken = spoken[: first + 1]
    elif spoken is not None:
        spoken = json.dumps(spoken)[:_OPENING]
    if not spoken:
        return ""
    return hashlib.sha256(json.dumps([given.get("system"), given.get("instructions"), spoken]).encode()).hexdigest()
