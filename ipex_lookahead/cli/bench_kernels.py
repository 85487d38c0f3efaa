"""``ipex-lookahead bench kernels``: linear layers by format, instruction set and rows."""

from __future__ import annotations

import json

import click

from ipex_lookahead.cli.options import comma_separated, option, threads_option


@click.command()
@option("--format", "formats", multiple=True, metavar="FORMAT", help="Formats; int4, int8 and bf16 if not given.")
@option("--isa", "isas", multiple=True, metavar="ISA", help="Instruction sets; all available if not given.")
@option("--rows", default="1,2,4,8,16,64", callback=comma_separated, metavar="N,N,...", help="Rows.")
@option("--shape", default="4096,4096", callback=comma_separated, metavar="OUT,IN", help="Shape of the matrices.")
@option("--group-size", type=click.Choice(["32", "64"]), default="32", help="Inputs that share a scale.")
@option("--repeat", type=click.IntRange(1), default=5, help="Walks through the weights; the median counts.")
@threads_option
@option("--json", "as_json", is_flag=True, help="One JSON object as the last line.")
def kernels(
    formats: tuple[str, ...],
    isas: tuple[str, ...],
    rows: list[int],
    shape: list[int],
    group_size: str,
    repeat: int,
    threads: int | None,
    as_json: bool,
) -> None:
    """GB/s, GOPS and time relative to one row of linear layers, beside the machine's roofs."""
    if len(shape) != 2:
        raise click.BadParameter("a shape is two numbers: outputs,inputs", param_hint="--shape")
    from ipex_lookahead.bench.kernels import measure
    from ipex_lookahead.cli.progress import status

    with status() as say:
        report = measure(
            formats or ("sym_int4", "sym_int8", "bf16"),
            isas,
            rows,
            shape=(shape[0], shape[1]),
            group_size=int(group_size),
            threads=threads,
            repeat=repeat,
            report=say,
        )
    from rich.console import Console
    from rich.table import Table

    peaks = ", ".join(f"{isa} {gops:.0f}" for isa, gops in report["integer_peak_gops"].items())
    table = Table(
        title=f"linear {shape[0]} x {shape[1]} · {report['threads']} threads",
        caption=f"this machine reads {report['bandwidth_gb_s']:.1f} GB/s; integer peak in GOPS: {peaks}",
        box=None,
    )
    for heading in ("format", "isa", "rows", "ms", "ratio", "GB/s", "GOPS"):
        table.add_column(heading, justify="left" if heading in ("format", "isa") else "right")
    for kernel in report["kernels"]:
        for one in kernel["steps"]:
            figures = (f"{one['ms']:.3f}", f"{one['ratio']:.2f}", f"{one['gb_s']:.1f}", f"{one['gops']:.0f}")
            table.add_row(kernel["format"], kernel["isa"], str(one["rows"]), *figures)
    Console(stderr=as_json, soft_wrap=True).print(table)
    if as_json:
        click.echo(json.dumps(report))
