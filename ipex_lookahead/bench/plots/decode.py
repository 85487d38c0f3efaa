"""The picture of ``bench decode``: speed, tokens per step by category, acceptance by position and source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ipex_lookahead.bench.plots.drawing import ALERT, FAINT, entitle, look, picture

MIN_DRAFTED = 10
"""Minimum number of drafts at a position to show its acceptance rate."""
MOST_SOURCES = 12

Labeled = list[tuple[str, dict[str, Any]]]
"""(label, run) for each line; the index selects color and mark."""


def plot_decode(report: dict[str, Any], file: Path) -> None:
    """Draw four views of the report. Raises InputError if the file cannot be saved."""
    runs = report["runs"]
    lines = _lines(runs[1:])
    with picture(file, *(((10.5, 8.0), 2, 2) if lines else ((6.0, 4.2),))) as (figure, axes):
        over_lookahead(axes[0], runs, lines)
        if lines:
            shown = [(label, some[-1]) for label, some in lines.items()]
            by_category(axes[1], shown, report["categories"], report["prompts"])
            by_position(axes[2], shown)
            by_source(axes[3], shown)
            figure.legend(
                *axes[0].get_legend_handles_labels(),
                loc="outside lower center",
                ncols=min(4, len(lines)),
                frameon=False,
            )
        same = all(len(set(run["identical_to_plain"].split("/"))) == 1 for run in runs)
        verdict = (
            "every answer has the tokens of plain decoding" if same else "NOT every answer has plain decoding's tokens"
        )
        count = f"{runs[0]['prompts']} prompts, up to {report['max_new_tokens']} tokens each"
        entitle(figure, f"{report['model']} · {report['low_bit']} · {count}; {verdict}", report)


def _lines(runs: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return label -> runs of one line, by most drafted tokens; ``auto`` has its own line."""
    found: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        strategy = "auto" if run["lookahead"] == "auto" else run["strategy"]
        found.setdefault(" ".join(filter(None, (strategy, run["memory"]))), []).append(run)
    return {
        label: [one for one in some if one["lookahead"] == "auto"]
        or sorted(some, key=lambda one: int(one["lookahead"]))
        for label, some in found.items()
    }


def over_lookahead(axes: Any, runs: list[dict[str, Any]], lines: dict[str, list[dict[str, Any]]]) -> None:
    """Draw tokens per second by most drafted tokens, with the best value above each."""
    plain = runs[0]["decode_tok_s"]
    places: dict[Any, int] = {number: at for at, number in enumerate(sorted({0, *_numbers(runs)}))}
    for label, some in lines.items():
        if some[0]["lookahead"] == "auto":
            places[label] = len(places)
    best: dict[Any, float] = {0: plain}
    axes.axhline(plain, color=FAINT, linewidth=0.8, linestyle="--")
    for number, (label, some) in enumerate(lines.items()):
        at = [(label if run["lookahead"] == "auto" else run["lookahead"], run["decode_tok_s"]) for run in some]
        for place, speed in at:
            best[place] = max(speed, best.get(place, 0.0))
        start = [] if at[0][0] == label else [(0, plain)]
        axes.plot(
            *zip(*[(places[place], speed) for place, speed in start + at], strict=True), label=label, **look(number)
        )
    for place, speed in best.items():
        axes.annotate(f"{speed:.0f}", (places[place], speed), (0, 6), textcoords="offset points", ha="center")
    names = ["off" if name == 0 else str(name).replace(" ", "\n") for name in places]
    axes.set_xticks(range(len(names)), labels=names)
    several = any(len(some) > 1 for some in lines.values())
    note = "\n(the other views: the largest of each line)" if several else ""
    axes.set_xlabel(f"n_lookahead_tokens: most drafted tokens per step{note}")
    axes.set_ylabel("tokens per second after the first")
    axes.set_ylim(0, 1.15 * max(best.values()))
    axes.margins(x=0.08)


def _numbers(runs: list[dict[str, Any]]) -> list[int]:
    return [run["lookahead"] for run in runs if isinstance(run["lookahead"], int)]


def by_category(axes: Any, shown: Labeled, categories: list[str], prompts: list[str]) -> None:
    """Draw tokens per step of each prompt and their mean by category; a ring marks the slowest prompt."""
    names = list(dict.fromkeys(categories))
    step = 0.8 / len(shown)

    def height(number: int, category: str) -> float:
        return names.index(category) - 0.4 + step * (number + 0.5)

    for number, (_, run) in enumerate(shown):
        style = look(number)
        at = [height(number, category) for category in categories]
        marks = {**style, "linestyle": "none", "markersize": 3.5}
        axes.plot(run["prompt_acceptance_lengths"], at, alpha=0.55, **marks)
        for name in names:
            mean, middle = run["by_category"][name]["mean_acceptance_length"], height(number, name)
            axes.plot([mean, mean], [middle - 0.4 * step, middle + 0.4 * step], color=style["color"], linewidth=2.5)
    number = min(range(len(shown)), key=lambda number: shown[number][1]["slowest_prompt_ratio"])
    label, slowest = shown[number]
    worst = slowest["prompt_ratios"].index(slowest["slowest_prompt_ratio"])
    place = (slowest["prompt_acceptance_lengths"][worst], height(number, categories[worst]))
    axes.plot(*place, "o", markersize=10, markerfacecolor="none", color=ALERT)
    text = f"slowest: {slowest['slowest_prompt_ratio']:.2f} x, {prompts[worst]}" + (f" ({label})" if number else "")
    ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}  # for text over bars
    axes.annotate(text, place, (9, 0), textcoords="offset points", va="center", fontsize=8, color=ALERT, bbox=ground)
    axes.set_yticks(range(len(names)), labels=[name or "no category" for name in names])
    axes.invert_yaxis()
    axes.set_xlabel("tokens per step (bars: means; marks: prompts)")
    axes.set_xlim(left=0.9)


def by_position(axes: Any, shown: Labeled) -> None:
    """Draw the acceptance rate by position in the draft."""
    for number, (label, run) in enumerate(shown):
        counts = zip(run["drafted_by_position"], run["accepted_by_position"], strict=True)
        shares = [
            (place, 100 * accepted / drafted)
            for place, (drafted, accepted) in enumerate(counts, 1)
            if drafted >= MIN_DRAFTED
        ]
        if shares:
            axes.plot(*zip(*shares, strict=True), label=label, **look(number))
    axes.set_xlabel(f"position in the draft, with {MIN_DRAFTED} or more drafts")
    axes.set_ylabel("acceptance rate (%)")
    axes.set_ylim(0, 104)  # room for the mark at 100 %
    axes.xaxis.get_major_locator().set_params(integer=True)


def by_source(axes: Any, shown: Labeled) -> None:
    """Draw the acceptance rate by source."""
    bars = [
        (name if name == label or len(shown) == 1 else f"{name} ({label})", count, number)
        for number, (label, run) in enumerate(shown)
        for name, count in run["acceptance_by_source"].items()
    ]
    bars = sorted(bars, key=lambda bar: -bar[1]["drafted"])[:MOST_SOURCES]
    bars.sort(key=lambda bar: bar[2])
    for place, (_, count, number) in enumerate(bars):
        share = 100 * count["acceptance_rate"]
        axes.barh(place, share, color=look(number)["color"], alpha=0.85)
        text = f"{count['accepted']:,} of {count['drafted']:,}"
        axes.annotate(text, (share, place), (4, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(bars)), labels=[label for label, _, _ in bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 130)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("acceptance rate of the source (%)")
