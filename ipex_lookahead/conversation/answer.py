"""Answers of a service as text: pieces as they become certain, thoughts, calls of tools, and the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ipex_lookahead.conversation.calls.base import Call
from ipex_lookahead.conversation.reader import Part, Reader
from ipex_lookahead.conversation.text import AnswerText, Shown, TextDelta
from ipex_lookahead.conversation.thinking import Thought
from ipex_lookahead.decoding.events import Event, OnEvent
from ipex_lookahead.decoding.sampling import Ids
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.errors import LookaheadError, ServiceError
from ipex_lookahead.runtime.repetition import TAIL, ends_in_loop, repeats
from ipex_lookahead.runtime.request import Request
from ipex_lookahead.runtime.sampling_params import SamplingParams

if TYPE_CHECKING:
    from ipex_lookahead.runtime.service import Service, TokenLogprob
    from ipex_lookahead.runtime.text_model import TextModel
    from ipex_lookahead.tokenization.text import TextTokenizer


LOOPS = "repetition"
"""Why an answer with ``stop_loops`` ends in a loop."""


@dataclass(slots=True)
class Finish:
    """How an answer ended.

    Attributes:
        reason: "stop", "length", "tool_calls" or, with ``stop_loops``, "repetition".
        stop: the text, or the id of the request's own token, that it stopped at; None for the model's end.
        stats: of this answer.
        thought: how many of its tokens were thought.
        repeats: whether it ended at the length limit while it repeated itself.
    """

    reason: str
    stop: str | int | None
    stats: GenerationStats
    thought: int = 0
    repeats: bool = False

    def fields(self) -> dict[str, Any]:
        """OpenAI's ``finish_reason``, and vLLM's ``stop_reason``: the text or token id that the answer stopped at.

        OpenAI's has no word for an answer that loops: it is "stop", and the ``stop_reason`` "repetition".
        """
        if self.reason == LOOPS:
            return {"finish_reason": "stop", "stop_reason": LOOPS}
        return {"finish_reason": self.reason, "stop_reason": self.stop if self.reason == "stop" else None}


@dataclass(slots=True)
class Delta:
    """What is new of one answer.

    Attributes:
        index: which answer.
        thought: text that was thought, before all that is said.
        text: of it; thoughts and the calls of tools left out.
        pieces: the tokens that the text is made of.
        calls: calls of tools, or pieces of one as they are written.
        finish: at its end.
        progress: prompt tokens read, of how many.
        cached: with ``progress``: prompt tokens that were found in the prefix cache, in whole pages.
        prompt: log probabilities of the prompt's tokens, if requested.
        repeats: whether the answer repeats itself; reported once per 64 tokens.
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
    repeats: bool = False


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

    def add(self, delta: Delta) -> None:
        """Add what is new."""
        for part in (Thought(delta.thought), delta.text):
            if part and self.parts and type(self.parts[-1]) is type(part):
                self.parts[-1] = type(part)(self.parts[-1] + part)
            elif part:
                self.parts.append(part)
        for call in delta.calls:
            before = self.parts[-1] if self.parts and not call.begins else None
            if isinstance(before, Call):
                self.parts[-1] = before.joined(call)
            else:
                self.parts.append(call)
        self.pieces += delta.pieces
        self.finish = delta.finish or self.finish
        self.prompt = delta.prompt or self.prompt

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
        """Calls of tools; one that the end of the answer cut is without its end."""
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
        min_tokens=request.answered + (params.min_tokens or 0),
    )


def _reader_of(request: Request, *, pieces: bool = True) -> Reader:
    """Return a new reader for one answer; see :meth:`Reader.again`."""
    reader: Reader = Reader() if request.reader is None else request.reader.again(pieces=pieces)
    return reader


class AnswerEnd:
    """Ends an answer at a stop text, with its only call or in a loop, and its thought at the budget.

    Called in the service's thread for each token. So where an answer ends, and what its usage is, depends on the tokens
    alone, not on when a client reads them.
    """

    def __init__(self, tokenizer: TextTokenizer, request: Request) -> None:
        self._reader = _reader_of(request, pieces=False)
        self._text = text_of(request, tokenizer)
        self._at = len(request.prompt)
        self._budget, self._ending = request.think_budget, request.think_ending
        self._thought = 0
        self._spent: int | None = None  # the number of thought tokens at which the present thought is ended
        for token in request.prompt[-request.answered :] if request.answered else ():
            self.force()
            self._put(token)

    def __call__(self, ids: Ids) -> bool:
        """Int64 [n], the prompt and the answer so far -> whether it ends here."""
        self._follow(ids)
        return self._text.stopped is not None or self._reader.ended

    def force(self, ids: Ids | None = None) -> int:
        """Return the next token of the end of a thought with a spent budget, else -1; before each token.

        ``ids`` is int64 [n], the prompt and the answer so far.
        """
        if ids is not None:
            self._follow(ids)
        if self._budget is None or not self._reader.thinking:
            self._spent = None
            return -1
        if self._spent is None and self._thought >= self._budget:
            self._spent = self._thought
        at = len(self._ending) if self._spent is None else self._thought - self._spent
        return self._ending[at] if at < len(self._ending) else -1

    def _follow(self, ids: Ids) -> None:
        for token in ids[self._at :].tolist():
            self._put(token)
        self._at = len(ids)

    def _put(self, token: int) -> None:
        self._thought += self._reader.thinking
        shown = self._text.put([token], [None])
        if self._reader.ends or self._budget is not None:
            self._reader.put(shown.text, last=False)


class RepetitionWatch:
    """Detects that a growing answer repeats itself, as a function of its tokens: after every ``TAIL`` of them.

    Attributes:
        ids: the answer's tokens so far.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []

    def put(self, tokens: Sequence[int]) -> bool:
        """Append tokens; return True if the answer was found to repeat itself among them."""
        found = False
        for token in tokens:
            self.ids.append(token)
            if len(self.ids) % TAIL == 0:
                found = repeats(self.ids)
        return found


class AnswerState:
    """One answer in progress: takes the service's events of its request, returns what is new.

    Args:
        request: as submitted.
        tokenizer: the model's.
        index: number of the answer, for its deltas.

    Attributes:
        finish: how it ended; None before.
        thought: number of thinking tokens so far.
        begun: the beginning of an answer that is continued, if the request echoes it.
    """

    def __init__(self, request: Request, tokenizer: TextTokenizer, index: int = 0) -> None:
        self.finish: Finish | None = None
        self.thought = 0
        self._index = index
        self._text = text_of(request, tokenizer)
        self._reader = _reader_of(request)
        self._calls = 0
        self._cut = False  # whether the last call so far is without its end
        self._watch, self._stop_loops = RepetitionWatch(), request.params.stop_loops
        self.begun: list[Delta] = []
        if request.answered:
            ids = request.prompt[-request.answered :]
            self._watch.put(ids)
            deltas = self._parsed(self._text.put(ids, [None] * len(ids)))
            self.begun = deltas if request.echo else []
            self.thought = 0  # usage counts the tokens of this request

    @property
    def ids(self) -> list[int]:
        """The tokens of the answer so far, with those of the beginning that it continues."""
        return self._watch.ids

    def take(self, event: Event) -> list[Delta]:
        """Return what an event adds; nothing for "prefill".

        Raises:
            LookaheadError: the answer failed.
            ServiceError: the service was closed before the answer ended.
        """
        if event.kind == "error":
            raise event.error or LookaheadError("the answer failed")
        if event.kind == "prefill":
            return []
        if event.kind == "tokens":
            deltas = self._parsed(self._text.put(event.tokens, event.origins, event.logprobs))
            deltas[0].repeats = self._watch.put(event.tokens)
            return deltas
        if event.reason == "cancelled":
            raise ServiceError("the answer was cut off, because the service was closed")
        deltas = self._parsed(self._text.end(), last=True)
        reason = "length" if event.reason in ("length", "context") else "stop"
        if self._calls and not self._cut:
            reason = "tool_calls"
        elif self._stop_loops and ends_in_loop(self._watch.ids):
            reason = LOOPS
        again = reason == LOOPS or (reason == "length" and repeats(self._watch.ids))
        self.finish = Finish(reason, self._text.stopped, event.stats or GenerationStats(), self.thought, again)
        deltas[-1].finish = self.finish
        return deltas

    def _parsed(self, shown: Shown, *, last: bool = False) -> list[Delta]:
        """Return what was shown, in order: thought, then text, then calls, then text behind them."""
        deltas = [Delta(self._index, pieces=shown.pieces)]
        for piece in shown.pieces:  # one by one, to tell which tokens were thought
            self.thought += self._reader.thinking and piece.token is not None
            _add(deltas, self._reader.put(piece.text, last=False))
        if last:
            _add(deltas, self._reader.put("", last=True))
        for call in (call for delta in deltas for call in delta.calls):
            self._calls += call.ends
            self._cut = not call.ends
        return deltas


def _add(deltas: list[Delta], parts: Sequence[Part]) -> None:
    """Add parts to the last delta, or to a new one if their order requires it."""
    for part in parts:
        last = deltas[-1]
        if isinstance(part, Call):
            if last.calls and not part.begins and last.calls[-1].id == part.id:
                last.calls[-1] = last.calls[-1].joined(part)
            else:
                last.calls.append(part)
        elif last.calls or (isinstance(part, Thought) and last.text):
            deltas.append(Delta(last.index))
            _add(deltas, [part])
        elif isinstance(part, Thought):
            last.thought += part
        else:
            last.text += part


def shown_ends(model: TextModel, params: SamplingParams) -> SamplingParams:
    """Return the parameters of a request with the ends that its text is cut at.

    These are the stop texts of the model's own generation config too. An end token of the model is not a stop of the
    request, unless the request disables it as an end.
    """
    own = (i for i in params.stop_token_ids if params.ignore_eos or i not in model.eos_ids)
    return replace(params, stop=(*params.stop, *model.own_stops), stop_token_ids=tuple(own))


def submit(service: Service, tokenizer: TextTokenizer, request: Request, on_event: OnEvent) -> Request:
    """Submit a request with its grammar, and with the ends that depend on its text. Raises as ``Service.submit``."""
    if request.grammar is not None:
        processor, draft_filter = request.grammar.constrain(len(request.prompt) - request.answered)
        request = replace(request, processors=[*request.processors, processor], draft_filter=draft_filter)
    ends = request.params.stop or (request.reader is not None and request.reader.ends)
    if ends or request.think_budget is not None:
        end = AnswerEnd(tokenizer, request)
        request = replace(request, stop=end, force=None if request.think_budget is None else end.force)
    return service.submit(request, on_event)
