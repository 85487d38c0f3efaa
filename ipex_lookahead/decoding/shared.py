"""Several threads' forwards on one engine, run as one where they come together: rows never see their neighbours.

Only forwards are shared. Each thread keeps its own loop, so its rules, callbacks and streamers run where the caller
is, and a slow one holds nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

import numpy as np
import numpy.typing as npt

from ipex_lookahead.engines.base import ARGMAX, Batch, Engine, StepOutput
from ipex_lookahead.engines.prefill import PREFILL_ROWS

PATIENCE = 0.2
"""So long, in forwards, one waits for the others; whoever is late is not waited for until it comes again."""
MOST_ROWS = 2 * PREFILL_ROWS
"""Rows of a forward for several: scratch memory grows with them."""


class _Pending:
    """A batch that a thread waits for."""

    __slots__ = ("batch", "error", "output", "place")

    def __init__(self, batch: Batch, place: Place) -> None:
        self.batch = batch
        self.place = place
        self.output: StepOutput | None = None
        self.error: Exception | None = None

    @property
    def done(self) -> bool:
        return self.output is not None or self.error is not None


class Place:
    """A generation's place among those of one model: ``forward`` stands for the engine's."""

    def __init__(self, forwards: SharedForwards) -> None:
        self._forwards = forwards
        self.waited_for = True

    def forward(self, batch: Batch) -> StepOutput:
        """As the engine's; ``output.shared`` says whether others' rows were in it."""
        forwards = self._forwards
        if len(forwards.places) == 1 or not forwards.engine.row_invariant:
            return forwards.engine.forward(batch)
        return forwards.forward(batch, self)


class SharedForwards:
    """The forwards of all generations of one model.

    Example: two threads decode; while the first verifies its tokens the second waits for it, then one forward of two
    rows serves both, which takes hardly longer than one of one row.

    Args:
        engine: where the model runs. Where its rows are not invariant, every forward is run by itself.

    Attributes:
        places: of those that take part.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.places: list[Place] = []
        self._pending: list[_Pending] = []
        self._leading = False
        self._seconds = 0.0
        self._changed = threading.Condition()

    @contextmanager
    def taking_part(self) -> Iterator[Place]:
        """While the calling thread generates: others wait for it a little."""
        place = Place(self)
        with self._changed:
            self.places.append(place)
        try:
            yield place
        finally:
            with self._changed:
                self.places.remove(place)
                self._changed.notify_all()

    def forward(self, batch: Batch, place: Place) -> StepOutput:
        """Run a batch, with others' where they come in time."""
        mine = _Pending(batch, place)
        with self._changed:
            self._pending.append(mine)
            place.waited_for = True
            self._changed.notify_all()
            try:
                together = self._wait(mine)
            except BaseException:  # an interrupt: nobody else may be at our caches when it is raised
                if mine in self._pending:
                    self._pending.remove(mine)
                else:
                    self._changed.wait_for(lambda: mine.done)
                raise
        if together:
            self._lead(together)
        if mine.error is not None:
            raise mine.error
        assert mine.output is not None
        return mine.output

    def _wait(self, mine: _Pending) -> list[_Pending]:
        """Until another thread has run our batch, or it is on us to run what has come: that is returned."""
        ends = perf_counter() + PATIENCE * self._seconds
        while not mine.done:
            left = ends - perf_counter()
            first = not self._leading and bool(self._pending) and self._pending[0] is mine
            here = [one.place for one in self._pending]
            missing = [place for place in self.places if place.waited_for and place not in here]
            if first and (not missing or left <= 0):
                for place in missing:
                    place.waited_for = False
                together: list[_Pending] = []
                rows = 0
                while self._pending and (not together or rows + len(self._pending[0].batch.tokens) <= MOST_ROWS):
                    together.append(self._pending.pop(0))
                    rows += len(together[-1].batch.tokens)
                self._leading = True
                return together
            self._changed.wait(left if first else None)
        return []

    def _lead(self, together: Sequence[_Pending]) -> None:
        began = perf_counter()
        try:
            try:
                outputs = _apart(self.engine.forward(_joined([one.batch for one in together])), together)
            except Exception as error:
                if len(together) == 1:
                    together[0].error = error
                    return
                for one in together:  # so that the one whose fault it is gets the error
                    try:
                        one.output = self.engine.forward(one.batch)
                    except Exception as its:
                        one.error = its
            else:
                for one, output in zip(together, outputs, strict=True):
                    one.output = output
        finally:
            with self._changed:
                self._seconds = perf_counter() - began
                self._leading = False
                self._pending[:0] = [one for one in together[1:] if not one.done]  # we were interrupted
                self._changed.notify_all()


def _joined(batches: Sequence[Batch]) -> Batch:
    """One forward for several batches."""
    if len(batches) == 1:
        return batches[0]
    rows, hidden_rows = [], []
    first, wants = 0, ARGMAX
    for batch in batches:
        count = len(batch.tokens)
        rows.append(_rows(batch.wants.rows, count) + np.int32(first))
        if batch.wants.hidden:
            hidden_rows.append(_rows(batch.wants.hidden_rows, count) + np.int32(first))
        first += count
        wants |= batch.wants
    if any(batch.wants.rows is not None for batch in batches):
        wants = replace(wants, rows=np.concatenate(rows))
    if wants.hidden:
        wants = replace(wants, hidden_rows=np.concatenate(hidden_rows))
    return Batch(
        [cache for batch in batches for cache in batch.caches],
        [count for batch in batches for count in batch.counts],
        np.concatenate([batch.tokens for batch in batches]),
        np.concatenate([batch.parents for batch in batches]),
        wants,
        [rows for batch in batches for rows in batch.settled or [0] * len(batch.counts)],
    )


def _apart(output: StepOutput, pending: Sequence[_Pending]) -> list[StepOutput]:
    """What each batch wants."""
    if len(pending) == 1:
        return [output]
    found, first, first_hidden = [], 0, 0
    for one in pending:
        wants, rows = one.batch.wants, len(one.batch.tokens)
        end = first + (rows if wants.rows is None else len(wants.rows))
        logits = output.logits[first:end] if wants.logits and output.logits is not None else None
        top = np.ascontiguousarray(output.top[first:end, : wants.top]) if wants.top and output.top is not None else None
        hidden = None
        if wants.hidden and output.hidden is not None:
            last = first_hidden + (rows if wants.hidden_rows is None else len(wants.hidden_rows))
            hidden = {layer: output.hidden[layer][first_hidden:last] for layer in wants.hidden}
            first_hidden = last
        timings = output.timings if wants.timings else None
        found.append(StepOutput(output.argmax[first:end], logits, top, output.experts, True, hidden, timings))
        first = end
    return found


def _rows(listed: npt.NDArray[np.int32] | None, every: int) -> npt.NDArray[np.int32]:
    return np.arange(every, dtype=np.int32) if listed is None else listed
