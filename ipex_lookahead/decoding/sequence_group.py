"""Sequences of one caller: verify a forward's output, commit tokens, report outcomes and events.

A request is a group of one sequence. Several sequences of one call have one group, because they share statistics, an
error and an end, and none decodes before all their prompts are read.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter, process_time
from typing import Any, Protocol

import numpy as np

from ipex_lookahead.controller import Controller
from ipex_lookahead.decoding.events import Event
from ipex_lookahead.decoding.prefix_cache import PrefixCache
from ipex_lookahead.decoding.sampling import Logits
from ipex_lookahead.decoding.sequence import NO_DRAFT, NOT_FINITE, Sequence
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.decoding.stored_prefix import Transfer
from ipex_lookahead.decoding.verify import verify
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.engines.api import ARGMAX, AppliedAdapter, StepOutput
from ipex_lookahead.errors import EngineError

_ROOT_ONLY = [0]
FOLLOW = 0.2
"""Weight of a new step in the running mean of ``rule_seconds``."""
MOST_STATES = 4096
"""Last positions of a prompt of which a proposer gets the hidden states: 64 MiB for a hidden size of 4,096."""


class BatchCallbacks(Protocol):
    """Rules that see all sequences of a group at one position. Such a group decodes without drafts.

    Both methods are called once per emitted position, in order, with the live sequences' ``index``.

    Attributes:
        processes: whether ``process`` changes logits; if not, it is not called.
    """

    processes: bool

    def process(self, rows: abc.Sequence[int], logits: abc.Sequence[Logits]) -> abc.Sequence[Logits]:
        """Return the logits to choose from, given raw logits; it replaces the sequences' ``processors``."""
        ...

    def accept(self, rows: abc.Sequence[int], tokens: abc.Sequence[int]) -> abc.Sequence[bool]:
        """Return for each emitted token, after ``on_token`` and ``stop``, whether its sequence ends there."""
        ...


@dataclass(slots=True, eq=False)
class PrefillChunk:
    """Rows of a prompt in a forward.

    Attributes:
        group, sequence: their owner.
        rows: number of rows.
        done: whether they are the last of the prompt.
        answer: output row of the last of them; -1 = not requested. If the prompt's logits are shown, the output rows
            before it are those of the other rows.
        first: index of the first of them in the batch.
    """

    group: SequenceGroup
    sequence: Sequence
    rows: int
    done: bool
    answer: int = -1
    first: int = 0

    @property
    def cut(self) -> bool:
        """Whether the cache may be stored after them: the text or one of its ``cuts`` ends there."""
        return self.sequence.to_cut == self.rows


def prefix_key(tenant: str, adapter: AppliedAdapter | None) -> str:
    """Return the key of a tenant's texts in the prefix cache, in memory and on disk: an adapter changes every KV cache.

    The key of an adapter's texts has a "." before any "#"; a tenant of letters and digits, with or without "#" and a
    salt, has none there.
    """
    return tenant if adapter is None else f"{adapter.key}#{tenant}"


class SequenceGroup:
    """Sequences that are submitted, counted and ended together.

    Args:
        sequences: they decode once all their prompts are read.
        stats: filled; right also for a group that was abandoned.
        controller: the draft controller, or a function that returns it. The function is called with the group when its
            prompts are read, again after each preemption, and gives the sequences in ``live`` their proposers.
        callbacks: rules that see all sequences at one position; the sequences then have no proposers.
        on_start: called before the prompts are read, with the number of cached prompt tokens and of all prompt tokens.
        on_prefill: called after each chunk of the prompts with their tokens done, and their number.
        emits_events: whether its steps emit events.
        key: tenant in the prefix cache, where each adapter and scale of the tenant has texts of its own.
        owner: tenant in the scheduler's shares; None: ``key``.

    Attributes:
        id: the scheduler's number of the group.
        live: the sequences that have not ended.
        readers: the sequences with prompts that are still to be read.
        error: exception that ended it early.
        ended: whether it has ended.
        rule_seconds: time of choosing its tokens in a step, a running mean.
        has_finished: whether a sequence in ``live`` has ended.
        furthest: number of cached positions at its last preemption.
        spared: number of cached positions before it may be preempted for another owner again.
    """

    def __init__(
        self,
        sequences: abc.Sequence[Sequence],
        stats: GenerationStats,
        controller: Controller | Callable[[Any], Controller],
        *,
        callbacks: BatchCallbacks | None = None,
        on_start: Callable[[int, int], None] | None = None,
        on_prefill: Callable[[int, int], None] | None = None,
        emits_events: bool = False,
        key: str = "",
        owner: str | None = None,
    ) -> None:
        self.id = self.furthest = self.spared = 0
        self.sequences = self.live = list(sequences)
        self.stats = stats
        self.key = prefix_key(key, sequences[0].adapter if sequences else None)
        self.owner = key if owner is None else owner
        self.emits_events = emits_events
        self.readers: list[Sequence] = []
        self.events: list[Event] = []
        self.error: BaseException | None = None
        self.ended = self.has_finished = False
        self.controller: Controller | None = None
        self.rule_seconds = 0.0
        for sequence in sequences:
            sequence.needs_logits = sequence.chooses or (callbacks is not None and callbacks.processes)
        self.logits = any(s.needs_logits for s in sequences)
        self.total = sum(len(s.prompt) for s in sequences)
        self._done = 0
        self._fetch: Transfer | None = None
        self._searched = False
        self._make_controller = controller
        self._callbacks = callbacks
        self._on_start, self._on_prefill = on_start, on_prefill
        self._first: dict[
            Sequence, tuple[int, Any]
        ] = {}  # with callbacks: argmax and logits after each prompt read so far
        self._started = self._first_token_at = perf_counter()
        self._cpu_at_first_token = process_time()

    # ---- reading -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Plan the prompt reading, given the caches."""
        readers: dict[bytes, Sequence] = {}
        for number, sequence in enumerate(self.live):
            fresh, held = sequence.fresh, sequence.cache.length
            sequence.plan_reading()
            if held:
                sequence.checkpoint()
            if sequence.head is not None:
                sequence.head.follow(sequence.cache)
            sequence.twins, sequence.states = [], []
            if fresh and held:
                self._count(held, cached=True)
            # A sequence with cached tokens is not a twin of another one, so it gets a key of its own.
            known = sequence.read_keys.tobytes() if fresh and not held else number.to_bytes(4, "little") + b"."
            if sequence.adapter is not None:
                known += b"#" + sequence.adapter.key.encode()
            if known in readers:
                readers[known].twins.append(sequence)
            else:
                readers[known] = sequence
        self.readers = list(readers.values())
        if self._on_start is not None:
            self._on_start(self._done, self.total)

    @property
    def fetching(self) -> bool:
        """Whether a prefix of the text is being read from disk."""
        return self._fetch is not None and not self._fetch.ended

    def fetches(self, memory: PrefixCache) -> bool:
        """Return True while a prefix of the text is read from disk; the first call begins to read it."""
        sequence = self.sequences[0]
        while not sequence.shows_prompt:
            if not self._searched:
                sequence.plan_reading()
                self._fetch, self._searched = memory.fetch(sequence.read_keys, self.key), True
            if self._fetch is None or not self._fetch.ended:
                break
            if not self._fetch.again:
                self._fetch = None
                break
            self._searched = False
        return self._fetch is not None

    def pause(self) -> None:
        """Reset the prompt reading after a preemption."""
        self._fetch, self._searched = None, False
        self.readers = []
        self.controller = None
        if self.live[0].fresh:
            self.stats.prompt_tokens -= self._done
            self.stats.cached_tokens = self._done = 0

    def read(self, chunks: abc.Sequence[PrefillChunk], argmax: list[int], output: StepOutput) -> None:
        """Take the output of prompt chunks; ``argmax`` is the output's, as a list."""
        stats = self.stats
        stats.prefill_seconds = perf_counter() - self._started
        for chunk in chunks:
            sequence, rows = chunk.sequence, chunk.rows
            if sequence.shows_prompt:
                _show(sequence, argmax, output, range(chunk.answer + 1 - rows, chunk.answer + 1))
            if (layers := sequence.hidden_layers) and output.hidden is not None:
                states = {layer: output.hidden[layer][chunk.first : chunk.first + rows] for layer in layers}
                for reader in (sequence, *sequence.twins):
                    reader.states.append(states)
                    while sum(len(one[layers[0]]) for one in reader.states[1:]) >= MOST_STATES:
                        del reader.states[0]
            sequence.cache.keep(list(range(rows)))
            if sequence.fresh:
                self._count(rows)
        if self.emits_events:
            self.events.append(Event("prefill", self._done, self.total, self.stats.cached_tokens, group=self.id))
        for chunk in chunks:
            if chunk.done:
                self.readers.remove(chunk.sequence)
                if chunk.sequence.fresh:
                    self._prompt_read(chunk.sequence, argmax, output, chunk.answer)
        if self._on_prefill is not None:
            self._on_prefill(self._done, self.total)
        if self._first and not self.readers:
            found = [self._first.pop(sequence) for sequence in self.live]
            self._emit_together([token for token, _ in found], [row for _, row in found] if self.logits else ())
        if stats.tokens and not stats.first_token_seconds:
            stats.first_token_seconds = perf_counter() - self._started
            self._first_token_at = self._started + stats.first_token_seconds
            self._cpu_at_first_token = process_time()

    def _prompt_read(self, reader: Sequence, argmax: list[int], output: StepOutput, row: int) -> None:
        """Emit the first token of a prompt that is read; ``row`` is its output row."""
        reader.checkpoint()
        for twin in reader.twins:
            twin.cache = reader.cache.fork()
            self._count(len(twin.prompt), cached=True)
        for sequence in (reader, *reader.twins):
            if sequence.length == sequence.limit:
                sequence.finish = sequence.limit_reason
            elif self._callbacks is not None:
                self._first[sequence] = argmax[row], None if output.logits is None else output.logits[row]
            else:
                token, _ = sequence.emit(argmax, output, self.stats, row, 0)
                if self.emits_events:
                    event = Event("tokens", tokens=[token], origins=[None], group=self.id, sequence=sequence.index)
                    self.events.append(event)
        reader.twins = []

    def _count(self, tokens: int, *, cached: bool = False) -> None:
        self._done += tokens
        self.stats.prompt_tokens += tokens
        if cached:
            self.stats.cached_tokens += tokens

    # ---- decoding ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start decoding: make the controller and the proposers, and give them the text."""
        self.stats.sampler_seconds = 0.0
        self.live = [s for s in self.live if s.finish is None]
        if not self.live:
            return
        made = self._make_controller
        self.controller = made(self) if callable(made) else made
        for sequence in self.live:
            self.controller.join()
            sequence.outcomes()
            if sequence.proposer is not None:
                tokens, layers = sequence.prefix().tolist(), sequence.proposer.wants.hidden
                if layers:
                    read = {i: np.concatenate([one[i] for one in sequence.states]) for i in layers if sequence.states}
                    sequence.proposer.begin(tokens, read)
                else:
                    sequence.proposer.begin(tokens)
            sequence.states = []

    @property
    def decided_by(self) -> Controller:
        """The controller of a decoding group."""
        assert self.controller is not None
        return self.controller

    def take(
        self,
        drafts: abc.Sequence[Draft] | None,
        argmax: list[int],
        output: StepOutput,
        first: int,
        proposing: float,
        forward: float,
        idle: bool = False,
    ) -> int:
        """Verify the drafts with a forward's output, commit the accepted rows, and report the outcomes.

        Args:
            drafts: the draft of each live sequence; None = there are none.
            argmax: the output's argmax, as a list.
            output: the forward's output.
            first: output row of the first sequence's last token.
            proposing: seconds that the step spent on drafts.
            forward: seconds of the forward.
            idle: whether the controller skipped this step.

        Returns:
            The output row after the group's last one.
        """
        stats, emits_events, controller = self.stats, self.emits_events, self.controller
        assert controller is not None
        chosen = None
        if self._callbacks is not None:  # such groups have no drafts: one row for each sequence
            rows = range(first, first + len(self.live))
            logits = [] if output.logits is None or not self.logits else [output.logits[row] for row in rows]
            chosen = self._emit_together([argmax[row] for row in rows], logits)
        accepted_rows = drafted = 0
        before = stats.sampler_seconds
        for number, sequence in enumerate(self.live):
            draft = NO_DRAFT if drafts is None else drafts[number]
            if chosen is None:
                accepted, emitted = verify(draft, partial(sequence.emit, argmax, output, stats, first))
            else:
                accepted, emitted = [], [chosen[number]]
            end = first + 1 + len(draft.tokens)
            # If the sequence ends inside the draft, the row of its last token is not committed: no token follows.
            sequence.cache.keep([0, *[row + 1 for row in accepted]][: len(emitted)] if accepted else _ROOT_ONLY)
            if sequence.finish is not None:
                self.has_finished = True
            proposer = sequence.proposer
            wants = ARGMAX if proposer is None else proposer.wants
            if proposer is not None and idle and not wants.hidden:
                sequence.missed += emitted
            elif proposer is not None:
                scratch = argmax[end - draft.scratch : end] if draft.scratch else ()
                top: Any = output.top[first:end] if wants.top and output.top is not None else None
                outcome = Outcome(draft, accepted, emitted, scratch, top)
                if wants.logits and output.logits is not None and not idle:
                    outcome.logits = output.logits[first:end]
                if wants.hidden and output.hidden is not None:
                    outcome.hidden = {layer: output.hidden[layer][first:end] for layer in wants.hidden}
                if sequence.finish is None:
                    if sequence.proposed:
                        proposer.observe(outcome)
                    else:
                        sequence.pending_outcomes = [*sequence.outcomes(), outcome]
                sequence.proposed = False
                if not idle:
                    controller.observe(sequence.index, outcome)
            if draft.tokens:
                stats.verified(draft, accepted)
                accepted_rows += len(accepted)
                drafted += len(draft.tokens)
            if emits_events:
                self.events.append(self._tokens(sequence, draft, accepted, emitted))
            first = end
        self.rule_seconds += FOLLOW * (stats.sampler_seconds - before - self.rule_seconds)
        stats.steps += 1
        stats.sequence_steps += len(self.live)
        stats.drafted += drafted
        stats.accepted += accepted_rows
        stats.proposer_seconds += proposing
        stats.engine_seconds += forward
        stats.per_step.append((drafted, accepted_rows, proposing, forward))
        return first

    def close(self) -> None:
        """Complete the statistics of a group that has ended or was abandoned."""
        self.ended = True
        if self.stats.tokens:
            self.stats.decode_seconds = perf_counter() - self._first_token_at
            self.stats.decode_cpu_seconds = process_time() - self._cpu_at_first_token
        self.stats.finish_reasons = [s.finish or "abandoned" for s in self.sequences]
        self.stats.fold()

    def cancel(self) -> None:
        """End the live sequences."""
        for sequence in self.live:
            if sequence.finish is None:
                sequence.finish = "cancelled"

    def _tokens(self, sequence: Sequence, draft: Draft, accepted: abc.Sequence[int], emitted: list[int]) -> Event:
        sources = draft.sources or [self.stats.strategy] * len(draft)
        origins = [*[sources[row] for row in accepted], None][: len(emitted)]
        return Event("tokens", tokens=emitted, origins=origins, group=self.id, sequence=sequence.index)

    def _emit_together(self, argmax: abc.Sequence[int], logits: abc.Sequence[Logits]) -> abc.Sequence[int]:
        """Choose and commit the next token of all live sequences with the callbacks."""
        live, callbacks, stats = self.live, self._callbacks, self.stats
        assert callbacks is not None
        numbers = [s.index for s in live]
        tokens = argmax
        if len(logits):
            began = perf_counter()
            for sequence, row in zip(live, logits, strict=True):
                sequence.record(row)
            if callbacks.processes:
                logits = callbacks.process(numbers, logits)
            tokens = [sequence.pick(row) for sequence, row in zip(live, logits, strict=True)]
            stats.sampler_seconds += perf_counter() - began
        elif min(argmax) < 0:
            raise EngineError(NOT_FINITE)
        stats.tokens += len(live)
        for sequence, token in zip(live, tokens, strict=True):
            sequence.commit(token)
        for sequence, ended in zip(live, callbacks.accept(numbers, tokens), strict=True):
            if ended:
                sequence.finish = "stop"
        return tokens


def _show(sequence: Sequence, argmax: list[int], output: StepOutput, rows: range) -> None:
    """Report the logits of a prompt chunk before the chunk is committed."""
    if min(argmax[rows.start : rows.stop]) < 0:
        raise EngineError(NOT_FINITE)
    assert output.logits is not None
    assert sequence.on_prompt_logits is not None
    sequence.on_prompt_logits(sequence.cache.length, output.logits[rows.start : rows.stop])
