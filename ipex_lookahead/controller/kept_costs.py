"""Calibrations that are kept from one run to the next: a file for each machine and shape of a model.

A file says what it is of, which build of the kernels was measured, when, and how quiet the machine was. One that was
measured on other kernels, or in another way, is not believed, and replaced: its name has no version in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipex_lookahead.controller.calibration import NOISY, Calibration, from_json, to_json
from ipex_lookahead.engines.api import Engine
from ipex_lookahead.engines.identity import identity, is_of_here, kernels_of, may_be_of
from ipex_lookahead.errors import ModelFormatError
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.files.safe_json import load_object
from ipex_lookahead.hub import cache_folder_if_any

FORMAT = 2
"""Of a file, and of how is measured: raised where either changes, so that what is there already is not believed."""
MOST_DISTURBED = 1e6
FILE_BYTES = 1 << 16
MOST_FILES = 64
"""Those that were used last are kept, when one is written."""
TEMPORARY = ".costs-"
"""How the name of a file begins that is being written."""
LEFT_OVER_SECONDS = 3600.0
"""A temporary file older than that is of a process that was killed."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A calibration, and how far it is to be trusted.

    Attributes:
        calibration: what was measured.
        disturbance: by what factor the slowest round was off the quickest (:func:`.calibration.calibrate`).
        at: when it was measured, or last tried to be measured better; seconds since 1970.
    """

    calibration: Calibration
    disturbance: float
    at: float

    @property
    def noisy(self) -> bool:
        """Whether other processes had the machine too."""
        return self.disturbance >= NOISY


def cost_folder() -> Path | None:
    """Where calibrations are kept: ``$IPEX_LOOKAHEAD_COSTS``, else ``costs`` in the cache folder, if there is one."""
    if chosen := os.environ.get("IPEX_LOOKAHEAD_COSTS"):
        return given_path(chosen)
    cache = cache_folder_if_any()
    return None if cache is None else cache / "costs"


def file_of(folder: Path, engine: Engine) -> Path:
    """The file of an engine's calibration, which need not be there."""
    return folder / f"{key_of(identity(engine))}.json"


def save(file: Path, measured: Measured, engine: Engine) -> None:
    """Write a calibration, as :func:`write` does."""
    kept = {"format": FORMAT, "kernels": kernels_of(engine), "disturbance": measured.disturbance, "at": measured.at}
    write(file, {**kept, "engine": identity(engine), **to_json(measured.calibration)})


def write(file: Path, content: dict[str, Any]) -> None:
    """Write a file, by another name and a rename. A folder that cannot be written to is no error."""
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
    """What an earlier run measured of this engine; None where there is none that can be believed today."""
    try:
        found = load_object(file, FILE_BYTES)
    except ModelFormatError:
        return None
    return _measured(found) if found.get("kernels") == kernels_of(engine) else None


def used(file: Path) -> None:
    """Note that a file was used: those unused for longest go first."""
    with contextlib.suppress(OSError):
        os.utime(file)


def prune(folder: Path) -> None:
    """Delete all but the ``MOST_FILES`` calibrations used last, and what killed processes left. Never an error."""
    doomed = sorted(folder.glob("*.json"), key=_changed, reverse=True)[MOST_FILES:]
    doomed += [file for file in folder.glob(f"{TEMPORARY}*") if time.time() - _changed(file) > LEFT_OVER_SECONDS]
    for file in doomed:
        with contextlib.suppress(OSError):
            file.unlink()


def known_costs(folder: Path | None, config: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The calibrations of this processor in a folder, the newest first: what they are of, and milliseconds by rows.

    ``noisy`` tells that other processes had the machine then. Those of other builds of the native core are left out.

    Args:
        folder: see :func:`cost_folder`; None holds none.
        config: a checkpoint's config; then only those of models of that shape (a base and an instruct model share
            theirs), in whatever format. None = of all models.
    """
    found = []
    for _, content in engine_files(folder):
        of, measured = content["engine"], _measured(content)
        if measured is None or not is_of_here(of, content.get("kernels")) or not may_be_of(of, config):
            continue
        calibration = measured.calibration
        milliseconds = {str(n): round(1000 * s, 3) for n, s in zip(calibration.rows, calibration.seconds, strict=True)}
        names = ("engine", "isa", "threads", "low_bit", "weight_bytes", "vocab_size")
        said = {name: of.get(name) for name in names}
        found.append({**said, "milliseconds": milliseconds, "noisy": measured.noisy})
    return found


def forget_costs(folder: Path | None, config: Mapping[str, Any] | None = None) -> int:
    """Delete the calibrations that a folder holds, so that they are measured again; how many were deleted.

    Args:
        folder: see :func:`cost_folder`; None, or one that is not there, holds none.
        config: as for :func:`known_costs`; None deletes damaged files and what an interrupted write left over, too.

    Raises:
        OSError: a file cannot be deleted.
    """
    if folder is None:
        return 0
    if config is None:
        doomed = [*folder.glob("*.json"), *folder.glob(f"{TEMPORARY}*")]
    else:
        doomed = [file for file, content in engine_files(folder) if may_be_of(content["engine"], config)]
    for file in doomed:
        file.unlink(missing_ok=True)
    return len(doomed)


def key_of(what: Mapping[str, Any]) -> str:
    """Name of the file that is kept of something: of a calibration the engine's identity, hashed."""
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24]


def _measured(found: Mapping[str, Any]) -> Measured | None:
    """What a file says; None for anything that ``save`` of this format cannot have written."""
    calibration, disturbance, at = from_json(found), found.get("disturbance"), found.get("at")
    if calibration is None or found.get("format") != FORMAT:
        return None
    for number, most in ((disturbance, MOST_DISTURBED), (at, 1e11)):
        if not isinstance(number, (int, float)) or isinstance(number, bool) or not 0 <= number <= most:
            return None
    return Measured(calibration, float(found["disturbance"]), float(found["at"]))


def engine_files(folder: Path | None) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Files that say what engine they are of, those used last first, and what is in each."""
    for file in [] if folder is None else sorted(folder.glob("*.json"), key=_changed, reverse=True):
        try:
            found = load_object(file, FILE_BYTES)
        except ModelFormatError:
            continue
        if isinstance(found.get("engine"), dict):
            yield file, found


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
