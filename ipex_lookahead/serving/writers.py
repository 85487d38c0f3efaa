"""Bases of the writers: answers as OpenAI's choices, and one answer as a list of blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from ipex_lookahead.conversation.answer import Delta, Finish, Whole
from ipex_lookahead.conversation.calls.base import Call
from ipex_lookahead.conversation.text import TextDelta
from ipex_lookahead.serving.answers import Answers
from ipex_lookahead.serving.logprobs import draft_trace
from ipex_lookahead.serving.server import Served
from ipex_lookahead.serving.sse import DONE, Pulse, comments, event
from ipex_lookahead.serving.usage import timings


class ChoiceWriter(ABC):
    """Writes the answers of one request as ``choices``: chat completions and completions.

    Args:
        head: fields of every object that is sent.
        served: the model.
        body: the request.
        answers: the answers in progress.
    """

    def __init__(self, head: dict[str, Any], served: Served, body: Any, answers: Answers) -> None:
        self._head = head
        self._served = served
        self._body = body
        self._answers = answers
        self._pulse = Pulse(answers.ping)
        # Of each answer, pieces without text, which the next chunk reports.
        self._silent: list[list[TextDelta]] = [[] for _ in answers.requests]

    @abstractmethod
    def _opening(self) -> Iterator[dict[str, Any]]:
        """Yield the choices that precede the first token."""

    @abstractmethod
    def _new(self, delta: Delta) -> list[dict[str, Any]]:
        """Return the chunks of a delta, without the head."""

    @abstractmethod
    def _choices(self, answers: Sequence[Whole]) -> list[dict[str, Any]]:
        """Return the choices of complete answers."""

    @abstractmethod
    def _usage(self) -> dict[str, int]:
        """Return ``usage`` of the finished answers."""

    @abstractmethod
    def _nothing(self) -> dict[str, Any]:
        """Return a choice without content."""

    def _traced(self, chunks: list[dict[str, Any]], silent: list[TextDelta]) -> list[dict[str, Any]]:
        """Add the draft trace to the first chunk, if there is one, and forget the reported pieces."""
        if chunks and silent:
            if self._body.return_draft_trace:
                chunks[0]["draft_trace"] = draft_trace(silent)
            silent.clear()
        return chunks

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield server-sent events."""
        with_usage = bool(self._body.stream_options and self._body.stream_options.include_usage)
        head = self._head | ({"usage": None} if with_usage else {})
        if head["object"] == "chat.completion":
            head["object"] = "chat.completion.chunk"
        for choice in self._opening():
            yield event(head | {"choices": [choice]})
        async for deltas in self._answers:
            for part in comments(deltas):
                yield part
            chunks = [new for delta in deltas for new in self._new(delta)]
            for new in chunks:
                yield event(head | new)
            if self._pulse.due(written=bool(chunks)):
                yield event(head | {"choices": [self._nothing()]})
        if with_usage:
            yield event(head | {"choices": [], "usage": self._usage()})
        yield DONE

    async def whole(self) -> dict[str, Any]:
        """Return all answers in one object."""
        answers = await self._answers.whole()
        return {
            **self._head,
            "choices": self._choices(answers),
            "usage": self._usage(),
            "timings": timings(answers[0].finish),
        }


class BlockWriter(ABC):
    """Writes one answer as blocks (thought, text, tool call) in the order of generation: Responses and Messages.

    Args:
        answers: the answer in progress.
    """

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._pulse = Pulse(answers.ping)
        self._place = 0
        self._writing = ""
        self._calling: Call | None = None  # the call that is being written, up to now

    @abstractmethod
    def _begin(self, kind: str) -> Iterator[bytes]:
        """Begin a block, ``"thinking"`` or ``"text"``, at ``self._place``."""

    @abstractmethod
    def _add(self, kind: str, text: str) -> Iterator[bytes]:
        """Add text to the block."""

    @abstractmethod
    def _complete(self) -> Iterator[bytes]:
        """End the block."""

    @abstractmethod
    def _begin_call(self, call: Call) -> Iterator[bytes]:
        """Begin a tool call at ``self._place``, without its arguments."""

    @abstractmethod
    def _add_call(self, arguments: str) -> Iterator[bytes]:
        """Add a piece of the arguments to the call."""

    @abstractmethod
    def _complete_call(self, call: Call) -> Iterator[bytes]:
        """End the call, which is given as a whole, or as far as it came before the answer was cut."""

    @abstractmethod
    def _finish(self, finish: Finish) -> Iterator[bytes]:
        """End the answer."""

    def _blocks(self, delta: Delta) -> Iterator[bytes]:
        """Yield the events of a delta."""
        for kind, text in (("thinking", delta.thought), ("text", delta.text)):
            if not text:
                continue
            yield from self._called()
            if self._writing not in ("", kind):
                yield from self._closed()
            if not self._writing:
                self._writing = kind
                yield from self._begin(kind)
            yield from self._add(kind, text)
        if self._writing and (delta.calls or delta.finish):
            yield from self._closed()
        for call in delta.calls:
            if call.begins:
                yield from self._called()
                yield from self._begin_call(call)
            self._calling = call if self._calling is None else self._calling.joined(call)
            if call.arguments:
                yield from self._add_call(call.arguments)
            if call.ends:
                yield from self._called()
        if delta.finish is not None:
            yield from self._called()
            yield from self._finish(delta.finish)

    def _called(self) -> Iterator[bytes]:
        if self._calling is not None:
            yield from self._complete_call(self._calling)
            self._calling = None
            self._place += 1

    def _closed(self) -> Iterator[bytes]:
        yield from self._complete()
        self._writing = ""
        self._place += 1
