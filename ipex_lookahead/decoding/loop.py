"""THE loop: submit, then step until idle.

What it costs itself: with an engine that answers at once 3.6 microseconds of CPU a step plain, 15 with prompt lookup
and the controller, 28 with auto; several times as much beside a real one, which leaves caches cold (CPython 3.11,
one core of a Xeon with AMX; before groups could come and go 3.1, 13 and 26).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ipex_lookahead.decoding.budget import Controller
from ipex_lookahead.decoding.scheduler import Scheduler
from ipex_lookahead.decoding.sequence import DecodingSequence
from ipex_lookahead.decoding.sequence_group import Lockstep, SequenceGroup
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.engines.base import Batch, Engine, StepOutput
from ipex_lookahead.engines.prefill import PREFILL_ROWS


def decode(
    engine: Engine,
    sequences: Sequence[DecodingSequence],
    controller: Controller | Callable[[Sequence[DecodingSequence]], Controller],
    stats: GenerationStats,
    *,
    lockstep: Lockstep | None = None,
    cancelled: Callable[[], bool] | None = None,
    on_prefill: Callable[[int, int], None] | None = None,
    prefill_rows: int = PREFILL_ROWS,
    forward: Callable[[Batch], StepOutput] | None = None,
) -> None:
    """Run every sequence to its end. ``stats`` is right also when an exception leaves the loop half-way.

    See :func:`stepwise` for the arguments.
    """
    for _ in stepwise(
        engine,
        sequences,
        controller,
        stats,
        lockstep=lockstep,
        cancelled=cancelled,
        on_prefill=on_prefill,
        prefill_rows=prefill_rows,
        forward=forward,
    ):
        pass


def stepwise(
    engine: Engine,
    sequences: Sequence[DecodingSequence],
    controller: Controller | Callable[[Sequence[DecodingSequence]], Controller],
    stats: GenerationStats,
    *,
    lockstep: Lockstep | None = None,
    cancelled: Callable[[], bool] | None = None,
    on_prefill: Callable[[int, int], None] | None = None,
    prefill_rows: int = PREFILL_ROWS,
    forward: Callable[[Batch], StepOutput] | None = None,
) -> Iterator[None]:
    """Decode, with the word given to the caller after each step; closing the iterator abandons what goes on.

    Args:
        engine: where the model runs.
        sequences: those that are decoded together.
        controller: decides how much is drafted; or what gives the sequences their proposers once the prompts are read,
            and returns the controller.
        stats: filled.
        lockstep: emit the same positions of all sequences that go on, through it.
        cancelled: asked after each step and each piece of the prompts; True ends all sequences.
        on_prefill: called after each piece with the prompt tokens done and their number in all.
        prefill_rows: most prompt rows in a forward.
        forward: runs a batch in place of ``engine.forward``.
    """
    if not sequences:
        return
    begin = controller if callable(controller) else lambda _: controller
    group = SequenceGroup(sequences, stats, begin, lockstep=lockstep, on_prefill=on_prefill)
    scheduler = Scheduler(engine, prefill_rows=prefill_rows, forward=forward)
    scheduler.submit(group)
    try:
        while not group.ended:
            scheduler.step()
            if cancelled is not None and not group.ended and cancelled():
                scheduler.cancel(group.id)
            yield
    finally:
        if not group.ended:
            group.close()
    if group.error is not None:
        raise group.error
