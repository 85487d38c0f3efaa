"""``ipex-lookahead bench kernels``: linear layers by format, instruction set and rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import threads_option
from ipex_lookahead.cli.measuring import STEP, Report, comma_separated
from ipex_lookahead.cli.names import FORMATS, ISAS
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.tables import print_rows
from ipex_lookahead.cli.types import LowBit, Refused, Words
from ipex_lookahead.system.terminal import counted


@dataclass
class Kernels:
    """What is measured."""

    formats: tuple[str, ...] = option(
        f"Format of the weights; several are measured: {FORMATS}.",
        ("sym_int4", "sym_int8", "bf16"),
        "--low-bit",
        type=LowBit(alike=True),
    )
    isas: tuple[str, ...] = option(
        "Instruction set; several are measured, all that are here if not given.",
        (),
        "--isa",
        type=Words(**ISAS),
        metavar="ISA",
    )
    rows: list[int] = option("Rows of the input.", "1,2,4,8,16,64", callback=comma_separated, metavar="N,N,...")
    shape: list[int] = option("Shape of the matrices.", "4096,4096", callback=comma_separated, metavar="OUT,IN")
    group_size: Literal["32", "64"] = option("Inputs that share a scale.", "32")
    repeat: int = option("Walks through the weights; the median counts.", 5, low=1)


@command("ipex-lookahead bench kernels --low-bit sym_int4 --low-bit q4_k")
def kernels(what: Kernels, to: Report, threads: int | None = threads_option) -> None:
    """GB/s, GOPS and time relative to one row of linear layers, beside the machine's roofs."""
    if len(what.shape) != 2:
        raise click.BadParameter("a shape is two numbers: outputs,inputs", param_hint="--shape")
    to.check()
    from ipex_lookahead.bench.facts import where_and_when
    from ipex_lookahead.bench.kernels import measure
    from ipex_lookahead.bench.plots.step import plot_kernels
    from ipex_lookahead.engines.native import core

    here = core.available_isas()
    if absent := [isa for isa in what.isas if isa not in here]:
        problem = f"--isa: {absent[0]!r} is no instruction set of this machine; it has {', '.join(here)}"
        raise Refused(problem, hint=f"leave --isa out for all of them, or give --isa {here[0]}")
    from ipex_lookahead.cli.progress import status

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
    report |= where_and_when()
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
