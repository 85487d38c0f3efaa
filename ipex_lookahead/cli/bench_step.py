"""``ipex-lookahead bench step``: one decoder step on random weights of a known shape."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.options import FORMATS, comma_separated, json_option, option, plot_option, threads_option
from ipex_lookahead.cli.tables import print_table
from ipex_lookahead.cli.types import LowBit
from ipex_lookahead.system.terminal import counted

SHAPES = (
    "smollm2-135m",
    "tinyllama-1.1b",
    "llama2-7b",
    "llama2-13b",
    "qwen3-0.6b",
    "qwen3-8b",
    "gemma3-1b",
    "phi4-mini",
    "mistral-7b",
    "qwen3-30b-a3b",
    "gpt-oss-20b",
)


@command("ipex-lookahead bench step --shape llama2-7b --rows 1,4,128 --plot step.svg")
@option(
    "--shape",
    type=click.Choice(SHAPES),
    default="smollm2-135m",
    metavar="NAME",
    help=f"Whose layers to imitate: {', '.join(SHAPES)}.",
)
@option("--low-bit", default="sym_int4", type=LowBit(alike=True), help=f"Format of the weights: {FORMATS}.")
@option("--group-size", type=click.Choice(["32", "64"]), default="32", help="Inputs that share a scale.")
@option("--head-low-bit", type=LowBit(alike=True), help="Format of the lm_head, if another.")
@option("--rows", default="1,2,4,8,16,64", callback=comma_separated, metavar="N,N,...", help="Rows of a step.")
@option("--context", type=click.IntRange(0), default=128, help="Positions already in the KV cache.")
@option("--kv-cache", type=click.Choice(["fp16", "int8"]), default="fp16", help="How keys and values are held.")
@option("--repeat", type=click.IntRange(1), default=9, help="Rounds; the median counts.")
@option("--phases", is_flag=True, help="Also where a step's time goes: matrices, attention, waiting.")
@threads_option
@plot_option
@json_option
def step(
    shape: str,
    low_bit: str,
    group_size: str,
    head_low_bit: str | None,
    rows: list[int],
    context: int,
    kv_cache: str,
    repeat: int,
    phases: bool,
    threads: int | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Milliseconds of a whole decoder step by rows, beside the machine's bandwidth and integer peak."""
    if plot is not None:
        from ipex_lookahead.bench.plots.drawing import check_plot

        check_plot(plot)
    from ipex_lookahead.bench.facts import where_and_when
    from ipex_lookahead.bench.step import measure
    from ipex_lookahead.cli.progress import status
    from ipex_lookahead.engines.weights import check_format

    with status() as say:
        report = measure(
            shape,
            check_format(low_bit),
            rows,
            group_size=int(group_size),
            head_low_bit=None if head_low_bit is None else check_format(head_low_bit),
            context=context,
            threads=threads,
            kv_cache=kv_cache,
            repeat=repeat,
            phases=phases,
            report=say,
        )
    report |= where_and_when()
    print_table(
        ("rows", "ms", "ratio", "GB/s", "GOPS", "rows/s"),
        [
            (
                one["rows"],
                f"{one['ms']:.3f}",
                f"{one['ratio']:.2f}",
                f"{one['gb_s']:.1f}",
                f"{one['gops']:.0f}",
                f"{1e3 * one['rows'] / one['ms']:.1f}",
            )
            for one in report["steps"]
        ],
        title=f"{shape} · {report['low_bit']} g{group_size} · head {report['head_low_bit']} · {report['isa']} · "
        f"{counted(report['threads'], 'thread')} · context {context}",
        caption=f"weights {report['weight_bytes'] / 1e6:.0f} MB, of which one row reads "
        f"{report['step_bytes'] / 1e6:.0f} MB; this machine reads at most "
        f"{report['bandwidth_gb_s']:.1f} GB/s and does at most {report['integer_peak_gops']:.0f} integer GOPS",
        to_stderr=as_json,
    )
    for one in report["steps"] if phases else ():
        print_table(
            ("phases", "number", "ms", "share", "waiting", "GB/s"),
            [
                (
                    part["name"],
                    part["count"],
                    f"{part['ms']:.3f}",
                    f"{part['ms'] / sum(other['ms'] for other in one['phases']):.0%}",
                    f"{part['waiting']:.0%}",
                    f"{part['gb_s']:.1f}" if part["gb_s"] else "",
                )
                for part in one["phases"]
            ],
            title=f"where the time of {counted(one['rows'], 'row')} goes",
            caption="as the first thread sees it, clocks included; GB/s of the weights that one row reads",
            to_stderr=as_json,
        )
    if plot is not None:
        from ipex_lookahead.bench.plots.step import plot_step

        plot_step(report, plot)
        click.echo(f"saved {plot}", err=True)
    if as_json:
        click.echo(json.dumps(report))
