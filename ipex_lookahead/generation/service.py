"""One model for many callers: requests go in from any thread, one worker thread decodes, events come out.

What a request emits is a pure function of the weights, its prompt, its rules with their seed, its processors and its
number: whoever else is being served shows in the times only.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from time import perf_counter

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.decoding.choose import Ids, Processor
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting.draft import Draft
from ipex_lookahead.errors import InputError, LookaheadError, QueueFullError, ServiceError
from ipex_lookahead.generation.events import Event, OnEvent, TokenLogprob
from ipex_lookahead.generation.rules import Rules
from ipex_lookahead.generation.run import Job, length_limit, run
from ipex_lookahead.generation.text_model import TextModel

DraftFilter = Callable[[Ids, Draft], Draft]
"""(the sequence so far, a draft of what follows) -> what of the draft may follow at all."""


class Ticket:
    """A request that was taken.

    Attributes:
        id: its number, 1, 2, ... in the order of submission.
    """

    def __init__(self, number: int, cancel: Callable[[Ticket], None]) -> None:
        self.id = number
        self.cancelled = False
        self._cancel = cancel

    def cancel(self) -> None:
        """End the request within a step, from any thread; it is told "finish" with the reason "cancelled"."""
        self.cancelled = True
        self._cancel(self)


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


class Service:
    """Serves requests of one model until it is closed.

    Args:
        model: a loaded model, which nobody else changes meanwhile.
        slots: most requests that are decoded at a time.
        queue: most requests that wait for a slot.
        cache_memory: bytes of keys and values, of running requests and of those that are kept for later ones.

    Attributes:
        state: "loading", "ready", "draining" or "closed".
        running, waiting: requests.
        steps, tokens: forwards and emitted tokens so far.
        kv_bytes, cached_pages: keys and values held, and pages of 64 positions kept for later requests.
    """

    def __init__(self, model: TextModel, *, slots: int = 8, queue: int = 64, cache_memory: int = 2**30) -> None:
        if slots < 1 or queue < 0 or cache_memory < 0:
            raise InputError(f"slots={slots}, queue={queue}, cache_memory={cache_memory}; slots must be 1 or more,"
                             " the others 0 or more")  # fmt: skip
        self.model = model
        self.state = "ready"
        self.running = self.steps = self.tokens = self.kv_bytes = self.cached_pages = 0
        self._slots, self._queue = slots, queue
        self._waiting: deque[tuple[Ticket, Job, LookaheadConfig | None, OnEvent]] = deque()
        self._changed = threading.Condition()
        self._numbers = 0
        self._worker = threading.Thread(target=self._work, name="ipex-lookahead service", daemon=True)
        self._worker.start()

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return len(self._waiting)

    def submit(
        self,
        prompt: Sequence[int],
        rules: Rules,
        on_event: OnEvent,
        *,
        lookahead: int | str | LookaheadConfig | None = None,
        adaptive: bool | None = None,
        processors: Sequence[Processor] = (),
        draft_filter: DraftFilter | None = None,
        prediction: Sequence[int] = (),
        key: str = "",
        sequence: int = 0,
        top_logprobs: int | None = None,
    ) -> Ticket:
        """Take a request.

        Args:
            prompt: token ids.
            rules: how tokens are chosen.
            on_event: told what happens, in the worker thread; it must not block, and what it raises ends the request.
            lookahead: how to draft, as for :func:`resolve_lookahead`; it never changes the answer.
            adaptive: False always drafts as much as allowed.
            processors: change the logits after the model's own, called once for each emitted position, in order.
            draft_filter: cuts a draft to what may follow, before it costs a row.
            prediction: ids that the answer may resemble: one more source of drafts, named "prediction".
            key: whose memory of answers and of prompts is used; other keys' do not show, not even in the times.
            sequence: the answer's number in the noise, for several answers with one seed.
            top_logprobs: tell the tokens' log probabilities and those of so many others, 0 to 64; None tells none.

        Raises:
            InputError: an argument outside what is allowed.
            ContextLengthError: a prompt that leaves no room for an answer.
            QueueFullError: as many requests wait as may.
            ServiceError: the service is draining or closed.
        """
        job, config = self._job(prompt, rules, processors, sequence, lookahead, adaptive)
        with self._changed:
            if self.state not in ("loading", "ready"):
                raise ServiceError(f"the service is {self.state} and takes no more requests", hint="ask another one")
            if len(self._waiting) >= self._queue + (not self.running):
                raise QueueFullError(
                    f"{len(self._waiting)} requests are waiting, as many as may",
                    retry_after=1.0,
                    hint="try again later",
                )
            self._numbers += 1
            ticket = Ticket(self._numbers, self._cancelled)
            self._waiting.append((ticket, job, config, on_event))
            self._changed.notify()
        return ticket

    def stream(self, prompt: Sequence[int], rules: Rules, **options: object) -> Stream:
        """As ``submit``, with the events as an iterator; closing it ends the request."""
        stream = Stream()
        stream.ticket = self.submit(prompt, rules, stream.put, **options)  # type: ignore[arg-type]
        return stream

    def close(self, drain: float = 0.0) -> None:
        """Take no more requests, give those that are there ``drain`` seconds, then cancel what is left; waits."""
        ends = perf_counter() + drain
        with self._changed:
            if self.state == "closed":
                return
            self.state = "draining"
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting and not self.running, max(0.0, ends - perf_counter()))
            self.state = "closed"
            self._changed.notify_all()
        self._worker.join()

    def _job(
        self,
        prompt: Sequence[int],
        rules: Rules,
        processors: Sequence[Processor],
        sequence: int,
        lookahead: int | str | LookaheadConfig | None,
        adaptive: bool | None,
    ) -> tuple[Job, LookaheadConfig | None]:
        model = self.model
        if not prompt:
            raise InputError("the prompt is empty; give at least one token")
        if min(prompt) < 0 or max(prompt) >= model.engine.vocab_size:
            raise InputError(f"the prompt's ids must be from 0 to {model.engine.vocab_size - 1}")
        config, _ = model._drafting(lookahead, adaptive)
        limit, reason = length_limit(len(prompt), model.engine.max_context, max_new_tokens=rules.max_new_tokens)
        return model._job(prompt, rules, limit, reason, processors, sequence), config

    def _cancelled(self, ticket: Ticket) -> None:
        with self._changed:
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self.state in ("draining", "closed"))
                if not self._waiting:
                    self._changed.notify_all()
                    return
                ticket, job, config, tell = self._waiting.popleft()
                self.running = 1
            try:
                self._serve(ticket, job, config, tell)
            finally:
                with self._changed:
                    self.running = 0
                    self._changed.notify_all()

    def _serve(self, ticket: Ticket, job: Job, config: LookaheadConfig | None, tell: OnEvent) -> None:
        stats = GenerationStats()

        def ended() -> bool:
            return ticket.cancelled or self.state == "closed"

        job.on_token = lambda token: tell(Event("tokens", tokens=[token], origins=[None]))
        try:
            if job.limit == len(job.prompt):
                stats.finish_reasons = [job.limit_reason]
            else:
                run(
                    self.model.engine,
                    [job],
                    config,
                    stats=stats,
                    costs=self.model._costs,
                    stores=self.model._stores,
                    cancelled=ended,
                    on_prefill=lambda done, total: tell(Event("prefill", done, total)),
                )
        except LookaheadError as error:
            tell(Event("error", error=error))
        else:
            self.steps += stats.steps
            self.tokens += stats.tokens
            tell(Event("finish", reason=stats.finish_reasons[0], stats=stats))


__all__ = ["DraftFilter", "Event", "OnEvent", "Service", "Stream", "Ticket", "TokenLogprob"]
