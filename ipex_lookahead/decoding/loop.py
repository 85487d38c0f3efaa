"""THE loop: propose, forward, verify, keep, observe; over one or several sequences in one forward.

What it costs itself: with an engine that answers at once 3 microseconds a step plain and 9 with prompt lookup and the
adaptive controller; about 30 and 75 beside a real one, which leaves the caches cold (CPython 3.11, one Zen 4 core).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ipex_lookahead.decoding.controller import Controller
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.decoding.verify import verify, verify_in_step
from ipex_lookahead.drafting.base import Proposer
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.engines.base import Batch, Cache, Engine, StepOutput
from ipex_lookahead.engines.prefill import PREFILL_ROWS, prefill
from ipex_lookahead.errors import EngineError, InputError

_NO_DRAFT = Draft()
_ROOT_ONLY = [0]
_NOT_FINITE = "the engine's logits hold NaN: the weights or the activations are not finite"


@dataclass(slots=True, eq=False)
class DecodingSequence:
    """One sequence on its way. The loop owns ``last``, ``length`` and ``finish``.

    Attributes:
        index: its number, for the controller.
        prompt: int32 [n], n >= 1.
        limit: length, prompt included, at which the sequence ends; more than n.
        cache: a cache of its own; it may hold the prompt's first tokens, but not all of them.
        proposer: None decodes token by token.
        choose: float32 [vocab_size] logits -> token, called once for each emitted position in order; None is the
            argmax, for which the engine need not hand out logits.
        accept: told each emitted token, in order; True ends the sequence with that token.
        limit_reason: what ``finish`` becomes at the limit.
        last, length: the last committed token, and how many are committed.
        finish: None while it goes on, else "stop", ``limit_reason`` or "cancelled".
    """

    index: int
    prompt: npt.NDArray[np.int32]
    limit: int
    cache: Cache
    proposer: Proposer | None
    choose: Callable[[npt.NDArray[np.float32]], int] | None
    accept: Callable[[int], bool]
    limit_reason: str = "length"
    last: int = -1
    length: int = 0
    finish: str | None = None


class Lockstep(Protocol):
    """Takes the place of ``choose`` and ``accept`` where something must see all sequences of a batch at one position.

    Both are called once for each emitted position, in order, with all sequences that go on, by their ``index``.
    """

    def choose(self, sequences: Sequence[int], logits: Sequence[npt.NDArray[np.float32]]) -> Sequence[int]:
        """Logits of each, float32 [vocab_size] -> the token of each. Not called where no sequence has a ``choose``."""
        ...

    def accept(self, sequences: Sequence[int], tokens: Sequence[int]) -> Sequence[bool]:
        """The emitted tokens -> for each whether its sequence ends with it."""
        ...


def decode(
    engine: Engine,
    sequences: Sequence[DecodingSequence],
    controller: Controller,
    stats: GenerationStats,
    *,
    lockstep: Lockstep | None = None,
    cancelled: Callable[[], bool] | None = None,
    on_prefill: Callable[[int, int], None] | None = None,
    prefill_rows: int = PREFILL_ROWS,
) -> None:
    """Run every sequence to its end. ``stats`` is right also when an exception leaves the loop half-way.

    Args:
        engine: where the model runs.
        sequences: those that are decoded together.
        controller: decides how much is drafted.
        stats: filled.
        lockstep: emit the same positions of all sequences that go on, through it: a step emits as many tokens of each
            as of the one whose draft is right for the shortest way.
        cancelled: asked between two pieces of the prompts and after each step; True ends all sequences.
        on_prefill: called after each piece with the prompt tokens done and their number in all.
        prefill_rows: most prompt rows in a forward.
    """
    started = perf_counter()
    first_token_at = started
    try:
        _read_prompts(engine, sequences, stats, lockstep, cancelled, on_prefill, prefill_rows, started)
        first_token_at = started + stats.first_token_seconds
        stats.sampler_seconds = 0.0
        live = [s for s in sequences if s.finish is None]
        for sequence in live:
            if sequence.proposer is not None:
                sequence.proposer.begin([*sequence.prompt.tolist(), sequence.last])
        while live:
            _together(engine, _Group(live, engine, lockstep), controller, stats, cancelled)
            live = [s for s in live if s.finish is None]
    finally:
        if stats.tokens:
            stats.decode_seconds = perf_counter() - first_token_at
        stats.finish_reasons = [s.finish or "abandoned" for s in sequences]
        stats.fold()


class _Group:
    """The sequences that are decoded together, and what of a batch stays the same until one of them ends."""

    def __init__(self, live: list[DecodingSequence], engine: Engine, lockstep: Lockstep | None) -> None:
        self.live = live
        self.engine = engine
        self.lockstep = lockstep
        self.numbers = [s.index for s in live]
        self.caches = [s.cache for s in live]
        self.logits = any(s.choose is not None for s in live)
        self.tops = [0 if s.proposer is None else s.proposer.top for s in live]
        self.top = max(self.tops)
        self.proposing = any(s.proposer is not None for s in live)
        self.plain_counts = [1] * len(live)
        self.plain_parents = np.full(len(live), -1, np.int32)


def _together(
    engine: Engine,
    group: _Group,
    controller: Controller,
    stats: GenerationStats,
    cancelled: Callable[[], bool] | None,
) -> None:
    """Steps until a sequence of the group ends. In each every sequence emits at least one token."""
    live, forward, lockstep = group.live, engine.forward, group.lockstep
    while True:
        began = perf_counter()
        drafts = _propose(group, controller) if group.proposing else None
        proposed = perf_counter()
        batch = _plain_batch(group) if drafts is None else _batch(group, drafts)
        asked = perf_counter()
        try:
            output = forward(batch)
        except EngineError:
            if drafts is None:
                raise
            drafts = None  # the fault may be a drafted token's, which plain decoding would not have looked at
            output = forward(_plain_batch(group))
        answered = perf_counter()

        argmax = output.argmax.tolist()
        walks = None if lockstep is None else _walk_in_step(group, drafts, argmax, output, stats)
        first = accepted_rows = longest = drafted = 0
        for number, sequence in enumerate(live):
            draft = _NO_DRAFT if drafts is None else drafts[number]
            if walks is None:
                accepted, emitted = verify(draft, partial(_emit, sequence, argmax, output, stats, first))
            else:
                accepted, emitted = walks[number]
            end = first + 1 + len(draft.tokens)
            if sequence.finish is None:
                sequence.cache.keep([0, *[row + 1 for row in accepted]] if accepted else _ROOT_ONLY)
            if sequence.proposer is not None:
                scratch = argmax[end - draft.scratch : end] if draft.scratch else ()
                top: Any = output.top[first:end] if group.tops[number] and output.top is not None else None
                outcome = Outcome(draft, accepted, emitted, scratch, top)
                if sequence.finish is None:
                    sequence.proposer.observe(outcome)
                controller.observe(sequence.index, outcome)
            if draft.tokens:
                stats.verified(draft, accepted)
                accepted_rows += len(accepted)
                drafted += len(draft.tokens)
            first = end
            if sequence.length > longest:
                longest = sequence.length
        if group.proposing:
            controller.timed(first, longest, answered - asked, proposed - began, output.experts)

        stats.steps += 1
        stats.sequence_steps += len(live)
        stats.drafted += drafted
        stats.accepted += accepted_rows
        stats.proposer_seconds += proposed - began
        stats.engine_seconds += answered - asked
        stats.per_step.append((drafted, accepted_rows, proposed - began, answered - asked))
        for sequence in live:
            if sequence.finish is not None:
                return
        if cancelled is not None and cancelled():
            _cancel(live)
            return


def _cancel(sequences: Sequence[DecodingSequence]) -> None:
    for sequence in sequences:
        if sequence.finish is None:
            sequence.finish = "cancelled"


def _plain_batch(group: _Group) -> Batch:
    """One row for each sequence."""
    return Batch(
        group.caches,
        group.plain_counts,
        np.array([s.last for s in group.live], np.int32),
        group.plain_parents,
        None,
        group.logits,
        group.top,
    )


def _batch(group: _Group, drafts: Sequence[Draft]) -> Batch:
    """Each sequence's last token and its draft."""
    counts: list[int] = []
    tokens: list[int] = []
    parents: list[int] = []
    for sequence, draft in zip(group.live, drafts, strict=True):
        counts.append(1 + len(draft.tokens))
        tokens.append(sequence.last)
        parents.append(-1)
        if draft.tokens:
            tokens.extend(draft.tokens)
            parents.extend([parent + 1 for parent in draft.parents])
    rows, links = np.array(tokens, np.int32), np.array(parents, np.int32)
    return Batch(group.caches, counts, rows, links, None, group.logits, group.top)


def _propose(group: _Group, controller: Controller) -> Sequence[Draft] | None:
    """A draft for each sequence, cut to what the controller thinks worth its rows; None where all are empty.

    A draft ends before the sequence's limit: the bonus token needs a place too.
    """
    drafts: list[Draft] = []
    any_tokens = False
    for sequence in group.live:
        draft = _NO_DRAFT
        if sequence.proposer is not None:
            room = sequence.limit - sequence.length - 1
            budget = min(controller.budget(sequence.index, sequence.length), room)
            if budget > 0:
                draft = sequence.proposer.propose(budget)
                if len(draft.tokens) > budget:
                    name = type(sequence.proposer).__name__
                    raise InputError(
                        f"{name} proposed {len(draft)} tokens with a budget of {budget};"
                        " propose no more than the budget"
                    )
                if not group.engine.supports_tree:
                    draft = _chain(draft, group.engine)
                any_tokens = any_tokens or bool(draft.tokens)
        drafts.append(draft)
    if not any_tokens:
        return None
    return controller.select(group.numbers, drafts, max(s.length for s in group.live))


def _chain(draft: Draft, engine: Engine) -> Draft:
    """A draft for an engine that takes no trees."""
    if draft.scratch:
        raise InputError(
            f"this strategy evaluates rows beside its draft (scratch rows), for which the {engine.name} engine needs"
            " trees, and this model takes none; use prompt_lookup, suffix, recycling, auto or a draft model"
        )
    return draft.best_chain()


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


def _walk_in_step(
    group: _Group,
    drafts: Sequence[Draft] | None,
    argmax: list[int],
    output: StepOutput,
    stats: GenerationStats,
) -> list[tuple[list[int], list[int]]]:
    """Verify all drafts, the same positions of all of them at once."""
    if drafts is None:
        drafts = [_NO_DRAFT] * len(group.live)
    firsts = list(accumulate((1 + len(draft.tokens) for draft in drafts[:-1]), initial=0))
    logits: Any = output.logits

    def emit(rows: Sequence[int]) -> tuple[Sequence[int], bool]:
        places = [first + row for first, row in zip(firsts, rows, strict=True)]
        found = [logits[place] for place in places] if group.logits else ()
        return _emit_in_step(group.live, group.lockstep, [argmax[place] for place in places], found, stats)

    return verify_in_step(drafts, emit)


def _emit_in_step(
    live: Sequence[DecodingSequence],
    lockstep: Any,
    argmax: Sequence[int],
    logits: Sequence[npt.NDArray[np.float32]],
    stats: GenerationStats,
) -> tuple[Sequence[int], bool]:
    """One position of all sequences that go on: choose, commit, and say whether any of them ends there."""
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


def _read_prompts(
    engine: Engine,
    sequences: Sequence[DecodingSequence],
    stats: GenerationStats,
    lockstep: Lockstep | None,
    cancelled: Callable[[], bool] | None,
    on_prefill: Callable[[int, int], None] | None,
    rows: int,
    started: float,
) -> None:
    """Run the prompts, but for what the caches hold, and emit each sequence's first token."""
    for sequence in sequences:
        sequence.length = sequence.cache.length
    chains = [(s.cache, s.prompt[s.length :]) for s in sequences]
    wants_logits = any(s.choose is not None for s in sequences)
    total = sum(len(s.prompt) for s in sequences)
    done = sum(s.length for s in sequences)
    stats.prompt_tokens += done
    stats.cached_tokens += done
    waiting: list[tuple[int, Any]] = []  # in lockstep: of the prompts read so far what follows them
    for pieces, output in prefill(engine, chains, logits=wants_logits, rows=rows):
        stats.prefill_seconds = perf_counter() - started
        argmax = output.argmax.tolist()
        for piece in pieces:
            sequence = sequences[piece.chain]
            sequence.length += piece.count
            stats.prompt_tokens += piece.count
            done += piece.count
            if piece.done and lockstep is None:
                _emit(sequence, argmax, output, stats, piece.answers.start, 0)
                if not stats.first_token_seconds:
                    stats.first_token_seconds = perf_counter() - started
            elif piece.done:
                at = piece.answers.start
                waiting.append((argmax[at], output.logits[at] if output.logits is not None else None))
        if on_prefill is not None:
            on_prefill(done, total)
        if done < total and cancelled is not None and cancelled():
            _cancel(sequences)
            return
    if lockstep is not None and waiting:
        firsts = [token for token, _ in waiting]
        _emit_in_step(sequences, lockstep, firsts, [row for _, row in waiting] if wants_logits else (), stats)
        stats.first_token_seconds = perf_counter() - started
