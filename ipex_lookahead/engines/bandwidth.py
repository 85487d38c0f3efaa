"""Read bandwidth of this machine's memory, measured and cached for a day."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path

from ipex_lookahead.engines.identity import processor
from ipex_lookahead.engines.machine import default_threads
from ipex_lookahead.engines.native import core
from ipex_lookahead.errors import InputError, ModelFormatError
from ipex_lookahead.files.safe_json import load_object
from ipex_lookahead.files.temporary import temporary_file
from ipex_lookahead.hub import cache_folder

READ_BYTES = 256 << 20
"""Size of the buffer, larger than any cache."""
CACHE_SECONDS = 86400.0
_MOST_BYTES = 4096


def cached_bandwidth() -> float:
    """Return the highest bytes per second measured in the last day, or measure now.

    Raises EngineError without a native core.
    """
    return _cached() or measured_bandwidth()


def measured_bandwidth() -> float:
    """Measure the bytes per second that the default threads read, and return them.

    The cache has the highest rate of a day, because other load on the machine only lowers it. Raises EngineError
    without a native core.
    """
    rate = core.read_bandwidth(READ_BYTES, default_threads(), core.chosen_isa())
    if rate <= (_cached() or 0.0):
        return rate
    entry = {"on": _machine(), "bytes_a_second": rate, "time": time.time()}
    with suppress(OSError, InputError):  # without a writable folder it is measured each time
        _file().parent.mkdir(parents=True, exist_ok=True)
        with temporary_file(_file()) as temporary:
            temporary.write_text(json.dumps(entry), encoding="utf-8")
            temporary.replace(_file())
    return rate


def _cached() -> float | None:
    with suppress(ModelFormatError, OSError, KeyError, TypeError, ValueError):
        found = load_object(_file(), _MOST_BYTES)
        age, rate = time.time() - float(found["time"]), float(found["bytes_a_second"])
        if found["on"] == _machine() and 0 <= age < CACHE_SECONDS and 0 < rate < float("inf"):
            return rate
    return None


def _file() -> Path:
    return cache_folder() / "bandwidth.json"


def _machine() -> str:
    """Return the key of an entry: machines may share a cache folder."""
    return f"{processor()}, {core.chosen_isa()}, {default_threads()}"
