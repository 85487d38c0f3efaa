"""The compiled core: whether it is there, which instruction sets it has here, and how fast the machine is."""

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
    """The compiled module ``_native``. Raises EngineError where it is not built."""
    if _native is None:
        raise EngineError(
            f"the native core is not built for this Python: {_missing}", hint="pip install . (needs a C++17 compiler)"
        )
    return _native


CORE_RAISES = (ValueError, TypeError, MemoryError, RuntimeError)
"""What calls of the core may raise besides an IndexError, whose meaning each call has for itself."""


def core_error(error: Exception, wrong_argument: str = "") -> LookaheadError:
    """The error of this package that an exception of the core stands for.

    Args:
        error: one of ``CORE_RAISES``.
        wrong_argument: goes before what a ValueError or TypeError says.
    """
    said = str(error)
    if isinstance(error, _native.BusyError):
        return BusyError(said, hint="give each thread caches of its own (new_cache, fork)")
    if isinstance(error, _native.MissingWeightError):
        return MissingWeightError(said, hint="set all weights before the first step")
    if isinstance(error, _native.NonFiniteError):
        return NonFiniteError(said, hint="the checkpoint's weights are damaged")
    if isinstance(error, MemoryError):
        return OutOfMemoryError("there is no memory for the cache", hint="use a shorter context")
    if isinstance(error, RuntimeError):  # the system's, such as a thread that cannot be started
        return EngineError(said)
    return InputError(wrong_argument + said)


def core_missing() -> str:
    """Why there is no native core; empty where there is one."""
    return "" if _missing is None else str(_missing)


@cache
def core_build() -> str:
    """Which build of the core this is: a hash of its file, so that what was measured on other kernels is told from it.

    Empty where there is no core.
    """
    return "" if _native is None else hashlib.sha256(Path(_native.__file__).read_bytes()).hexdigest()[:16]


@cache
def weight_formats() -> dict[str, dict[str, Any]]:
    """What the core says of each format that it has kernels for (``csrc/kernels/formats.h``).

    ``inputs`` and ``bytes`` of a record in plain order, ``scales_apart`` and ``minimums_apart`` (streams of their own),
    ``table`` (the floats that codes count) and ``minifloat`` (bits of exponent and mantissa, of the mantissa, and the
    exponent's bias), None where there is none; of formats with codes also ``codes`` and ``scales`` (kinds of tiles) and
    ``code_table``; and of those of whole numbers ``zero``, the code that stands for 0.
    """
    return dict(native_core().weight_formats())


def available_isas() -> list[str]:
    """Instruction sets that this processor has kernels for, best first."""
    return list(native_core().available_isas())


def amx_state() -> str:
    """What became of AMX here: whether its self-test passed, or what is in its way."""
    return str(native_core().amx_state())


def chosen_isa() -> str:
    """The instruction set in use: ``IPEX_LOOKAHEAD_ISA`` if set, else the best. Raises EngineError if it is absent."""
    wanted = os.environ.get(ISA_VARIABLE, "")
    try:
        return str(native_core().chosen_isa(wanted))
    except ValueError as error:
        raise EngineError(str(error), hint=f"unset {ISA_VARIABLE}, or set it to one of the available") from None


def read_bandwidth(size: int, threads: int, isa: str = "") -> float:
    """Bytes a second that ``threads`` threads read from a buffer of ``size`` bytes, best of several passes.

    Raises InputError for a size outside 4 KiB to 16 GiB, a number of threads outside 1 to 1024, or an instruction set
    that is absent.
    """
    return _measured(native_core().read_bandwidth, size, threads, isa)


def integer_peak(threads: int, isa: str = "") -> float:
    """Integer multiply-adds a second from registers with that instruction set, best of several runs.

    Raises InputError as ``read_bandwidth`` does.
    """
    return _measured(native_core().integer_peak, threads, isa)


def _measured(measure: Callable[..., float], *arguments: object) -> float:
    try:
        return float(measure(*arguments))
    except (ValueError, TypeError) as error:
        raise InputError(str(error)) from None
