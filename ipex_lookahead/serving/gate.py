"""What every request passes before an API sees it: where it comes from, whose key it has, and how large it is."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ipex_lookahead.serving.failures import ApiError
from ipex_lookahead.serving.limits import Limits
from ipex_lookahead.serving.server import Server

log = logging.getLogger(__name__)
OPEN = frozenset({"/", "/health", "/v1/health", "/ready", "/favicon.ico"})
"""Paths that need no key; those below ``OPEN_FOLDER``, the page's files, need none either."""
OPEN_FOLDER = "/page/"
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Gate:
    """An ASGI application round another.

    Args:
        app: the other.
        server: its state.
    """

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or let through what is left of the request's limits."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        if method == "HEAD":  # what GET answers, less the body, which uvicorn leaves out by its own copy
            scope = {**scope, "method": "GET"}
        headers = Headers(scope=scope)
        if method == "POST" and _of_no_page(headers):
            scope = {**scope, "headers": _as_json(scope["headers"])}
        named = headers.get("x-request-id", "")
        number = named if _NAME.fullmatch(named) else "req_" + secrets.token_hex(8)
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                of_answer = MutableHeaders(scope=message)
                of_answer["x-request-id"] = number
                of_answer["x-content-type-options"] = "nosniff"
                if scope.get("ignored"):
                    of_answer["x-ignored-fields"] = ", ".join(map(_plain, scope["ignored"][:20]))
            elif method == "HEAD":
                message = {**message, "body": b""}
            await send(message)

        try:
            self._check(scope, headers)
        except ApiError as error:
            await _discard(receive, headers, self._server.limits)
            headers_of_error = {"connection": "close", **error.headers}
            refusal = JSONResponse(error.body(scope["path"]), error.status, headers=headers_of_error)
            await refusal(scope, receive, sending)
        else:
            await self._app(scope, _bounded(receive, headers, self._server.limits), sending)
        finally:
            route = getattr(scope.get("route"), "path", "")
            self._server.metrics.requested(route or "other", status or 500)
            log.info("%s %s %s %d", number, method, route or "other", status)

    def _check(self, scope: Scope, headers: Headers) -> None:
        settings, host = self._server.settings, headers.get("host", "")
        if not settings.hosts.answer(host):
            said = f"this server does not answer as {host[:100]!r}; start it with --allowed-host NAME if it should"
            raise ApiError(403, said, code="wrong_host")
        if "transfer-encoding" in headers and "content-length" in headers:
            raise ApiError(400, "the request has both Content-Length and Transfer-Encoding; send one of them")
        origin = headers.get("origin")
        if origin is not None and not _own_page(origin, host) and settings.origins.isdisjoint((origin, "*")):
            raise ApiError(403, "pages of other servers may not ask this one", code="wrong_origin")
        length = headers.get("content-length", "0")
        most = self._server.limits.body_bytes
        if length.isascii() and length.isdigit() and int(length[:20]) > most:
            raise ApiError(413, f"the request has {length[:20]} bytes; at most {most} are read", code="too_large")
        open_ = scope["path"] in OPEN or scope["path"].startswith(OPEN_FOLDER)
        if settings.keys and not open_:
            scope["owner"] = self._owner(headers)

    def _owner(self, headers: Headers) -> str:
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        given = bearer.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
        owner = self._server.settings.keys.owner(given) if given else None
        if owner is None:
            unknown = ", and this is none that it knows" if given else ""
            said = f"this server asks for an API key{unknown}; send Authorization: Bearer KEY"
            raise ApiError(401, said, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
        return owner


def _own_page(origin: str, host: str) -> bool:
    try:
        return origin != "null" and urlsplit(origin).netloc == host
    except ValueError:  # such as "http://["
        return False


def _of_no_page(headers: Headers) -> bool:
    """Whether a program asks, not a page in a browser, whose forms can be sent to any server."""
    return "origin" not in headers and headers.get("sec-fetch-site", "none") in ("none", "same-origin")


def _as_json(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """A program means JSON, whatever it calls its body: ``curl -d`` calls everything a form."""
    return [one for one in headers if one[0] != b"content-type"] + [(b"content-type", b"application/json")]


def _plain(name: str) -> str:
    """A client's word as a header may hold it."""
    return "".join(c if c.isascii() and c.isprintable() and c != "," else "?" for c in name[:40])


_LARGE = 256 << 10
"""Bytes of a body that is looked at in a thread before it becomes a request."""
_MARKS = re.compile(rb'"[^"]*"?|[\[{,]')
"""Of a JSON text without escapes: its strings, beginnings of objects and lists, and commas."""


def parts(body: bytes, limits: Limits) -> str:
    """What a JSON text has too many of, in words: objects and lists, or values in them; "" for neither.

    It is looked through and not read: that would be done with all of it before other threads run.
    """
    containers = commas = 0
    for number, mark in enumerate(_MARKS.finditer(body.replace(rb"\\", b"").replace(rb"\"", b""))):
        first = mark[0][:1]
        containers += first in b"[{"
        commas += first == b","
        if containers > limits.containers:
            return f"{limits.containers:,} objects and lists"
        if commas >= limits.values or number > 4 * limits.values:  # a value has two strings, a bracket and a comma
            return f"{limits.values:,} values"
    return ""


_DISCARDED_SECONDS = 5.0


async def _discard(receive: Receive, headers: Headers, limits: Limits) -> None:
    """Read for a moment what a refused client still sends.

    TCP resets a connection that is closed with unread bytes, and the answer is lost with it. A client that waits for
    leave to send has nothing under way.
    """
    if "expect" in headers:
        return

    async def rest() -> None:
        read, more = 0, True
        while more and read <= 2 * limits.body_bytes:
            message = await receive()
            read += len(message.get("body", b""))
            more = message.get("more_body", False)

    with suppress(asyncio.TimeoutError, TimeoutError):
        await asyncio.wait_for(rest(), _DISCARDED_SECONDS)


def _bounded(receive: Receive, headers: Headers, limits: Limits) -> Receive:
    """The body, whole, within the limits of size, of parts, and of time, counted from when it is first asked for."""
    complete, most, seconds = False, limits.body_bytes, limits.body_seconds

    async def limited() -> Message:
        nonlocal complete
        if complete:
            return await receive()
        clock, pieces, read, more = asyncio.get_running_loop().time, [], 0, True
        end = clock() + seconds
        while more:
            try:
                message = await asyncio.wait_for(receive(), max(0.0, end - clock()))
            except (asyncio.TimeoutError, TimeoutError):
                raise HTTPException(408, f"the request's body did not come within {seconds:g} s") from None
            if message["type"] != "http.request":
                return message
            pieces.append(message.get("body", b""))
            read += len(pieces[-1])
            more = message.get("more_body", False)
            if read > most:
                await _discard(receive, headers, limits)
                raise HTTPException(413, f"the request has more than {most} bytes, which is as much as is read")
        complete, body = True, b"".join(pieces)
        if read > _LARGE and (many := await asyncio.to_thread(parts, body, limits)):
            raise HTTPException(413, f"the request has more than {many}")
        return {"type": "http.request", "body": body, "more_body": False}

    return limited
