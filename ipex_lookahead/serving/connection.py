"""What a connection may do before there is a request: send a whole head, in time, and one that means one thing.

uvicorn waits for a head for as long as the client likes, and its parser takes line ends and folded lines that other
programs read differently, which is how requests are smuggled past a proxy.
"""

from __future__ import annotations

import asyncio
import json
import re
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ipex_lookahead.serving.failures import ApiError

MOST_CONNECTIONS = 512
MOST_WITHOUT_HEAD = 128
"""Connections of one address without a complete request head."""
_LONGEST_HEAD = 64 << 10
"""More than the parser takes."""
_BARE = re.compile(rb"(?<!\r)\n|\r(?!\n)")
_FOLDED = re.compile(rb"\n[ \t]")
_HEALTH = re.compile(rb"(?:GET|HEAD) /(?:v1/)?health(?:\?\S*)? HTTP/1\.1\r\n")
_HOST = re.compile(rb"\r\nhost[ \t]*:", re.IGNORECASE)


def impatient(seconds: float, most: int = MOST_CONNECTIONS, most_without: int = MOST_WITHOUT_HEAD) -> Any:
    """uvicorn's protocol with a limit on the seconds that the head of a request may take.

    Where there are ``most`` connections, or ``most_without`` of an address without a head, the oldest without a
    request is closed for a new one; if all have one, the new one gets a 503.
    """

    class Impatient(H11Protocol):  # type: ignore[misc, unused-ignore]
        _waiting: asyncio.TimerHandle | None = None
        _head = b""
        _silent = True  # until its first request

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            others: list[Any] = [one for one in self.connections if one is not self]
            silent = sorted((one for one in others if one._silent), key=lambda one: one._since)
            here = [one for one in silent if one.client and self.client and one.client[0] == self.client[0]]
            self._since = self.loop.time()
            if len(here) >= most_without:
                here[0].transport.close()
            elif len(self.connections) > most:
                if not silent:
                    self._refuse(503, "the server has reached its connection limit; try again later")
                    return
                silent[0].transport.close()
            self._wait()

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            if self.conn.their_state is h11.IDLE:
                self._head += data[:_LONGEST_HEAD]
                if self._refuse_head():
                    return
                if _HEALTH.match(self._head) and b"\r\n\r\n" in self._head and not _HOST.search(self._head):
                    # Load balancers ask so, which HTTP/1.1 forbids and HTTP/1.0 allows.
                    self.conn = h11.Connection(h11.SERVER)
                    data = self._head.replace(b"HTTP/1.1", b"HTTP/1.0", 1)
            elif self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE:
                self._read_to_end(data)
                return
            super().data_received(data)
            self._began()

        def on_response_complete(self) -> None:
            """Go on with a request that came behind the one that is answered; its head is looked at first."""
            if self.conn.their_state is h11.DONE:
                self._head = self.conn.trailing_data[0][:_LONGEST_HEAD]
            if not self.transport.is_closing() and not self._refuse_head():
                super().on_response_complete()
                self._began()

        def _began(self) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                self._head, self._silent = b"", False
            self._wait()

        def _refuse_head(self) -> bool:
            head, end, _ = self._head.partition(b"\r\n\r\n")
            bad = _BARE.search(head if end else head.removesuffix(b"\r")) or _FOLDED.search(head)
            if bad:
                self._refuse(400, "the request's head has bare line ends or folded lines; each line ends in CR LF")
            return bool(bad)

        def _read_to_end(self, data: bytes) -> None:
            """Read a body that was answered before it came, and close: the parser would go on with the next head."""
            self.conn.receive_data(data)
            try:
                while isinstance(event := self.conn.next_event(), h11.Data):
                    pass
            except h11.RemoteProtocolError:
                event = None
            if event is not h11.NEED_DATA:
                self.transport.close()

        def send_400_response(self, msg: str) -> None:
            """What the parser refuses, as JSON."""
            self._refuse(400, "this is not an HTTP request that the server understands")

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _refuse(self, status: int, said: str) -> None:
            self._stop()
            body = json.dumps(ApiError(status, said).body("")).encode()
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nx-content-type-options: nosniff\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode("ascii") + body)
            self.transport.close()

        def _wait(self) -> None:
            """The clock runs from the first moment without a request, however many pieces of a head come."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop()
            elif self._waiting is None:
                self._waiting = self.loop.call_later(seconds, self._end)

        def _end(self) -> None:
            self._waiting = None
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

        def _stop(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

    return Impatient
