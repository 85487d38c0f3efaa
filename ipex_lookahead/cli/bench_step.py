"""``ipex-lookahead bench step``: one decoder step on random weights of a known shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import threads_option
from ipex_lookahead.cli.measuring import STEP, Report, comma_separated, comma_separated_rates
from ipex_lookahead.cli.names import FORMATS
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.tables import print_rows
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
    "qwen3.5-4b",
    "qwen3.5-9b",
    "qwen3.5-35b-a3b",
    "gemma4-e2b",
    "gemma4-e4b",
    "gemma4-26b-a4b",
    "gemma4-31b",
    "lfm2-8b-a1b",
    "deepseek-v2-lite",
    "glm-4.7-flash",
)


@dataclass
class Step:
    """What is measured."""

    shape: str = option(
        f"Whose layers to imitate: {', '.join(SHAPES)}.", "smollm2-135m", type=click.Choice(SHAPES), metavar="NAME"
    )
    low_bit: str = option(f"Format of the weights: {FORMATS}.", "sym_int4", type=LowBit(alike=True))
    group_size: Literal["32", "64"] = option("Inputs that share a scale.", "32")
    head_low_bit: str | None = option("Format of the lm_head, if another.", type=LowBit(alike=True))
    rows: list[int] = option("Rows of a step.", "1,2,4,8,16,64", callback=comma_separated, metavar="N,N,...")
    context: int = option("Positions already in the KV cache.", 128, low=0)
    kv_cache: Literal["fp16", "int8"] = option("How keys and values are held.", "fp16")
    repeat: int = option("Rounds; the median counts.", 9, low=1)
    acceptance: list[float] = option(
        "Also what a block for drafting (MTP) of that shape would bring: how often its 1st, 2nd, ... token is right "
        "where those before it are.",
        "",
        callback=comma_separated_rates,
        metavar="P,P,...",
    )
    phases: bool = option("Also where a step's time goes: matrices, attention, waiting.", False)


@command("ipex-lookahead bench step --shape llama2-7b --rows 1,4,128 --plot step.svg")
def step(what: Step, to: Report, threads: int | None = threads_option) -> None:
    """Milliseconds of a whole decoder step by rows, beside the machine's bandwidth and integer peak."""
    to.check()
    from ipex_lookahead.bench.facts import where_and_when
    from ipex_lookahead.bench.head import measure_head
    from ipex_lookahead.bench.plots.step import plot_step
    from ipex_lookahead.bench.step import measure
    from ipex_lookahead.cli.progress import status
    from ipex_lookahead.engines.weights import check_format

    with status() as say:
        report = measure(
            what.shape,
            check_format(what.low_bit),
            what.rows,
            group_size=int(what.group_size),
            head_low_bit=None if what.head_low_bit is None else check_format(what.head_low_bit),
            context=what.context,
            threads=threads,
            kv_cache=what.kv_cache,
            repeat=what.repeat,
            phases=what.phases,
            report=say,
        )
        if what.acceptance:
            report["drafting"] = measure_head(
                what.shape, what.acceptance, report["low_bit"], head_low_bit=report["head_low_bit"],
                context=what.context, threads=threads, kv_cache=what.kv_cache, repeat=what.repeat, report=say,
            )  # fmt: skip
    report |= where_and_when()
    print_rows(
        {**STEP, "rows/s": lambda step: f"{1e3 * step['rows'] / step['ms']:.1f}"},
        report["steps"],
        title=f"{what.shape} · {report['low_bit']} g{what.group_size} · head {report['head_low_bit']} · "
        f"{report['isa']} · {counted(report['threads'], 'thread')} · context {what.context}",
        caption=f"weights {report['weight_bytes'] / 1e6:.0f} MB, of which one row reads "
        f"{report['step_bytes'] / 1e6:.0f} MB; this machine reads at most "
        f"{report['bandwidth_gb_s']:.1f} GB/s and does at most {report['integer_peak_gops']:.0f} integer GOPS",
        to_stderr=to.as_json,
    )
    if what.acceptance:
        print_rows(
            {
                "drafted": "{drafted}",
                "tokens\na step": "{tokens:.2f}",
                "step ms": "{step_ms:.2f}",
                "cut head ms": "{cut_ms:.2f}",
                "speed-up,\ncut head": "{cut_speed:.2f}",
                "whole head ms": "{full_ms:.2f}",
                "speed-up,\nwhole head": "{full_speed:.2f}",
            },
            report["drafting"],
            title=f"replayed: a block for drafting that is right {', '.join(f'{p:g}' for p in what.acceptance)}",
            caption="costs are measured, acceptance is given; a row alone takes "
            f"{report['drafting'][0]['one_row_ms']:.2f} ms",
            to_stderr=to.as_json,
        )
    for one in report["steps"] if what.phases else ():
        total = sum(phase["ms"] for phase in one["phases"])
        print_rows(
            {
                "phases": "{name}",
                "number": "{count}",
                "ms": "{ms:.3f}",
                "share": "{share:.0%}",
                "waiting": "{waiting:.0%}",
                "GB/s": lambda phase: f"{phase['gb_s']:.1f}" if phase["gb_s"] else "",
            },
            [{**phase, "share": phase["ms"] / total} for phase in one["phases"]],
            title=f"where the time of {counted(one['rows'], 'row')} goes",
            caption="as the first thread sees it, clocks included; GB/s of the weights that one row reads",
            to_stderr=to.as_json,
        )
    to.write(report, plot_step)
