"""What the APIs' routes share: access to the server, the caller's identity, and sending of answers."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from fastapi import Request, Response
from starlette.responses import JSONResponse

from ipex_lookahead.serving.answers import Answers
from ipex_lookahead.serving.failures import ApiError
from ipex_lookahead.serving.fields import AdapterScale, Body
from ipex_lookahead.serving.keys import key_of
from ipex_lookahead.serving.server import Served, Server
from ipex_lookahead.serving.sse import EVENTS, ClientGoneError, EventStream, unless_gone

GONE = 499
"""nginx's status for a client that disconnected; only the metrics use it."""


def server_of(request: Request) -> Server:
    """The state that the app was made with."""
    found: Server = request.app.state.server
    return found


def checked(request: Request, body: Body, model: str | None) -> tuple[Server, Served]:
    """The server, and the model that a request names; what is ignored of its fields, a header of the answer names.

    Raises ApiError for another model, and as :meth:`Body.check`.
    """
    server = server_of(request)
    served = server.known(model)
    body.check(strict=server.settings.strict_fields)
    request.scope["ignored"] = body.ignored()  # see ``gate.py``
    scales: Sequence[AdapterScale] | None = getattr(body, "lora", None)
    request.scope["adapter"] = server.applied(model, None if scales is None else {one.id: one.scale for one in scales})
    return server, served


def require_admin(request: Request) -> None:
    """Raise ApiError for a request without an admin key."""
    if request.scope.get("admin"):
        return
    if not server_of(request).settings.admin_keys:
        said = "this server's models cannot be changed over HTTP; start it with --admin-key-file FILE to allow it"
        raise ApiError(403, said, code="admin_disabled")
    said = "this request needs a key of the server's --admin-key-file; send Authorization: Bearer KEY"
    if key_of(request.headers):
        raise ApiError(403, f"{said}, with an admin key", code="invalid_admin_key")
    raise ApiError(401, said, code="invalid_admin_key", headers={"www-authenticate": "Bearer"})


def memory_of(request: Request, salt: str | None = None) -> dict[str, str]:
    """Owner of cached answers and prompts, as the service takes it; "" if no keys are required."""
    apart = "" if salt is None else hashlib.sha256(salt.encode()).hexdigest()[:32]
    return {"key": str(request.scope.get("owner", "")), "salt": apart}


def identity_of(request: Request, salt: str | None = None) -> dict[str, Any]:
    """Return the owner of a request, see :func:`memory_of`, and the adapter that ``checked`` has found."""
    return {**memory_of(request, salt), "adapter": request.scope["adapter"]}


def new_tokens(served: Served, prompt: int, requested: int | None) -> int:
    """Return the token limit of an answer: the requested one, else the config's; for -1 the rest of the context."""
    if requested == -1:
        return max(1, served.max_context - prompt)
    if requested is not None:
        return requested
    own, length = served.defaults.get("max_new_tokens"), served.defaults.get("max_length")
    if own is None and length is not None and length > prompt:
        own = length - prompt
    return max(1, served.max_context - prompt) if own is None else int(own)


class Writer(Protocol):
    """Answers in the shapes of an API."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Server-sent events, as the answers come."""
        ...

    async def whole(self) -> dict[str, Any]:
        """All of them in one, when they have ended."""
        ...


async def answer(
    request: Request, server: Server, answers: Answers, writer: Writer, *, stream: bool, kind: str = EVENTS
) -> Response:
    """Send the answers as they come, or whole. They are closed when that is done, or when the client has left."""

    def close() -> None:
        answers.close()
        for stats, reason in answers.ended():
            server.metrics.answered(stats, reason)

    if stream:
        return EventStream(
            writer.chunks(),
            close,
            path=request.url.path,
            stalled_seconds=server.limits.stalled_seconds,
            kind=kind,
        )
    try:
        return JSONResponse(await unless_gone(request.receive, writer.whole()))
    except ClientGoneError:
        return Response(status_code=GONE)
    finally:
        close()


def openai_head(server: Server, body: Body, answers: Answers, prefix: str, kind: str) -> dict[str, Any]:
    """What an answer in the shape of OpenAI's begins with."""
    return {
        "id": prefix + secrets.token_hex(12),
        "object": kind,
        "created": now(),
        "model": getattr(body, "model", None) or server.settings.names[0],
        "system_fingerprint": server.fingerprint_of(answers.requests[0].adapter),
    }


def now() -> int:
    """Seconds since 1970."""
    return int(time.time())
