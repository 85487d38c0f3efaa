"""``bench decode`` as a picture: speed by lookahead, tokens a step by category, acceptance by position and source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ipex_lookahead.bench.plots.drawing import ALERT, FAINT, entitle, look, picture

MOST_POSITIONS = 16
"""Of a draft; the further ones are rarely drafted."""
MOST_SOURCES = 12


def plot_decode(report: dict[str, Any], file: Path) -> None:
    """Four views of ``bench decode``'s report. Raises InputError if the file cannot be saved."""
    runs = report["runs"]
    ahead = runs[1:]
    size = (10.5, 8.0) if ahead else (6.0, 4.2)
    with picture(file, size, *((2, 2) if ahead else (1, 1))) as (figure, axes):
        over_lookahead(axes[0], runs)
        if ahead:
            by_category(axes[1], ahead, report["categories"], report["prompts"])
            by_position(axes[2], ahead)
            by_source(axes[3], ahead)
        same = all(len(set(run["identical_to_plain"].split("/"))) == 1 for run in runs)
        said = (
            "every answer has the tokens of plain decoding" if same else "NOT every answer has plain decoding's tokens"
        )
        count = f"{runs[0]['prompts']} prompts, up to {report['max_new_tokens']} tokens each"
        entitle(figure, f"{report['model']} · {report['low_bit']} · {count}; {said}", report)


def over_lookahead(axes: Any, runs: list[dict[str, Any]]) -> None:
    """Tokens a second by how many may be drafted: a line for each strategy, a mark for each ``auto``."""
    numbers = sorted({run["lookahead"] for run in runs if isinstance(run["lookahead"], int)})
    names = [*numbers, *dict.fromkeys(_name(run) for run in runs if run["lookahead"] == "auto")]
    plain = runs[0]["decode_tok_s"]
    axes.axhline(plain, color=FAINT, linewidth=0.8, linestyle="--")
    lines: dict[str, list[dict[str, Any]]] = {}
    for run in runs[1:]:
        key = _name(run) if run["lookahead"] == "auto" else " ".join(filter(None, (run["strategy"], run["memory"])))
        lines.setdefault(key, []).append(run)
    for number, (label, some) in enumerate(lines.items()):
        if some[0]["lookahead"] == "auto":
            at = [(names.index(_name(run)), run["decode_tok_s"]) for run in some]
        else:
            at = [(0, plain), *sorted((names.index(run["lookahead"]), run["decode_tok_s"]) for run in some)]
        axes.plot(*zip(*at, strict=True), label=label, **look(number))
    for place, name in enumerate(names):
        best = max(run["decode_tok_s"] for run in runs if name in (run["lookahead"], _name(run)))
        axes.annotate(f"{best:.0f}", (place, best), (0, 6), textcoords="offset points", ha="center", fontsize=8)
    axes.set_xticks(range(len(names)), labels=["off" if name == 0 else str(name).replace(" ", "\n") for name in names])
    axes.set_xlabel("n_lookahead_tokens: most drafted tokens a step")
    axes.set_ylabel("tokens a second after the first")
    axes.set_ylim(0, 1.15 * max(run["decode_tok_s"] for run in runs))
    axes.margins(x=0.08)
    if lines:
        axes.legend(loc="lower right", fontsize=8)


def by_category(axes: Any, runs: list[dict[str, Any]], categories: list[str], prompts: list[str]) -> None:
    """Tokens a step of each prompt, by category, a row for each mode; the slowest prompt has a ring."""
    names = list(dict.fromkeys(categories))
    step = 0.8 / len(runs)
    for number, run in enumerate(runs):
        place = [names.index(name) - 0.4 + step * (number + 0.5) for name in categories]
        lengths = run["prompt_acceptance_lengths"]
        style = look(number)
        axes.plot(lengths, place, linestyle="none", alpha=0.55, **{**style, "markersize": 3.5}, label=_name(run))
        for row, name in enumerate(names):
            mean = run["by_category"][name]["mean_acceptance_length"]
            middle = row - 0.4 + step * (number + 0.5)
            axes.plot([mean, mean], [middle - 0.4 * step, middle + 0.4 * step], color=style["color"], linewidth=2)
    slowest = min(runs, key=lambda run: run["slowest_prompt_ratio"])
    worst = slowest["prompt_ratios"].index(slowest["slowest_prompt_ratio"])
    spot = names.index(categories[worst]) - 0.4 + step * (runs.index(slowest) + 0.5)
    length = slowest["prompt_acceptance_lengths"][worst]
    axes.plot([length], [spot], "o", markersize=10, markerfacecolor="none", color=ALERT)
    axes.annotate(
        f"slowest: {slowest['slowest_prompt_ratio']:.2f} x, {prompts[worst]} ({_name(slowest)})",
        (length, spot),
        (9, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
        color=ALERT,
    )
    axes.set_yticks(range(len(names)), labels=[name or "no category" for name in names])
    axes.invert_yaxis()
    axes.set_xlabel("tokens a step (bars: means; marks: prompts)")
    axes.set_xlim(left=0.9)
    axes.margins(x=0.15)
    if len(runs) > 1:
        axes.legend(loc="lower right", fontsize=7)


def by_position(axes: Any, runs: list[dict[str, Any]]) -> None:
    """Of the tokens drafted so far behind the last one, the share that was accepted."""
    for number, run in enumerate(runs):
        drafted, accepted = run["drafted_by_position"][:MOST_POSITIONS], run["accepted_by_position"]
        shares = [(place + 1, 100 * accepted[place] / count) for place, count in enumerate(drafted) if count]
        if shares:
            axes.plot(*zip(*shares, strict=True), label=_name(run), **look(number))
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("accepted of the drafted there (%)")
    axes.set_ylim(0, 100)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if axes.lines:
        axes.legend(fontsize=8)


def by_source(axes: Any, runs: list[dict[str, Any]]) -> None:
    """Of the tokens that a source put forward, the share that was accepted."""
    bars = [
        (f"{name} ({_name(run)})" if len(runs) > 1 else name, count, number)
        for number, run in enumerate(runs)
        for name, count in run["acceptance_by_source"].items()
    ]
    bars = sorted(bars, key=lambda bar: -bar[1]["drafted"])[:MOST_SOURCES]
    bars.sort(key=lambda bar: bar[2])
    for place, (_, count, number) in enumerate(bars):
        axes.barh(place, 100 * count["acceptance_rate"], color=look(number)["color"], alpha=0.85)
        text = f"{count['accepted']:,} of {count['drafted']:,}"
        axes.annotate(text, (100 * count["acceptance_rate"], place), (4, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(bars)), labels=[label for label, _, _ in bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 118)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("accepted of what the source drafted (%)")


def _name(run: dict[str, Any]) -> str:
    if run["lookahead"] == 0:
        return "off"
    strategy = None if run["lookahead"] == "auto" else run["strategy"]
    return " ".join(filter(None, (str(run["lookahead"]), strategy, run["memory"])))
