"""``ipex-lookahead bench step``: one decoder step on random weights of a known shape, by rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import click

from ipex_lookahead.bench.options import STEP, Report, comma_separated, comma_separated_rates
from ipex_lookahead.bench.shapes import SHAPES, shape_of
from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import PLACES, threads_option
from ipex_lookahead.cli.names import FORMATS
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.progress import status
from ipex_lookahead.cli.tables import print_rows, print_table
from ipex_lookahead.cli.types import LowBit
from ipex_lookahead.errors import InputError
from ipex_lookahead.system.terminal import counted

if TYPE_CHECKING:
    from ipex_lookahead.architectures import ModelSpec
    from ipex_lookahead.engines.api import Batch
    from ipex_lookahead.engines.native.engine import NativeEngine


@dataclass
class Step:
    """The step to measure."""

    shape: str = option(f"Model shape: {', '.join(SHAPES)}.", "smollm2-135m", type=click.Choice(SHAPES), metavar="NAME")
    low_bit: str = option(f"Weight format: {FORMATS}.", "sym_int4", type=LowBit(alike=True))
    group_size: Literal["32", "64"] = option("Number of weights that share a scale.", "32")
    head_low_bit: str | None = option("Weight format of the lm_head, if different.", type=LowBit(alike=True))
    rows: list[int] = option("Numbers of rows per step.", "1,2,4,8,16,64", callback=comma_separated, metavar="N,N,...")
    context: int = option("Number of positions in the KV cache.", 128, low=0)
    kv_cache: Literal["fp16", "int8"] = option("KV cache format.", "fp16")
    repeat: int = option("Runs; the median counts.", 9, low=1)
    acceptance: list[float] = option(
        "Measure a draft head of the shape instead; acceptance rates of its 1st, 2nd, ... token.",
        "",
        callback=comma_separated_rates,
        metavar="P,P,...",
    )
    drafter_low_bit: str = option("Weight format of the draft head.", "sym_int8", type=LowBit(alike=True))
    layers: int | None = option(
        "Layers to measure, extrapolated to all. Default: all; with --acceptance what fits in half of the memory.",
        low=1,
        metavar="N",
    )
    engine: Literal["native", "opencl"] = option("Engine; opencl also prints time and bytes of each kernel.", "native")
    device: str | None = option("OpenCL: the device, xpu[:N] or opencl[:N]. Default: the first GPU.", type=PLACES)
    phases: bool = option("Also measure the phases of a step: matrices, attention, waiting.", False)


@command(
    "ipex-lookahead bench step --shape llama2-7b --rows 1,4,128 --plot step.svg",
    "ipex-lookahead bench step --engine opencl --rows 1,4,16,64,512",
    "ipex-lookahead bench step --shape llama-3.1-8b --acceptance 0.8,0.7,0.6 --json",
)
def step(what: Step, to: Report, threads: int | None = threads_option) -> None:
    """Milliseconds of a whole decoder step by rows, compared with bandwidth and integer peak of the machine."""
    if what.acceptance and to.plot is not None:
        raise click.UsageError("--plot draws steps by rows; leave it out with --acceptance")
    if what.engine == "opencl" and (what.acceptance or what.phases or what.layers):
        raise click.UsageError(
            "--acceptance, --phases and --layers measure the native engine; leave them out with opencl"
        )
    if what.engine == "native" and what.device is not None:
        raise click.UsageError("--device is for --engine opencl")
    to.check()
    from ipex_lookahead.bench.plots.step import plot_step
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
        if what.engine == "opencl":
            _on_device(what, low_bit, head_low_bit, threads, say, to)
            return
        if what.acceptance:
            _with_head(what, low_bit, {**shared, "repeat": what.repeat, "report": say}, to)
            return
        report = measure(
            what.shape,
            low_bit,
            what.rows,
            **shared,
            group_size=int(what.group_size),
            layers=what.layers,
            repeat=what.repeat,
            phases=what.phases,
            report=say,
        )
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
    if "routing" in report:
        _print_routing(report, to_stderr=to.as_json)
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


def _print_routing(report: dict[str, Any], *, to_stderr: bool) -> None:
    found = report["routing"]
    distinct = ", ".join(f"{count:.1f} of {counted(rows, 'row')}" for rows, count in found["distinct"].items())
    print_rows(
        {
            "rows": "{rows}",
            "experts of\nthe rows": "{case}",
            "experts\nread": "{experts:,}",
            "GB\nread": lambda one: f"{one['bytes'] / 1e9:.2f}",
            "ms": "{ms:.3f}",
            "ratio": "{ratio:.2f}",
        },
        [
            {"rows": step["rows"], "case": case, "ratio": one["ms"] / report["steps"][0]["cases"][case]["ms"], **one}
            for step in report["steps"]
            for case, one in step["cases"].items()
        ],
        title="experts of the rows: those of a routing trace; best: all rows choose the same; worst: each row its own",
        caption=f"trace: different experts in a layer: {distinct}; a row shares {found['shared']:.0%} with the row "
        f"before; entropy of the load {found['entropy']:.2f} (1: even)",
        to_stderr=to_stderr,
    )


def _on_device(
    what: Step, low_bit: str, head_low_bit: str | None, threads: int | None, say: Callable[[str], None], to: Report
) -> None:
    from ipex_lookahead.bench import roofline
    from ipex_lookahead.bench.plots.step import plot_step
    from ipex_lookahead.bench.routing import Routing
    from ipex_lookahead.bench.steps import step_batch
    from ipex_lookahead.engines.opencl.device import device_of

    spec = shape_of(what.shape)
    routing = Routing(spec, 1, max(what.rows)) if spec.mixtures else None

    def batch_of(cache: Any, rows: int) -> Batch:
        return step_batch(cache, rows, None if routing is None else routing.tokens("trace", 0, rows))

    report = roofline.measure_on_device(
        roofline.RandomModel(spec, low_bit, int(what.group_size), head_low_bit, what.kv_cache, routing),
        device_of(what.device),
        what.rows,
        batch_of,
        context=what.context,
        threads=threads,
        repeat=what.repeat,
        report=say,
    )
    columns = {name: form for name, form in STEP.items() if name != "GOPS"}
    print_rows(
        {**columns, "rows/s": lambda step: f"{1e3 * step['rows'] / step['ms']:.1f}"},
        report["steps"],
        title=f"{what.shape} · {low_bit} g{what.group_size} · head {report['head_low_bit']} · "
        f"{report['device_name']} · context {what.context}",
        caption=f"weights {report['weight_bytes'] / 1e6:.0f} MB, of which one row reads "
        f"{report['step_bytes'] / 1e6:.0f} MB; the device copies {report['bandwidth_gb_s']:.1f} GB/s; a launch takes "
        f"{report['launches']['enqueue_us']:.1f} us to enqueue and {report['launches']['alone_us']:.1f} us alone",
        to_stderr=to.as_json,
    )
    for one in report["steps"]:
        print_table(
            roofline.HEADINGS,
            roofline.table(one["profile"]),
            title=roofline.title(one["profile"]),
            to_stderr=to.as_json,
        )
    to.write({"shape": what.shape, "engine": "opencl", **report}, plot_step)


def _with_head(what: Step, low_bit: str, given: dict[str, Any], to: Report) -> None:
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
    to.write({"shape": what.shape, "low_bit": low_bit, "head_low_bit": head, "drafting": drafting}, None)


def linear_operations(spec: ModelSpec) -> int:
    """Return the operations of all linear layers and chosen experts for one row; a multiply-add is two operations."""
    weights = sum(prod(tensor.shape) for tensor in spec.tensors() if tensor.is_matrix)
    for mixture in spec.mixtures:
        one, idle = mixture.experts[0], len(mixture.experts) - mixture.used
        weights -= idle * sum(prod(part.weight.shape) for part in (one.gate, one.up, one.down) if part)
    return 2 * (weights if spec.tied else weights - spec.vocab * spec.hidden)


def measure(
    shape: str,
    low_bit: str = "sym_int4",
    rows: Sequence[int] = (1, 2, 4, 8, 16, 64),
    *,
    group_size: int = 32,
    head_low_bit: str | None = None,
    layers: int | None = None,
    context: int = 128,
    threads: int | None = None,
    kv_cache: str = "fp16",
    repeat: int = 9,
    phases: bool = False,
    report: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Return medians over ``repeat`` rounds; each round measures every number of rows once.

    Rows form a chain at ``context`` positions. More than 64 rows are a prompt: only the last one has an output. With
    ``phases``, ``repeat`` further rounds are timed phase by phase; the clocks take a few percent of a small step.

    The rows of a mixture of experts choose the experts of a routing trace, each round those of another text
    (:mod:`ipex_lookahead.bench.routing`). ``cases`` of a step has the best and the worst case too.

    ``layers``: number of layers to measure, a multiple of :func:`ipex_lookahead.bench.head.period`; times, experts and
    bytes are extrapolated to all layers. None: all layers are measured.

    Raises:
        InputError: An unknown shape, rows below 1, rows and context longer than the shape's context, or layers that do
            not make whole periods.
        EngineError: The routers did not choose the experts of the trace.
    """
    from ipex_lookahead.bench.routing import Routing
    from ipex_lookahead.bench.steps import Steps, first_layers
    from ipex_lookahead.engines.load_weights import random_weights
    from ipex_lookahead.engines.native import core
    from ipex_lookahead.engines.native.engine import NativeEngine

    whole = shape_of(shape)
    if not rows or min(rows) < 1 or context < 0 or context + max(rows) > whole.max_context:
        raise InputError(
            f"rows {list(rows)} at context {context} do not fit; rows start at 1, and both together end at "
            f"{whole.max_context}"
        )
    spec = whole if layers is None else first_layers(shape, whole, layers)
    report("making random weights")
    read = random_weights(spec, low_bit, group_size=group_size, head_low_bit=head_low_bit)
    routing = None
    if spec.mixtures:
        routing = Routing(spec, repeat, max((count for count in rows if count <= 64), default=max(rows)))
        read = routing.weights(read)
    engine = NativeEngine.build(spec, low_bit, read, threads=threads, kv_cache=kv_cache)
    facts = engine.describe()
    report("measuring the machine")
    # A smaller buffer would measure a cache instead of the memory.
    size = min(max(facts["weight_bytes"], 64 << 20), 1 << 30)
    bandwidth = core.read_bandwidth(size, facts["threads"])
    peak = 2 * core.integer_peak(facts["threads"])
    steps = Steps(engine, routing, context, len(whole.layers) / len(spec.layers))
    for count in rows:
        report(f"warming up: {counted(count, 'row')}")
        steps.warm_up(count)
    for done in range(repeat):
        for count in rows:
            report(f"round {done + 1} of {repeat}: {counted(count, 'row')}")
            steps.run(count, done)
    parts = {count: _phases(engine, steps.batch(count), repeat) for count in rows} if phases else {}
    operations, first = linear_operations(whole), steps.result(min(rows))["ms"]
    table = 0 if spec.tied else engine.embedding_bytes
    weight_bytes = steps.whole(facts["weight_bytes"] - table) + table
    cases = {count: steps.cases(count) for count in rows} if routing else {}
    return {
        "shape": shape,
        "low_bit": low_bit,
        "head_low_bit": head_low_bit or low_bit,
        "group_size": group_size,
        "isa": facts["isa"],
        "threads": facts["threads"],
        "context": context,
        "kv_cache": kv_cache,
        **({"layers": len(whole.layers), "measured_layers": layers} if layers else {}),
        **({"routing": routing.statistics()} if routing else {}),
        "weight_bytes": weight_bytes,
        "step_bytes": steps.whole(facts["step_bytes"]),
        "kv_bytes": context * facts["kv_bytes_per_token"] * len(whole.layers) // len(spec.layers),
        "bandwidth_gb_s": bandwidth / 1e9,
        "integer_peak_gops": peak / 1e9,
        "steps": [
            {
                "rows": count,
                "ms": (found := steps.result(count))["ms"],
                "ratio": found["ms"] / first,
                "experts": found["experts"],
                "gb_s": found["bytes"] / found["ms"] / 1e6,
                "gops": _row_operations(whole, operations, count) / found["ms"] / 1e6,
                **({"cases": cases[count]} if routing else {}),
                **({"phases": parts[count]} if phases else {}),
            }
            for count in rows
        ],
    }


def _phases(engine: NativeEngine, batch: Batch, repeat: int) -> list[dict[str, Any]]:
    """Return medians of ``repeat`` steps for each kind of phase, in order; ``between`` is the time outside all phases.

    ``gb_s`` counts the weights that one row reads, and is 0 without weights; ``waiting`` is the share of time that the
    first thread waits for the others.
    """
    steps, wholes = [], []
    timed = replace(batch, wants=replace(batch.wants, timings=True))
    for _ in range(repeat):
        started = perf_counter()
        output = engine.forward(timed)
        wholes.append(perf_counter() - started)
        assert output.timings is not None
        steps.append(output.timings)
    found = []
    for kind in zip(*steps, strict=True):
        if not kind[0].count:
            continue
        seconds = median(one.seconds for one in kind)
        found.append(
            {
                "name": kind[0].name,
                "count": kind[0].count,
                "ms": 1e3 * seconds,
                "waiting": median(1 - one.busy / one.seconds for one in kind),
                "gb_s": kind[0].weight_bytes / seconds / 1e9,
            }
        )
    between = median(whole - sum(one.seconds for one in step) for whole, step in zip(wholes, steps, strict=True))
    return [*found, {"name": "between", "count": 1, "ms": 1e3 * between, "waiting": 0.0, "gb_s": 0.0}]


def _row_operations(spec: ModelSpec, operations: int, rows: int) -> int:
    """Return the operations of a step; a prompt runs the lm_head for its last row only."""
    head = 2 * spec.vocab * spec.hidden
    return rows * (operations - head) + (rows if rows <= 64 else 1) * head
