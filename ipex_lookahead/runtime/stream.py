"""The events of a service's request as an iterator."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue

from ipex_lookahead.decoding.events import Event
from ipex_lookahead.runtime.request import Request


class Stream:
    """An iterator over a request's events. ``close`` ends the request; so does leaving a ``with`` block."""

    def __init__(self) -> None:
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._ended = False
        self.put = self._events.put
        self.request: Request | None = None

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        if self._ended:
            raise StopIteration
        event = self._events.get()
        self._ended = event.kind in ("finish", "error")
        return event

    def close(self) -> None:
        """Cancel the request if it has not ended."""
        if not self._ended and self.request is not None:
            self.request.cancel()
        self._ended = True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
