"""The compiled core: availability, instruction sets, and the machine's measured limits."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from ipex_lookahead.errors import (
    BusyError,
    EngineError,
    InputError,
    LookaheadError,
    MissingWeightError,
    NonFiniteError,
    OutOfMemoryError,
)

_native: Any = None
_missing: ImportError | None = None
try:
    _native = importlib.import_module("ipex_lookahead._native")
except ImportError as error:
    _missing = error

ISA_VARIABLE = "IPEX_LOOKAHEAD_ISA"


def native_core() -> Any:
    """Return the compiled module ``_native``. Raises EngineError if it is not built."""
    if _native is None:
        raise EngineError(
            f"the native core is not built for this Python: {_missing}", hint="pip install . (needs a C++17 compiler)"
        )
    return _native


CORE_RAISES = (ValueError, TypeError, MemoryError, RuntimeError)
"""Exceptions of core calls, in addition to IndexError, which each caller interprets itself."""


def core_error(error: Exception, wrong_argument: str = "") -> LookaheadError:
    """Convert an exception of the core to this package's error.

    Args:
        error: one of ``CORE_RAISES``.
        wrong_argument: prefix of the message for ValueError and TypeError.
    """
    message = str(error)
    if isinstance(error, _native.BusyError):
        return BusyError(message, hint="give each thread caches of its own (new_cache, fork)")
    if isinstance(error, _native.MissingWeightError):
        return MissingWeightError(message, hint="set all weights before the first step")
    if isinstance(error, _native.NonFiniteError):
        return NonFiniteError(message, hint="the weights of the model or of its adapter are damaged")
    if isinstance(error, MemoryError):
        return OutOfMemoryError("there is no memory for the cache", hint="use a shorter context")
    if isinstance(error, RuntimeError):  # the system's, such as a thread that cannot be started
        return EngineError(message)
    return InputError(wrong_argument + message)


def core_missing() -> str:
    """Return why there is no native core; empty if there is one."""
    return "" if _missing is None else str(_missing)


@cache
def core_build() -> str:
    """Return a hash of the core's file, which separates measurements of different builds; empty without a core."""
    return "" if _native is None else hashlib.sha256(Path(_native.__file__).read_bytes()).hexdigest()[:16]


@cache
def weight_formats() -> dict[str, dict[str, Any]]:
    """Return the properties of each format that the core has kernels for (``csrc/kernels/formats.h``).

    All formats have ``inputs`` and ``bytes`` of a record in plain order, ``scales_apart`` and ``minimums_apart``
    (stored as separate streams), ``table`` (the floats that codes index) and ``minifloat`` (bits of exponent and
    mantissa, bits of the mantissa, exponent bias), or None if absent. Formats with codes also have ``codes`` and
    ``scales`` (tile layouts) and ``code_table``; integer formats have ``zero``, the code of the value 0.
    """
    return dict(native_core().weight_formats())


def available_isas() -> list[str]:
    """Return the instruction sets that run on this processor, best first."""
    return list(native_core().available_isas())


def amx_state() -> str:
    """Return the state of AMX on this machine: the result of its self-test, or why it is not available."""
    return str(native_core().amx_state())


def chosen_isa() -> str:
    """Return the instruction set in use: ``IPEX_LOOKAHEAD_ISA`` if set, else the best. Raises EngineError if absent."""
    wanted = os.environ.get(ISA_VARIABLE, "")
    try:
        return str(native_core().chosen_isa(wanted))
    except ValueError as error:
        raise EngineError(
            str(error), hint=f"unset {ISA_VARIABLE}, or set it to one of those that are available"
        ) from None


def read_bandwidth(size: int, threads: int, isa: str = "") -> float:
    """Measure the read bandwidth of ``threads`` threads in bytes per second on a buffer of ``size`` bytes.

    Raises InputError for a size outside 4 KiB to 16 GiB, a number of threads outside 1 to 1024, or an instruction set
    that is not available.
    """
    return _measured(native_core().read_bandwidth, size, threads, isa)


def integer_peak(threads: int, isa: str = "") -> float:
    """Measure the integer multiply-adds per second in registers with an instruction set, best of several runs.

    Raises InputError as ``read_bandwidth`` does.
    """
    return _measured(native_core().integer_peak, threads, isa)


def _measured(measure: Callable[..., float], *arguments: object) -> float:
    try:
        return float(measure(*arguments))
    except (ValueError, TypeError) as error:
        raise InputError(str(error)) from None
