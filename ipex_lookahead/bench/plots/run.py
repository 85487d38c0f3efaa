"""The pictures of ``bench run``: speed by drafted tokens, and latency and speed by context, as SVG."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from ipex_lookahead.bench.plots.drawing import entitle, from_zero, look, picture, powers_of_two

_SPREAD = "Marks: medians; strokes: from the slowest trial to the fastest."
Runs = list[tuple[dict[str, Any], dict[str, Any]]]
"""(case, one of its runs)."""


def run_pictures(report: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return name -> (caption, SVG) for each picture with data in the report."""
    runs = [(case, run) for case in report["cases"] for run in case.get("runs", ())]
    drawn = {"lookahead": over_lookahead(runs, report), "context": over_context(runs, report)}
    return {name: found for name, found in drawn.items() if found is not None}


def over_lookahead(runs: Runs, report: dict[str, Any]) -> tuple[str, str] | None:
    """Draw tokens per second by most drafted tokens, with a line for each model, format and length."""
    names = list(dict.fromkeys(run["lookahead"] for _, run in runs))
    if len(names) < 2:
        return None
    buffer = io.StringIO()
    with picture(buffer, (5.6, 4.0)) as (figure, (axes,)):
        for number, (label, some) in enumerate(_lines(runs, with_length=True)):
            _line(axes, [names.index(run["lookahead"]) for _, run in some], [run for _, run in some], label, number)
        axes.set_xticks(range(len(names)), labels=["off" if name == "0" else name for name in names])
        axes.set_xlabel("lookahead: most drafted tokens per step")
        axes.set_ylabel("tokens per second after the first")
        from_zero(axes)
        _label(figure, "Speed by lookahead", report)
    same = all(run["identical"] for _, run in runs)
    answers = "every answer has" if same else "NOT every answer has"
    noise = " Hollow marks: noise." if any(run["ratio_is_noise"] for _, run in runs) else ""
    title = f"Speed by lookahead; {answers} the same tokens as with lookahead off. {_SPREAD}{noise}"
    return title, buffer.getvalue()


def over_context(runs: Runs, report: dict[str, Any]) -> tuple[str, str] | None:
    """Draw the speed of prefill and of plain decoding by prompt length."""
    plain = [(case, run) for case, run in runs if run["lookahead"] == "0"]
    lengths = sorted({case["tokens_in"] for case, _ in plain})
    if len(lengths) < 2:
        return None
    buffer = io.StringIO()
    with picture(buffer, (5.6, 6.4), rows=2) as (figure, (prompt, rest)):
        for number, (label, some) in enumerate(_lines(plain, with_length=False)):
            some = sorted(some, key=lambda pair: pair[0]["tokens_in"])
            length = [case["tokens_in"] for case, _ in some]
            tokens = [case["tokens_in"] * case["batch"] for case, _ in some]
            read = [count / run["first_token_seconds"] for count, (_, run) in zip(tokens, some, strict=True)]
            prompt.plot(length, read, label=label, **look(number))
            slow, quick = zip(*(run["first_token_seconds_range"][::-1] for _, run in some), strict=True)
            ends = [[count / seconds for count, seconds in zip(tokens, end, strict=True)] for end in (slow, quick)]
            prompt.vlines(length, *ends, **_spread(number))
            _line(rest, length, [run for _, run in some], label, number)
        prompt.set_ylabel("prompt tokens per second")
        rest.set_ylabel("tokens per second, lookahead off")
        for axes in (prompt, rest):
            powers_of_two(axes, lengths)
            axes.set_xlabel("tokens of the prompt")
            from_zero(axes)
        _label(figure, "Speed over context", report)
    return f"Speed by context: prefill, and plain decoding after it. {_SPREAD}", buffer.getvalue()


def _line(axes: Any, at: list[int], runs: list[dict[str, Any]], label: str, number: int) -> None:
    """Draw medians, strokes from the slowest to the fastest trial, and hollow marks for noise."""
    style = look(number)
    axes.plot(at, [run["tok_s"] for run in runs], label=label, **style)
    axes.vlines(at, *zip(*(run["tok_s_range"] for run in runs), strict=True), **_spread(number))
    noise = [(place, run["tok_s"]) for place, run in zip(at, runs, strict=True) if run["ratio_is_noise"]]
    if noise:
        hollow = {**style, "linestyle": "none", "markerfacecolor": "white"}
        axes.plot(*zip(*noise, strict=True), label="_noise", **hollow)


def _spread(number: int) -> dict[str, Any]:
    return {"color": look(number)["color"], "alpha": 0.45, "linewidth": 2.5}


def _label(figure: Any, title: str, report: dict[str, Any]) -> None:
    axes = figure.axes[0]
    drawn = axes.get_legend_handles_labels()  # the same for all axes
    if len(drawn[0]) > 1:
        figure.legend(*drawn, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    entitle(figure, title, {**report, "version": report["versions"]["ipex-lookahead"]})


def _lines(runs: Runs, *, with_length: bool) -> Iterable[tuple[str, Runs]]:
    """Return (label, runs) of each line; a label has only the settings that differ."""
    keys = ("model", "low_bit", "api", "threads", "batch", *(("tokens_in", "tokens_out") if with_length else ()))
    differing = [key for key in keys if len({case[key] for case, _ in runs}) > 1]
    groups: dict[str, Runs] = {}
    for case, run in runs:
        groups.setdefault(_name(case, differing), []).append((case, run))
    return groups.items()


def _name(case: dict[str, Any], differing: list[str]) -> str:
    words = []
    for key in differing:
        if key == "tokens_in":
            words.append(f"{case['tokens_in']} in, {case['tokens_out']} out")
        elif key == "batch":
            words.append(f"batch {case['batch']}")
        elif key == "threads":
            words.append(f"{case['threads']} threads")
        elif key != "tokens_out" or "tokens_in" not in differing:
            words.append(str(case[key] or "as in the file"))
    return ", ".join(words) or str(case["model"])
