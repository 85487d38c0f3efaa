"""The picture of ``bench serve``: latency by percentile, and the requests over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ipex_lookahead.bench.plots.drawing import ALERT, COLORS, FAINT, entitle, logarithmic, look, picture
from ipex_lookahead.system.terminal import counted


def plot_serve(report: dict[str, Any], file: Path) -> None:
    """Draw latency by percentile, and the requests over time. Raises InputError if the file cannot be saved."""
    bars = report["timeline"]
    with picture(file, (11.0, 4.4), columns=2) as (figure, (latency, time)):
        first = [
            1e3 * (bar["first"] - bar["due"]) for bar in bars if bar["failure"] is None and bar["first"] is not None
        ]
        each = [bar["itl_ms"] for bar in bars if bar["failure"] is None and bar["itl_ms"] is not None]
        for number, (label, values) in enumerate((("to the first token", first), ("a token after it", each))):
            if values:
                places = [100 * (rank + 1) / len(values) for rank in range(len(values))]
                latency.plot(places, sorted(values), label=label, **{**look(number), "markersize": 3})
        logarithmic(latency)
        latency.set_xlim(0, 101)  # room for the last mark
        latency.set_xlabel("percent of the answers")
        latency.set_ylabel("milliseconds, at most")
        latency.legend(frameon=False)
        for place, bar in enumerate(bars):
            failed = bar["failure"] is not None
            start = bar["ended"] if bar["first"] is None else bar["first"]
            time.hlines(place, bar["due"], start, color=FAINT, linewidth=1.0)
            time.hlines(place, start, bar["ended"], color=ALERT if failed else COLORS[0], linewidth=2.0)
            if failed:
                time.plot(bar["ended"], place, "x", color=ALERT, markersize=5)
        time.set_xlabel("seconds; gray: until the first token, cross: failed")
        time.set_ylabel("request")
        entitle(figure, f"{report['model']}, {report['load']}: {counted(report['requests'], 'request')}", report)
