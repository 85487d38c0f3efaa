"""What a forward costs: T(rows, length) of one loaded engine, measured at first use and followed from step to step.

A step's time grows with its rows in steps of the kernels' tiles and, more slowly, with the context. In a mixture of
experts it also grows with the experts that its rows select, for each is read from memory.
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
from ipex_lookahead.controller.calibration import ASSUMED, NOISY, WARM_UP, Calibration, calibrate, timed_forward
from ipex_lookahead.controller.kept import MAX_NUMBER, Measured, file_of, load, save, used
from ipex_lookahead.engines.api import Engine
from ipex_lookahead.engines.prefill import chain

CHECK_SECONDS = 0.015
"""Time of the forwards of one row that check a kept calibration; 5 to 10 forwards of a small model."""
AGAIN_SECONDS = 600.0
"""Age at which a noisy calibration may be measured again: an always busy machine would measure at every start."""
FOLLOW = 0.08
"""Weight of a new time, or count of experts, in its average. Half and twice replayed within 1 % of it."""
OUTLIER = 1.5
"""A time or a count further off than this factor counts as this far off: other processes use the machine too."""


class CostCurve:
    """T(rows, length): a calibration and what has been learned since.

    With experts, T also depends on the number that a step reads: E(1) + spread * (E(rows) - E(1)) in a step to come,
    where E(n) is what n rows of unrelated tokens would read. Rows of a text often select the same experts, so the
    spread is 1 only until the text has shown its own.
    """

    def __init__(self, calibration: Calibration | None = None) -> None:
        self.calibration = calibration or ASSUMED
        self._scale = 1.0 if calibration else 0.0
        self._factors = [1.0] * len(self.calibration.rows)
        self._spread = [1.0] * len(self.calibration.rows)
        numbers = range(1, self.calibration.rows[-1] + 1)
        self._table = [0.0, *(self._between(n, self.calibration.seconds) for n in numbers)]

    def __call__(self, rows: int, length: int = 0, experts: int = 0) -> float:
        """Return the seconds of a forward.

        Args:
            rows: rows of the forward.
            length: positions of context.
            experts: experts that it read, where that is known.
        """
        return self._base(rows, length, experts) * self._factors[self._bucket(rows)] * (self._scale or 1.0)

    def timed(self, rows: int, length: int, seconds: float, experts: int = 0) -> None:
        """Learn from a forward that was run anyway."""
        if not seconds > 0.0:
            return
        base, bucket = self._base(rows, length, experts), self._bucket(rows)
        if experts and self.calibration.experts:
            self._count(rows, bucket, experts)
        if not self._scale:  # the first time gives an assumed curve its unit
            self._scale = seconds / base
            return
        ratio = seconds / (base * self._factors[bucket] * self._scale)
        change = 1.0 + FOLLOW * (min(OUTLIER, max(1.0 / OUTLIER, ratio)) - 1.0)
        # A slower machine is slower for every number of rows: half of the change is for all of them.
        shared = math.sqrt(change)
        self._scale *= shared
        self._factors[bucket] *= shared

    def _count(self, rows: int, bucket: int, experts: int) -> None:
        """Learn how many experts rows of this text need; the change is for every number of rows, twice for this one."""
        alone, free = self.calibration.experts[0], self._free_experts(rows)
        if free <= alone:
            return
        seen = min(OUTLIER, max(0.0, (experts - alone) / (free - alone)))
        change = FOLLOW * (seen - self._spread[bucket])
        self._spread = [spread + change for spread in self._spread]
        self._spread[bucket] += change

    def table(self, length: int = 0) -> list[tuple[int, float]]:
        """Return (rows, seconds) at the calibrated numbers of rows."""
        return [(rows, self(rows, length)) for rows in self.calibration.rows]

    def _bucket(self, rows: int) -> int:
        return bisect_right(self.calibration.rows, rows) - 1

    def _base(self, rows: int, length: int, experts: int) -> float:
        found, known = self.calibration, self._table
        seconds = known[rows] if rows < len(known) else self._between(rows, found.seconds)
        if found.experts:
            alone, calibrated = found.experts[0], self._between(rows, found.experts)
            expected = experts or alone + self._spread[self._bucket(rows)] * (self._free_experts(rows) - alone)
            seconds = max(found.seconds[0], seconds + (expected - calibrated) * found.expert_seconds)
        return seconds + length * (found.key_seconds + rows * found.key_row_seconds)

    def _free_experts(self, rows: int) -> float:
        """Return how many experts rows of unrelated tokens read."""
        alone, of = self.calibration.experts[0], self.calibration.all_experts
        return of * (1.0 - (1.0 - alone / of) ** rows)

    def _between(self, rows: int, known: Sequence[float]) -> float:
        """Interpolate linearly; beyond the last measured point the last piece goes on."""
        at = self.calibration.rows
        if len(at) == 1:
            return known[0] * rows / at[0]
        right = min(max(bisect_right(at, rows), 1), len(at) - 1)
        slope = (known[right] - known[right - 1]) / (at[right] - at[right - 1])
        return max(known[right - 1] + (rows - at[right - 1]) * slope, known[0])


class EngineCosts:
    """The cost curve of one loaded engine: from the file of an earlier run, or calibrated at first use.

    A calibration that other processes disturbed is kept as noisy, and measured again at a later start that looks
    quiet; of two noisy ones the less disturbed stays.

    Args:
        engine: the loaded engine.
        folder: where calibrations are kept; None keeps none. It is an attribute too.
        progress: called with a sentence before a calibration.
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
        """Measure what a generation with this configuration needs, before its clock and its answer begin."""
        if config is not None and config.adaptive:
            self.curve()

    def curve(self) -> CostCurve:
        """Return the curve, the same object for every generation."""
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
            # One row takes much less now: other processes disturbed the kept curve. If one row takes more now, the kept
            # curve stays: a new one would be disturbed.
            slowed = min(now) * NOISY < kept.calibration.seconds[0]
            old = abs(time.time() - kept.at) >= AGAIN_SECONDS
            if not (old and (slowed or _is_quiet(now)) if kept.noisy else slowed):
                return kept.calibration
            if slowed:
                kept = None
        if self._progress is not None:
            self._progress("measuring what a decoding step costs on this machine (once)")
        found, disturbance = calibrate(self._engine)
        if kept is not None and kept.disturbance <= disturbance:
            found, disturbance = kept.calibration, kept.disturbance
        if file is not None:
            save(file, Measured(found, min(disturbance, MAX_NUMBER), time.time()), self._engine)
        return found

    def _one_row(self, least: int) -> list[float]:
        """Return the times of at least ``least`` forwards of one row."""
        batch = chain(self._engine.new_cache(), np.zeros(1, np.int32))
        began, seconds = perf_counter(), [timed_forward(self._engine, batch)[0]]
        while len(seconds) < least or (len(seconds) < WARM_UP and perf_counter() - began < CHECK_SECONDS):
            seconds.append(timed_forward(self._engine, batch)[0])
        return seconds


def _is_quiet(seconds: Sequence[float]) -> bool:
    """Return True if consecutive forwards took about the same time, once the caches were warm."""
    warm = seconds[len(seconds) // 2 :] if len(seconds) > 3 else seconds[1:]
    return max(warm) < NOISY * min(warm)
