"""Several replicas of the server behind one address, by Ray Serve: what a replica runs, and the front before them.

``examples/ray_serve.py`` starts them. Ray is imported where a request meets the front, no earlier.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from ipex_lookahead.runtime.loading import load_text_model
from ipex_lookahead.runtime.service import Service
from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.body import parsed
from ipex_lookahead.serving.failures import ApiError
from ipex_lookahead.serving.managed import LATEST
from ipex_lookahead.serving.metrics import together
from ipex_lookahead.serving.relay import Headers, HttpRequest, opening, relayed
from ipex_lookahead.serving.server import ALIASES, Server, Settings

_LISTS = {"/v1/models": "data", "/models": "data", "/api/tags": "models", "/api/ps": "models"}
"""Path of a list of models -> its field."""
_AT_ONCE, _MISSES = 8, 2
"""Questions for figures at a time, and rounds of them that find no further replica before all are taken to be there."""


class Replica:
    """One model with its service. ``handle`` runs the same application as ``ipex-lookahead serve``.

    Args:
        model: a path or name, as ``ipex-lookahead serve`` takes it, that every machine finds.
        threads: to compute with; None for one on each CPU.
        slots: answers that are made at a time.
        names: names of the model in requests; by default ``default`` and ``model``.
        labeled: whether the metrics have the label ``model``, for servers of several models.
    """

    def __init__(
        self, model: str, threads: int | None, slots: int, names: Sequence[str] = (), labeled: bool = False
    ) -> None:
        labels = {"replica": str(os.getpid()), **({"model": names[0] if names else model} if labeled else {})}
        self._server = Server(
            Settings(names=tuple(names) or ("default", model), drafting={"lookahead": "auto"}, labels=labels)
        )
        self._server.ready(
            load_text_model(model, threads=threads, progress=False), lambda one: Service(one, slots=slots)
        )
        self._app = make_app(self._server)

    async def handle(self, request: HttpRequest) -> AsyncIterator[tuple[int, Headers] | bytes]:
        """The answer's status and headers (with ``x-replica``, this process's number), then the pieces of its body."""
        async for part in relayed(self._app, request):
            yield (part[0], [*part[1], (b"x-replica", b"%d" % os.getpid())]) if isinstance(part, tuple) else part

    def check_health(self) -> None:
        """Raises RuntimeError where no request can be answered: Ray starts another replica then."""
        if self._server.state != "ready":
            raise RuntimeError(f"the server is {self._server.state}")


class Front:
    """Sends each request to a replica of its model, and reports a lost replica.

    Args:
        models: the names of the models in requests; the first is the default.
        replicas: for each of them Ray's handle of a deployment of ``Replica``; its router sends equal session ids to
            one replica.
    """

    def __init__(self, models: Sequence[str], *replicas: Any) -> None:
        self._replicas = {name: one.options(stream=True) for name, one in zip(models, replicas, strict=True)}

    async def __call__(self, request: Request) -> Response:
        """A replica's answer; a 503, or an error event in a stream, where the replica ends before it has answered."""
        from ray.exceptions import RayError

        path = request.url.path
        if path == "/metrics":
            return await self._metrics(request)
        body = await request.body()
        if path in _LISTS and request.method == "GET" and len(self._replicas) > 1:
            return await self._listed(request)
        try:
            replicas = self._of_model(request, body)
        except ApiError as error:
            return JSONResponse(error.body(path), error.status, headers=error.headers)
        sent = _sent(request, body)
        parts = replicas.options(session_id=opening(body)).handle.remote(sent)
        lost = ApiError(503, "the replica ended during the answer; send the request again", code="replica_lost")
        try:
            status, headers_of_answer = await anext(parts)
        except RayError:
            return JSONResponse(lost.body(path), 503, headers={"retry-after": "1"})

        async def rest() -> AsyncIterator[bytes]:
            try:
                async for part in parts:
                    yield part
            except RayError:
                kind = dict(headers_of_answer).get(b"content-type", b"")
                if kind == b"application/x-ndjson":
                    yield json.dumps(lost.body(path)).encode() + b"\n"
                    return
                if b"text/event-stream" not in kind:
                    raise  # half an object: the connection breaks
                yield b"event: error\ndata: " + json.dumps(lost.body(path)).encode() + b"\n\n"

        answer = StreamingResponse(rest(), status)
        answer.raw_headers = headers_of_answer
        return answer

    def _of_model(self, request: Request, body: bytes) -> Any:
        """Return the handle of the model that a request names. Raises a 404 for an unknown name."""
        first = next(iter(self._replicas.values()))
        if len(self._replicas) == 1:
            return first  # it knows further names
        name = _named(request, body)
        if name is None or name == "default" or name.startswith(ALIASES):
            return first
        found = self._replicas.get(name) or self._replicas.get(name.removesuffix(LATEST))
        if found is None:
            said = f"there is no model {name[:200]!r}; this server has {', '.join(self._replicas)}"
            raise ApiError(404, said, param="model", code="model_not_found")
        return found

    async def _listed(self, request: Request) -> Response:
        """Return the lists of one replica of each model as one list."""
        sent, key = _sent(request, b""), _LISTS[request.url.path]
        answers = await asyncio.gather(*(_whole(one, sent) for one in self._replicas.values()))
        found: dict[str, Any] = {}
        for answer in answers:
            if answer is None:
                continue  # its replica has ended; Ray starts another one
            if answer[0] != 200:
                return Response(answer[2], answer[0], media_type="application/json")
            more = json.loads(answer[2])
            found = more if not found else {**found, key: found[key] + more[key]}
        return JSONResponse(found or {key: []})

    async def _metrics(self, request: Request) -> Response:
        """Return the metrics of all replicas, each counted once.

        Enough random session ids are drawn to reach each replica.

        One that is missed this time, or has just ended, is a gap in its series, as after any scrape that failed.
        """
        sent = _sent(request, b"")
        texts: dict[bytes, bytes] = {}
        headers: Headers = []
        for replicas in self._replicas.values():
            missed = 0
            while missed < _MISSES:  # such a run without a new one
                found = await asyncio.gather(*(_whole(replicas, sent) for _ in range(_AT_ONCE)))
                before = len(texts)
                for answer in found:
                    if answer is not None and answer[0] != 200:
                        return Response(answer[2], answer[0], media_type="application/json")
                    if answer is not None:
                        headers = answer[1]
                        texts[dict(headers)[b"x-replica"]] = answer[2]
                missed = 0 if len(texts) > before else missed + 1
        kind = dict(headers).get(b"content-type", b"text/plain").decode()
        return Response(together(texts.values()), headers={"content-type": kind})


async def _whole(replicas: Any, sent: HttpRequest) -> tuple[int, Headers, bytes] | None:
    """Return a random replica's answer; None if the replica has ended."""
    from ray.exceptions import RayError

    parts = replicas.options(session_id=secrets.token_hex(8)).handle.remote(sent)
    try:
        status, headers_of_answer = await anext(parts)
        return status, headers_of_answer, b"".join([part async for part in parts])
    except RayError:
        return None


def _named(request: Request, body: bytes) -> str | None:
    """Return the model that a request names in its body, its path or its query; None if it names none."""
    if request.method == "GET":
        _, _, of_path = request.url.path.partition("/models/")
        return of_path or request.query_params.get("model")
    try:
        given = parsed(body)
    except (ApiError, ValueError, RecursionError):
        return None  # a replica refuses it
    name = given.get("model") or given.get("name") if isinstance(given, dict) else None
    return name if isinstance(name, str) else None


def _sent(request: Request, body: bytes) -> HttpRequest:
    headers = [(name, value) for name, value in request.headers.raw if name != b"x-session-id"]
    return HttpRequest(request.method, request.url.path, request.url.query.encode(), headers, body)
