"""The picture of ``bench agent``: time to first token by turn, one plot for each length of the prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ipex_lookahead.bench.plots.drawing import entitle, logarithmic, look, picture

LABELS = {"cold": "cold", "warm": "warm", "restarted": "after a restart"}


def plot_agent(report: dict[str, Any], file: Path) -> None:
    """Draw the time to first token by turn. Raises InputError if the file cannot be saved."""
    sizes = report["sizes"]
    with picture(file, (max(7.0, 4.6 * len(sizes)), 3.8), columns=len(sizes)) as (figure, plots):
        for plot, size in zip(plots, sizes, strict=True):
            for number, (state, label) in enumerate(LABELS.items()):
                points = [(row["turn"], row[f"{state}_ms"] / 1e3) for row in size["turns"] if row[f"{state}_ms"]]
                if points:
                    plot.plot(*zip(*points, strict=True), label=label, **look(number))
            logarithmic(plot)
            plot.set_xticks([row["turn"] for row in size["turns"]])
            plot.set_xlabel(f"turn; system prompt and tools of {size['prompt_tokens']} tokens")
            plot.set_ylabel("seconds to the first token")
            plot.legend(frameon=False)
        entitle(figure, f"{report['model']}: turns of a coding agent", report)
