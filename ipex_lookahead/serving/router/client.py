"""HTTP requests to a worker: one connection per request, which closes when the answer is complete."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import h11

from ipex_lookahead.serving.gate import SECRET
from ipex_lookahead.serving.relay import Headers

if TYPE_CHECKING:
    from ipex_lookahead.serving.router.entries import Worker

_PIECE = 64 << 10


class WorkerLostError(Exception):
    """The worker ended before its answer was complete."""


class Exchange:
    """One request to a worker and its answer.

    Attributes:
        status, headers: of the answer, after :meth:`send`.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.status = 0
        self.headers: Headers = []

    async def send(self, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a request, and wait for the head of the answer.

        Args:
            method: such as "POST".
            target: path and query.
            headers: without those of the connection and of the body.
            body: all of it.

        Raises WorkerLostError.
        """
        own = [(b"connection", b"close"), (b"content-length", b"%d" % len(body))]
        own.append((SECRET.encode(), self._worker.secret.encode()))
        try:
            self._streams = await asyncio.open_unix_connection(self._worker.address, limit=_PIECE)
            writer = self._streams[1]
            request = h11.Request(method=method, target=target, headers=[*headers, *own])
            writer.write(self._http.send(request) or b"")
            if body:
                writer.write(self._http.send(h11.Data(data=body)) or b"")
            writer.write(self._http.send(h11.EndOfMessage()) or b"")
            with contextlib.suppress(ConnectionError):  # an answer may have come before the body was read
                await writer.drain()
            event = await self._event()
            while not isinstance(event, h11.Response):
                event = await self._event()
        except (OSError, h11.RemoteProtocolError) as error:
            raise WorkerLostError(str(error)) from None
        self.status, self.headers = event.status_code, list(event.headers)

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the pieces of the answer's body as they come. Raises WorkerLostError."""
        try:
            while not isinstance(event := await self._event(), h11.EndOfMessage):
                if isinstance(event, h11.Data):
                    yield bytes(event.data)
        except (OSError, h11.RemoteProtocolError) as error:
            raise WorkerLostError(str(error)) from None

    async def _event(self) -> Any:
        assert self._streams is not None
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._streams[0].read(_PIECE))
        if isinstance(event, h11.ConnectionClosed):
            raise ConnectionResetError("the connection was closed")
        return event

    def close(self) -> None:
        """Close the connection; the worker cancels an answer that is not complete."""
        if self._streams is not None:
            self._streams[1].close()


async def fetch(worker: Worker, path: str) -> Any:
    """Return the JSON, or the text, of a path of a worker. Raises WorkerLostError."""
    exchange = Exchange(worker)
    try:
        await exchange.send("GET", path.encode(), [(b"host", b"worker")], b"")
        body = b"".join([part async for part in exchange.parts()])
    finally:
        exchange.close()
    kind = dict(exchange.headers).get(b"content-type", b"")
    return json.loads(body) if kind.startswith(b"application/json") else body
