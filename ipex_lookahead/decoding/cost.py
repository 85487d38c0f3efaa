"""What a forward costs: T(rows, length) of one loaded engine, measured at first use and corrected from step to step.

A step's time grows with its rows in steps of the kernels' tiles and, more slowly, with the context. Drafting pays or
does not by these ratios alone, so they are measured on the machine at hand, not assumed.

In a mixture of experts a step also grows with the experts that its rows go to, for each is read from memory: four rows
of a text may need ten experts of a layer or thirty. How many a draft will need is learned from the steps before.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import tempfile
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.decoding.calibration import (
    ASSUMED,
    WARM_UP,
    Calibration,
    calibrate,
    from_json,
    impossible,
    possible,
    timed_forward,
    to_json,
)
from ipex_lookahead.engines.base import Engine
from ipex_lookahead.engines.native.decoder import KV_CACHES, kv_bytes_per_token
from ipex_lookahead.engines.prefill import chain
from ipex_lookahead.errors import LookaheadError, ModelFormatError
from ipex_lookahead.hub import cache_folder
from ipex_lookahead.safe_json import load_object

CHECK_SECONDS = 0.015
"""Forwards of one row take so long, at least one, to see whether a kept calibration is still to be believed."""
WORTH_A_FILE_SECONDS = 0.02
"""A calibration that took less is not written down: doing it again is as quick."""
TOO_DISTURBED = 1.35
"""Nor is one whose rounds differed by more than this factor: other processes had the machine. It serves for now.
(SmolLM2-135M, five rounds: 1.05 to 1.27 on an idle machine, 1.42 to 1.78 beside a job at lower priority.)"""
ATTEMPTS = 2
"""An impossible curve is measured once more; whatever disturbed it may be over."""
FILE_BYTES = 1 << 16
TEMPORARY = ".costs-"
"""How the name of a file begins that is being written."""

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
        # A machine that has become slower has become so for every number of rows: half of the news is for all, so that
        # a curve whose ends are seldom visited keeps its shape.
        shared = math.sqrt(change)
        self._scale *= shared
        self._factors[bucket] *= shared

    def _count(self, rows: int, bucket: int, experts: int) -> None:
        """Learn how many experts rows of this text need; again half of the news is for every number of rows."""
        alone, free = self.calibration.experts[0], self._free_experts(rows)
        if free <= alone:
            return
        seen = min(MOST_SPREAD, max(0.0, (experts - alone) / (free - alone)))
        news = FOLLOW_SPREAD / 2 * (seen - self._spread[bucket])
        self._spread = [spread + news for spread in self._spread]
        self._spread[bucket] += news

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

    Args:
        engine: the loaded engine.
        folder: where calibrations are kept; None keeps none.
        progress: called with a sentence before a calibration that has to be run.
    """

    def __init__(
        self, engine: Engine, folder: Path | None = None, progress: Callable[[str], None] | None = None
    ) -> None:
        self._engine = engine
        self._folder = folder
        self._progress = progress
        self._curve: CostCurve | None = None
        self._measuring = threading.Lock()

    def curve(self) -> CostCurve:
        """The curve, the same object for every generation: what one learns, the next knows."""
        with self._measuring:
            return self._known()

    def _known(self) -> CostCurve:
        if self._curve is None:
            file = None if self._folder is None else self._folder / f"{key_of(self._engine)}.json"
            found = None if file is None else load(file)
            if found is None or self._was_slowed(found):
                if self._progress is not None:
                    self._progress("measuring what a decoding step costs on this machine (once)")
                found = self._measure(file)
            self._curve = CostCurve(found)
        return self._curve

    def _was_slowed(self, known: Calibration) -> bool:
        """Whether one row takes much less now: then other processes had the machine, and the curve has their shape.

        That it takes more now is no reason: what is measured beside others is worth less than what is known.
        """
        batch = chain(self._engine.new_cache(), np.zeros(1, np.int32))
        began, seconds = perf_counter(), [timed_forward(self._engine, batch)[0]]
        while len(seconds) < WARM_UP and perf_counter() - began < CHECK_SECONDS:
            seconds.append(timed_forward(self._engine, batch)[0])
        return min(seconds) * TOO_DISTURBED < known.seconds[0]

    def _measure(self, file: Path | None) -> Calibration:
        """A calibration, written down where it will still be true tomorrow; else the next process measures again."""
        for _ in range(ATTEMPTS):
            began = perf_counter()
            found, disturbance = calibrate(self._engine)
            quick = perf_counter() - began < WORTH_A_FILE_SECONDS
            if not impossible(found):
                if file is not None and not quick and disturbance < TOO_DISTURBED:
                    save(file, found, self._engine)
                return found
        return possible(found)


def cost_folder() -> Path:
    """Where calibrations are kept: ``costs`` in the cache folder."""
    return cache_folder() / "costs"


def known_costs(folder: Path, config: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The calibrations of this processor in a folder, the newest first: what they are of, and milliseconds by rows.

    Args:
        folder: see :func:`cost_folder`.
        config: a checkpoint's config; then only those of models of that shape (a base and an instruct model share
            theirs), in whatever format. None = of all models.
    """
    found = []
    for file, of in _files(folder):
        calibration = load(file)
        if calibration is not None and of.get("processor") == processor() and _is_of(of, config):
            milliseconds = {
                str(n): round(1000 * s, 3) for n, s in zip(calibration.rows, calibration.seconds, strict=True)
            }
            names = ("engine", "isa", "threads", "low_bit", "weight_bytes", "vocab_size")
            found.append({**{name: of.get(name) for name in names}, "milliseconds": milliseconds})
    return found


def forget_costs(folder: Path, config: Mapping[str, Any] | None = None) -> int:
    """Delete the calibrations that a folder holds, so that they are measured again; how many were deleted.

    Args:
        folder: see :func:`cost_folder`; one that is not there holds none.
        config: as for :func:`known_costs`; None deletes damaged files and what an interrupted write left over, too.

    Raises:
        OSError: a file cannot be deleted.
    """
    if config is None:
        doomed = [*folder.glob("*.json"), *folder.glob(f"{TEMPORARY}*")]
    else:
        doomed = [file for file, of in _files(folder) if _is_of(of, config)]
    for file in doomed:
        file.unlink(missing_ok=True)
    return len(doomed)


def _files(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Files of calibrations, the newest first, and what engine each says that it is of."""
    for file in sorted(folder.glob("*.json"), key=_changed, reverse=True):
        try:
            found = load_object(file, FILE_BYTES).get("engine")
        except ModelFormatError:
            continue
        if isinstance(found, dict):
            yield file, found


def _is_of(engine: Mapping[str, Any], config: Mapping[str, Any] | None) -> bool:
    """Whether an engine's identity may be that of a model with this config."""
    if config is None:
        return True
    if engine.get("vocab_size") != config.get("vocab_size"):
        return False
    if "family" in engine:  # torch's engines name it
        return bool(engine["family"] == config.get("model_type"))
    try:
        spec = spec_for(dict(config))
    except LookaheadError:
        return False
    return engine.get("kv_bytes_per_token") in [kv_bytes_per_token(spec, kind) for kind in KV_CACHES]


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def key_of(engine: Engine) -> str:
    """Name of the file of an engine's calibration: the machine and the model's shape, hashed."""
    return hashlib.sha256(json.dumps(identity(engine), sort_keys=True).encode()).hexdigest()[:24]


def identity(engine: Engine) -> dict[str, Any]:
    """What a calibration depends on."""
    facts = engine.describe()
    names = ("engine", "isa", "threads", "low_bit", "weight_bytes", "kv_cache", "kv_bytes_per_token")
    where = {name: facts[name] for name in ("device", "family", "dtype", "deterministic") if name in facts}
    known = {"processor": processor(), "vocab_size": engine.vocab_size, **{name: facts.get(name) for name in names}}
    return known | where  # what only some engines tell comes last, so that others' calibrations keep their names


def processor() -> str:
    """The processor's model name."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(errors="replace"), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def save(file: Path, calibration: Calibration, engine: Engine) -> None:
    """Write a calibration, by another name and a rename. A folder that cannot be written to is no error."""
    temporary = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=TEMPORARY, dir=file.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump({"engine": identity(engine), **to_json(calibration)}, out, indent=1)
        os.replace(temporary, file)
    except OSError:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def load(file: Path) -> Calibration | None:
    """An earlier calibration; None where there is none, or none that can be believed."""
    try:
        return from_json(load_object(file, FILE_BYTES))
    except ModelFormatError:
        return None
