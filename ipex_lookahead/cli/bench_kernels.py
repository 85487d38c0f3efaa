"""``ipex-lookahead bench kernels``: linear layers by format, instruction set and rows."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.names import ISAS
from ipex_lookahead.cli.options import FORMATS, comma_separated, json_option, option, plot_option, threads_option
from ipex_lookahead.cli.tables import print_table
from ipex_lookahead.cli.types import LowBit, Refused, Words
from ipex_lookahead.system.terminal import counted


@command("ipex-lookahead bench kernels --low-bit sym_int4 --low-bit q4_k")
@option(
    "--low-bit",
    "formats",
    multiple=True,
    type=LowBit(alike=True),
    default=("sym_int4", "sym_int8", "bf16"),
    help=f"Format of the weights; several are measured: {FORMATS}.",
)
@option(
    "--isa",
    "isas",
    multiple=True,
    type=Words(**ISAS),
    metavar="ISA",
    help="Instruction set; several are measured, all that are here if not given.",
)
@option("--rows", default="1,2,4,8,16,64", callback=comma_separated, metavar="N,N,...", help="Rows of the input.")
@option("--shape", default="4096,4096", callback=comma_separated, metavar="OUT,IN", help="Shape of the matrices.")
@option("--group-size", type=click.Choice(["32", "64"]), default="32", help="Inputs that share a scale.")
@option("--repeat", type=click.IntRange(1), default=5, help="Walks through the weights; the median counts.")
@threads_option
@plot_option
@json_option
def kernels(
    formats: tuple[str, ...],
    isas: tuple[str, ...],
    rows: list[int],
    shape: list[int],
    group_size: str,
    repeat: int,
    threads: int | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """GB/s, GOPS and time relative to one row of linear layers, beside the machine's roofs."""
    if len(shape) != 2:
        raise click.BadParameter("a shape is two numbers: outputs,inputs", param_hint="--shape")
    if plot is not None:
        from ipex_lookahead.bench.plots.drawing import check_plot

        check_plot(plot)
    from ipex_lookahead.bench.facts import where_and_when
    from ipex_lookahead.bench.kernels import measure
    from ipex_lookahead.engines.native import core

    here = core.available_isas()
    if absent := [isa for isa in isas if isa not in here]:
        problem = f"--isa: {absent[0]!r} is no instruction set of this machine; it has {', '.join(here)}"
        raise Refused(problem, hint=f"leave --isa out for all of them, or give --isa {here[0]}")
    from ipex_lookahead.cli.progress import status

    with status() as say:
        report = measure(
            formats,
            isas,
            rows,
            shape=(shape[0], shape[1]),
            group_size=int(group_size),
            threads=threads,
            repeat=repeat,
            report=say,
        )
    report |= where_and_when()
    peaks = ", ".join(f"{isa} {gops:.0f}" for isa, gops in report["integer_peak_gops"].items())
    print_table(
        ("format", "isa", "rows", "ms", "ratio", "GB/s", "GOPS"),
        [
            (
                kernel["format"],
                kernel["isa"],
                one["rows"],
                f"{one['ms']:.3f}",
                f"{one['ratio']:.2f}",
                f"{one['gb_s']:.1f}",
                f"{one['gops']:.0f}",
            )
            for kernel in report["kernels"]
            for one in kernel["steps"]
        ],
        keys=3,
        title=f"linear {shape[0]} x {shape[1]} · {counted(report['threads'], 'thread')}",
        caption=f"this machine reads {report['bandwidth_gb_s']:.1f} GB/s; integer peak in GOPS: {peaks}",
        to_stderr=as_json,
    )
    if plot is not None:
        from ipex_lookahead.bench.plots.step import plot_kernels

        plot_kernels(report, plot)
        click.echo(f"saved {plot}", err=True)
    if as_json:
        click.echo(json.dumps(report))
