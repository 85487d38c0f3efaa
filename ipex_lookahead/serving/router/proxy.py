"""Requests that a worker answers: the model is chosen from the body, and the answer passes through unchanged."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from ipex_lookahead.serving.app import invalid_json
from ipex_lookahead.serving.body import LARGE, parsed
from ipex_lookahead.serving.failures import OLLAMA, ApiError
from ipex_lookahead.serving.gate import OWNER, SECRET
from ipex_lookahead.serving.handling import GONE
from ipex_lookahead.serving.managed import LATEST
from ipex_lookahead.serving.ollama import keep_alive_seconds
from ipex_lookahead.serving.ollama_models import PROMPTS, answered_here
from ipex_lookahead.serving.purposes import EMBEDDING, RERANKING, TEXT, misdirected, none_serves, purpose_at
from ipex_lookahead.serving.relay import Headers
from ipex_lookahead.serving.router.client import Exchange, WorkerLostError
from ipex_lookahead.serving.router.entries import ModelEntry
from ipex_lookahead.serving.router.table import Lease, ModelTable
from ipex_lookahead.serving.router.waiting import WaitingStream
from ipex_lookahead.serving.sse import ClientGoneError, patient, unless_gone
from ipex_lookahead.serving.stored import unknown

log = logging.getLogger("ipex_lookahead")
_STORED = "response_id"
"""Parameter of the paths of stored responses."""
_NOT_SENT = frozenset(
    b"authorization connection content-encoding content-length expect keep-alive proxy-authorization "
    b"proxy-connection te trailer transfer-encoding upgrade x-api-key x-request-id".split()
) | {SECRET.encode(), OWNER.encode()}
"""Headers of a request that concern the connection, the caller's identity, or the body as it came."""
_NOT_RETURNED = frozenset(b"connection date keep-alive transfer-encoding x-content-type-options x-request-id".split())
"""Headers of an answer that concern the connection, or that the gate sets."""
_LOST = "the process of the model ended during the answer; send the request again"


async def forward(request: Request) -> Response:
    """Answer a request with the worker of its model."""
    table: ModelTable = request.app.state.server.table
    body = await request.body()
    given = await _given(request, body)
    found = await _keeper(request, table, given)
    if found is None and _STORED in request.path_params:
        raise unknown(request.path_params[_STORED])  # a model that is not loaded has none
    entry = found or _chosen(table, _name(request, given), request.url.path)
    request.scope["model"] = entry.name
    named = given.get("model")
    path = request.url.path
    here = await answered_here(table, path, given, str(request.scope.get("owner", "")))
    if here is not None:
        return here
    embeds = purpose_at(path) != TEXT
    streams = given.get("stream", path.startswith(OLLAMA)) is True and request.method == "POST" and not embeds
    waiting = WaitingStream(path, named if isinstance(named, str) else entry.name) if streams else None
    keep_alive = keep_alive_seconds(given.get("keep_alive")) if path in PROMPTS else None
    return _Forwarded(request, body, table, entry, waiting, keep_alive)


async def _given(request: Request, body: bytes) -> dict[str, Any]:
    """Return the fields of a request: of its body, or of its query. Raises ApiError for invalid JSON."""
    if request.method != "POST":
        return dict(request.query_params)
    if not body:
        return {}
    try:
        given = await asyncio.to_thread(parsed, body) if len(body) > LARGE else parsed(body)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_json(error) from None
    return given if isinstance(given, dict) else {}  # the worker refuses it


def _name(request: Request, given: dict[str, Any]) -> str | None:
    """Return the name of the requested model; None if there is none, or no text, which the worker refuses."""
    name = given.get("model") or (given.get("name") if request.url.path.startswith(OLLAMA) else None)
    return name if isinstance(name, str) else None


def _chosen(table: ModelTable, name: str | None, path: str) -> ModelEntry:
    """Return the model of a name, by default the first one that is for the path.

    Raises ApiError for an unknown name, and for a model of another purpose, with the names of the right models.
    """
    wanted = purpose_at(path)
    suited = [one for one in table.entries() if one.purpose in ("", wanted or EMBEDDING, wanted or RERANKING)]
    entry = table.find(name)
    if entry in suited:
        return entry
    if name is None or name not in (entry.name, *entry.aliases, *entry.adapters, f"{entry.name}{LATEST}"):
        if not suited:
            raise none_serves(wanted)
        return suited[0]  # no name, or one of Anthropic's, means the default
    raise misdirected(entry.name, entry.purpose, wanted, [one.name for one in suited if one.purpose])


async def _keeper(request: Request, table: ModelTable, given: dict[str, Any]) -> ModelEntry | None:
    """Return the loaded model that has the stored response that a request names without a model, if any."""
    number = request.path_params.get(_STORED)
    if number is None and request.url.path.endswith("/responses") and "model" not in given:
        number = given.get("previous_response_id")
    if not isinstance(number, str) or not number:
        return None
    salt = given.get("cache_salt")
    query = f"?cache_salt={quote(salt)}" if isinstance(salt, str) and salt else ""
    for entry in table.entries():
        if entry.state != "ready" or entry.run is None or entry.run.worker is None:
            continue
        exchange = Exchange(entry.run.worker)
        try:
            target = f"/v1/responses/{quote(number, safe='')}{query}".encode()
            await exchange.send("GET", target, _headers(request.scope), b"")
            if exchange.status == 200:
                return entry
        except WorkerLostError:
            continue
        finally:
            exchange.close()
    return None


def _headers(scope: Scope) -> Headers:
    """Return the headers of a request for its worker."""
    sent = [one for one in scope["headers"] if one[0] not in _NOT_SENT]
    if not any(name == b"host" for name, _ in sent):
        sent.append((b"host", b"worker"))
    owner = str(scope.get("owner", ""))
    return [*sent, (b"x-request-id", scope["request_id"].encode()), (OWNER.encode(), owner.encode())]


class _Forwarded(Response):
    """The answer of a worker.

    Args:
        request: the request.
        body: its body.
        table: the models.
        entry: the model that answers.
        waiting: the beginning of the stream, which is sent if the model is not loaded soon; None: not a stream.
        keep_alive: see ``ModelTable.set_keep_alive``.
    """

    def __init__(
        self,
        request: Request,
        body: bytes,
        table: ModelTable,
        entry: ModelEntry,
        waiting: WaitingStream | None,
        keep_alive: float | None,
    ) -> None:
        super().__init__()
        self._request, self._body, self._table, self._entry, self._waiting = request, body, table, entry, waiting
        self._limits = request.app.state.server.limits
        self._begun = False
        self._keep_alive = keep_alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer; end the request at the worker if the client leaves."""
        try:
            await unless_gone(receive, self._answer(send))
        except ClientGoneError:
            log.info("a client left before its answer was complete")
            if not self._begun:
                await Response(status_code=GONE)(scope, receive, send)  # for the metrics

    async def _answer(self, send: Send) -> None:
        put = patient(send, self._limits.stalled_seconds)
        try:
            await self._leased(put)
        except TimeoutError:
            log.warning("a client that read nothing for %g s was dropped", self._limits.stalled_seconds)
            raise ClientGoneError from None

    async def _leased(self, put: Send) -> None:
        try:
            lease = await self._lease(put)
        except ApiError as error:
            if self._begun and self._waiting is not None:
                await self._end(put, self._waiting.failed(error))
                return
            raise
        if self._request.method == "POST":  # the last request decides
            with contextlib.suppress(ApiError):  # the model has just been removed, and still answers this request
                self._table.set_keep_alive(self._entry.name, self._keep_alive)
        exchange = Exchange(lease.worker)
        try:
            await self._exchange(exchange, put)
        finally:
            exchange.close()
            lease.close()

    async def _lease(self, put: Send) -> Lease:
        """Wait for the model; a stream begins if that takes longer than the pause between its events."""
        waits = asyncio.ensure_future(self._table.use(self._entry.name, str(self._request.scope.get("owner", ""))))
        try:
            while not (await asyncio.wait({waits}, timeout=self._limits.ping_seconds))[0]:
                if self._waiting is not None:
                    if not self._begun:
                        await self._begin(put, self._waiting.kind)
                    await put(_piece(self._waiting.pulse(self._entry)))
            return waits.result()
        except BaseException:
            waits.cancel()
            with contextlib.suppress(BaseException):
                (await waits).close()
            raise

    async def _begin(self, put: Send, kind: str) -> None:
        self._begun = True
        kind = f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
        headers = [(b"content-type", kind.encode()), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        await put({"type": "http.response.start", "status": 200, "headers": headers})

    async def _end(self, put: Send, last: bytes) -> None:
        await put(_piece(last))
        await put({"type": "http.response.body", "body": b"", "more_body": False})

    async def _exchange(self, exchange: Exchange, put: Send) -> None:
        scope = self._request.scope
        path = scope.get("raw_path") or quote(scope["path"]).encode()
        query = scope.get("query_string", b"")
        try:
            target = path + (b"?" + query if query else b"")
            await exchange.send(scope["method"], target, _headers(scope), self._body)
            if self._begun and self._waiting is not None and exchange.status != 200:
                body = b"".join([part async for part in exchange.parts()])
                await self._end(put, self._waiting.error(json.loads(body)))
                return
            if not self._begun:
                self._begun = True
                headers = [one for one in exchange.headers if one[0] not in _NOT_RETURNED]
                await put({"type": "http.response.start", "status": exchange.status, "headers": headers})
            async for part in exchange.parts():
                await put(_piece(part))
            await put({"type": "http.response.body", "body": b"", "more_body": False})
        except WorkerLostError:
            lost = ApiError(503, _LOST, code="worker_lost", headers={"retry-after": "1"})
            if not self._begun:
                raise lost from None
            if self._waiting is None:
                raise  # half an object: the connection breaks
            await self._end(put, self._waiting.failed(lost))


def _piece(part: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": part, "more_body": True}
