"""The pictures of ``bench step`` and ``bench kernels``: time by rows, compared with the flat ideal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ipex_lookahead.bench.plots.drawing import FAINT, entitle, from_zero, logarithmic, look, picture, powers_of_two


def plot_step(report: dict[str, Any], file: Path) -> None:
    """Draw milliseconds of a step by rows. Raises InputError if the file cannot be saved."""
    with picture(file, (6.5, 4.5)) as (figure, (axes,)):
        _over_rows(axes, [("measured", report["steps"])])
        axes.set_ylabel("milliseconds per step")
        form = f"{report['low_bit']}, head {report['head_low_bit']}, groups of {report['group_size']}"
        read = f"one row reads {report['step_bytes'] / 1e6:,.0f} MB; limit {report['bandwidth_gb_s']:.0f} GB/s"
        entitle(figure, f"a step of {report['shape']} at {report['context']:,} positions · {form}\n{read}", report)


def plot_kernels(report: dict[str, Any], file: Path) -> None:
    """Draw milliseconds of one matrix by rows, with a line for each format and instruction set. Raises InputError."""
    with picture(file, (8.0, 5.0)) as (figure, (axes,)):
        logarithmic(axes)
        _over_rows(axes, [(f"{one['format']}, {one['isa']}", one["steps"]) for one in report["kernels"]])
        axes.set_ylabel("milliseconds per matrix")
        outputs, inputs = report["shape"]
        limit = f"this machine reads {report['bandwidth_gb_s']:.0f} GB/s"
        machine = {name: value for name, value in report["machine"].items() if name != "isa"}  # each line has its own
        entitle(figure, f"linear layers, {outputs:,} x {inputs:,}; {limit}", {**report, "machine": machine})


def _over_rows(axes: Any, lines: list[tuple[str, list[dict[str, Any]]]]) -> None:
    counts = sorted({step["rows"] for _, steps in lines for step in steps})
    for number, (label, steps) in enumerate(lines):
        style = look(number)
        rows, times = [step["rows"] for step in steps], [step["ms"] for step in steps]
        axes.plot(rows, times, label=label, **style)
        axes.plot(rows, [times[0]] * len(rows), "--", linewidth=0.9, color=FAINT if len(lines) == 1 else style["color"])
        if len(lines) == 1:
            for step in steps[1:]:
                place = (step["rows"], step["ms"])
                text = f"{step['ratio']:.2f} x"
                axes.annotate(text, place, (-4, 6), textcoords="offset points", ha="right", fontsize=8)
    axes.plot([], [], "--", linewidth=0.9, color=FAINT, label="flat ideal: as one row")
    powers_of_two(axes, counts)
    if len(lines) == 1:
        from_zero(axes)
    axes.set_xlabel("rows: one, and those of drafted tokens")
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
