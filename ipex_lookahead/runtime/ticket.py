"""What a service's caller gets of a request: a ticket, or the events as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue

from ipex_lookahead.runtime.events import Event


class Ticket:
    """A request that was taken.

    Attributes:
        id: its number, 1, 2, ... in the order of submission.
    """

    def __init__(self, number: int, cancel: Callable[[int], None]) -> None:
        self.id = number
        self._cancel = cancel

    def cancel(self) -> None:
        """End the request within a step, from any thread; its last event is "finish" with the reason "cancelled"."""
        self._cancel(self.id)


class Stream:
    """A request's events, as an iterator. ``close`` ends the request; so does leaving a ``with``."""

    def __init__(self) -> None:
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._ended = False
        self.put = self._events.put
        self.ticket: Ticket | None = None

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        if self._ended:
            raise StopIteration
        event = self._events.get()
        self._ended = event.kind in ("finish", "error")
        return event

    def close(self) -> None:
        """Cancel what is still going on."""
        if not self._ended and self.ticket is not None:
            self.ticket.cancel()
        self._ended = True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
