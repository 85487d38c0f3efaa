"""Server-sent events, and requests that end when their client leaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping, Sequence
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ipex_lookahead.conversation.answer import Delta
from ipex_lookahead.serving.failures import ApiError

log = logging.getLogger(__name__)
Result = TypeVar("Result")
DONE = b"data: [DONE]\n\n"
EVENTS = "text/event-stream"
_encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""As ``json.dumps``, which makes an encoder at each call with other than its default options."""


class ClientGoneError(Exception):
    """The client has disconnected."""


def event(data: Any, name: str | None = None) -> bytes:
    """One event; ``name`` is its type, which OpenAI's chunks have not."""
    text = _encoded(data)
    return (f"event: {name}\n" if name else "").encode() + b"data: " + text.encode("utf-8", "replace") + b"\n\n"


def line(data: Any) -> bytes:
    """One of the lines of JSON that Ollama streams."""
    return _encoded(data).encode("utf-8", "replace") + b"\n"


def comments(deltas: Sequence[Delta]) -> Iterator[bytes]:
    """The state of answers: that they wait, how much of a prompt has been read, or that an answer repeats itself.

    Clients pass over such lines, which keep connections open.
    """
    if not deltas:
        yield b": waiting\n\n"
    for delta in deltas:
        if delta.progress is not None:
            yield f": prefill {delta.progress[0]}/{delta.progress[1]}\n\n".encode()
        if delta.repeats:
            yield b": repeats itself\n\n"


class Pulse:
    """The time at which a stream needs an event without content, because clients drop streams without events.

    Args:
        seconds: longest pause between two events.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = time.monotonic()

    def due(self, *, written: bool) -> bool:
        """Return True if the last event is long ago; ``written``: one has been sent just now."""
        now = time.monotonic()
        due = not written and now - self._last >= self._seconds
        if written or due:
            self._last = now
        return due


class EventStream(Response):
    """An answer that is sent as it comes.

    Args:
        chunks: bytes; an ApiError that it raises becomes the last event.
        close: called at the end, however that comes, also where ``chunks`` was never begun.
        path: of the request, for the shape of errors.
        stalled_seconds: seconds after which a client that reads nothing is dropped.
        kind: the media type; one that is not ``EVENTS`` is of lines of JSON.
    """

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        close: Callable[[], None],
        *,
        path: str,
        stalled_seconds: float,
        kind: str = EVENTS,
    ) -> None:
        super().__init__(media_type=kind, headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._close = close
        self._path = path
        self._stalled = stalled_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end, or until the client has gone or takes nothing more."""
        try:
            await unless_gone(receive, self._send(send))
        except ClientGoneError:
            log.info("a client left before its answer was complete")
        finally:
            self._close()

    async def _send(self, send: Send) -> None:
        put = patient(send, self._stalled)
        try:
            await put({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                async with contextlib.aclosing(self._chunks) as chunks:  # type: ignore[type-var]
                    async for chunk in chunks:
                        await put({"type": "http.response.body", "body": chunk, "more_body": True})
            except ApiError as error:
                body = error.body(self._path)
                failed = event(body, "error" if "type" in body else None) if self.media_type == EVENTS else line(body)
                await put({"type": "http.response.body", "body": failed, "more_body": True})
            await put({"type": "http.response.body", "body": b"", "more_body": False})
        except (asyncio.TimeoutError, TimeoutError):
            log.warning("a client that took nothing for %g s was dropped", self._stalled)
            raise ClientGoneError from None


def patient(send: Send, seconds: float) -> Send:
    """Return a ``send`` for the current task that raises TimeoutError if the client reads nothing for ``seconds``."""
    loop, task, stalled = asyncio.get_running_loop(), asyncio.current_task(), False

    def stall() -> None:
        nonlocal stalled
        stalled = True
        if task is not None:
            task.cancel()

    async def put(message: MutableMapping[str, Any]) -> None:
        # As asyncio.wait_for, which makes a task of each call: a fifth of the event loop's time for a token.
        timer = loop.call_later(seconds, stall)
        try:
            await send(message)
        except asyncio.CancelledError:
            if stalled:
                raise TimeoutError from None
            raise
        finally:
            timer.cancel()

    return put


async def unless_gone(receive: Receive, work: Awaitable[Result]) -> Result:
    """The work's result; it is cancelled where the client leaves before. Raises ClientGoneError then.

    A client's leaving is seen at once, also while nothing is being sent.
    """

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    doing = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(gone())
    try:
        await asyncio.wait({doing, watching}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise ClientGoneError
    finally:
        await _ended(doing)
        await _ended(watching)


async def _ended(task: asyncio.Future[Any]) -> None:
    """Cancel, until it has ended: ``wait_for`` of Python 3.10 and 3.11 may lose a cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.05)
    if not task.cancelled():
        task.exception()  # the caller already has it; asyncio would report it as unseen
