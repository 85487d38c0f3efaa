"""Answers on their way from the service's thread into the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

from ipex_lookahead.conversation.answer import AnswerState, Delta, Whole, submit
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.errors import LookaheadError, QueueFullError
from ipex_lookahead.runtime.request import Request
from ipex_lookahead.serving.failures import ApiError, from_ours
from ipex_lookahead.serving.usage import whole_pages

if TYPE_CHECKING:
    from ipex_lookahead.runtime.service import Event, Service
    from ipex_lookahead.tokenization.text import TextTokenizer


class Mailbox:
    """Hands the service's events over to an event loop, those of a step at once: to wake the loop is a system call.

    Args:
        loop: where they are taken.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._events: deque[tuple[Callable[[int, Event], None], int, Event]] = deque()
        self._called = False

    def put(self, take: Callable[[int, Event], None], index: int, event: Event) -> None:
        """Have ``take(index, event)`` called in the loop, after what was put before; from the service's thread."""
        self._events.append((take, index, event))
        if not self._called:
            self._called = True
            try:
                self.loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop has ended, and with it the reader
                self._events.clear()
                self._called = False

    def _deliver(self) -> None:
        self._called = False  # before the events are looked at: what comes later calls again
        while self._events:
            take, index, event = self._events.popleft()
            take(index, event)


class Answers:
    """The answers of one HTTP request in progress. The owner closes them, which cancels unfinished answers.

    Args:
        service: where they are made.
        tokenizer: the model's.
        requests: one for each answer.
        ping_seconds: longest pause between two events of a stream. Iteration gives an empty list after half of it, so
            that a stream which looks then whether one is due keeps to it.
        at_once: number of answers submitted to the service at a time; each one that ends admits the next.
        mailbox: brings their events into the running loop; None: one of their own.
        on_end: called when the first answer has ended or is closed, with its text: the keys of the prompt, and the
            tokens of the answer.

    Attributes:
        slot: llama-server's slot of the first answer.

    Iterating gives lists of what is new.
    """

    def __init__(
        self,
        service: Service,
        tokenizer: TextTokenizer,
        requests: Sequence[Request],
        ping_seconds: float,
        at_once: int = 16,
        mailbox: Mailbox | None = None,
        on_end: Callable[[list[int]], None] | None = None,
    ) -> None:
        """Submits the first ``at_once`` of them all, or none. Raises ApiError where one is refused."""
        self.requests = requests
        self.slot = 0
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._mailbox = Mailbox(self._loop) if mailbox is None else mailbox
        self.ping = ping_seconds / 2
        self._at_once = at_once
        self._tokenizer = tokenizer
        self._events: deque[tuple[int, Event]] = deque()
        self._arrived = asyncio.Event()
        self._states = [AnswerState(request, tokenizer, index) for index, request in enumerate(requests)]
        self._done = [False] * len(requests)
        self._service = service
        self._running: list[Request] = []
        try:
            first = min(at_once, len(requests))
            service.check_room(first, requests[0].key if requests else "")
            for index in range(first):
                self._running.append(self._submit(index))
        except LookaheadError as error:
            self.close()
            raise from_ours(error) from None
        except BaseException:
            self.close()
            raise

    def _submit(self, index: int) -> Request:
        def on_event(event: Event) -> None:  # in the service's thread
            self._mailbox.put(self._take, index, event)

        return submit(self._service, self._tokenizer, self.requests[index], on_event)

    def _next(self) -> None:
        """Submit what waits for one of this request's to end. Raises ApiError where the service has no room for any."""
        while len(self._running) < len(self.requests):
            running = len(self._running) - sum(self._done)
            if running >= self._at_once:
                return
            try:
                self._running.append(self._submit(len(self._running)))
            except QueueFullError as error:  # others came first; the next that ends tries again
                if not running:
                    raise from_ours(error) from None
                return
            except LookaheadError as error:
                raise from_ours(error) from None

    def _take(self, index: int, event: Event) -> None:
        self._events.append((index, event))
        self._arrived.set()

    def close(self) -> None:
        """Cancel what is not done; takes effect within a step. Any number of times."""
        for index, request in enumerate(self._running):
            if not self._done[index]:
                request.cancel()
                self._note_end(index)
        self._done = [True] * len(self.requests)

    @property
    def finished(self) -> list[GenerationStats]:
        """Statistics of the answers that have ended by themselves."""
        return [state.finish.stats for state in self._states if state.finish is not None]

    @property
    def thought(self) -> int:
        """How many tokens of the answers were thought."""
        return sum(state.thought for state in self._states)

    def ended(self) -> list[tuple[GenerationStats, str]]:
        """Of all answers: statistics, and "stop", "length", "tool_calls" or, with empty ones, "abort"."""
        ends = (state.finish for state in self._states)
        return [(GenerationStats(), "abort") if end is None else (end.stats, end.reason) for end in ends]

    async def __aiter__(self) -> AsyncIterator[list[Delta]]:
        """What is new, until all answers have ended. Raises ApiError where one fails."""
        if begun := [delta for state in self._states for delta in state.begun]:
            yield begun
        while not all(self._done):
            if not self._events:
                self._arrived.clear()
                pinging = self._loop.call_later(self.ping, self._arrived.set)
                try:
                    await self._arrived.wait()
                finally:
                    pinging.cancel()
            found: list[Delta] = []
            while self._events:
                index, event = self._events.popleft()
                if not self._done[index]:
                    found += self._deltas(index, event)
            yield found

    async def whole(self) -> list[Whole]:
        """All answers, when all have ended. Raises ApiError where one fails."""
        found = [Whole() for _ in self.requests]
        async for deltas in self:
            for delta in deltas:
                found[delta.index].add(delta)
        return found

    def _deltas(self, index: int, event: Event) -> list[Delta]:
        if event.kind == "error":
            self._done[index] = True
            raise from_ours(event.error or LookaheadError("the answer failed"))
        if event.kind == "prefill":
            done = event.done if event.done == event.total else whole_pages(event.done)
            cached = whole_pages(event.cached)
            return [Delta(index, progress=(done, event.total), cached=cached, prompt=event.prompt_logprobs or ())]
        if event.kind == "finish" and event.reason == "cancelled":  # the service is closing
            raise ApiError(503, "the server is shutting down; this answer was cut off", code="shutting_down")
        deltas = self._states[index].take(event)
        if event.kind == "finish":
            self._done[index] = True
            self._note_end(index)
            self._next()
        return deltas

    def _note_end(self, index: int) -> None:
        if self._on_end is not None and index == 0:
            request, ids = self.requests[index], self._states[index].ids
            self._on_end([*request.keys[: len(request.prompt) - request.answered], *ids])
