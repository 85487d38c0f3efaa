"""The picture of ``bench replay``: predicted speed by draft length, and acceptance by position and source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ipex_lookahead.bench.plots.decode import Labeled, by_position, by_source
from ipex_lookahead.bench.plots.drawing import FAINT, entitle, from_zero, look, picture


def plot_replay(report: dict[str, Any], file: Path) -> None:
    """Draw predicted tokens per second by strategy and draft length. Raises InputError if the file cannot be saved."""
    runs = report["runs"]
    with picture(file, (13.0, 4.4), columns=3) as (figure, (speed, position, source)):
        budgets = sorted({run["budget"] for run in runs})
        speed.axhline(runs[0]["predicted_plain_tok_s"], color=FAINT, linewidth=0.8, linestyle="--", label="plain")
        largest: Labeled = []
        for number, strategy in enumerate(dict.fromkeys(run["strategy"] for run in runs)):
            some = sorted((run for run in runs if run["strategy"] == strategy), key=lambda run: run["budget"])
            places = [budgets.index(run["budget"]) for run in some]
            speed.plot(places, [run["predicted_tok_s"] for run in some], label=strategy, **look(number))
            largest.append((strategy, _by_source_and_rate(some[-1])))
        speed.set_xticks(range(len(budgets)), labels=budgets)
        speed.set_xlabel("most drafted tokens per step")
        speed.set_ylabel("predicted tokens per second")
        from_zero(speed)
        figure.legend(*speed.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
        by_position(position, largest)
        by_source(source, largest)
        entitle(figure, f"{report['model']}: {runs[0]['answers']} recorded answers replayed", report)


def _by_source_and_rate(run: dict[str, Any]) -> dict[str, Any]:
    """Return the run with the counts by source of ``bench decode``."""
    drafted, accepted = run["drafted_by_source"], run["accepted_by_source"]
    sources = {
        name: {"drafted": count, "accepted": accepted.get(name, 0), "acceptance_rate": accepted.get(name, 0) / count}
        for name, count in drafted.items()
    }
    return {**run, "acceptance_by_source": sources}
