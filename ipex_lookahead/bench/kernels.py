"""Linear layers by format, instruction set and rows: GB/s, GOPS and time relative to one row, beside the roofs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from ipex_lookahead.engines.machine import default_threads
from ipex_lookahead.engines.native.core import available_isas, integer_peak, read_bandwidth
from ipex_lookahead.engines.native.linear import linear_layer
from ipex_lookahead.engines.weights import random_matrix
from ipex_lookahead.errors import InputError
from ipex_lookahead.formats import FORMATS
from ipex_lookahead.system.terminal import counted

WORKING_SET = 192 << 20
"""Bytes of weights walked in turn, more than any last-level cache holds, as a whole model's are."""
PATIENCE_SECONDS = 1.0
"""No further matrix is begun for a number of rows after so long: six of them on one instruction set end in ten seconds,
with what comes before, also on a machine that others use."""


def measure(
    formats: Sequence[str] = ("sym_int4", "sym_int8", "bf16"),
    isas: Sequence[str] = (),
    rows: Sequence[int] = (1, 2, 4, 8, 16, 64),
    *,
    shape: tuple[int, int] = (4096, 4096),
    group_size: int = 32,
    threads: int | None = None,
    repeat: int = 5,
    report: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Medians over ``repeat`` walks, or as many as time allows, through the matrices [n_out, n_in] of ``WORKING_SET``.

    ``gb_s`` counts the weights' bytes once a walk, ``gops`` two operations a multiply-add. Raises InputError for an
    unknown format or instruction set.
    """
    threads = threads or default_threads()
    known = available_isas()
    if unknown := [i for i in isas if i not in known]:
        raise InputError(f"instruction set {unknown[0]!r} is not available; available are {', '.join(known)}")
    if unknown := [f for f in formats if f not in FORMATS]:
        raise InputError(f"format {unknown[0]!r} is not known; the known formats are {', '.join(FORMATS)}")
    rng = np.random.default_rng(0)
    report("measuring the machine")
    result: dict[str, Any] = {
        "shape": list(shape),
        "threads": threads,
        "bandwidth_gb_s": read_bandwidth(WORKING_SET, threads) / 1e9,
        "integer_peak_gops": {isa: 2 * integer_peak(threads, isa) / 1e9 for isa in isas or known},
        "kernels": [],
    }
    for name in formats:
        weight = random_matrix(shape, name, group_size, rng)
        copies = max(1, WORKING_SET // weight.nbytes)
        for isa in isas or known:
            report(f"{name} on {isa}: packing")
            probes = [linear_layer(weight, threads=threads, isa=isa) for _ in range(copies)]
            steps = []
            # The oracle is a thousand times slower; a few matrices are enough.
            for done, count in enumerate(rows, 1):
                report(f"{name} on {isa}: {counted(count, 'row')} ({done} of {len(rows)})")
                x = rng.standard_normal((count, shape[1]), dtype=np.float32)
                used = probes[: 1 if isa == "scalar" else len(probes)]
                seconds = _time(used, x, 1 if isa == "scalar" else repeat)
                steps.append(
                    {
                        "rows": count,
                        "ms": 1e3 * seconds,
                        "gb_s": weight.nbytes / seconds / 1e9,
                        "gops": 2 * count * shape[0] * shape[1] / seconds / 1e9,
                    }
                )
            for step in steps:
                step["ratio"] = step["ms"] / steps[0]["ms"]
            result["kernels"].append({"format": name, "isa": isa, "steps": steps})
    return result


def _time(probes: Sequence[Callable[[Any], Any]], x: Any, repeat: int) -> float:
    """Median seconds for one matrix; of the first walk's matrices where that alone outlasts the patience."""
    began = perf_counter()
    walks: list[float] = []
    for _ in range(repeat):
        started = perf_counter()
        for done, probe in enumerate(probes, 1):
            probe(x)
            now = perf_counter()
            if not walks and now - began > PATIENCE_SECONDS:
                return (now - started) / done
        walks.append((perf_counter() - started) / len(probes))
        if perf_counter() - began > PATIENCE_SECONDS:
            break
    return median(walks)
