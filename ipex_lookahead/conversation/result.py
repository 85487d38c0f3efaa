"""An answer as callers in Python get it: a string with its statistics, whole or in pieces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipex_lookahead.conversation.answer import AnswerState, Whole
from ipex_lookahead.conversation.calls.decided import decided
from ipex_lookahead.conversation.thinking import Thought
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.errors import InputError
from ipex_lookahead.runtime.stream import Stream

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that the model requests.

    Attributes:
        name: name of the tool.
        arguments: its arguments.
        id: the ``tool_call_id`` of the message with the result.
    """

    name: str
    arguments: dict[str, Any]
    id: str


class Answer(str):
    """An answer: a string with its statistics.

    Attributes:
        finish_reason: "stop" (the model ended it, or a stop text), "length" (``max_new_tokens``, or the model's
            context), "tool_calls", "repetition" (``stop_loops``), or "cancelled" (the stream was closed).
        stats: statistics of the generation: tokens, speed, acceptance, seed.
        token_ids: the generated token ids, end token included.
        reasoning: what the model thought before it answered; "" if it did not think.
        tool_calls: the requested calls of ``tools``. With the finish reason "length", the last one may lack arguments.
    """

    finish_reason: str
    stats: GenerationStats
    token_ids: list[int]
    reasoning: str
    tool_calls: list[ToolCall]
    _schema: Any

    def __new__(cls, text: str = "") -> Self:
        made = super().__new__(cls, text)
        made.finish_reason, made.stats, made.token_ids = "stop", GenerationStats(), []
        made.reasoning, made.tool_calls, made._schema = "", [], None
        return made

    @property
    def text(self) -> str:
        """The answer as a plain string."""
        return str.__str__(self)

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, to append to the conversation."""
        said: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.tool_calls:
            said["tool_calls"] = [
                {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
                for one in self.tool_calls
            ]
        return said

    @property
    def parsed(self) -> Any:
        """The answer's JSON: an instance of the pydantic model given as ``schema``, else Python's dicts and lists.

        Raises InputError if the answer is not complete JSON, for example because ``max_new_tokens`` ended it.
        """
        try:
            if hasattr(self._schema, "model_validate_json"):
                return self._schema.model_validate_json(self.text)
            return json.loads(self.text)
        except ValueError as error:
            if self.finish_reason == "length":
                tokens = len(self.token_ids)
                said = f"the answer ended after {tokens} tokens, before its JSON was complete"
                raise InputError(said, hint=f"raise max_new_tokens above {tokens}, or shorten the schema") from None
            why = str(error).splitlines()[0]
            raise InputError(f"the answer is not JSON of the schema: {why}", hint="pass schema= to chat") from error


class AnswerStream(Iterator[str]):
    """The text of one answer, in pieces as the model generates them.

    Iterating yields text. Leaving the ``with`` block, or ``close``, ends the answer early. For one thread at a time.
    """

    def __init__(
        self, events: Stream, state: AnswerState, schema: Any = None, *, reasoning: bool = False, owner: object = None
    ) -> None:
        self._events = events
        self._state = state
        self._schema = schema
        self._reasoning = reasoning
        self._owner = owner  # an LLM that is collected ends its answers
        self._whole = Whole()
        self._ids: list[int] = []
        self._waiting: list[str] = []
        self._closed = False
        self._answer: Answer | None = None
        self._error: Exception | None = None

    def __next__(self) -> str:
        while not self._waiting and self._answer is None and not self._closed:
            self._advance()
        if self._closed or not self._waiting:
            raise StopIteration
        return self._waiting.pop(0)

    @property
    def answer(self) -> Answer:
        """The whole answer; waits until it is complete."""
        while self._answer is None:
            self._advance()
        return self._answer

    def close(self) -> None:
        """End the answer. ``answer`` is then the text up to here, with the finish reason "cancelled"."""
        if not self._closed:
            self._closed = True
            if self._answer is None and self._events.request is not None:
                self._events.request.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # of an object that was never complete
            self.close()

    def _advance(self) -> None:
        """Wait for the next event. Raises the error that ended the answer."""
        if self._error is not None:
            raise self._error
        event = next(self._events)
        self._ids += event.tokens
        cancelled = event.kind == "finish" and event.reason == "cancelled" and self._closed
        try:
            deltas = [] if cancelled else self._state.take(event)
        except Exception as error:
            self._error = error
            raise
        for delta in deltas:
            self._whole.add(delta)
            if delta.thought and self._reasoning:
                self._waiting.append(Thought(delta.thought))
            if delta.text:
                self._waiting.append(delta.text)
        if event.kind == "finish":
            self._answer = made = Answer(self._whole.text)
            made.token_ids, made._schema = self._ids, self._schema
            made.reasoning = str(self._whole.thought)
            made.tool_calls = [ToolCall(one.name, decided(one.arguments), one.id) for one in self._whole.calls]
            made.stats = event.stats or GenerationStats()
            made.finish_reason = "cancelled" if self._state.finish is None else self._state.finish.reason
