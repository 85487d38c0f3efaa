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
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.engines.base import Batch, Cache, Engine
from ipex_lookahead.engines.native.decoder import KV_CACHES, kv_bytes_per_token
from ipex_lookahead.engines.prefill import chain
from ipex_lookahead.errors import LookaheadError, ModelFormatError
from ipex_lookahead.hub import cache_folder
from ipex_lookahead.safe_json import load_object

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 17, 20, 24, 32)
"""Numbers of rows that are measured: every one that may be a tile's edge, as far as drafts go."""
COARSER = ((0.2, (1, 4, 16)), (0.01, (1, 2, 4, 5, 8, 16, 32)))
"""(seconds of a forward of one row, fewer numbers of rows for engines slower than that): a wait must be bounded."""
ROUNDS = 5
PATIENCE_SECONDS = 1.0
"""So many rounds; none is begun after so long, since the forwards of slow engines last long enough to tell at once."""
WARM_UP, WARM_UP_SECONDS = 12, 0.04
"""Forwards of one row before the first round, as far as they fit in so long (two always): weights that fit in a cache
come into it little by little. (84 MB on a Xeon whose cache others share: 4.9 ms, then 4.1, 3.4, 3.0, 2.7, 2.6, 2.2, and
so it stays. A forward of one row after one of 32 takes 3.1 ms for the same reason.)"""
CHECK_SECONDS = 0.015
"""Forwards of one row take so long, at least one, to see whether a kept calibration is still to be believed."""
WORTH_A_FILE_SECONDS = 0.02
"""A calibration that took less is not written down: doing it again is as quick."""
TOO_DISTURBED = 1.35
"""Nor is one whose rounds differed by more than this factor: other processes had the machine. It serves for now.
(SmolLM2-135M, five rounds: 1.05 to 1.27 on an idle machine, 1.42 to 1.78 beside a job at lower priority.)"""
IMPOSSIBLE = 2.0
"""n rows can be computed as n / m forwards of m rows, so no machine takes longer for them than for those; nor does it
take less for more rows. A curve off by more than this factor is no machine's. (Below it are disturbances, of which
``TOO_DISTURBED`` allows 1.35 up in one number of rows and down in another; and libraries with a quick way for one row
alone: a float product of two rows may pack the weights first, and so read them twice and write them once.)"""
ATTEMPTS = 2
"""An impossible curve is measured once more; whatever disturbed it may be over."""
FILE_BYTES = 1 << 16
TEMPORARY = ".costs-"
"""How the name of a file begins that is being written."""

PER_KEY = 0.45
PER_KEY_AND_ROW = 0.22
"""What a position of context costs, in units of reading its keys and values as fast as weights are read (measured on
a Zen 5 core, SmolLM2-135M, 64 to 1088 positions, 1 to 32 rows)."""

FOLLOW = 0.08
"""Weight of a new time in the running mean of its number of rows."""
OUTLIER = 1.5
"""A time further off than this factor counts as this far off: other processes also use the machine."""
FOLLOW_SPREAD, MOST_SPREAD = 0.15, 1.25
"""Weight of a new count of experts, which no other process disturbs, and the spread (see ``CostCurve``) beyond which
one is not followed."""
SAME_ROWS = 8
"""Rows of one token at one position, which need no more experts than one row: what these take less than as many rows
of different tokens is the price of the experts."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured seconds of a forward with an empty cache.

    Attributes:
        rows: ascending, the first one is 1.
        seconds: for each of ``rows``.
        key_seconds: what each position of context adds.
        key_row_seconds: what each position of context adds for each row.
        experts: for each of ``rows`` the experts that were read, in all layers; empty for a model without.
        expert_seconds: what reading one more of them takes.
        all_experts: how many there are, in all layers.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    key_seconds: float = 0.0
    key_row_seconds: float = 0.0
    experts: tuple[int, ...] = ()
    expert_seconds: float = 0.0
    all_experts: int = 0


ASSUMED = Calibration((1, 2, 4, 5, 8, 16, 32), (1.0, 1.06, 1.18, 1.5, 1.75, 2.8, 5.0))
"""Where nothing was measured: the shape of a CPU with int8 dot products, in units of one row's time."""


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
        began, seconds = perf_counter(), [_forward(self._engine, batch)[0]]
        while len(seconds) < WARM_UP and perf_counter() - began < CHECK_SECONDS:
            seconds.append(_forward(self._engine, batch)[0])
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


def calibrate(engine: Engine, *, patience: float = PATIENCE_SECONDS) -> tuple[Calibration, float]:
    """Measure forwards of different numbers of rows on a scratch cache, in rounds; each counts by its lower quartile.

    Rounds go up and down in turn, so that every forward comes after one of nearly as many rows, as it does in a text: a
    large one leaves the caches to its own. A round costs about 30 forwards of one row, half or a fifth of that on slow
    engines.

    Returns:
        The calibration, and by what factor the slowest round was off the quickest, over the numbers of rows in median;
        where there was time for one round only, by what factor its forward of one row was off the one before it.

    """
    cache = engine.new_cache()
    most = min(ROWS[-1], engine.max_context)
    # All over the vocabulary: the first tokens of many are single bytes and marks, which may go to few experts.
    tokens = (np.arange(most) * max(1, engine.vocab_size // most) % engine.vocab_size).astype(np.int32)
    batches = {n: chain(cache, tokens[:n]) for n in range(1, most + 1)}
    # The first one also wakes the threads; the second one tells how fast the engine is.
    began = perf_counter()
    _, counted = _forward(engine, batches[1])
    once, _ = _forward(engine, batches[1])
    warm = 2
    while warm < WARM_UP and perf_counter() - began < WARM_UP_SECONDS:
        once, _ = _forward(engine, batches[1])
        warm += 1
    grid = next((coarser for slow, coarser in COARSER if once > slow), ROWS)
    rows = tuple(n for n in grid if n <= most)
    same = max(n for n in rows if n <= SAME_ROWS)
    if counted:  # numbers of their own for the rows of one token, beside those of the grid
        batches[-same] = _siblings(cache, int(tokens[0]), same)
    measured = [*rows, -same] if counted else [*rows]
    times: dict[int, list[float]] = {n: [] for n in measured}
    experts = dict.fromkeys(measured, 0)
    began = perf_counter()
    while not times[1] or (perf_counter() - began < patience and len(times[1]) < ROUNDS):
        for n in measured if len(times[1]) % 2 == 0 else measured[::-1]:
            seconds, experts[n] = _forward(engine, batches[n])
            times[n].append(seconds)
    quartile = {n: sorted(some)[len(some) // 4] for n, some in times.items()}
    repeated = list(times.values()) if len(times[1]) > 1 else [[once, *times[1]]]
    disturbance = median(max(some) / max(min(some), 1e-9) for some in repeated)
    # More rows never cost less, nor read fewer experts: where it looks so, it is noise.
    curve = tuple(accumulate((quartile[n] for n in rows), max))
    facts = engine.describe()
    weights = facts.get("step_bytes") or facts.get("weight_bytes") or 0
    reading = curve[0] * (facts.get("kv_bytes_per_token") or 0) / weights if weights else 0.0
    found = Calibration(rows, curve, PER_KEY * reading, PER_KEY_AND_ROW * reading)
    if counted and facts.get("experts") and (more := experts[same] - experts[-same]) > 0:
        price = min(max(0.0, quartile[same] - quartile[-same]) / more, curve[0] / experts[1])
        found = replace(found, experts=tuple(accumulate((experts[n] for n in rows), max)), expert_seconds=price)
        found = replace(found, all_experts=facts["experts"])
    return found, disturbance


def impossible(calibration: Calibration) -> str:
    """Why no machine could have that curve; empty where one could. See ``IMPOSSIBLE``."""
    known = list(zip(calibration.rows, calibration.seconds, strict=True))
    for n, seconds in known:
        for m, fewer in known:
            if m < n and not fewer <= seconds <= IMPOSSIBLE * -(-n // m) * fewer:
                return f"{n} rows take {seconds / fewer:.2f} times as long as {m}"
    return ""


def possible(calibration: Calibration) -> Calibration:
    """The dearest curve under the given one that a machine could have: n rows cost at most n / m times m rows."""
    seconds: list[float] = []
    for i, n in enumerate(calibration.rows):
        bounds = [-(-n // m) * known for m, known in zip(calibration.rows, seconds, strict=False)]
        seconds.append(min([calibration.seconds[i], *bounds]))
    return replace(calibration, seconds=tuple(seconds))


def _siblings(cache: Cache, token: int, rows: int) -> Batch:
    """The same token so many times at the same position."""
    return Batch([cache], [rows], np.full(rows, token, np.int32), np.full(rows, -1, np.int32))


def _forward(engine: Engine, batch: Batch) -> tuple[float, int]:
    """Seconds, and experts that were read."""
    began = perf_counter()
    output = engine.forward(batch)
    return perf_counter() - began, output.experts


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


def to_json(calibration: Calibration) -> dict[str, Any]:
    """A calibration as plain values."""
    return asdict(calibration)


def from_json(found: Any) -> Calibration | None:
    """The calibration that ``to_json`` spelled; None for anything that cannot be one."""
    if not isinstance(found, dict):
        return None
    rows, seconds = found.get("rows"), found.get("seconds")
    slopes: tuple[Any, Any] = (found.get("key_seconds"), found.get("key_row_seconds"))
    if not (isinstance(rows, list) and isinstance(seconds, list) and rows and len(rows) == len(seconds)):
        return None
    if not all(isinstance(n, int) and not isinstance(n, bool) and 1 <= n <= 1024 for n in rows) or rows[0] != 1:
        return None
    if not all(map(_is_time, (*seconds, *slopes))) or seconds[0] == 0:
        return None
    if sorted(set(rows)) != rows or sorted(seconds) != seconds:
        return None
    experts, price, of = found.get("experts", []), found.get("expert_seconds", 0.0), found.get("all_experts", 0)
    if not (isinstance(experts, list) and len(experts) in (0, len(rows)) and _is_time(price)):
        return None
    if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 31 for n in (*experts, of)):
        return None
    if sorted(experts) != experts or (experts and not 0 < experts[0] <= experts[-1] <= of):
        return None
    calibration = Calibration(
        tuple(rows), tuple(map(float, seconds)), float(slopes[0]), float(slopes[1]), tuple(experts), float(price), of
    )
    return None if impossible(calibration) else calibration


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0.0 <= value < 3600.0
