"""Sequences that are one caller's: what a forward's answers make of them. Verify, keep, observe, tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from time import perf_counter, process_time
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ipex_lookahead.decoding.budget import Controller
from ipex_lookahead.decoding.rule_price import FOLLOW
from ipex_lookahead.decoding.sequence import NO_DRAFT, DecodingSequence, Reader, Tokens
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.decoding.verify import verify, verify_in_step
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.engines.base import ARGMAX, StepOutput
from ipex_lookahead.errors import EngineError

_ROOT_ONLY = [0]
_NOT_FINITE = "the engine's logits hold NaN: the weights or the activations are not finite"


class Lockstep(Protocol):
    """Takes the place of ``choose`` and ``accept`` where something must see all sequences of a group at one position.

    Both are called once for each emitted position, in order, with all sequences that go on, by their ``index``.
    """

    def choose(self, sequences: Sequence[int], logits: Sequence[npt.NDArray[np.float32]]) -> Sequence[int]:
        """Logits of each, float32 [vocab_size] -> the token of each. Not called where no sequence has a ``choose``."""
        ...

    def accept(self, sequences: Sequence[int], tokens: Sequence[int]) -> Sequence[bool]:
        """The emitted tokens -> for each whether its sequence ends with it."""
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
    tokens: Sequence[int] = ()
    origins: Sequence[str | None] = ()


class SequenceGroup:
    """Sequences that are submitted, counted and ended together.

    Args:
        sequences: at least one; they decode once all their prompts are read.
        stats: filled; right also for a group that was abandoned.
        begin: called with the sequences that go on when their prompts are read, again after the group was preempted:
            gives them their proposers, and returns the controller.
        lockstep: emit the same positions of all sequences that go on, through it: a step emits as many tokens of each
            as of the one whose draft is right for the shortest way.
        on_prefill: called after each chunk of the prompts with their tokens done, and their number.
        emits_events: make events of its steps.
        key: whose memory of prompts is used.
        owner: whose share of the scheduler it takes; ``key`` if not given.

    Attributes:
        id: given by the scheduler.
        live: the sequences that go on.
        readers: what is still to be read.
        error: what ended it early.
        ended: whether it is over.
        rule_seconds: what choosing its tokens takes in a step, a running mean.
        has_finished: whether a sequence has ended that is among ``live`` still.
        furthest: positions that its cache held when it was preempted.
        spared: it makes way for another owner's only when its cache holds so many.
    """

    def __init__(
        self,
        sequences: Sequence[DecodingSequence],
        stats: GenerationStats,
        begin: Callable[[Sequence[DecodingSequence]], Controller],
        *,
        lockstep: Lockstep | None = None,
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
        self.readers: list[Reader] = []
        self.events: list[StepEvent] = []
        self.error: Exception | None = None
        self.ended = self.has_finished = False
        self.controller: Controller | None = None
        self.rule_seconds = 0.0
        self.logits = any(s.choose is not None for s in sequences)
        self.total = sum(len(s.prompt) for s in sequences)
        self._done = 0
        self._begin = begin
        self._lockstep = lockstep
        self._on_prefill = on_prefill
        self._first: dict[DecodingSequence, tuple[int, Any]] = {}  # in lockstep: what follows the prompts read so far
        self._started = self._first_token_at = perf_counter()
        self._cpu_at_first_token = process_time()

    # ---- reading -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Say what is to be read, the caches being as they are: the prompts; or after a pause all committed tokens."""
        readers: dict[bytes, Reader] = {}
        for number, sequence in enumerate(self.live):
            sequence.states = []
            fresh, held, tokens = sequence.length == 0, sequence.cache.length, self.to_read(sequence)
            if fresh and held:
                self._count(held, cached=True)
            # What a cache holds already need not be shared; the key of its own keeps such a reader apart.
            known = tokens.tobytes() if fresh and not held else number.to_bytes(4, "little") + b"."
            if known in readers:
                readers[known].twins.append(sequence)
            else:
                readers[known] = Reader(sequence, tokens, fresh)
        self.readers = list(readers.values())

    def to_read(self, sequence: DecodingSequence) -> Tokens:
        """What its cache holds once it decodes: the prompt, or after a pause all but the last committed token."""
        if sequence.length == 0:
            return sequence.prompt
        assert sequence.committed is not None
        return sequence.committed()[:-1].astype(np.int32)

    def pause(self) -> None:
        """Its cache was given away: what was read is to be read again."""
        self.readers = []
        self.controller = None
        if self.live[0].length == 0:
            self.stats.prompt_tokens -= self._done
            self.stats.cached_tokens = self._done = 0

    def read(self, chunks: Sequence[tuple[Reader, int, bool, int, int]], argmax: list[int], output: StepOutput) -> None:
        """Take what a forward made of chunks of the prompts.

        Args:
            chunks: (reader, rows, whether they are its last, row of the output that follows them; of a prompt that is
                shown the outputs of its other rows come before that).
            argmax: of the output.
            output: the forward's.
        """
        stats = self.stats
        stats.prefill_seconds = perf_counter() - self._started
        for reader, rows, _, answer, first in chunks:
            if reader.sequence.shows_prompt:
                _show(reader.sequence, argmax, output, range(answer + 1 - rows, answer + 1))
            if reader.hidden and output.hidden is not None:
                states = {layer: output.hidden[layer][first : first + rows] for layer in reader.hidden}
                for sequence in (reader.sequence, *reader.twins):
                    sequence.states.append(states)
            reader.sequence.cache.keep(list(range(rows)))
            if reader.answer:
                self._count(rows)
        if self.emits_events:
            self.events.append(StepEvent(self.id, "prefill", self._done, self.total))
        for reader, _, done, answer, _ in chunks:
            if done:
                self.readers.remove(reader)
                if reader.answer:
                    self._answered(reader, argmax, output, answer)
        if self._on_prefill is not None:
            self._on_prefill(self._done, self.total)
        if self._first and not self.readers:
            found = [self._first.pop(sequence) for sequence in self.live]
            self._emit_in_step([token for token, _ in found], [row for _, row in found] if self.logits else ())
        if stats.tokens and not stats.first_token_seconds:
            stats.first_token_seconds = perf_counter() - self._started
            self._first_token_at = self._started + stats.first_token_seconds
            self._cpu_at_first_token = process_time()

    def _answered(self, reader: Reader, argmax: list[int], output: StepOutput, row: int) -> None:
        """A prompt is read, ``row`` being the output after it."""
        for twin in reader.twins:
            twin.cache = reader.sequence.cache.fork()
            self._count(len(twin.prompt), cached=True)
        for sequence in (reader.sequence, *reader.twins):
            sequence.length = len(sequence.prompt)
            if sequence.length == sequence.limit:
                sequence.finish = sequence.limit_reason
                continue
            if self._lockstep is not None:
                self._first[sequence] = argmax[row], None if output.logits is None else output.logits[row]
                continue
            token, _ = _emit(sequence, argmax, output, self.stats, row, 0)
            if self.emits_events:
                self.events.append(
                    StepEvent(self.id, "tokens", sequence=sequence.index, tokens=[token], origins=[None])
                )

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
        self.controller = self._begin(self.live)
        for sequence in self.live:
            self.controller.join(sequence.index)
            sequence.outcomes()
            if sequence.proposer is not None:
                before = sequence.prompt if sequence.committed is None else sequence.committed()[:-1]
                tokens, layers = [*before.tolist(), sequence.last], sequence.proposer.wants.hidden
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
        drafts: Sequence[Draft] | None,
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
        walks = None if self._lockstep is None else self._walk_in_step(drafts, argmax, output, first)
        accepted_rows = drafted = 0
        before = stats.sampler_seconds
        for number, sequence in enumerate(self.live):
            draft = NO_DRAFT if drafts is None else drafts[number]
            if walks is None:
                accepted, emitted = verify(draft, partial(_emit, sequence, argmax, output, stats, first))
            else:
                accepted, emitted = walks[number]
            end = first + 1 + len(draft.tokens)
            # Of a draft that it ends in, the last token's row is left: what follows it was never asked for.
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
                    if sequence.asked:
                        proposer.observe(outcome)
                    else:
                        sequence.pending_outcomes = [*sequence.outcomes(), outcome]
                sequence.asked = False
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
        self, sequence: DecodingSequence, draft: Draft, accepted: Sequence[int], emitted: Sequence[int]
    ) -> StepEvent:
        sources = draft.sources or [self.stats.strategy] * len(draft)
        origins = [*[sources[row] for row in accepted], None][: len(emitted)]
        return StepEvent(self.id, "tokens", sequence=sequence.index, tokens=emitted, origins=origins)

    def _walk_in_step(
        self, drafts: Sequence[Draft] | None, argmax: list[int], output: StepOutput, first: int
    ) -> list[tuple[list[int], list[int]]]:
        """Verify all drafts, the same positions of all of them at once."""
        if drafts is None:
            drafts = [NO_DRAFT] * len(self.live)
        firsts = list(accumulate((1 + len(draft.tokens) for draft in drafts[:-1]), initial=first))
        logits: Any = output.logits

        def emit(rows: Sequence[int]) -> tuple[Sequence[int], bool]:
            places = [at + row for at, row in zip(firsts, rows, strict=True)]
            found = [logits[place] for place in places] if self.logits else ()
            return self._emit_in_step([argmax[place] for place in places], found)

        return verify_in_step(drafts, emit)

    def _emit_in_step(
        self, argmax: Sequence[int], logits: Sequence[npt.NDArray[np.float32]]
    ) -> tuple[Sequence[int], bool]:
        """One position of all sequences that go on: choose, commit, and say whether any of them ends there."""
        live, lockstep, stats = self.live, self._lockstep, self.stats
        assert lockstep is not None
        numbers = [s.index for s in live]
        tokens = argmax
        if len(logits):
            began = perf_counter()
            tokens = lockstep.choose(numbers, logits)
            stats.sampler_seconds += perf_counter() - began
        elif min(argmax) < 0:
            raise EngineError(_NOT_FINITE)
        for sequence, token in zip(live, tokens, strict=True):
            sequence.last = token
            sequence.length += 1
        stats.tokens += len(live)
        for sequence, ended in zip(live, lockstep.accept(numbers, tokens), strict=True):
            if ended:
                sequence.finish = "stop"
            elif sequence.length >= sequence.limit:
                sequence.finish = sequence.limit_reason
        return tokens, any(s.finish is not None for s in live)


def _show(sequence: DecodingSequence, argmax: list[int], output: StepOutput, rows: range) -> None:
    """Tell logits of a chunk of a prompt, before the chunk is committed."""
    if min(argmax[rows.start : rows.stop]) < 0:
        raise EngineError(_NOT_FINITE)
    assert output.logits is not None
    assert sequence.on_prompt_logits is not None
    sequence.on_prompt_logits(sequence.cache.length, output.logits[rows.start : rows.stop])


def _emit(
    sequence: DecodingSequence,
    argmax: list[int],
    output: StepOutput,
    stats: GenerationStats,
    first: int,
    row: int,
) -> tuple[int, bool]:
    """Choose the token after a row, commit it, and say whether the sequence ends with it."""
    if sequence.choose is None:
        token = argmax[first + row]
        if token < 0:
            raise EngineError(_NOT_FINITE)
    else:
        began = perf_counter()
        assert output.logits is not None
        token = sequence.choose(output.logits[first + row])
        stats.sampler_seconds += perf_counter() - began
    sequence.last = token
    sequence.length += 1
    stats.tokens += 1
    if sequence.accept(token):
        sequence.finish = "stop"
    elif sequence.length >= sequence.limit:
        sequence.finish = sequence.limit_reason
    return token, sequence.finish is not None
