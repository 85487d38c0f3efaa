"""Checks that every request passes before an API sees it: origin, API key and size."""

from __future__ import annotations

import hmac
import logging
import re
import secrets
from dataclasses import replace
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ipex_lookahead.serving.body import bounded, coding_of, discard
from ipex_lookahead.serving.failures import ApiError
from ipex_lookahead.serving.keys import key_of
from ipex_lookahead.serving.limits import Limits
from ipex_lookahead.serving.server import Server

log = logging.getLogger(__name__)
HEALTH = frozenset({"/health", "/v1/health"})
"""Paths that are answered under any name: load balancers send an address, a name of their own or none."""
OPEN = HEALTH | {"/", "/ready", "/favicon.ico"}
"""Paths that need no key; those below ``OPEN_FOLDER``, the page's files, need none either."""
OPEN_FOLDER = "/page/"
FILES = "/pdf-text"
"""The path with a PDF file for a body, which may be larger than JSON."""
SECRET, OWNER = "x-ipex-lookahead-secret", "x-ipex-lookahead-owner"
"""Headers of requests to a worker: its secret, and the owner of the request's API key."""
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
        if method in ("POST", "DELETE") and _of_no_page(headers):
            scope = {**scope, "headers": _as_json(scope["headers"])}
        named = headers.get("x-request-id", "")
        number = named if _NAME.fullmatch(named) else "req_" + secrets.token_hex(8)
        scope["request_id"], status = number, 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                of_answer = MutableHeaders(scope=message)
                of_answer["x-request-id"] = number
                of_answer["x-content-type-options"] = "nosniff"
                if scope.get("ignored"):
                    of_answer["x-ignored-fields"] = ", ".join(map(_plain, scope["ignored"][:64]))
            elif method == "HEAD":
                message = {**message, "body": b""}
            await send(message)

        try:
            self._check(scope, headers)
        except ApiError as error:
            await discard(receive, headers, self._limits(scope))
            headers_of_error = {"connection": "close", **error.headers}
            refusal = JSONResponse(error.body(scope["path"]), error.status, headers=headers_of_error)
            await refusal(scope, receive, sending)
        else:
            is_json = scope["path"] != FILES
            await self._app(scope, bounded(receive, headers, self._limits(scope), is_json=is_json), sending)
        finally:
            route = getattr(scope.get("route"), "path", "")
            self._server.metrics.requested(route or "other", status or 500, scope.get("model", ""))
            log.info("%s %s %s %d", number, method, route or "other", status)

    def _check(self, scope: Scope, headers: Headers) -> None:
        settings, host = self._server.settings, headers.get("host", "")
        if settings.secret:  # the server in front has checked the rest
            scope["owner"] = self._owner_in_front(headers)
            return
        if scope["path"] not in HEALTH and not settings.hosts.answer(host):
            said = f"this server does not answer as {host[:100]!r}; start it with --allowed-host NAME if it should"
            raise ApiError(403, said, code="wrong_host")
        if "transfer-encoding" in headers and "content-length" in headers:
            raise ApiError(400, "the request has both Content-Length and Transfer-Encoding; send one of them")
        origin = headers.get("origin")
        if origin is not None and not _own_page(origin, host) and settings.origins.isdisjoint((origin, "*")):
            raise ApiError(
                403,
                "web pages of other origins may not use this server; --allow-origin allows them",
                code="wrong_origin",
            )
        length = headers.get("content-length", "0")
        most = self._limits(scope).body_bytes
        if length.isascii() and length.isdigit() and int(length[:20]) > most:
            raise ApiError(413, f"the request has {length[:20]} bytes, the limit is {most}", code="too_large")
        if scope["method"] == "POST":
            coding_of(headers)
        open_ = scope["path"] in OPEN or scope["path"].startswith(OPEN_FOLDER)
        if not open_:
            self._identify(scope, headers)

    def _limits(self, scope: Scope) -> Limits:
        limits = self._server.limits
        if scope["path"] == FILES:
            return replace(limits, body_bytes=limits.pdf_bytes)
        return replace(limits, body_bytes=limits.image_body_bytes) if self._server.takes_images else limits

    def _owner_in_front(self, headers: Headers) -> str:
        """Return the owner of the key that the server in front of this worker has checked."""
        if not hmac.compare_digest(headers.get(SECRET, "").encode(), self._server.settings.secret.encode()):
            raise ApiError(403, "this is a worker of another server; send the request to that server", code="worker")
        return headers.get(OWNER, "")

    def _identify(self, scope: Scope, headers: Headers) -> None:
        """Set the scope's ``owner`` and ``admin``; an admin key is valid wherever an API key is."""
        settings, given = self._server.settings, key_of(headers)
        owner, admin = settings.keys.owner(given), settings.admin_keys.owner(given)
        scope["admin"] = admin is not None
        if not settings.keys:
            return
        if owner is None and admin is None:
            unknown = ", and the one in this request is unknown" if given else ""
            said = f"this server requires an API key{unknown}; send Authorization: Bearer KEY"
            raise ApiError(401, said, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
        scope["owner"] = owner or admin


def _own_page(origin: str, host: str) -> bool:
    try:
        return origin != "null" and urlsplit(origin).netloc == host
    except ValueError:  # such as "http://["
        return False


def _of_no_page(headers: Headers) -> bool:
    """Return True for a request of a program, False for one of a browser page, which can send forms to any server."""
    return "origin" not in headers and headers.get("sec-fetch-site", "none") in ("none", "same-origin")


def _as_json(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """A program means JSON, whatever it calls its body: ``curl -d`` calls everything a form."""
    return [one for one in headers if one[0] != b"content-type"] + [(b"content-type", b"application/json")]


def _plain(name: str) -> str:
    """A client's word as a header may hold it."""
    return "".join(c if c.isascii() and c.isprintable() and c != "," else "?" for c in name[:40])
