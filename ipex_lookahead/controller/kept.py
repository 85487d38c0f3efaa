"""Measurements saved between runs, one file per machine and model shape: step costs and heads' acceptance.

A file names its engine. One of step costs also names the build of the kernels, the time, and how quiet the machine was:
costs of other kernels are measured again, into the same file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipex_lookahead.controller.acceptance import FADE, SourceRates
from ipex_lookahead.controller.calibration import NOISY, Calibration, from_json, is_number, to_json
from ipex_lookahead.engines.api import Engine
from ipex_lookahead.engines.identity import identity, is_of_here, kernels_of, may_be_of
from ipex_lookahead.errors import ModelFormatError
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.files.safe_json import load_object
from ipex_lookahead.hub import cache_folder_if_any

FORMAT = 2
"""Version of a file of costs and of the way of measuring; files of other versions are measured again."""
FILE_BYTES = 1 << 16
"""Largest file that is read, bytes; 100 numbers of rows take 8,000."""
MAX_FILES = 64
"""Files that are kept, those used last; a model has one for each number of threads, format and instruction set."""
TEMPORARY = ".costs-"
"""Prefix of a file that is being written."""
LEFT_OVER_SECONDS = 3600.0
"""Age at which a temporary file belongs to a killed process; a write takes milliseconds."""
AGAIN_SECONDS = 60.0
"""Interval at which a running process writes the acceptance of its head."""
MAX_NUMBER = 1e15
"""Largest count, factor or time in a file."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A calibration and its reliability.

    Attributes:
        calibration: what was measured.
        disturbance: the slowest round over the quickest (:func:`.calibration.calibrate`).
        at: when it was measured, or last tried to be measured better; seconds since 1970.
    """

    calibration: Calibration
    disturbance: float
    at: float

    @property
    def noisy(self) -> bool:
        """Whether other processes used the machine too."""
        return self.disturbance >= NOISY


def cost_folder() -> Path | None:
    """Return ``$IPEX_LOOKAHEAD_COSTS``, else ``costs`` in the cache folder, if there is one."""
    if chosen := os.environ.get("IPEX_LOOKAHEAD_COSTS"):
        return given_path(chosen)
    cache = cache_folder_if_any()
    return None if cache is None else cache / "costs"


def file_of(folder: Path, engine: Engine) -> Path:
    """Return the path of an engine's calibration, which need not exist."""
    return folder / f"{key_of(identity(engine))}.json"


def key_of(what: Mapping[str, Any]) -> str:
    """Return the name of a file, without suffix: a hash of what it belongs to."""
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24]


def save(file: Path, measured: Measured, engine: Engine) -> None:
    """Write a calibration, as :func:`write` does."""
    kept = {"format": FORMAT, "kernels": kernels_of(engine), "disturbance": measured.disturbance, "at": measured.at}
    write(file, {**kept, "engine": identity(engine), **to_json(measured.calibration)})


def write(file: Path, content: dict[str, Any]) -> None:
    """Write a file under another name and rename it. A folder that cannot be written to is not an error."""
    temporary = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=TEMPORARY, dir=file.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(content, out, indent=1)
        os.replace(temporary, file)
    except OSError:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        return
    prune(file.parent)


def load(file: Path, engine: Engine) -> Measured | None:
    """Return what an earlier run measured of this engine; None where there is nothing reliable."""
    found = _read(file)
    return _measured(found) if found.get("kernels") == kernels_of(engine) else None


def used(file: Path) -> None:
    """Mark a file as used: those unused for longest are deleted first."""
    with contextlib.suppress(OSError):
        os.utime(file)


def prune(folder: Path) -> None:
    """Delete all but the ``MAX_FILES`` files used last, and temporary files of killed processes. Never an error."""
    doomed = _by_use(folder)[MAX_FILES:]
    doomed += [file for file in folder.glob(f"{TEMPORARY}*") if time.time() - _changed(file) > LEFT_OVER_SECONDS]
    for file in doomed:
        with contextlib.suppress(OSError):
            file.unlink()


def known_costs(folder: Path | None, config: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the calibrations of this processor and build, newest first: their engines, and milliseconds by rows.

    Args:
        folder: see :func:`cost_folder`; None holds none.
        config: a checkpoint's config; then only those of models of that shape, in any format. None: all models.
    """
    found = []
    for _, content in _engine_files(folder):
        engine, measured = content["engine"], _measured(content)
        if measured is None or not is_of_here(engine, content.get("kernels")) or not may_be_of(engine, config):
            continue
        calibration = measured.calibration
        milliseconds = {str(n): round(1000 * s, 3) for n, s in zip(calibration.rows, calibration.seconds, strict=True)}
        names = ("engine", "isa", "threads", "low_bit", "weight_bytes", "vocab_size")
        facts = {name: engine.get(name) for name in names}
        found.append({**facts, "milliseconds": milliseconds, "noisy": measured.noisy})
    return found


def forget_costs(folder: Path | None, config: Mapping[str, Any] | None = None) -> int:
    """Delete what a folder holds; returns the number of deleted files.

    Args:
        folder: see :func:`cost_folder`; None, or a missing folder, holds nothing.
        config: as for :func:`known_costs`; None deletes damaged and temporary files, too.

    Raises:
        OSError: a file cannot be deleted.
    """
    if folder is None:
        return 0
    if config is None:
        doomed = [*folder.glob("*.json"), *folder.glob(f"{TEMPORARY}*")]
    else:
        doomed = [file for file, content in _engine_files(folder) if may_be_of(content["engine"], config)]
    for file in doomed:
        file.unlink(missing_ok=True)
    return len(doomed)


class HeadRates(SourceRates):
    """Acceptance of a head over all texts, kept in a file.

    It holds no reference to the head, so that the head can be collected.

    Args:
        file: None keeps nothing.
        identifies: the head and its target, for the file.

    Attributes:
        right, tested: totals by depth in the draft.
        skipped: sequences in a row that drafted without the head.
    """

    def __init__(self, file: Path | None = None, identifies: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        counts = [] if file is None else _counts(_read(file))
        if file is not None and counts:
            used(file)
        self._file, self._identifies = file, identifies or {}
        self.right, self.tested = [right for right, _ in counts], [tested for _, tested in counts]
        self.skipped = 0
        self._written, self._at = self.tests, time.monotonic()
        for depth, (right, tested) in enumerate(counts):  # as much as counts of this run would be worth by now
            weight = min(1.0, 1.0 / (1.0 - FADE) / max(tested, 1))
            cell = self.cells[min(depth, len(self.cells) - 1)]
            for at, count in enumerate((right, right, tested)):
                cell[at] += weight * count

    @property
    def tests(self) -> int:
        """Drafts that were compared with the text."""
        return max(self.tested, default=0)

    def count(self, depth: int, estimate: float, right: bool) -> None:
        """Count one tested token, in the totals too."""
        super().count(depth, estimate, right)
        while len(self.tested) <= depth:
            self.right.append(0)
            self.tested.append(0)
        self.right[depth] += right
        self.tested[depth] += 1

    def write(self, older_than: float = 0.0) -> None:
        """Write the totals where they have changed and the last time is at least ``older_than`` seconds ago."""
        if time.monotonic() - self._at < older_than:
            return
        self._at = time.monotonic()
        if self._file is not None and self.tests != self._written:
            write(self._file, {**self._identifies, "right": self.right, "tested": self.tested})
            self._written = self.tests


def rates_of(engine: Any, folder: Path | None) -> HeadRates:
    """Return the rates of ``engine.head``, the same object for every generation.

    They begin with what an earlier run kept of this head on this model, and are written when the process ends or the
    head is collected, and every ``AGAIN_SECONDS`` before. Without ``folder`` nothing is kept.
    """
    head = engine.head
    if head.rates is None:
        file, identifies = None, None
        if folder is not None and head.source is not None:
            identifies = {"engine": identity(engine), "head": _head_key(head.source)}
            file = folder / f"{key_of(identifies)}.json"
        head.rates = HeadRates(file, identifies)
        weakref.finalize(head, head.rates.write)
    rates: HeadRates = head.rates
    rates.write(AGAIN_SECONDS)
    return rates


def known_counts(folder: Path | None, config: Mapping[str, Any], source: Path) -> list[tuple[int, int]]:
    """Return (right, tested) by depth of a head on models with this config, in any format; of the one used last."""
    head = _head_key(source)
    for _, content in _engine_files(folder):
        if content.get("head") == head and may_be_of(content["engine"], config) and (found := _counts(content)):
            return found
    return []


def _head_key(path: Path) -> dict[str, Any]:
    """Return what identifies a head: its path and its time of change."""
    path = path.resolve()
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        changed = 0
    return {"path": str(path), "changed": changed}


def _read(file: Path) -> dict[str, Any]:
    """Return a file's content; nothing where it is missing or damaged."""
    try:
        return load_object(file, FILE_BYTES)
    except ModelFormatError:
        return {}


def _measured(found: Mapping[str, Any]) -> Measured | None:
    """Return the calibration of a file; None where ``save`` of this format cannot have written it."""
    calibration, disturbance, at = from_json(found), found.get("disturbance"), found.get("at")
    if calibration is None or found.get("format") != FORMAT:
        return None
    if not is_number(disturbance, MAX_NUMBER) or not is_number(at, MAX_NUMBER):
        return None
    return Measured(calibration, float(found["disturbance"]), float(found["at"]))


def _counts(found: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the counts of a file; nothing where ``HeadRates`` cannot have written it."""
    right, tested = found.get("right"), found.get("tested")
    if not (isinstance(right, list) and isinstance(tested, list) and len(right) == len(tested)):
        return []
    counts = [*zip(right, tested, strict=True)]
    if any(type(n) is not int for pair in counts for n in pair):
        return []
    return counts if all(0 <= right <= tested <= MAX_NUMBER for right, tested in counts) else []


def _engine_files(folder: Path | None) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield files that name their engine, those used last first, with their content."""
    for file in [] if folder is None else _by_use(folder):
        found = _read(file)
        if isinstance(found.get("engine"), dict):
            yield file, found


def _by_use(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"), key=_changed, reverse=True)


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
