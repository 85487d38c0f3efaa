"""Sequences of many callers in the same forwards: groups are submitted, advance together in each step, and leave.

A forward carries the last tokens and drafts of decoding sequences, and chunks of prompts. Rows never see other
sequences' rows, so batch neighbors change only the latency.
"""

from __future__ import annotations

import logging
from collections import abc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from time import perf_counter, sleep
from typing import Any

from ipex_lookahead.decoding.disk_cache import POLL_SECONDS
from ipex_lookahead.decoding.events import Event
from ipex_lookahead.decoding.image_encoding import ImageEncoding
from ipex_lookahead.decoding.prefix_cache import PAGE, PrefixCache, alike, pages_of
from ipex_lookahead.decoding.rule_price import RulePrice
from ipex_lookahead.decoding.running_batch import RunningBatch
from ipex_lookahead.decoding.sequence import Sequence
from ipex_lookahead.decoding.sequence_group import PrefillChunk, SequenceGroup
from ipex_lookahead.decoding.shares import LEAST_CHUNK, QUANTUM, Shares, by_owner, dispensable, share_of
from ipex_lookahead.engines.api import Batch, Engine, StepOutput, state_bytes
from ipex_lookahead.engines.prefill import PREFILL_ROWS, TAIL
from ipex_lookahead.errors import ContextLengthError, EngineError

log = logging.getLogger("ipex_lookahead")

DELAY = 4.0
"""Upper bound on how much prefill chunks, or slices of encoding, may slow down a decode step (4 = four times)."""
SHOWN_ROWS = 64
"""Most prompt rows of a step with logits: each takes one float per token of the vocabulary."""

_NONE: abc.Sequence[PrefillChunk] = ()

Time = Callable[[int, int], float]
"""(rows, positions of context) -> cost of a forward, in any unit."""


class Scheduler:
    """Steps over the sequences of many groups. One thread at a time.

    Args:
        engine: the model's engine.
        slots: largest number of running groups; None = no limit. Owners that want more than there are get equal shares
            of the rows (:class:`~ipex_lookahead.decoding.shares.Shares`); with ``memory`` the owner with the larger
            share is preempted.
        per_owner: largest number of running groups of one owner; None = no limit.
        memory: prefix cache that bounds and owns the KV caches; a group has one sequence then. None: sequences own
            their KV caches.
        time: cost of a forward (:class:`~ipex_lookahead.controller.cost.CostCurve`), for ``DELAY``.
        prefill_rows: largest number of prompt rows in a forward.
        turn: held during each forward, so that threads that generate on one engine take turns; None: one thread.

    Attributes:
        steps: forwards so far.
        preemptions: number of groups that gave their memory to older ones, or their slot to another owner.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        slots: int | None = None,
        per_owner: int | None = None,
        memory: PrefixCache | None = None,
        time: Time | None = None,
        prefill_rows: int = PREFILL_ROWS,
        turn: AbstractContextManager[Any] | None = None,
    ) -> None:
        self._engine = engine
        self._turn = nullcontext() if turn is None else turn
        self.steps = self.preemptions = 0
        self._slots = slots
        self._shares = Shares(slots, per_owner)
        self._memory = memory
        self._tail = TAIL if state_bytes(engine) else 0
        self._time = time
        self._prefill_rows = prefill_rows
        self._groups: dict[int, SequenceGroup] = {}
        self._waiting: list[SequenceGroup] = []  # by number
        self._reading: list[SequenceGroup] = []
        self._decoding: list[SequenceGroup] = []
        self._running_batch = RunningBatch((), engine)
        self._batch_outdated = False  # whether the running batch is another one by now
        self._encoding = ImageEncoding(self._turn)
        self._rules = RulePrice()
        self._sitting_out: frozenset[SequenceGroup] = frozenset()
        self._events: list[Event] = []
        self._submitted = 0

    @property
    def busy(self) -> bool:
        """Whether there are groups, or events to return."""
        return bool(self._groups or self._events)

    @property
    def _running(self) -> list[SequenceGroup]:
        return [*self._reading, *self._decoding]

    @property
    def running(self) -> int:
        """Number of groups that read or decode."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Number of groups that wait for a slot or for memory."""
        return len(self._waiting)

    def submit(self, group: SequenceGroup) -> int:
        """Add a group and return its ``id``; a later step starts it.

        Raises ContextLengthError where its KV cache does not fit in the memory.
        """
        if self._memory is not None:
            (sequence,) = group.sequences
            if pages_of(sequence.limit) > self._memory.pages:
                raise ContextLengthError(
                    f"{sequence.limit} positions take {pages_of(sequence.limit)} pages of keys and values, and the"
                    f" memory for them has {self._memory.pages}",
                    hint="ask for fewer new tokens, or give the service more cache_memory",
                )
        self._submitted += 1
        group.id = self._submitted
        group.events = self._events
        self._groups[group.id] = group
        self._shares.join(group)
        self._waiting.append(group)
        return group.id

    def cancel(self, group: int, error: BaseException | None = None) -> None:
        """End a group now, unless it has ended; the next step returns the event of a group that emits events.

        Args:
            group: its number.
            error: the reason, where the group has failed.
        """
        found = self._groups.get(group)
        if found is None:
            return
        if error is not None:
            self._fail(found, error)
        else:
            found.cancel()
            self._leave(found)

    def step(self) -> abc.Sequence[Event]:
        """One forward: each sequence that decodes emits at least one token, and the next chunks of prompts are read.

        Slices of encoding images follow; without sequences that decode or read there is one slice and no forward. An
        exception that belongs to one group, from its admission to its end, ends that group alone.

        Returns:
            Events of the groups that emit events, in order for each group.
        """
        if self._waiting:
            self._admit()
        if self._memory is not None:
            self._make_room(self._memory)
        sitting_out = self._rules.sitting_out(self._decoding)
        if self._batch_outdated or sitting_out != self._sitting_out:
            self._sitting_out = sitting_out
            taking_part = [group for group in self._decoding if group not in sitting_out]
            self._running_batch, self._batch_outdated = RunningBatch(taking_part, self._engine), False
        running_batch = self._running_batch
        drafted, proposing = False, 0.0
        if running_batch.drafting:
            began = perf_counter()
            drafted = running_batch.propose(self._memory, self._fail)
            proposing = perf_counter() - began
            if self._batch_outdated:  # a proposer has failed
                return self._take_events()
        chunks = self._prefill_chunks() if self._reading else _NONE
        encodes, seconds = self._encoding.is_needed(self._reading), 0.0
        if running_batch.live or chunks:
            try:
                batch = running_batch.batch(drafted, chunks)
                output, seconds = self._forward(batch)
            except Exception as error:
                self._one_by_one(chunks, error, drafted=drafted)
            else:
                self._took(running_batch, chunks, output, proposing, seconds)
        elif self._waiting and not encodes:  # for reads from disk alone
            sleep(POLL_SECONDS)
        if encodes:
            self._encoding.run(self._reading, seconds, DELAY - 1 if running_batch.live else 1.0, self._fail)
        return self._take_events() if self._events else ()

    def _forward(self, batch: Batch) -> tuple[StepOutput, float]:
        """Run a batch; return its output and the engine's seconds, without the wait for other threads."""
        with self._turn:
            began = perf_counter()
            output = self._engine.forward(batch)
            return output, perf_counter() - began

    # ---- a forward's output ------------------------------------------------------------------------------------------

    def _took(
        self,
        running_batch: RunningBatch,
        chunks: abc.Sequence[PrefillChunk],
        output: StepOutput,
        proposing: float,
        forward: float,
    ) -> None:
        """Pass a forward's output to its groups."""
        self.steps += 1
        if self._shares.counts:
            self._shares.took(running_batch.rows_by_owner(chunks), self._waiting, self._running)
        if not chunks:
            self._rules.took(forward)
        elif self._memory is not None:
            self._memory.computed(sum(chunk.rows for chunk in chunks), forward)
        argmax = output.argmax.tolist()
        first, alone = 0, len(running_batch.draft_batches) == 1 and not chunks
        for part in running_batch.draft_batches:
            drafts, at, before = part.drafts, 0, first
            for group in part.groups:
                count = len(group.live)
                own = drafts if drafts is None or part.of_one else drafts[at : at + count]
                try:
                    first = group.take(own, argmax, output, first, proposing, forward, part.idle)
                except Exception as error:
                    first += count if own is None else count + sum(map(len, own))
                    self._fail(group, error)
                at += count
                if group.has_finished and not group.ended:
                    self._settle(group)
            if part.drafting and not part.idle:
                longest = max([sequence.length for sequence in part.live])
                rows, seconds, experts = (
                    (first - before, forward, output.experts) if alone else (first - before, 0.0, 0)
                )
                part.controller.timed(rows, longest, seconds, proposing, experts)
        if chunks:
            self._read(chunks, argmax, output)

    def _read(self, chunks: abc.Sequence[PrefillChunk], argmax: list[int], output: StepOutput) -> None:
        """Pass the output of prompt chunks to their groups."""
        by_group: dict[SequenceGroup, list[PrefillChunk]] = {}
        for chunk in chunks:
            by_group.setdefault(chunk.group, []).append(chunk)
        for group, own in by_group.items():
            try:
                group.read(own, argmax, output)
                if self._memory is not None and group.readers and group.readers[0].at_cut:
                    self._keep(self._memory, group.readers[0], group.key, goes_on=True)
                if not group.readers:
                    if self._memory is not None:
                        self._keep(self._memory, group.sequences[0], group.key, goes_on=True)
                    group.begin()
                    self._reading.remove(group)
                    self._decoding.append(group)
                    self._decoding.sort(key=attrgetter("id"))
                    self._settle(group)
            except Exception as error:
                self._fail(group, error)

    def _one_by_one(self, chunks: abc.Sequence[PrefillChunk], error: Exception, *, drafted: bool) -> None:
        """Run each group alone and without drafts after a failed forward, so that only the failing group ends."""
        groups = list(dict.fromkeys([*self._decoding, *(chunk.group for chunk in chunks)]))
        if len(groups) == 1 and not (drafted and isinstance(error, EngineError)):
            self._fail(groups[0], error)
            return
        for group in groups:
            own = [chunk for chunk in chunks if chunk.group is group]
            try:
                running_batch = RunningBatch([] if own else [group], self._engine)
                batch = running_batch.batch(False, own)
                output, seconds = self._forward(batch)
            except Exception as its:
                self._fail(group, its)
            else:
                self._took(running_batch, own, output, 0.0, seconds)

    def _take_events(self) -> abc.Sequence[Event]:
        found, self._events[:] = self._events.copy(), ()  # groups have this list
        return found

    # ---- coming and going --------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Start waiting groups, owners by their shares and each owner's in order, while slots and memory last."""
        passed: set[SequenceGroup] = set()  # another group is reading the same prompt
        while True:
            full = self._slots is not None and self.running >= self._slots
            if full and not self._shares.several:
                return
            group = self._shares.next_of((one for one in self._waiting if one not in passed), self._running)
            if group is None or (full and self._ahead_of(group) is None):
                return
            try:
                if self._memory is not None:
                    needs = -1 if group.fetching else self._needs(self._memory, group)
                    if needs < 0:
                        passed.add(group)
                        continue
                    while full or (needs > 0 and self.running and not self._memory.admits(needs, self.running)):
                        ahead = self._ahead_of(group)
                        if ahead is None:
                            return  # no group overtakes, or this one might never start
                        self._preempt(self._memory, ahead)
                        full = False
                    if group.fetches(self._memory):
                        passed.add(group)
                        continue
                    self._prepare(self._memory, group)
                else:
                    for sequence in group.sequences:
                        sequence.cache = self._engine.new_cache() if sequence.cache is None else sequence.cache
                group.start()
            except Exception as error:
                self._fail(group, error)
            else:
                self._waiting.remove(group)
                self._reading.append(group)

    def _ahead_of(self, group: SequenceGroup) -> SequenceGroup | None:
        """Return the group to preempt for a waiting one; None where sequences own their KV caches."""
        if self._memory is None or not self._shares.several:
            return None
        return self._shares.ahead_of(group, self._running)

    def _prepare(self, memory: PrefixCache, group: SequenceGroup) -> None:
        """Give a group the stored prefix of its text."""
        sequence = group.sequences[0]
        self._release(sequence)
        sequence.plan_reading()
        found = None if sequence.shows_prompt else memory.take(sequence.read_keys, group.key)
        sequence.cache, sequence.pages = (self._engine.new_cache(), []) if found is None else found
        if memory.has_states:
            sequence.plan_cuts(memory, group.key)
        if group.furthest:  # it must advance, or two groups could preempt each other without end
            again = group.furthest - sequence.cache.length
            group.spared = group.furthest + max(QUANTUM, again)

    def _needs(self, memory: PrefixCache, group: SequenceGroup) -> int:
        """Return the number of pages that a group needs to start; -1: wait for a group that reads the same prompt."""
        group.sequences[0].plan_reading()
        tokens = group.sequences[0].read_keys
        if group.sequences[0].shows_prompt:
            return pages_of(len(tokens) + 1)
        held = memory.match(tokens, group.key)
        end = (held + 1) * PAGE
        for other in self._reading:
            same = other.readers[0].read_keys
            if other.key == group.key and min(len(same), len(tokens) - 1) >= end and (same[:end] == tokens[:end]).all():
                parts = alike(tokens[: min(len(same), len(tokens) - 1)], same)
                if not memory.has_states or other.readers[0].cut_at(parts):
                    return -1
        return pages_of(len(tokens) + 1) - held

    def _settle(self, group: SequenceGroup) -> None:
        """Update the batch after some sequences of a group ended, or the group began to decode."""
        self._batch_outdated, group.has_finished = True, False
        group.live = [sequence for sequence in group.live if sequence.finish is None]
        if not group.live:
            self._leave(group)

    def _fail(self, group: SequenceGroup, error: BaseException) -> None:
        group.error = error
        self._leave(group)
        if self._memory is not None:
            group.sequences[0].drop_cache()

    def _leave(self, group: SequenceGroup) -> None:
        """Remove a group that has ended."""
        if self._memory is not None:
            sequence = group.sequences[0]
            if group.error is None and group not in self._waiting:
                try:
                    self._keep(self._memory, sequence, group.key)
                except Exception:  # the answer is complete without it
                    log.warning("a finished text is not stored for later prompts", exc_info=True)
            self._release(sequence)
        self._remove(group)
        self._shares.leave(group)
        del self._groups[group.id]
        self._encoding.keep_for(self._groups.values())
        group.close()
        if group.emits_events:
            self._events.append(Event("finish" if group.error is None else "error", group=group.id))

    def _remove(self, group: SequenceGroup) -> None:
        for some in (self._waiting, self._reading, self._decoding):
            if group in some:
                some.remove(group)
        if group.controller is not None:
            for sequence in group.sequences:
                group.controller.leave(sequence.index)
        self._batch_outdated = True

    # ---- memory ------------------------------------------------------------------------------------------------------

    def _make_room(self, memory: PrefixCache) -> None:
        """Reserve the next token of each decoding sequence, oldest first; the youngest group may be preempted."""
        for group in sorted(self._decoding, key=attrgetter("id")):
            sequence = group.sequences[0]
            while group in self._decoding and not memory.extend(sequence.pages, sequence.length):
                self._preempt_one(memory)

    def _preempt_one(self, memory: PrefixCache) -> None:
        """Preempt a group where the running ones do not fit."""
        if self.running > 1:
            self._preempt(memory, dispensable(self._running))
            return
        error = EngineError("the only sequence does not fit in the memory that was checked to have room for it")
        self._fail(self._running[0], error)

    def _preempt(self, memory: PrefixCache, group: SequenceGroup) -> None:
        """Put a running group back in the queue; evicted pages of it are computed again later."""
        sequence = group.sequences[0]
        group.furthest = max(group.furthest, sequence.cache.length)
        try:
            self._keep(memory, sequence, group.key)
        except Exception as error:
            self._fail(group, error)
            return
        self._release(sequence)
        sequence.drop_cache()
        self._remove(group)
        group.pause()
        self._waiting.append(group)
        self._waiting.sort(key=attrgetter("id"))
        self.preemptions += 1

    def _keep(self, memory: PrefixCache, sequence: Sequence, key: str, *, goes_on: bool = False) -> None:
        memory.keep(sequence.keys[: sequence.cache.length], sequence.cache, sequence.pages, key, goes_on=goes_on)

    def _release(self, sequence: Sequence) -> None:
        if self._memory is not None:
            self._memory.release(sequence.pages)
            sequence.pages = []

    # ---- prompts -----------------------------------------------------------------------------------------------------

    def _prefill_chunks(self) -> list[PrefillChunk]:
        """Return the next prompt chunks, in equal shares for owners, and for the groups of each owner.

        Groups that need less leave the rest of their share to others.
        """
        chunks: list[PrefillChunk] = []
        while self._reading and not chunks:
            room, shown = self._room(), SHOWN_ROWS
            by_key = [sorted(some, key=_left) for some in by_owner(self._reading)]
            by_key.sort(key=lambda some: sum(map(_left, some)))
            for place, groups in enumerate(by_key):
                own = share_of(room, len(by_key) - place)
                for number, group in enumerate(groups):
                    share = share_of(own, len(groups) - number)
                    for sequence in group.readers:
                        rows = self._chunk(sequence, share)
                        if sequence.shows_prompt:
                            rows = sequence.fitted(min(rows, shown))
                            shown -= rows
                        if self._memory is not None:
                            rows = self._memory.extend_to(sequence.pages, sequence.cache.length, rows)
                            rows = fit if (fit := sequence.fitted(rows)) <= rows else 0  # no room for a span
                        if rows > 0:
                            chunks.append(PrefillChunk(group, sequence, rows, rows == sequence.left))
                            share, own, room = share - rows, own - rows, room - rows
            if self._decoding or chunks or self._memory is None or self._encoding.is_needed(self._reading):
                break
            self._preempt_one(self._memory)
        return chunks

    def _chunk(self, sequence: Sequence, most: int) -> int:
        """Return the rows of the next chunk: it ends at a cut, and the last has the rows that states roll back over."""
        left = sequence.left
        rows = sequence.fitted(min(most, left))
        if not self._tail:
            return rows
        rows = min(rows, sequence.to_cut)
        return left - self._tail if self._tail < left and 0 < left - rows < self._tail else rows

    def _room(self) -> int:
        """Return the number of prompt rows in this step."""
        most = self._prefill_rows
        live = self._running_batch.live
        if not live or self._time is None:
            return most
        rows, length = self._running_batch.rows, max(sequence.length for sequence in live)
        read = max((sequence.cache.length for group in self._reading for sequence in group.readers), default=0)
        allowed, least = DELAY * self._time(rows, length), LEAST_CHUNK
        while least < most:
            middle = (least + most + 1) // 2
            if self._time(rows + middle, max(length, read + middle)) <= allowed:
                least = middle
            else:
                most = middle - 1
        return least


def _left(group: SequenceGroup) -> int:
    """Return the number of prompt tokens that a group still reads."""
    return sum(sequence.left for sequence in group.readers)
