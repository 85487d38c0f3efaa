"""What a forward costs: T(rows, length) of one loaded engine, measured at first use and corrected from step to step.

A step's time grows with its rows in steps of the kernels' tiles and, more slowly, with the context. Drafting pays or
does not by these ratios alone, so they are measured on the machine at hand, not assumed.

In a mixture of experts a step also grows with the experts that its rows go to, for each is read from memory: four rows
of a text may need ten experts of a layer or thirty. How many a draft will need is learned from the steps before.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

import numpy as np

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.controller.calibration import (
    ASSUMED,
    NOISY,
    WARM_UP,
    Calibration,
    calibrate,
    impossible,
    possible,
    quickest,
    timed_forward,
)
from ipex_lookahead.controller.kept_costs import MOST_DISTURBED, Measured, file_of, load, save, used
from ipex_lookahead.engines.api import Engine
from ipex_lookahead.engines.prefill import chain

CHECK_SECONDS = 0.015
"""Forwards of one row take so long, at least one, to see whether a kept calibration is still to be believed."""
WORTH_A_FILE_SECONDS = 0.02
"""A calibration that took less is not written down: doing it again is as quick."""
QUIET = 1.2
"""Forwards of one row in a row differ by less where nobody else has the machine."""
AGAIN_SECONDS = 600.0
"""A noisy calibration is measured again after so long at the earliest: a start that looks quiet may not stay so."""

FOLLOW = 0.08
"""Weight of a new time in the running mean of its number of rows."""
OUTLIER = 1.5
"""A time further off than this factor counts as this far off: other processes also use the machine."""
FOLLOW_SPREAD, MOST_SPREAD = 0.15, 1.25
"""Weight of a new count of experts, which no other process disturbs, and the spread (see ``CostCurve``) beyond which
one is not followed."""


class CostCurve:
    """T(rows, length), a calibration and what has been learned since.

    With experts, T also depends on how many were read. For a step to come that is expected to be
    E(1) + spread * (E(rows) - E(1)), where E(n) is what n rows would read that know nothing of each other. Rows of a
    text often go the same ways, so the spread is 1 only until the text has shown its own. (The calibration's rows are
    no text: tokens that a model was not trained on may all go to a few experts.)
    """

    def __init__(self, calibration: Calibration | None = None) -> None:
        self.calibration = calibration or ASSUMED
        self._scale = 1.0 if calibration else 0.0
        self._factors = [1.0] * len(self.calibration.rows)
        self._spread = [1.0] * len(self.calibration.rows)
        numbers = range(1, self.calibration.rows[-1] + 1)
        self._table = [0.0, *(self._between(n, self.calibration.seconds) for n in numbers)]

    def __call__(self, rows: int, length: int = 0, experts: int = 0) -> float:
        """Seconds that a forward of ``rows`` rows takes with ``length`` positions of context.

        ``experts``: how many it read, where that is known already.
        """
        return self._base(rows, length, experts) * self._factors[self._bucket(rows)] * (self._scale or 1.0)

    def timed(self, rows: int, length: int, seconds: float, experts: int = 0) -> None:
        """Learn from a forward that was run anyway, and read so many ``experts``."""
        if not seconds > 0.0:
            return
        base, bucket = self._base(rows, length, experts), self._bucket(rows)
        if experts and self.calibration.experts:
            self._count(rows, bucket, experts)
        if not self._scale:  # the first time gives a curve that was assumed its unit
            self._scale = seconds / base
            return
        ratio = seconds / (base * self._factors[bucket] * self._scale)
        change = 1.0 + FOLLOW * (min(OUTLIER, max(1.0 / OUTLIER, ratio)) - 1.0)
        # A machine that has become slower has become so for every number of rows: half of the change is for all, so
        # that a curve whose ends are seldom visited keeps its shape.
        shared = math.sqrt(change)
        self._scale *= shared
        self._factors[bucket] *= shared

    def _count(self, rows: int, bucket: int, experts: int) -> None:
        """Learn how many experts rows of this text need; again half of the change is for every number of rows."""
        alone, free = self.calibration.experts[0], self._free_experts(rows)
        if free <= alone:
            return
        seen = min(MOST_SPREAD, max(0.0, (experts - alone) / (free - alone)))
        change = FOLLOW_SPREAD / 2 * (seen - self._spread[bucket])
        self._spread = [spread + change for spread in self._spread]
        self._spread[bucket] += change

    def table(self, length: int = 0) -> list[tuple[int, float]]:
        """(rows, seconds) at the calibrated numbers of rows."""
        return [(rows, self(rows, length)) for rows in self.calibration.rows]

    def _bucket(self, rows: int) -> int:
        return bisect_right(self.calibration.rows, rows) - 1

    def _base(self, rows: int, length: int, experts: int) -> float:
        known = self._table
        seconds = known[rows] if rows < len(known) else self._between(rows, self.calibration.seconds)
        if self.calibration.experts:
            alone, calibrated = self.calibration.experts[0], self._between(rows, self.calibration.experts)
            expected = experts or alone + self._spread[self._bucket(rows)] * (self._free_experts(rows) - alone)
            seconds = max(
                self.calibration.seconds[0], seconds + (expected - calibrated) * self.calibration.expert_seconds
            )
        return seconds + length * (self.calibration.key_seconds + rows * self.calibration.key_row_seconds)

    def _free_experts(self, rows: int) -> float:
        """How many experts rows read that know nothing of each other."""
        alone, of = self.calibration.experts[0], self.calibration.all_experts
        return of * (1.0 - (1.0 - alone / of) ** rows)

    def _between(self, rows: int, known: Sequence[float]) -> float:
        """Between measured points on a line; beyond the last as the last piece goes on."""
        at = self.calibration.rows
        if len(at) == 1:
            return known[0] * rows / at[0]
        right = min(max(bisect_right(at, rows), 1), len(at) - 1)
        slope = (known[right] - known[right - 1]) / (at[right] - at[right - 1])
        return max(known[right - 1] + (rows - at[right - 1]) * slope, known[0])


class EngineCosts:
    """The cost curve of one loaded engine: from the file of an earlier run, or calibrated when first asked for.

    A calibration that other processes disturbed is kept too, marked as noisy: it is better than what would be assumed,
    and a machine that is always busy would measure at every start. It is measured again at a start that looks quiet,
    and what was less disturbed stays.

    Args:
        engine: the loaded engine.
        folder: where calibrations are kept; None keeps none. It is an attribute too.
        progress: called with a sentence before a calibration that has to be run.
    """

    def __init__(
        self, engine: Engine, folder: Path | None = None, progress: Callable[[str], None] | None = None
    ) -> None:
        self._engine = engine
        self.folder = folder
        self._progress = progress
        self._curve: CostCurve | None = None
        self._measuring = threading.Lock()

    def ready(self, config: LookaheadConfig | None) -> None:
        """Measure now what a generation with this configuration will ask for: before its clock and its answer begin."""
        if config is not None and config.adaptive:
            self.curve()

    def curve(self) -> CostCurve:
        """The curve, the same object for every generation: what one learns, the next knows."""
        with self._measuring:
            if self._curve is None:
                self._curve = CostCurve(self._known())
            return self._curve

    def _known(self) -> Calibration:
        file = None if self.folder is None else file_of(self.folder, self._engine)
        kept = None if file is None else load(file, self._engine)
        if file is not None and kept is not None:
            used(file)
            now = self._one_row(3 if kept.noisy else 1)
            # One row takes much less now: other processes had the machine, and the curve has their shape. That it takes
            # more now is no reason: what is measured beside others is worth less than what is known.
            slowed = min(now) * NOISY < kept.calibration.seconds[0]
            if not (_is_old(kept) and (slowed or _is_quiet(now)) if kept.noisy else slowed):
                return kept.calibration
            if slowed:
                kept = None
        if self._progress is not None:
            self._progress("measuring what a decoding step costs on this machine (once)")
        return self._measure(file, kept)

    def _one_row(self, least: int) -> list[float]:
        """What forwards of one row take now; at least so many."""
        batch = chain(self._engine.new_cache(), np.zeros(1, np.int32))
        began, seconds = perf_counter(), [timed_forward(self._engine, batch)[0]]
        while len(seconds) < least or (len(seconds) < WARM_UP and perf_counter() - began < CHECK_SECONDS):
            seconds.append(timed_forward(self._engine, batch)[0])
        return seconds

    def _measure(self, file: Path | None, noisy: Measured | None) -> Calibration:
        """A calibration, written down where a machine can have it. ``noisy``: stays where this is no better."""
        began = perf_counter()
        found, disturbance = calibrate(self._engine)
        quick = perf_counter() - began < WORTH_A_FILE_SECONDS
        if impossible(found):  # whatever disturbed it may be over
            again, disturbance = calibrate(self._engine)
            if impossible(again):
                found, disturbance = possible(quickest(found, again)), max(disturbance, NOISY)
            else:
                found = again
        if noisy is not None and noisy.disturbance <= disturbance:
            found, disturbance = noisy.calibration, noisy.disturbance
        if file is not None and not quick:
            save(file, Measured(found, min(disturbance, MOST_DISTURBED), time.time()), self._engine)
        return found


def _is_quiet(seconds: Sequence[float]) -> bool:
    """Whether forwards one after the other took as long as each other, once the caches were warm."""
    warm = seconds[len(seconds) // 2 :] if len(seconds) > 3 else seconds[1:]
    return max(warm) < QUIET * min(warm)


def _is_old(measured: Measured) -> bool:
    return abs(time.time() - measured.at) >= AGAIN_SECONDS
