"""``ipex-lookahead bench kernels``: linear layers by format, instruction set and rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, Literal

import click

from ipex_lookahead.bench.options import STEP, Report, comma_separated
from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import threads_option
from ipex_lookahead.cli.names import FORMATS as FORMATS_IN_WORDS
from ipex_lookahead.cli.names import ISAS
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.progress import status
from ipex_lookahead.cli.tables import print_rows
from ipex_lookahead.cli.types import LowBit, Refused, Words
from ipex_lookahead.errors import InputError
from ipex_lookahead.system.terminal import counted

WORKING_SET = 192 << 20
"""Bytes of the weights of one walk: like a whole model, more than a last-level cache holds."""
PATIENCE_SECONDS = 1.0
"""Time limit for one number of rows; six of them on one instruction set take ten seconds, also on a busy machine."""


@dataclass
class Kernels:
    """The layers to measure."""

    formats: tuple[str, ...] = option(
        f"Weight format. Repeatable: {FORMATS_IN_WORDS}.",
        ("sym_int4", "sym_int8", "bf16"),
        "--low-bit",
        type=LowBit(alike=True),
    )
    isas: tuple[str, ...] = option(
        "Instruction set. Repeatable; default: all available.",
        (),
        "--isa",
        type=Words(**ISAS),
        metavar="ISA",
    )
    rows: list[int] = option("Numbers of input rows.", "1,2,4,8,16,64", callback=comma_separated, metavar="N,N,...")
    shape: list[int] = option("Shape of the weight matrices.", "4096,4096", callback=comma_separated, metavar="OUT,IN")
    group_size: Literal["32", "64"] = option("Number of weights that share a scale.", "32")
    repeat: int = option("Runs; the median counts.", 5, low=1)


@command("ipex-lookahead bench kernels --low-bit sym_int4 --low-bit q4_k")
def kernels(what: Kernels, to: Report, threads: int | None = threads_option) -> None:
    """GB/s, GOPS and time relative to one row of linear layers, compared with the limits of the machine."""
    if len(what.shape) != 2:
        raise click.BadParameter("a shape is two numbers: outputs,inputs", param_hint="--shape")
    to.check()
    from ipex_lookahead.bench.plots.step import plot_kernels
    from ipex_lookahead.engines.native import core

    here = core.available_isas()
    if absent := [isa for isa in what.isas if isa not in here]:
        problem = f"--isa: {absent[0]!r} is not available on this machine: choose one of {', '.join(here)}"
        raise Refused(problem, hint=f"leave --isa out for all of them, or give --isa {here[0]}")
    with status() as say:
        report = measure(
            what.formats,
            what.isas,
            what.rows,
            shape=(what.shape[0], what.shape[1]),
            group_size=int(what.group_size),
            threads=threads,
            repeat=what.repeat,
            report=say,
        )
    peaks = ", ".join(f"{isa} {gops:.0f}" for isa, gops in report["integer_peak_gops"].items())
    print_rows(
        {"format": "{format}", "isa": "{isa}", **STEP},
        [{**kernel, **step} for kernel in report["kernels"] for step in kernel["steps"]],
        keys=3,
        title=f"linear {what.shape[0]} x {what.shape[1]} · {counted(report['threads'], 'thread')}",
        caption=f"this machine reads {report['bandwidth_gb_s']:.1f} GB/s; integer peak in GOPS: {peaks}",
        to_stderr=to.as_json,
    )
    to.write(report, plot_kernels)


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
    """Return medians over at most ``repeat`` walks through the matrices [n_out, n_in] of ``WORKING_SET``.

    ``gb_s`` counts the bytes of the weights once for each walk, ``gops`` counts a multiply-add as two operations.
    Raises InputError for an unknown format or instruction set.
    """
    import numpy as np

    from ipex_lookahead.engines.machine import default_threads
    from ipex_lookahead.engines.native import core
    from ipex_lookahead.engines.native.linear import linear_layer
    from ipex_lookahead.engines.weights import random_matrix
    from ipex_lookahead.formats import FORMATS

    threads = threads or default_threads()
    known = core.available_isas()
    if unknown := [i for i in isas if i not in known]:
        raise InputError(f"instruction set {unknown[0]!r} is not available; available are {', '.join(known)}")
    if unknown := [f for f in formats if f not in FORMATS]:
        raise InputError(f"format {unknown[0]!r} is not known; the known formats are {', '.join(FORMATS)}")
    rng = np.random.default_rng(0)
    report("measuring the machine")
    result: dict[str, Any] = {
        "shape": list(shape),
        "threads": threads,
        "bandwidth_gb_s": core.read_bandwidth(WORKING_SET, threads) / 1e9,
        "integer_peak_gops": {isa: 2 * core.integer_peak(threads, isa) / 1e9 for isa in isas or known},
        "kernels": [],
    }
    for name in formats:
        weight = random_matrix(shape, name, group_size, rng)
        copies = max(1, WORKING_SET // weight.nbytes)
        for isa in isas or known:
            report(f"{name} on {isa}: packing")
            probes = [linear_layer(weight, threads=threads, isa=isa) for _ in range(copies)]
            steps = []
            for done, count in enumerate(rows, 1):
                report(f"{name} on {isa}: {counted(count, 'row')} ({done} of {len(rows)})")
                x = rng.standard_normal((count, shape[1]), dtype=np.float32)
                used = probes[: 1 if isa == "scalar" else len(probes)]  # scalar kernels are 1,000 times slower
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
    """Return the median seconds for one matrix; the first walk ends early at the time limit."""
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
