"""Common parts of all pictures: colors, axes, the line with machine and date, saving."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ipex_lookahead.errors import InputError
from ipex_lookahead.system.extras import installing
from ipex_lookahead.system.terminal import counted

SUFFIXES = (".svg", ".png")
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ipex-lookahead",
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
"""Text in SVG stays text, so that it can be selected and searched."""
COLORS = ("#1f5fa8", "#c2571a", "#2e7d4f", "#8b3fa0", "#a8871f", "#5a5a5a")
"""``MARKS`` distinguish the lines without color."""
MARKS = "os^Dvx"
STROKES = ("-", "-.", ":", (0, (6, 2)))
"""One for each round of the colors."""
FAINT, ALERT, GRID = "#666666", "#c02a2a", "#dddddd"


def check_plot(file: Path) -> None:
    """Raise InputError if a picture cannot be drawn or saved."""
    if file.suffix.lower() not in SUFFIXES:
        raise InputError(f"{file}: the name of a picture must end with {' or '.join(SUFFIXES)}")
    if not file.parent.is_dir():
        raise InputError(f"{file.parent}: the folder does not exist")
    check_matplotlib()


def check_matplotlib() -> None:
    """Raise InputError if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError("drawing needs matplotlib, which is not installed", hint=installing("bench")) from None


@contextmanager
def picture(to: Path | io.StringIO, size: tuple[float, float], rows: int = 1, columns: int = 1) -> Iterator[Any]:
    """Create a figure on white, and save it when the block ends.

    Args:
        to: An SVG or PNG file, or a buffer for the ``<svg>`` element.
        size: Width and height in inches.
        rows: Rows of axes.
        columns: Columns of axes.

    Yields:
        (figure, its axes as a flat list).

    Raises:
        InputError: The file cannot be saved.
    """
    import matplotlib

    with matplotlib.rc_context(STYLE):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=size, layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)  # for the sizes of texts
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        for one in axes:
            one.grid(color=GRID, linewidth=0.6)
            one.set_axisbelow(True)
        yield figure, axes
        if isinstance(to, Path):
            try:
                figure.savefig(to, dpi=200, metadata={"Date": None} if to.suffix.lower() == ".svg" else None)
            except OSError as error:
                raise InputError(f"{to} cannot be saved: {error.strerror or error}") from error
        else:
            whole = io.StringIO()
            figure.savefig(whole, format="svg", metadata={"Date": None})
            to.write(whole.getvalue()[whole.getvalue().index("<svg") :])


def where_and_when(report: Mapping[str, Any]) -> str:
    """Return processor, instruction set, threads, version and date of a report as text."""
    machine = report.get("machine", {})
    threads = report.get("threads") or machine.get("threads")
    parts = (
        machine.get("processor"),
        report.get("isa") or machine.get("isa"),
        counted(threads, "thread") if threads else None,
        f"ipex-lookahead {report['version']}" if "version" in report else None,
        report.get("date", "")[:10],
    )
    return " · ".join(str(one) for one in parts if one)


def entitle(figure: Any, title: str, report: Mapping[str, Any]) -> None:
    """Add the title, and a line with machine and date."""
    figure.suptitle(f"{title}\n{where_and_when(report)}", fontsize=9, wrap=True)


def look(number: int) -> dict[str, Any]:
    """Return color, mark and stroke of a line; the first 24 are different."""
    around, color = divmod(number, len(COLORS))
    mark = MARKS[(number + around) % len(MARKS)]
    return {"color": COLORS[color], "marker": mark, "markersize": 5, "linestyle": STROKES[around % len(STROKES)]}


def from_zero(axes: Any) -> None:
    """Start the y axis at 0, with a margin for the marks of the highest points."""
    axes.set_ylim(0, 1.06 * axes.dataLim.ymax)


def powers_of_two(axes: Any, values: list[int]) -> None:
    """Use a logarithmic x axis with the given ticks."""
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log", base=2)
    axes.set_xticks(values, labels=[f"{value:,}" for value in values])
    axes.xaxis.set_minor_locator(NullLocator())


def logarithmic(axes: Any) -> None:
    """Use a logarithmic y axis with plain numbers as ticks: 1, 2, 3, 5, 10, ..."""
    axes.set_yscale("log")
    for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        set_formatter(lambda value, place: f"{value:g}" if f"{value:e}"[0] in "1235" else "")
