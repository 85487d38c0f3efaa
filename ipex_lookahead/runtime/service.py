"""One model for many callers: requests go in from any thread, one worker thread decodes, events come out.

What a request emits is a pure function of the weights, its prompt, its rules with their seed, its processors and its
number: whoever else is being served, and what is kept of earlier requests, shows in the times only.
"""

from __future__ import annotations

import logging
import threading
from collections import abc
from collections.abc import Callable
from typing import Any

from ipex_lookahead.config import MAX_DRAFT, MEMORY_STORE, LookaheadConfig, is_memory
from ipex_lookahead.controller import Controller
from ipex_lookahead.decoding.prefix_cache import PAGE, RUNNING_STATES, PrefixCache, pages_of
from ipex_lookahead.decoding.scheduler import Scheduler
from ipex_lookahead.decoding.sequence import Sequence
from ipex_lookahead.decoding.sequence_group import SequenceGroup, StepEvent
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting import HEADS, SECOND_MODEL, DraftModel, Proposer, make_proposer
from ipex_lookahead.drafting.prediction import SOURCE, Filtered, Prediction
from ipex_lookahead.engines.api import Engine, position_bytes, state_bytes
from ipex_lookahead.errors import InputError, LookaheadError, ServiceError
from ipex_lookahead.runtime.events import Event, OnEvent, TokenLogprob
from ipex_lookahead.runtime.logprobs import PromptLogprobs, checked_top, logprob_of
from ipex_lookahead.runtime.lookahead import AUTO_TOKENS, make_controller
from ipex_lookahead.runtime.places import Places
from ipex_lookahead.runtime.request import GenerationRequest
from ipex_lookahead.runtime.run import head_of, length_limit, second_model, with_head
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.stop_texts import any_of
from ipex_lookahead.runtime.text_model import TextModel
from ipex_lookahead.runtime.ticket import Stream, Ticket

log = logging.getLogger("ipex_lookahead")


class _RequestGroup(SequenceGroup):
    """A request as the scheduler has it, a group of one sequence; and who gets its events, and what drafts for it.

    Attributes:
        number: the service's.
        request, sequence, config, draft_engine, on_event: as given.
        of_prompt: log probabilities of the prompt's tokens, until they are handed out.
        second: the proposer that has a second model.
        failure: what passing its events on has raised: the request ends with it.
    """

    def __init__(
        self,
        number: int,
        request: GenerationRequest,
        sequence: Sequence,
        drafting: tuple[LookaheadConfig | None, Engine | None],
        begin: Callable[[_RequestGroup], Controller],
        on_event: OnEvent,
    ) -> None:
        self.config, self.draft_engine = drafting
        stats = GenerationStats(strategy=SOURCE if self.config is None else self.config.strategy)
        if sequence.sampler is not None:
            stats.seed, stats.temperature = sequence.sampler.seed, sequence.sampler.temperature
        if request.top_logprobs is not None:
            sequence.raw = []  # a group looks whether its sequences need logits
        key = f"{request.key}#{request.salt}" if request.salt else request.key
        super().__init__([sequence], stats, begin, emits_events=True, key=key, owner=request.key)
        self.number = sequence.index = number
        self.request = request
        self.sequence = sequence
        self.on_event = on_event
        self.of_prompt: PromptLogprobs | None = None
        self.second: DraftModel | None = None
        self.failure: Exception | None = None
        if request.prompt_logprobs is not None:
            self.of_prompt = PromptLogprobs(sequence.prompt.tolist(), request.prompt_logprobs)
            sequence.on_prompt_logits = self.of_prompt.put

    @property
    def store(self) -> str | None:
        """The name of the memory of answers that it reads and adds to: every key has its own, also in files.

        What has a salt is remembered in memory only: salts are made up by callers.
        """
        name = None if self.config is None else self.config.remembering
        if name is None or not self.key:
            return name
        if self.request.salt:
            return f"{MEMORY_STORE}:{self.key}"
        return f"{name}:{self.key}" if is_memory(name) else f"{name}.{self.key}"


class Service:
    """Serves requests of one model until it is closed.

    Args:
        model: a loaded model.
        slots: most requests that are decoded at a time. Keys that want more than there are get equal shares.
        queue: most requests that wait for a slot.
        running_per_key, queued_per_key: the same of one key; None = as many as of all.
        cache_memory: bytes of keys, values and states, of running requests and of what is kept for later ones, a draft
            model's own included: there is room for as many positions in both. Engines that do not say how many bytes a
            position takes hold what their slots need.

    Attributes:
        state: "loading", "ready", "draining" or "closed".
        running, waiting: requests.
        steps, tokens: forwards and emitted tokens so far.
        kv_bytes, cached_pages: keys, values and states held, and pages of 64 positions kept for later requests.
        state_bytes: of them the states of recurrent layers, and the features that a head has yet to read, that are kept
            for later requests.
        cached_tokens: prompt tokens so far that were found, not read.
        preemptions: how often a request gave its memory to an older one, or its slot to another key's.
    """

    def __init__(
        self,
        model: TextModel,
        *,
        slots: int = 8,
        queue: int = 64,
        running_per_key: int | None = None,
        queued_per_key: int | None = None,
        cache_memory: int = 2**30,
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
        self._counts_bytes = _sequence_bytes(model.engine) > 0
        self._controllers: dict[LookaheadConfig | None, Controller] = {}
        self._requests: dict[int, _RequestGroup] = {}
        self._submitted: dict[int, _RequestGroup] = {}  # by the scheduler's number
        self._new: list[_RequestGroup] = []
        self._leaving: list[int] = []
        self._numbers = 0
        self._changed = threading.Condition()
        self._worker = threading.Thread(target=self._work, name="ipex-lookahead service", daemon=True)
        self._worker.start()

    # ---- any thread --------------------------------------------------------------------------------------------------

    @property
    def slots(self) -> int:
        """Most requests that are decoded at a time."""
        return self._slots

    def submit(self, request: GenerationRequest, on_event: OnEvent) -> Ticket:
        """Take a request.

        Args:
            request: not changed; nor should it be, until it has ended.
            on_event: called with what happens, in the worker thread; it must not block, and what it raises ends the
                request.

        Raises:
            InputError: a field outside what is allowed.
            ContextLengthError: a prompt that leaves no room for an answer, or one that the memory has no room for.
            QueueFullError: as many requests wait as may, of this key or of all.
            ServiceError: the service is draining or closed.
        """
        sequence = self._sequence(request)
        drafting = self.model.drafting(request.lookahead, request.adaptive)
        self._check_ids("prediction", request.prediction)
        checked_top("top_logprobs", request.top_logprobs)
        checked_top("prompt_logprobs", request.prompt_logprobs)
        with self._changed:
            self._check_room(1, request.key)
            self._numbers += 1
            self._places.take(self._numbers, request.key)
            group = _RequestGroup(self._numbers, request, sequence, drafting, self._begin, on_event)
            self._requests[group.number] = group
            self._new.append(group)
            self._changed.notify_all()
        return Ticket(group.number, self._cancel)

    def stream(self, prompt: abc.Sequence[int], params: SamplingParams, **options: Any) -> Stream:
        """The events of a request with these fields, as an iterator; closing it ends the request. Raises as ``submit``.

        ``options`` are the other fields of a :class:`GenerationRequest`.
        """
        stream = Stream()
        stream.ticket = self.submit(GenerationRequest(prompt, params, **options), stream.put)
        return stream

    def check_room(self, count: int, key: str = "") -> None:
        """Whether ``submit`` would take so many requests of a key now.

        Raises InputError where it never would, QueueFullError and ServiceError as ``submit``.
        """
        with self._changed:
            self._check_room(count, key)

    def _check_room(self, count: int, key: str) -> None:
        if self.state not in ("loading", "ready"):
            raise ServiceError(f"the service is {self.state} and takes no more requests", hint="ask another one")
        self._places.check(key, count)

    def close(self, drain: float = 0.0) -> None:
        """Take no more requests, give those that are there ``drain`` seconds, then cancel what is left; waits."""
        with self._changed:
            if self.state != "closed":
                self.state = "draining"
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._requests, drain)
                self._leaving += self._requests
                self._changed.notify_all()
        self._worker.join()
        self.model.stores.flush()

    def _cancel(self, number: int) -> None:
        with self._changed:
            if number in self._requests:
                self._leaving.append(number)
                self._changed.notify_all()

    def _sequence(self, request: GenerationRequest) -> Sequence:
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
                    f"the prompt has {len(prompt)} tokens and the service's memory holds {room}, new tokens included",
                    hint="shorten the prompt, or give the service more cache_memory",
                )
            limit, reason = room, "context"
        sequence = self.model.sequence(prompt, params, limit, reason, request.processors, request.sequence)
        sequence.stop = any_of(sequence.stop, request.stop)
        if self._finds_turns:
            sequence.turns = self.model.turns_of(prompt) if request.turns is None else sorted(request.turns)
        return sequence

    def _check_ids(self, name: str, ids: abc.Sequence[int]) -> None:
        size = self.model.engine.vocab_size
        if len(ids) and not 0 <= min(ids) <= max(ids) < size:
            raise InputError(f"the {name}'s ids are from {min(ids)} to {max(ids)}; they must be from 0 to {size - 1}")

    # ---- the worker --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        scheduler = None
        error = ServiceError("the service is closed", hint="ask another one")
        try:
            curve = self.model.costs.curve()
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
            error = ServiceError(f"the service has broken down: {broken}", hint="start it again")
        finally:
            with self._changed:
                self.state = "closed"
                left, self._requests = list(self._requests.values()), {}
                self._changed.notify_all()
            for group in left:
                self._notify(group, Event("error", error=error))

    def _turn(self, scheduler: Scheduler) -> bool:
        """Take what has come in, and make a step; False: there is nothing more to do, ever."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    scheduler.busy or self._new or self._leaving or (self.state == "draining" and not self._requests)
                )
            )
            if self.state == "draining" and not self._requests:
                return False
            new, self._new = self._new, []
            leaving, self._leaving = self._leaving, []
        for group in new:
            try:
                self._start(scheduler, group)
            except Exception as error:
                self._end(group, Event("error", error=_as_ours(error)))
        for number in leaving:
            found = self._requests.get(number)
            if found is not None:
                scheduler.cancel(found.id)
        for event in scheduler.step():
            try:
                self._pass_on(scheduler, event)
            except Exception as error:
                if (failed := self._submitted.get(event.id)) is not None:
                    failed.failure = error
                scheduler.cancel(event.id, error)
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

    def _start(self, scheduler: Scheduler, group: _RequestGroup) -> None:
        sequence = group.sequence
        if sequence.limit == len(sequence.prompt) and group.of_prompt is None:
            group.stats.finish_reasons = [sequence.limit_reason]
            self._end(group, Event("finish", reason=sequence.limit_reason, stats=group.stats))
            return
        sequence.head = head_of(group.config, self.model.engine, self.model.costs)
        self._submitted[scheduler.submit(group)] = group

    def _begin(self, group: _RequestGroup) -> Controller:
        """Give a request's sequence its proposer; its controller is that of all with the same configuration."""
        sequence, config, proposer = group.sequence, group.config, None
        # The first token comes with the prompt: of one more there is nothing to draft.
        if config is not None and sequence.limit - len(sequence.prompt) > 1:
            proposer = self._proposer(group, config)
        if group.request.prediction:
            proposer = Prediction(group.request.prediction, proposer)
        if proposer is not None and group.request.draft_filter is not None:
            proposer = Filtered(proposer, group.request.draft_filter, sequence.prefix)
        sequence.proposer = proposer
        if proposer is not None and config is None:  # the prediction alone
            config = LookaheadConfig(num_draft_tokens=AUTO_TOKENS, adaptive=group.request.adaptive is not False)
        return self._controller(config if proposer is not None else None)

    def _proposer(self, group: _RequestGroup, config: LookaheadConfig) -> Proposer | None:
        if config.strategy in SECOND_MODEL and group.draft_engine is not None:
            if group.second is not None:  # the request was preempted meanwhile
                group.second.end()
            group.second = second_model(config, group.draft_engine, group.sequence, self._draft_memory, group.key)
            return group.second
        name, free = group.store, None
        if config.strategy not in HEADS:
            store = None if name is None else self.model.stores.open_or_none(name)
            free = make_proposer(config, None if store is None else store.suffixes)
        if group.sequence.head is None:
            return free
        return with_head(config, free, self.model.engine, group.sequence, self.model.costs)

    def _controller(self, config: LookaheadConfig | None) -> Controller:
        found = self._controllers.get(config)
        if found is None:
            if len(self._controllers) >= MAX_DRAFT:  # of callers with ever new configurations
                del self._controllers[next(iter(self._controllers))]  # the least recently used one
            found = make_controller(config, self.model.costs)
        self._controllers[config] = self._controllers.pop(config, found)
        return found

    def _pass_on(self, scheduler: Scheduler, event: StepEvent) -> None:
        """A step's event, as the caller gets it."""
        group = self._submitted.get(event.id)
        if group is None:
            return
        if event.kind in ("prefill", "tokens"):
            if group.failure is not None:
                return
            self._places.begin(group.number)
        if event.kind == "prefill":
            passed_on = Event("prefill", event.done, event.total, group.stats.cached_tokens)
            if group.of_prompt is not None and event.done == event.total:
                passed_on.prompt_logprobs, group.of_prompt = group.of_prompt.found, None
        elif event.kind == "tokens":
            self.tokens += len(event.tokens)
            passed_on = Event("tokens", tokens=list(event.tokens), origins=list(event.origins))
            if group.request.top_logprobs is not None and group.sequence.raw is not None:
                raw, group.sequence.raw = group.sequence.raw, []
                passed_on.logprobs = [
                    logprob_of(token, logits, group.request.top_logprobs)
                    for token, logits in zip(event.tokens, raw, strict=True)
                ]
        else:
            del self._submitted[event.id]
            error = group.failure or group.error
            if error is not None:
                self._end(group, Event("error", error=_as_ours(error)))
                return
            if group.store is not None:
                try:
                    if self.model.stores.open_or_none(group.store) is not None:
                        self.model.stores.add(group.store, [group.sequence.new])
                except Exception:  # the answer is complete without it
                    log.warning("request %d: its answer is not remembered", group.number, exc_info=True)
            self._end(group, Event("finish", reason=group.stats.finish_reasons[0], stats=group.stats))
            return
        if not self._notify(group, passed_on):
            scheduler.cancel(event.id)

    def _end(self, group: _RequestGroup, event: Event) -> None:
        if group.second is not None:
            try:
                group.second.end()
            except Exception:  # the request has ended without it
                log.warning("request %d: its draft model's text is not kept", group.number, exc_info=True)
        # It may refer to the sequence: as a circle both would hold keys and values until Python looks.
        group.sequence.proposer = None
        with self._changed:
            del self._requests[group.number]
            self._places.leave(group.number)
            self._changed.notify_all()
        self._notify(group, event)

    def _notify(self, group: _RequestGroup, event: Event) -> bool:
        """Whether the caller has taken it."""
        try:
            group.on_event(event)
        except Exception:
            log.exception("request %d: its on_event has failed; the request ends", group.number)
            return False
        return True


USUAL = 4096
"""Positions by which a model's and its draft model's shares of the memory are judged, where one of them has states."""


def _sequence_bytes(engine: Engine) -> int:
    """Bytes of a sequence of so many positions; 0 where the engine does not say."""
    return USUAL * position_bytes(engine) + RUNNING_STATES * state_bytes(engine)


def _memories(model: TextModel, slots: int, cache_memory: int) -> tuple[PrefixCache, PrefixCache | None]:
    """For the model's sequences, and for its draft model's."""
    engines = [model.engine] if model.draft_engine is None else [model.engine, model.draft_engine]
    shares = [_sequence_bytes(engine) for engine in engines]
    made: list[PrefixCache] = []
    for engine, share in zip(engines, shares, strict=True):
        keeps = engine is not model.engine or engine.row_invariant
        if not share:
            pages = made[0].pages if shares[0] else slots * pages_of(model.engine.max_context)
            made.append(PrefixCache(pages, keeps=keeps))
        else:
            page, state = PAGE * position_bytes(engine), state_bytes(engine)
            budget = cache_memory * share // sum(shares)
            made.append(PrefixCache(budget, page=page, state=state, keeps=keeps))
    return made[0], made[1] if len(made) > 1 else None


def _as_ours(error: Exception | None) -> LookaheadError:
    if isinstance(error, LookaheadError):
        return error
    ours = ServiceError(f"the request has failed: {type(error).__name__}: {error}", hint="report it")
    ours.__cause__ = error
    return ours


__all__ = ["Event", "GenerationRequest", "OnEvent", "Service", "Stream", "Ticket", "TokenLogprob"]
