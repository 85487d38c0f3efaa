"""T(n): seconds of a forward of n rows, by the engine's cost curve, at the length that the text has by now."""

from __future__ import annotations

from collections.abc import Sequence

from ipex_lookahead.controller.cost import CostCurve

LEARN_STEPS = 12
"""Steps after which the curve learns from them: going through them at once costs a fraction of going through each when
caches are cold."""


class RowCost:
    """T as it was when the curve last learned.

    Args:
        curve: the engine's, calibrated, and corrected from step to step.

    Attributes:
        of_experts: whether rows read experts. There a wrong draft may cost as much as several tokens, so the curve
            learns from each draft at once.
    """

    def __init__(self, curve: CostCurve) -> None:
        self._curve = curve
        self.of_experts = bool(curve.calibration.experts)
        self._steps: list[tuple[int, int, float, int]] = []
        self._learn_after = 1  # the first step may give the curve its unit
        self._length = 0
        self._times: list[float] = []

    def time(self, rows: int) -> float:
        """Seconds of a forward of so many rows."""
        times = self._times
        return times[rows - 1] if rows <= len(times) else self.times(rows)[rows - 1]

    def times(self, rows: int) -> Sequence[float]:
        """Those of 1, 2, ... at least ``rows`` rows."""
        times = self._times
        while len(times) < rows:
            times.append(self._curve(len(times) + 1, self._length))
        return times

    def took(self, rows: int, length: int, experts: int) -> float:
        """Seconds of a forward that read so many experts."""
        return self._curve(rows, length, experts) if experts else self.time(rows)

    def learn(self, rows: int, length: int, seconds: float, experts: int, *, at_once: bool) -> None:
        """Learn from a forward: see ``CostCurve.timed``."""
        steps = self._steps
        steps.append((rows, length, seconds, experts))
        if len(steps) < self._learn_after and not at_once:
            return
        for step in steps:
            self._curve.timed(*step)
        steps.clear()
        self._learn_after, self._length, self._times = LEARN_STEPS, length, []
