"""Sequences that are one caller's: what a forward's answers make of them. Verify, keep, observe, report.

A request is a group of one. Several sequences of one call have one group, since its statistics, its
error and its end are theirs together, and none decodes before all their prompts are read.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter, process_time
from typing import Any, Literal, Protocol

import numpy as np

from ipex_lookahead.controller import Controller
from ipex_lookahead.decoding.rule_price import FOLLOW
from ipex_lookahead.decoding.sampling import Logits
from ipex_lookahead.decoding.sequence import NO_DRAFT, NOT_FINITE, Sequence
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.decoding.verify import verify
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.engines.api import ARGMAX, StepOutput
from ipex_lookahead.errors import EngineError

_ROOT_ONLY = [0]
MOST_STATES = 4096
"""Positions of a prompt whose hidden states a proposer gets, the last ones: 64 MiB of a model of 4,096 values."""


class BatchCallbacks(Protocol):
    """Rules that see all sequences of a group at one position. Such a group decodes without drafts.

    Both methods are called once for each emitted position, in order, with the sequences that go on, by ``index``.

    Attributes:
        processes: whether ``process`` does anything; where not, it is not called.
    """

    processes: bool

    def process(self, rows: abc.Sequence[int], logits: abc.Sequence[Logits]) -> abc.Sequence[Logits]:
        """Raw logits -> logits to choose from. It stands for the sequences' ``processors``."""
        ...

    def accept(self, rows: abc.Sequence[int], tokens: abc.Sequence[int]) -> abc.Sequence[bool]:
        """The tokens emitted, after ``on_token`` and ``stop`` -> for which of them the sequence ends there."""
        ...


@dataclass(slots=True)
class StepEvent:
    """What a step did to a group.

    Attributes:
        id: the group's.
        kind: "prefill", "tokens", "finish" or "error"; the last two are the last of a group.
        done, total: "prefill": how many tokens of its prompts are read, of how many.
        sequence: "tokens": the sequence's ``index``.
        tokens: "tokens": what it emitted.
        origins: "tokens": for each of them the source that had drafted it; None = the target's own.
    """

    id: int
    kind: Literal["prefill", "tokens", "finish", "error"]
    done: int = 0
    total: int = 0
    sequence: int = 0
    tokens: abc.Sequence[int] = ()
    origins: abc.Sequence[str | None] = ()


@dataclass(slots=True, eq=False)
class PrefillChunk:
    """Rows of a prompt in a forward.

    Attributes:
        group, sequence: whose.
        rows: how many.
        done: whether they are its last.
        answer: the row of the output that follows them; -1 = none is wanted. Where the prompt is shown, those before it
            are its other rows'.
        first: the first of its rows in the batch.
    """

    group: SequenceGroup
    sequence: Sequence
    rows: int
    done: bool
    answer: int = -1
    first: int = 0

    @property
    def cut(self) -> bool:
        """Whether the cache may be kept after them: the text ends there, or one of its ``cuts`` is there."""
        return self.sequence.to_cut == self.rows


class SequenceGroup:
    """Sequences that are submitted, counted and ended together.

    Args:
        sequences: they decode once all their prompts are read.
        stats: filled; right also for a group that was abandoned.
        controller: decides how much is drafted; or what is called with the group when its prompts are read, again after
            it was preempted: gives the sequences in ``live`` their proposers, and returns the controller.
        callbacks: the caller's, which see all sequences at one position; the sequences then have no proposers.
        on_prefill: called after each chunk of the prompts with their tokens done, and their number.
        emits_events: make events of its steps.
        key: whose memory of prompts is used.
        owner: whose share of the scheduler it takes; ``key`` if not given.

    Attributes:
        id: given by the scheduler.
        live: the sequences that go on.
        readers: the sequences whose prompts are still to be read.
        error: what ended it early.
        ended: whether it is over.
        rule_seconds: what choosing its tokens takes in a step, a running mean.
        has_finished: whether a sequence has ended that is among ``live`` still.
        furthest: positions that its cache held when it was preempted.
        spared: it makes way for another owner's only when its cache holds so many.
    """

    def __init__(
        self,
        sequences: abc.Sequence[Sequence],
        stats: GenerationStats,
        controller: Controller | Callable[[Any], Controller],
        *,
        callbacks: BatchCallbacks | None = None,
        on_prefill: Callable[[int, int], None] | None = None,
        emits_events: bool = False,
        key: str = "",
        owner: str | None = None,
    ) -> None:
        self.id = self.furthest = self.spared = 0
        self.sequences = self.live = list(sequences)
        self.stats = stats
        self.key = key
        self.owner = key if owner is None else owner
        self.emits_events = emits_events
        self.readers: list[Sequence] = []
        self.events: list[StepEvent] = []
        self.error: Exception | None = None
        self.ended = self.has_finished = False
        self.controller: Controller | None = None
        self.rule_seconds = 0.0
        for sequence in sequences:
            sequence.needs_logits = sequence.chooses or (callbacks is not None and callbacks.processes)
        self.logits = any(s.needs_logits for s in sequences)
        self.total = sum(len(s.prompt) for s in sequences)
        self._done = 0
        self._make_controller = controller
        self._callbacks = callbacks
        self._on_prefill = on_prefill
        self._first: dict[Sequence, tuple[int, Any]] = {}  # under callbacks: what follows the prompts read so far
        self._started = self._first_token_at = perf_counter()
        self._cpu_at_first_token = process_time()

    # ---- reading -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Plan what is to be read, the caches being as they are."""
        readers: dict[bytes, Sequence] = {}
        for number, sequence in enumerate(self.live):
            fresh, held, tokens = sequence.fresh, sequence.cache.length, sequence.plan_reading()
            if held:
                sequence.checkpoint()
            if sequence.head is not None:
                sequence.head.follow(sequence.cache)
            sequence.twins, sequence.states = [], []
            if fresh and held:
                self._count(held, cached=True)
            # What a cache holds already need not be shared; the key of its own keeps such a sequence apart.
            known = tokens.tobytes() if fresh and not held else number.to_bytes(4, "little") + b"."
            if known in readers:
                readers[known].twins.append(sequence)
            else:
                readers[known] = sequence
        self.readers = list(readers.values())

    def pause(self) -> None:
        """Its cache was given away: what was read is to be read again."""
        self.readers = []
        self.controller = None
        if self.live[0].fresh:
            self.stats.prompt_tokens -= self._done
            self.stats.cached_tokens = self._done = 0

    def read(self, chunks: abc.Sequence[PrefillChunk], argmax: list[int], output: StepOutput) -> None:
        """Take what a forward, whose output has this ``argmax``, made of chunks of the prompts."""
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
            if sequence.on_cut is not None and sequence.at_cut:
                sequence.on_cut(sequence.cache)
            if sequence.fresh:
                self._count(rows)
        if self.emits_events:
            self.events.append(StepEvent(self.id, "prefill", self._done, self.total))
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
        """A prompt is read, ``row`` being the output after it."""
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
                    self.events.append(
                        StepEvent(self.id, "tokens", sequence=sequence.index, tokens=[token], origins=[None])
                    )
        reader.twins = []

    def _count(self, tokens: int, *, cached: bool = False) -> None:
        self._done += tokens
        self.stats.prompt_tokens += tokens
        if cached:
            self.stats.cached_tokens += tokens

    # ---- decoding ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Everything is read: make proposers for what goes on, and show them the text."""
        self.stats.sampler_seconds = 0.0
        self.live = [s for s in self.live if s.finish is None]
        if not self.live:
            return
        made = self._make_controller
        self.controller = made(self) if callable(made) else made
        for sequence in self.live:
            self.controller.join(sequence.index)
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
        """The controller of a group that decodes."""
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
        """Verify, keep and observe what a forward made of the sequences and their drafts.

        Args:
            drafts: of each sequence that goes on; None = there are none.
            argmax: of the output.
            output: the forward's.
            first: the row of the output that follows the first sequence's last token.
            proposing: seconds that the step spent on drafts.
            forward: seconds of the forward.
            idle: as the controller said of this step.

        Returns:
            The row of the output after the last of theirs.
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
            # Of a draft that it ends in, the last token's row is left: what follows it is not wanted.
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
        """It is over, or abandoned: complete the statistics."""
        self.ended = True
        if self.stats.tokens:
            self.stats.decode_seconds = perf_counter() - self._first_token_at
            self.stats.decode_cpu_seconds = process_time() - self._cpu_at_first_token
        self.stats.finish_reasons = [s.finish or "abandoned" for s in self.sequences]
        self.stats.fold()

    def cancel(self) -> None:
        """End what goes on."""
        for sequence in self.live:
            if sequence.finish is None:
                sequence.finish = "cancelled"

    def _tokens(
        self, sequence: Sequence, draft: Draft, accepted: abc.Sequence[int], emitted: abc.Sequence[int]
    ) -> StepEvent:
        sources = draft.sources or [self.stats.strategy] * len(draft)
        origins = [*[sources[row] for row in accepted], None][: len(emitted)]
        return StepEvent(self.id, "tokens", sequence=sequence.index, tokens=emitted, origins=origins)

    def _emit_together(self, argmax: abc.Sequence[int], logits: abc.Sequence[Logits]) -> abc.Sequence[int]:
        """Choose and commit the next token of all live sequences, under rules that see them all at once."""
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
    """Hand out logits of a chunk of a prompt, before the chunk is committed."""
    if min(argmax[rows.start : rows.stop]) < 0:
        raise EngineError(NOT_FINITE)
    assert output.logits is not None
    assert sequence.on_prompt_logits is not None
    sequence.on_prompt_logits(sequence.cache.length, output.logits[rows.start : rows.stop])
