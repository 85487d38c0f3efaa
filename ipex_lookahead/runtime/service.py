"""One model for many callers: any thread submits requests, one worker thread decodes, and events report progress.

The tokens of a request are a pure function of the weights, its prompt, its sampling parameters with their seed, its
processors and its number. Other requests and the prefix cache change only its latency.
"""

from __future__ import annotations

import logging
import threading
from collections import abc
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from ipex_lookahead.config import MAX_DRAFT, MEMORY_STORE, LookaheadConfig, is_memory
from ipex_lookahead.controller import Controller
from ipex_lookahead.decoding.cache_budget import CONVERSATION_BYTES, CONVERSATION_STATES
from ipex_lookahead.decoding.disk_cache import DiskCache
from ipex_lookahead.decoding.events import Event, OnEvent, TokenLogprob
from ipex_lookahead.decoding.prefix_cache import (
    PAGE,
    RUNNING_STATES,
    PrefixCache,
    pages_of,
)
from ipex_lookahead.decoding.scheduler import Scheduler
from ipex_lookahead.decoding.sequence import Sequence
from ipex_lookahead.decoding.sequence_group import SequenceGroup
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting.prediction import SOURCE
from ipex_lookahead.engines.api import Engine, position_bytes, state_bytes
from ipex_lookahead.engines.prefill import PREFILL_ROWS
from ipex_lookahead.errors import InputError, LookaheadError, ServiceError
from ipex_lookahead.runtime.cache_files import write_all
from ipex_lookahead.runtime.drafting import head_rates
from ipex_lookahead.runtime.logprobs import checked_top, logprob_of, note_prompt_logprobs
from ipex_lookahead.runtime.lookahead import make_controller
from ipex_lookahead.runtime.places import Places
from ipex_lookahead.runtime.request import Request, store_of
from ipex_lookahead.runtime.run import length_limit
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.stop_texts import any_of
from ipex_lookahead.runtime.stream import Stream
from ipex_lookahead.runtime.text_model import TextModel

Result = TypeVar("Result")
log = logging.getLogger("ipex_lookahead")


class Service:
    """Serves requests of one model until it is closed.

    Args:
        model: a loaded model.
        slots: largest number of running requests. Keys that want more than there are get equal shares.
        queue: largest number of waiting requests.
        running_per_key, queued_per_key: the same for one key; None = no limit of its own.
        cache_memory: bytes of keys, values and states of running requests and of the prefix cache, a draft model's own
            included, with room for the same number of positions in both. None: room for one text of the model's full
            context, as in a conversation of ``TextModel``, at least 1 GiB. Engines that do not report the bytes of a
            position hold what their slots need.

    Attributes:
        state: "loading", "ready", "draining" or "closed".
        running, waiting: numbers of requests.
        steps, tokens: numbers of forwards and of emitted tokens so far.
        kv_bytes, cached_pages: bytes of keys, values and states held, and pages of 64 positions in the prefix cache.
        state_bytes: part of them for recurrent states, and features that a head has yet to read, in the prefix cache.
        cached_tokens: number of prompt tokens found in the prefix cache so far.
        preemptions: number of requests that gave their memory to an older one, or their slot to another key.
    """

    def __init__(
        self,
        model: TextModel,
        *,
        slots: int = 8,
        queue: int = 64,
        running_per_key: int | None = None,
        queued_per_key: int | None = None,
        cache_memory: int | None = 2**30,
    ) -> None:
        self._places = Places(slots, queue, running_per_key, queued_per_key)
        model.check_own_settings()
        self._finds_turns = state_bytes(model.engine) > 0
        if self._finds_turns:
            model.turns_of([])  # the first call renders the chat template
        self.model = model
        self.state = "loading"
        self.running = self.waiting = self.steps = self.tokens = self.preemptions = 0
        self.kv_bytes = self.state_bytes = self.cached_pages = self.cached_tokens = 0
        self._slots = slots
        self._memory, self._draft_memory = _memories(model, slots, cache_memory)
        if model.cache_files is not None:
            model.cache_files.attach(self._memory, model.engine)
            if self._draft_memory is not None and model.draft_engine is not None:
                model.cache_files.attach(self._draft_memory, model.draft_engine)
        self._counts_bytes = _sequence_bytes(model.engine) > 0
        self._controllers: dict[LookaheadConfig | None, Controller] = {}
        self._requests: dict[int, Request] = {}
        self._submitted: dict[int, Request] = {}  # by the scheduler's number
        self._new: list[Request] = []
        self._leaving: list[int] = []
        self._calls: list[tuple[Callable[[PrefixCache], Any], Future[Any]]] = []
        self._numbers = 0
        self._changed = threading.Condition()
        self._worker = threading.Thread(target=self._work, name="ipex-lookahead service", daemon=True)
        self._worker.start()

    @property
    def disk(self) -> DiskCache | None:
        """The prefix cache's second level, or None."""
        return self._memory.disk

    # ---- any thread --------------------------------------------------------------------------------------------------

    @property
    def slots(self) -> int:
        """Largest number of running requests."""
        return self._slots

    def submit(self, request: Request, on_event: OnEvent) -> Request:
        """Queue a copy of a request and return the copy; its ``cancel`` ends it within a step, from any thread.

        Args:
            request: its sequences and functions are used as they are until the request has ended.
            on_event: called with the request's events in the worker thread. It must not block, and an exception that it
                raises ends the request.

        Raises:
            InputError: a field outside what is allowed.
            ContextLengthError: a prompt that leaves no room for an answer, or one that the memory has no room for.
            QueueFullError: the queue is full, for this key or for all.
            ServiceError: the service is draining or closed.
        """
        request = replace(request)
        request.on_event = on_event
        self.model.runtime.adapters.check(request.adapter)
        sequence = self._sequence(request)
        config, draft_engine = self.model.runtime.resolve(request.lookahead, adaptive=request.adaptive)
        self._check_ids("prediction", request.prediction)
        checked_top("top_logprobs", request.top_logprobs)
        checked_top("prompt_logprobs", request.prompt_logprobs)
        request.store = store_of(_store_of(request, config), request.adapter)
        request.drafting = self.model.runtime.drafting(
            config,
            draft_engine,
            self._draft_memory,
            key=request.tenant,
            prediction=request.prediction,
            adaptive=request.adaptive is not False,
            controller=self._controller,
        )
        stats = GenerationStats(strategy=SOURCE if config is None else config.strategy)
        if sequence.sampler is not None:
            stats.seed, stats.temperature = sequence.sampler.seed, sequence.sampler.temperature
        request.group = SequenceGroup(
            [sequence], stats, request.drafting.begin, emits_events=True, key=request.tenant, owner=request.key
        )
        with self._changed:
            self._check_room(1, request.key)
            self._numbers += 1
            self._places.take(self._numbers, request.key)
            request.number = sequence.index = self._numbers
            request.cancel = partial(self._cancel, self._numbers)
            self._requests[request.number] = request
            self._new.append(request)
            self._changed.notify_all()
        return request

    def stream(self, prompt: abc.Sequence[int], params: SamplingParams, **options: Any) -> Stream:
        """Submit a request and return an iterator over its events; closing it ends the request. Raises as ``submit``.

        ``options`` are the other fields of a :class:`Request`.
        """
        stream = Stream()
        stream.request = self.submit(Request(prompt, params, **options), stream.put)
        return stream

    def call(self, work: Callable[[PrefixCache], Result]) -> Future[Result]:
        """Run a function with the prefix cache in the worker thread, between two steps.

        The function must be fast, because all requests wait for it. The future has its result or its exception, or
        ServiceError where the service is closed.
        """
        future: Future[Result] = Future()
        with self._changed:
            if self.state == "closed" or not self._worker.is_alive():
                raise ServiceError(f"the service is {self.state} and runs nothing", hint="use another server")
            self._calls.append((work, future))
            self._changed.notify_all()
        return future

    def check_room(self, count: int, key: str = "") -> None:
        """Raise the error that ``submit`` would raise now for ``count`` requests of a key.

        InputError: the key never has room for them. QueueFullError and ServiceError: as ``submit``.
        """
        with self._changed:
            self._check_room(count, key)

    def _check_room(self, count: int, key: str) -> None:
        if self.state not in ("loading", "ready"):
            raise ServiceError(f"the service is {self.state} and accepts no requests", hint="use another server")
        if not self._worker.is_alive():
            said = "the service's thread does not run in this process, which was forked after the model was loaded"
            raise ServiceError(said, hint="load the model in the process that uses it")
        self._places.check(key, count)

    def close(self, drain: float = 0.0) -> None:
        """Refuse new requests, give the others ``drain`` seconds, cancel the rest, and wait until all have ended."""
        with self._changed:
            if self.state != "closed":
                self.state = "draining"
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._requests, drain)
                self._leaving += self._requests
                self._changed.notify_all()
        self._worker.join()
        write_all([self._memory, self._draft_memory])
        self.model.stores.flush()

    def _cancel(self, number: int) -> None:
        with self._changed:
            if number in self._requests:
                self._leaving.append(number)
                self._changed.notify_all()

    def _sequence(self, request: Request) -> Sequence:
        engine, prompt, params = self.model.engine, request.prompt, request.params
        if not prompt:
            raise InputError("the prompt is empty; give at least one token")
        self._check_ids("prompt", prompt)
        if not 0 <= request.sequence < 2**32:
            raise InputError(argument="sequence", got=request.sequence, allowed=f"from 0 to {2**32 - 1}")
        limit, reason = length_limit(len(prompt), engine.max_context, max_new_tokens=params.max_new_tokens)
        if pages_of(limit) > self._memory.pages:
            room = self._memory.pages * PAGE
            if len(prompt) >= room:
                raise InputError(
                    f"the prompt has {len(prompt):,} tokens, which leaves no room in the cache memory of {room:,}",
                    hint="shorten the prompt, or increase cache_memory",
                )
            limit, reason = room, "context"
        sequence = self.model.sequence(
            prompt, params, limit, reason, request.processors, request.sequence, request.answered, request.images
        )
        sequence.stop = any_of(sequence.stop, request.stop)
        sequence.force = request.force
        sequence.draft_filter = request.draft_filter
        sequence.adapter = request.adapter
        if self._finds_turns:
            sequence.turns = self.model.turns_of(prompt) if request.turns is None else sorted(request.turns)
        if request.top_logprobs is not None:
            sequence.raw = []
        if request.prompt_logprobs is not None:
            request.prompt_found = [None] * len(prompt)
            sequence.on_prompt_logits = partial(
                note_prompt_logprobs, request.prompt_found, sequence.prompt.tolist(), request.prompt_logprobs
            )
        return sequence

    def _check_ids(self, name: str, ids: abc.Sequence[int]) -> None:
        size = self.model.engine.vocab_size
        if len(ids) and not 0 <= min(ids) <= max(ids) < size:
            raise InputError(f"the {name}'s ids are from {min(ids)} to {max(ids)}; they must be from 0 to {size - 1}")

    # ---- the worker --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        scheduler = None
        error = ServiceError("the service is closed", hint="use another server")
        try:
            curve = self.model.costs.curve()
            self._memory.computed(PREFILL_ROWS, curve(PREFILL_ROWS))
            of_key = self._places.running_per_key
            scheduler = Scheduler(
                self.model.engine, slots=self._slots, per_owner=of_key, memory=self._memory, time=curve
            )
            with self._changed:
                if self.state == "loading":
                    self.state = "ready"
            while self._turn(scheduler):
                pass
        except BaseException as broken:
            log.exception("the service has broken down")
            error = ServiceError(f"the service has failed: {broken}", hint="restart it")
        finally:
            with self._changed:
                self.state = "closed"
                left, self._requests = list(self._requests.values()), {}
                calls, self._calls = self._calls, []
                self._changed.notify_all()
            for request in left:
                self._notify(request, Event("error", error=error))
            for _, future in calls:
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)

    def _turn(self, scheduler: Scheduler) -> bool:
        """Take new requests and cancellations and make a step; return False once the service has drained."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    scheduler.busy
                    or self._new
                    or self._leaving
                    or self._calls
                    or (self.state == "draining" and not self._requests)
                )
            )
            if self.state == "draining" and not self._requests:
                return False
            new, self._new = self._new, []
            leaving, self._leaving = self._leaving, []
            calls, self._calls = self._calls, []
        for work, future in calls:
            _run(work, self._memory, future)
        for request in new:
            try:
                self._start(scheduler, request)
            except Exception as error:
                self._end(request, Event("error", error=_as_ours(error)))
        for number in leaving:
            found = self._requests.get(number)
            if found is not None:
                scheduler.cancel(found.group.id)
        for event in scheduler.step():
            try:
                self._pass_on(scheduler, event)
            except Exception as error:
                if (failed := self._submitted.get(event.group)) is not None:
                    failed.failure = error
                scheduler.cancel(event.group, error)
        memory = self._memory
        self.running, self.waiting = scheduler.running, scheduler.waiting
        self.steps, self.preemptions = scheduler.steps, scheduler.preemptions
        self.cached_pages = memory.kept
        if self._counts_bytes:
            memories = [one for one in (memory, self._draft_memory) if one is not None]
            self.kv_bytes = sum(one.used for one in memories)
            self.state_bytes = sum(one.states for one in memories)
        self.cached_tokens = memory.hits
        return True

    def _start(self, scheduler: Scheduler, request: Request) -> None:
        group = request.group
        (sequence,) = group.sequences
        if sequence.limit == len(sequence.prompt) and request.prompt_found is None:
            group.stats.finish_reasons = [sequence.limit_reason]
            self._end(request, Event("finish", reason=sequence.limit_reason, stats=group.stats))
            return
        store = None if request.store is None else self.model.stores.open_or_none(request.store)
        request.drafting.prepare([sequence], store)
        self._submitted[scheduler.submit(group)] = request

    def _controller(self, config: LookaheadConfig | None) -> Controller:
        found = self._controllers.get(config)
        if found is None:
            if len(self._controllers) >= MAX_DRAFT:  # of callers with ever new configurations
                del self._controllers[next(iter(self._controllers))]  # the least recently used one
            found = make_controller(config, self.model.costs, head_rates(self.model.engine, self.model.costs))
        self._controllers[config] = self._controllers.pop(config, found)
        return found

    def _pass_on(self, scheduler: Scheduler, event: Event) -> None:
        """Report a step's event to the caller."""
        request = self._submitted.get(event.group)
        if request is None:
            return
        group = request.group
        if event.kind in ("finish", "error"):
            del self._submitted[event.group]
            error = request.failure or group.error
            if error is not None:
                event.kind, event.error = "error", _as_ours(error)
            else:
                event.reason, event.stats = group.stats.finish_reasons[0], group.stats
                self._remember(request)
            self._end(request, event)
            return
        if request.failure is not None:
            return
        self._places.begin(request.number)
        if event.kind == "prefill" and event.done == event.total:
            event.prompt_logprobs, request.prompt_found = request.prompt_found, None
        elif event.kind == "tokens":
            self.tokens += len(event.tokens)
            (sequence,) = group.sequences
            if request.top_logprobs is not None and sequence.raw is not None:
                raw, sequence.raw = sequence.raw, []
                event.logprobs = [
                    logprob_of(token, logits, request.top_logprobs)
                    for token, logits in zip(event.tokens, raw, strict=True)
                ]
        if not self._notify(request, event):
            scheduler.cancel(event.group)

    def _remember(self, request: Request) -> None:
        """Add an answer to its store; a failure costs the store, not the answer."""
        stores, name = self.model.stores, request.store
        try:
            if name is not None and stores.open_or_none(name) is not None:
                stores.add(name, [sequence.new for sequence in request.group.sequences])
        except Exception:
            log.warning("request %d: its answer is not remembered", request.number, exc_info=True)

    def _end(self, request: Request, event: Event) -> None:
        try:
            request.drafting.end(request.group.sequences)
        except Exception:  # the request has ended without it
            log.warning("request %d: its draft model's text is not kept", request.number, exc_info=True)
        with self._changed:
            del self._requests[request.number]
            self._places.leave(request.number)
            self._changed.notify_all()
        self._notify(request, event)

    def _notify(self, request: Request, event: Event) -> bool:
        """Call the request's ``on_event``; return False if it raises."""
        try:
            request.on_event(event)
        except Exception:
            log.exception("request %d: its on_event has failed; the request ends", request.number)
            return False
        return True


def _store_of(request: Request, config: LookaheadConfig | None) -> str | None:
    """Return the name of the store that a request drafts from and adds to.

    Every key has stores of its own, also in files. A request with a salt has a store in memory: callers make up salts.
    """
    name = None if config is None else config.remembering
    if name is None or not request.tenant:
        return name
    if request.salt:
        return f"{MEMORY_STORE}:{request.tenant}"
    return f"{name}:{request.key}" if is_memory(name) else f"{name}.{request.key}"


USUAL = 4096
"""Positions of the sequence that divides the memory between a model and its draft model."""


def _sequence_bytes(engine: Engine) -> int:
    """Return the bytes of a sequence of ``USUAL`` positions; 0 where the engine does not report them."""
    return USUAL * position_bytes(engine) + RUNNING_STATES * state_bytes(engine)


def _whole_context(engine: Engine) -> int:
    """Return the bytes of a text of the full context with its stored states, at least ``CONVERSATION_BYTES``."""
    pages = pages_of(engine.max_context) + 1 + CONVERSATION_STATES
    states = (RUNNING_STATES + CONVERSATION_STATES) * state_bytes(engine)
    return max(CONVERSATION_BYTES, pages * PAGE * position_bytes(engine) + states)


def _memories(model: TextModel, slots: int, cache_memory: int | None) -> tuple[PrefixCache, PrefixCache | None]:
    """Return the prefix caches of the model and of its draft model."""
    engines = [model.engine] if model.draft_engine is None else [model.engine, model.draft_engine]
    shares = [_sequence_bytes(engine) for engine in engines]
    made: list[PrefixCache] = []
    for engine, share in zip(engines, shares, strict=True):
        keeps = engine is not model.engine or engine.row_invariant
        if not share:
            pages = made[0].pages if shares[0] else slots * pages_of(model.engine.max_context)
            made.append(PrefixCache(pages, keeps=keeps))
            continue
        page, state = PAGE * position_bytes(engine), state_bytes(engine)
        budget = _whole_context(engine) if cache_memory is None else cache_memory * share // sum(shares)
        made.append(PrefixCache(budget, page=page, state=state, keeps=keeps))
        if cache_memory is None and page:
            made[-1].most_kept = CONVERSATION_BYTES // page
    return made[0], made[1] if len(made) > 1 else None


def _run(work: Callable[[PrefixCache], Any], memory: PrefixCache, future: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work(memory))
    except Exception as error:
        future.set_exception(_as_ours(error))


def _as_ours(error: BaseException | None) -> LookaheadError:
    if isinstance(error, LookaheadError):
        return error
    ours = ServiceError(f"internal error: {type(error).__name__}: {error}", hint="please report it as an issue")
    ours.__cause__ = error
    return ours


__all__ = ["Event", "OnEvent", "Request", "Service", "Stream", "TokenLogprob"]
