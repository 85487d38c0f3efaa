"""Read bandwidth of this machine's memory: the best of several short reads, cached per machine."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipex_lookahead.engines.identity import processor
from ipex_lookahead.engines.machine import default_threads
from ipex_lookahead.engines.native import core
from ipex_lookahead.errors import InputError, ModelFormatError
from ipex_lookahead.files.safe_json import load_object
from ipex_lookahead.files.temporary import temporary_file
from ipex_lookahead.hub import cache_folder

READ_BYTES = 256 << 20
"""Size of the buffer, larger than any cache."""
READS = 5
"""Number of reads in a measurement."""
BUSY_SHARE = 2 / 3
"""A read below this share of the best one means that other programs use the memory."""
CACHE_SECONDS = 30 * 86400.0
_MAX_MACHINES = 16
_MAX_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """A measurement.

    Attributes:
        bytes_per_second: the highest rate that was ever read on this machine.
        is_busy: whether the reads differed by more than a third, so that the machine may be faster.
    """

    bytes_per_second: float
    is_busy: bool = False


def cached_bandwidth() -> Bandwidth:
    """Return the cached bandwidth of this machine; measure it if there is none, or if the machine was busy.

    Raises EngineError without a native core.
    """
    found = _cached()
    return measured_bandwidth() if found is None or found.is_busy else found


def measured_bandwidth() -> Bandwidth:
    """Measure the bandwidth of the default threads, and cache it. Other load only lowers a rate, so the best counts.

    Raises EngineError without a native core.
    """
    threads, isa = default_threads(), core.chosen_isa()
    found = best_of([core.read_bandwidth(READ_BYTES, threads, isa) for _ in range(READS)], _cached())
    with suppress(OSError, InputError):  # without a writable folder it is measured each time
        now = time.time()
        entry = {"bytes_per_second": found.bytes_per_second, "busy": found.is_busy, "time": now}
        others = [(key, one) for key, one in _entries().items() if key != _machine()]
        entries = dict([*others[1 - _MAX_MACHINES :], (_machine(), entry)])
        _file().parent.mkdir(parents=True, exist_ok=True)
        with temporary_file(_file()) as temporary:
            temporary.write_text(json.dumps(entries), encoding="utf-8")
            temporary.replace(_file())
    return found


def best_of(rates: Sequence[float], before: Bandwidth | None = None) -> Bandwidth:
    """Return the best of the rates (bytes per second) of one measurement and of an earlier one."""
    best = max(*rates, 0.0 if before is None else before.bytes_per_second)
    return Bandwidth(best, min(rates) < BUSY_SHARE * best)


def _cached() -> Bandwidth | None:
    with suppress(KeyError, TypeError, ValueError):
        entry = _entries()[_machine()]
        age, rate = time.time() - float(entry["time"]), float(entry["bytes_per_second"])
        if 0 <= age < CACHE_SECONDS and 0 < rate < float("inf"):
            return Bandwidth(rate, bool(entry["busy"]))
    return None


def _entries() -> dict[str, Any]:
    """Return the entries of all machines: machines may share a cache folder."""
    with suppress(ModelFormatError, OSError, InputError):
        return load_object(_file(), _MAX_BYTES)
    return {}


def _file() -> Path:
    return cache_folder() / "bandwidth.json"


def _machine() -> str:
    return f"{processor()}, {core.chosen_isa()}, {default_threads()}"
