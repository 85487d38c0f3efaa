"""Several replicas of the server behind one address, by Ray Serve: what a replica runs, and the front before them.

``examples/ray_serve.py`` starts them. Ray is imported where a request meets the front, no earlier.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from ipex_lookahead.auto import load_text_model
from ipex_lookahead.generation.service import Service
from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.failures import ApiError
from ipex_lookahead.serving.relay import Asked, Headers, opening, relayed
from ipex_lookahead.serving.server import Server, Settings


class Replica:
    """One model with its service. ``ask`` runs the same application as ``ipex-lookahead serve``.

    Args:
        model: a path or name, as ``ipex-lookahead serve`` takes it, that every machine finds.
        threads: to compute with; None for one on each CPU.
        slots: answers that are made at a time.
    """

    def __init__(self, model: str, threads: int | None, slots: int) -> None:
        self._server = Server(Settings(names=("default", model), drafting={"lookahead": "auto"}))
        self._server.ready(
            load_text_model(model, threads=threads, progress=False), lambda one: Service(one, slots=slots)
        )
        self._app = make_app(self._server)

    async def ask(self, asked: Asked) -> AsyncIterator[tuple[int, Headers] | bytes]:
        """The answer's status and headers (with ``x-replica``, this process's number), then the pieces of its body."""
        async for part in relayed(self._app, asked):
            yield (part[0], [*part[1], (b"x-replica", b"%d" % os.getpid())]) if isinstance(part, tuple) else part

    def check_health(self) -> None:
        """Raises RuntimeError where no request can be answered: Ray starts another replica then."""
        if self._server.state != "ready":
            raise RuntimeError(f"the server is {self._server.state}")


class Front:
    """Sends each request to a replica, and says so where the replica is lost.

    Args:
        replicas: Ray's handle of a deployment of ``Replica``, whose router sends equal session ids to one replica.
    """

    def __init__(self, replicas: Any) -> None:
        self._replicas = replicas.options(stream=True)

    async def __call__(self, request: Request) -> Response:
        """A replica's answer; a 503, or an error event in a stream, where the replica ends before it has answered."""
        from ray.exceptions import RayError

        body, path = await request.body(), request.url.path
        headers = [(name, value) for name, value in request.headers.raw if name != b"x-session-id"]
        asked = Asked(request.method, path, request.url.query.encode(), headers, body)
        parts = self._replicas.options(session_id=opening(body)).ask.remote(asked)
        lost = ApiError(503, "the replica that was answering has ended; ask again", code="replica_lost")
        try:
            status, told = await anext(parts)
        except RayError:
            return JSONResponse(lost.body(path), 503, headers={"retry-after": "1"})

        async def rest() -> AsyncIterator[bytes]:
            try:
                async for part in parts:
                    yield part
            except RayError:
                kind = dict(told).get(b"content-type", b"")
                if kind == b"application/x-ndjson":
                    yield json.dumps(lost.body(path)).encode() + b"\n"
                    return
                if b"text/event-stream" not in kind:
                    raise  # half an object: the connection breaks
                yield b"event: error\ndata: " + json.dumps(lost.body(path)).encode() + b"\n\n"

        answer = StreamingResponse(rest(), status)
        answer.raw_headers = told
        return answer
