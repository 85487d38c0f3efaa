"""Answers on their way from the service's thread into the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ipex_lookahead.conversation.calls.base import Call
from ipex_lookahead.conversation.thinking import Thought
from ipex_lookahead.decoding.sampling import Ids
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.errors import LookaheadError, QueueFullError
from ipex_lookahead.runtime.request import Request
from ipex_lookahead.serving.failures import ApiError, from_ours
from ipex_lookahead.serving.reader import Part, Reader
from ipex_lookahead.serving.text import AnswerText, Shown, TextDelta
from ipex_lookahead.serving.usage import whole_pages

if TYPE_CHECKING:
    from ipex_lookahead.runtime.service import Event, Service, TokenLogprob
    from ipex_lookahead.tokenization.text import TextTokenizer


@dataclass(slots=True)
class Finish:
    """How an answer ended.

    Attributes:
        reason: "stop", "length" or "tool_calls".
        stop: the text, or the id of the request's own token, that it stopped at; None for the model's end.
        stats: of this answer.
        thought: how many of its tokens were thought.
    """

    reason: str
    stop: str | int | None
    stats: GenerationStats
    thought: int = 0

    def fields(self) -> dict[str, Any]:
        """OpenAI's ``finish_reason``, and vLLM's ``stop_reason``: the text or token id that the answer stopped at."""
        return {"finish_reason": self.reason, "stop_reason": self.stop if self.reason == "stop" else None}


@dataclass(slots=True)
class Delta:
    """What is new of one answer.

    Attributes:
        index: which answer.
        thought: text that was thought, before all that is said.
        text: of it; thoughts and the calls of tools left out.
        pieces: the tokens that the text is made of.
        calls: whole calls of tools.
        finish: at its end.
        progress: prompt tokens read, of how many.
        cached: with ``progress``: prompt tokens that were found in the prefix cache, in whole pages.
        prompt: log probabilities of the prompt's tokens, if requested.
    """

    index: int
    thought: str = ""
    text: str = ""
    pieces: list[TextDelta] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    finish: Finish | None = None
    progress: tuple[int, int] | None = None
    cached: int = 0
    prompt: Sequence[TokenLogprob | None] = ()


@dataclass(slots=True)
class Whole:
    """One answer that has ended: everything that its deltas said.

    Attributes:
        parts: thought, text and calls in order; never two of the first two in a row.
    """

    parts: list[Part] = field(default_factory=list)
    pieces: list[TextDelta] = field(default_factory=list)
    finish: Finish = field(default_factory=lambda: Finish("stop", None, GenerationStats()))
    prompt: Sequence[TokenLogprob | None] = ()

    @property
    def text(self) -> str:
        """All text; thoughts and the calls of tools left out."""
        return "".join(part for part in self.parts if isinstance(part, str) and not isinstance(part, Thought))

    @property
    def thought(self) -> str:
        """What was thought."""
        return "".join(part for part in self.parts if isinstance(part, Thought))

    @property
    def calls(self) -> list[Call]:
        """Whole calls of tools."""
        return [part for part in self.parts if isinstance(part, Call)]


def text_of(request: Request, tokenizer: TextTokenizer) -> AnswerText:
    """Return the converter of an answer's tokens to text."""
    params = request.params
    return AnswerText(
        tokenizer,
        params.stop,
        request.markers,
        silent_too=request.silent_too,
        stop_ids=params.stop_token_ids,
        min_tokens=params.min_tokens or 0,
    )


def _reader_of(request: Request) -> Reader:
    """Return a new reader for one answer."""
    reader: Reader = Reader() if request.reader is None else request.reader.again()
    return reader


class AnswerEnd:
    """Ends an answer at a stop text or with its only call; called in the service's thread after each token.

    So where it ends, and what its usage is, depends on the tokens alone, not on when a client reads them.
    """

    def __init__(self, tokenizer: TextTokenizer, request: Request) -> None:
        self._reader = _reader_of(request)
        self._text = text_of(request, tokenizer)
        self._at = len(request.prompt)

    def __call__(self, ids: Ids) -> bool:
        """Int64 [n], the prompt and the answer so far -> whether it ends here."""
        new = ids[self._at :].tolist()
        self._at = len(ids)
        shown = self._text.put(new, [None] * len(new))
        if self._reader.ends:
            self._reader.put(shown.text, last=False)
        return self._text.stopped is not None or self._reader.ended


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
        ping_seconds: iteration gives an empty list after this number of seconds without an event.
        at_once: number of answers submitted to the service at a time; each one that ends admits the next.
        mailbox: brings their events into the running loop; None: one of their own.

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
    ) -> None:
        """Submits the first ``at_once`` of them all, or none. Raises ApiError where one is refused."""
        self.requests = requests
        self._ends: list[Finish | None] = [None] * len(requests)
        self._loop = asyncio.get_running_loop()
        self._mailbox = Mailbox(self._loop) if mailbox is None else mailbox
        self._ping = ping_seconds
        self._at_once = at_once
        self._tokenizer = tokenizer
        self._events: deque[tuple[int, Event]] = deque()
        self._arrived = asyncio.Event()
        self._texts = [text_of(request, tokenizer) for request in requests]
        self._readers = [_reader_of(request) for request in requests]
        self._calls = [0] * len(requests)
        self._thought = [0] * len(requests)
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
        request = self.requests[index]
        if request.grammar is not None:
            processor, draft_filter = request.grammar.constrain(len(request.prompt))
            request = replace(request, processors=[*request.processors, processor], draft_filter=draft_filter)
        if request.params.stop or (request.reader is not None and request.reader.ends):
            request = replace(request, stop=AnswerEnd(self._tokenizer, request))

        def on_event(event: Event) -> None:  # in the service's thread
            self._mailbox.put(self._take, index, event)

        return self._service.submit(request, on_event)

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
        self._done = [True] * len(self.requests)

    @property
    def finished(self) -> list[GenerationStats]:
        """Statistics of the answers that have ended by themselves."""
        return [end.stats for end in self._ends if end is not None]

    @property
    def thought(self) -> int:
        """How many tokens of the answers were thought."""
        return sum(self._thought)

    def ended(self) -> list[tuple[GenerationStats, str]]:
        """Of all answers: statistics, and "stop", "length", "tool_calls" or, with empty ones, "abort"."""
        return [(GenerationStats(), "abort") if end is None else (end.stats, end.reason) for end in self._ends]

    async def __aiter__(self) -> AsyncIterator[list[Delta]]:
        """What is new, until all answers have ended. Raises ApiError where one fails."""
        while not all(self._done):
            if not self._events:
                self._arrived.clear()
                pinging = self._loop.call_later(self._ping, self._arrived.set)
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
                one = found[delta.index]
                for part in (Thought(delta.thought), delta.text):
                    if part and one.parts and type(one.parts[-1]) is type(part):
                        one.parts[-1] = type(part)(one.parts[-1] + part)
                    elif part:
                        one.parts.append(part)
                one.parts += delta.calls
                one.pieces += delta.pieces
                one.finish = delta.finish or one.finish
                one.prompt = delta.prompt or one.prompt
        return found

    def _deltas(self, index: int, event: Event) -> list[Delta]:
        if event.kind == "error":
            self._done[index] = True
            raise from_ours(event.error or LookaheadError("the answer failed"))
        if event.kind == "prefill":
            done = event.done if event.done == event.total else whole_pages(event.done)
            cached = whole_pages(event.cached)
            return [Delta(index, progress=(done, event.total), cached=cached, prompt=event.prompt_logprobs or ())]
        text = self._texts[index]
        if event.kind == "tokens":
            return self._parsed(index, text.put(event.tokens, event.origins, event.logprobs))
        if event.reason == "cancelled":  # the service is closing
            raise ApiError(503, "the server is shutting down; this answer was cut off", code="shutting_down")
        deltas = self._parsed(index, text.end(), last=True)
        self._finish(index, deltas[-1], event.reason, event.stats or GenerationStats())
        return deltas

    def _parsed(self, index: int, shown: Shown, *, last: bool = False) -> list[Delta]:
        """What was shown, in order: thought, then text, then calls, then text behind them."""
        deltas = [Delta(index, pieces=shown.pieces)]
        reader = self._readers[index]
        for piece in shown.pieces:  # one by one, to tell which tokens were thought
            self._thought[index] += reader.thinking and piece.token is not None
            _add(deltas, reader.put(piece.text, last=False))
        if last:
            _add(deltas, reader.put("", last=True))
        self._calls[index] += sum(len(delta.calls) for delta in deltas)
        return deltas

    def _finish(self, index: int, delta: Delta, reason: str, stats: GenerationStats) -> None:
        self._done[index] = True
        reason = "length" if reason in ("length", "context") else "stop"
        if self._calls[index]:
            reason = "tool_calls"
        self._next()
        delta.finish = self._ends[index] = Finish(reason, self._texts[index].stopped, stats, self._thought[index])


def _add(deltas: list[Delta], parts: Sequence[Part]) -> None:
    """Add parts to the last delta, or to a new one if their order requires it."""
    for part in parts:
        last = deltas[-1]
        if isinstance(part, Call):
            last.calls.append(part)
        elif last.calls or (isinstance(part, Thought) and last.text):
            deltas.append(Delta(last.index))
            _add(deltas, [part])
        elif isinstance(part, Thought):
            last.thought += part
        else:
            last.text += part
