"""``ipex-lookahead bench step``: one decoder step on random weights of a known shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

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
    "llama-3.1-8b",
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
        "What the head that is trained for such a model would bring: how often its 1st, 2nd, ... token is right "
        "where those before it are. Measured is that alone.",
        "",
        callback=comma_separated_rates,
        metavar="P,P,...",
    )
    drafter_low_bit: str = option("Format of that head's own matrices.", "sym_int8", type=LowBit(alike=True))
    layers: int | None = option(
        "Layers that are measured for that, the others like them; as many as fit into half of the memory if not given.",
        low=1,
        metavar="N",
    )
    phases: bool = option("Also where a step's time goes: matrices, attention, waiting.", False)


@command(
    "ipex-lookahead bench step --shape llama2-7b --rows 1,4,128 --plot step.svg",
    "ipex-lookahead bench step --shape llama-3.1-8b --acceptance 0.8,0.7,0.6 --json",
)
def step(what: Step, to: Report, threads: int | None = threads_option) -> None:
    """Milliseconds of a whole decoder step by rows, beside the machine's bandwidth and integer peak."""
    if what.acceptance and to.plot is not None:
        raise click.UsageError("--plot draws steps by rows; leave it out with --acceptance")
    to.check()
    from ipex_lookahead.bench.facts import where_and_when
    from ipex_lookahead.bench.plots.step import plot_step
    from ipex_lookahead.cli.progress import status
    from ipex_lookahead.engines.weights import check_format

    low_bit = check_format(what.low_bit)
    head_low_bit = None if what.head_low_bit is None else check_format(what.head_low_bit)
    shared: dict[str, Any] = {
        "head_low_bit": head_low_bit,
        "context": what.context,
        "threads": threads,
        "kv_cache": what.kv_cache,
    }
    with status() as say:
        if what.acceptance:
            _with_head(what, low_bit, {**shared, "repeat": what.repeat, "report": say}, to)
            return
        from ipex_lookahead.bench.step import measure

        report = measure(
            what.shape,
            low_bit,
            what.rows,
            **shared,
            group_size=int(what.group_size),
            repeat=what.repeat,
            phases=what.phases,
            report=say,
        )
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


def _with_head(what: Step, low_bit: str, given: dict[str, Any], to: Report) -> None:
    from ipex_lookahead.bench.facts import where_and_when
    from ipex_lookahead.bench.head import measure_head
    from ipex_lookahead.engines.weights import check_format

    drafting = measure_head(
        what.shape,
        what.acceptance,
        low_bit,
        drafter_low_bit=check_format(what.drafter_low_bit),
        layers=what.layers,
        **given,
    )
    head = given["head_low_bit"] or low_bit
    right = ", ".join(f"{rate:g}" for rate in what.acceptance)
    few, layers = drafting["measured_layers"], drafting["layers"]
    words = {name: f"{one['words']:,} words" for name, one in drafting["costs"]["heads"].items()}
    print_rows(
        {
            "drafted": "{drafted}",
            "tokens\na step": "{tokens:.2f}",
            "step ms": "{step_ms:.1f}",
            **{
                f"{what_of}\n{words[name]}": f"{{{name}_{key}}}"
                for name in words
                for what_of, key in (("drafting ms,", "ms:.1f"), ("speed-up,", "speed:.2f"))
            },
        },
        drafting["rows"],
        title=f"replayed: {what.shape} · {low_bit} · head {head} · "
        f"{drafting['kind']} in {drafting['drafter_low_bit']}, right {right} · {drafting['isa']} · "
        f"{counted(drafting['threads'], 'thread')} · context {what.context}",
        caption=f"costs are measured, acceptance is given; a row alone takes {drafting['rows'][0]['one_row_ms']:.1f} ms"
        + ("" if few == layers else f"; scaled from {counted(few, 'layer')} to {layers}"),
        to_stderr=to.as_json,
    )
    to.write(
        {"shape": what.shape, "low_bit": low_bit, "head_low_bit": head, "drafting": drafting, **where_and_when()}, None
    )
