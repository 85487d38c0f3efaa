"""Connections that ask nothing are closed: uvicorn waits for a request's head for as long as the client likes."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol


def impatient(seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's protocol, closed by what has sent no whole head of a request for so long."""
    theirs: Any = AutoHTTPProtocol

    class Impatient(theirs):  # type: ignore[misc]
        _waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

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
