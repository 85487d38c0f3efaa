"""How fast this machine's memory is read: measured, and kept for a day, so that what only estimates need not wait."""

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
"""What is read: far more than any cache holds."""
KEPT_SECONDS = 86400.0
_MOST_BYTES = 4096


def kept_bandwidth() -> float:
    """Bytes a second, the most that was measured in the last day; measured where nothing was.

    Raises EngineError where there is no native core.
    """
    return _kept() or measured_bandwidth()


def measured_bandwidth() -> float:
    """Bytes a second that the default threads read, measured now.

    The most of a day is kept for :func:`kept_bandwidth`: what else a machine does only makes it less. Raises
    EngineError where there is no native core.
    """
    rate = core.read_bandwidth(READ_BYTES, default_threads(), core.chosen_isa())
    if rate <= (_kept() or 0.0):
        return rate
    said = {"on": _machine(), "bytes_a_second": rate, "time": time.time()}
    with suppress(OSError, InputError):  # no folder, or one that cannot be written: it is measured each time
        _file().parent.mkdir(parents=True, exist_ok=True)
        with temporary_file(_file()) as temporary:
            temporary.write_text(json.dumps(said), encoding="utf-8")
            temporary.replace(_file())
    return rate


def _kept() -> float | None:
    with suppress(ModelFormatError, OSError, KeyError, TypeError, ValueError):
        found = load_object(_file(), _MOST_BYTES)
        age, rate = time.time() - float(found["time"]), float(found["bytes_a_second"])
        if found["on"] == _machine() and 0 <= age < KEPT_SECONDS and 0 < rate < float("inf"):
            return rate
    return None


def _file() -> Path:
    return cache_folder() / "bandwidth.json"


def _machine() -> str:
    """What the rate is of: a cache folder may be shared by machines."""
    return f"{processor()}, {core.chosen_isa()}, {default_threads()}"
