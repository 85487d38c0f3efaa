"""The picture of ``bench quality``: KL divergence over bits for every format."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ipex_lookahead.bench.plots.drawing import COLORS, entitle, picture

LEAST_KL = 1e-5
"""Smaller values are drawn here, because a logarithmic axis has no zero."""
_KINDS = ((COLORS[0], "o", "formats"), (COLORS[1], "^", "other files"))
MOST_BITS = 10
"""Formats with more bits are left out if there are others: floats would stretch the axis."""
_SPOTS = [
    (reach * math.cos(turn * math.pi / 8), reach * math.sin(turn * math.pi / 8))
    for reach in (7, 13, 20, 28, 38, 50, 64, 80, 98)
    for turn in (0, 8, 1, -1, 7, -7, 2, -2, 6, -6, 3, -3, 5, -5, 4, -4)
]
"""Possible offsets of a label from its point, nearest first, in typographic points."""
_LINE_FROM = 16
"""First spot with a line to the label."""
_AIR = 1.5
"""Free space around a label, in typographic points."""


Point = tuple[float, float, str, str]
"""Bits, divergence, the label, the color."""


def plot_quality(report: dict[str, Any], file: Path) -> None:
    """Draw KL divergence over bits per weight, with a label for each format.

    Rows of other files (``--with-model``) have another color and mark. Raises InputError if the file cannot be saved.
    """
    with picture(file, (8.5, 8.0)) as (figure, (axes,)):
        axes.set_yscale("log")
        points = []
        drawn = [row for row in report["formats"] if row["bits"] < MOST_BITS] or report["formats"]
        for others, (color, mark, label) in zip((False, True), _KINDS, strict=True):
            rows = [row for row in drawn if row["other_file"] is others]
            if rows:
                at = [(row["bits"], max(row["kl"], LEAST_KL)) for row in rows]
                axes.plot(*zip(*at, strict=True), mark, color=color, markersize=4.5, label=label)
                points += [(*place, row["name"], color) for place, row in zip(at, rows, strict=True)]
        axes.set_xlabel("bits per weight, scales included")
        axes.set_ylabel("KL divergence from the reference (nats per token), less is better")
        if any(row["other_file"] for row in drawn):
            axes.legend(loc="upper right")
        axes.margins(0.1)
        entitle(figure, _title(report), report)
        _name(figure, axes, _together(points))


def _together(points: list[Point]) -> list[Point]:
    """Give points of one kind at the same place one label."""
    found: dict[tuple[str, str, str], Point] = {}
    for x, y, name, color in points:
        place = f"{x:.2f}", f"{y:.2e}", color
        before = found[place][2] + ", " if place in found else ""
        found[place] = x, y, before + name, color
    return list(found.values())


def _title(report: dict[str, Any]) -> str:
    reference = report["reference"]
    return (
        f"{report['model']} and its weights in {reference['low_bit']} (perplexity {reference['perplexity']:.2f})\n"
        f"{report['text']}, {report['tokens']:,} tokens in windows of {report['window']}"
    )


def _name(figure: Any, axes: Any, points: list[Point]) -> None:
    """Write each label at the nearest spot where neither it nor its line overlaps points, labels or lines."""
    from matplotlib.path import Path as Line
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()  # computes the position of the axes
    renderer = figure.canvas.get_renderer()
    scale = figure.dpi / 72
    places = [tuple(axes.transData.transform((x, y))) for x, y, *_ in points]
    marks = [Bbox.from_bounds(x - 3 * scale, y - 3 * scale, 6 * scale, 6 * scale) for x, y in places]
    names: list[Any] = []
    lines: list[Any] = []
    for at, (x, y, name, color) in enumerate(points):
        others = [mark for other, mark in enumerate(marks) if other != at and not mark.overlaps(marks[at])]
        for number, (dx, dy) in enumerate(_SPOTS):
            text = axes.annotate(
                name,
                (x, y),
                xytext=(dx, dy),
                textcoords="offset points",
                ha="left" if dx > 3 else "right" if dx < -3 else "center",
                va="bottom" if dy > 3 else "top" if dy < -3 else "center",
                fontsize=6.5,
                color=color,
                arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.4} if number >= _LINE_FROM else None,
            )
            text.update_positions(renderer)
            box = Text.get_window_extent(text, renderer).padded(_AIR * scale)  # without the line
            line = Line([places[at], (places[at][0] + dx * scale, places[at][1] + dy * scale)])
            inside = axes.bbox.contains(box.x0, box.y0) and axes.bbox.contains(box.x1, box.y1)
            free = not any(box.overlaps(other) for other in (*marks, *names)) and not any(
                other.intersects_bbox(box) for other in lines
            )
            if number >= _LINE_FROM and free:
                free = not any(line.intersects_bbox(other) for other in (*others, *names)) and not any(
                    line.intersects_path(other) for other in lines
                )
            if number == len(_SPOTS) - 1 or (inside and free):
                names.append(box)
                lines += [line] if number >= _LINE_FROM else []
                break
            text.remove()
