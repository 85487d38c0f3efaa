"""THE loop: submit, then step until idle.

What it costs itself: with an engine that answers at once 3.6 microseconds of CPU a step plain, 15 with prompt lookup
and the controller, 28 with auto; several times as much beside a real one, which leaves caches cold (CPython 3.11,
one core of a Xeon with AMX; before groups could come and go 3.1, 13 and 26).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from ipex_lookahead.decoding.scheduler import Scheduler
from ipex_lookahead.decoding.sequence_group import SequenceGroup
from ipex_lookahead.engines.api import Engine
from ipex_lookahead.engines.prefill import PREFILL_ROWS


def decode(
    engine: Engine,
    group: SequenceGroup,
    *,
    cancelled: Callable[[], bool] | None = None,
    prefill_rows: int = PREFILL_ROWS,
    turn: AbstractContextManager[Any] | None = None,
) -> Iterator[None]:
    """Run a group to its end, with control given to the caller after each step; closing the iterator abandons it.

    The group's statistics are right also when an exception ends it half-way.

    Args:
        engine: where the model runs.
        group: the sequences that are decoded together.
        cancelled: called after each step and each chunk of the prompts; True ends all sequences.
        prefill_rows: most prompt rows in a forward.
        turn: held during each forward (:class:`~ipex_lookahead.decoding.scheduler.Scheduler`).
    """
    if not group.sequences:
        group.close()
        return
    scheduler = Scheduler(engine, prefill_rows=prefill_rows, turn=turn)
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
