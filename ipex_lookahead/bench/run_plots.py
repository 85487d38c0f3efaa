"""The pictures of ``bench run``'s page: speed over drafted tokens, and latency and speed over context, as SVG."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from ipex_lookahead.bench.plots import STYLE

COLOURS = ("#1f5fa8", "#c2571a", "#2e7d4f", "#8b3fa0", "#a8871f", "#5a5a5a")
MARKS = "os^Dvx"

Runs = list[tuple[dict[str, Any], dict[str, Any]]]
"""(case, one of its runs)."""


def run_pictures(report: dict[str, Any]) -> list[tuple[str, str]]:
    """(what it shows, SVG) of each picture that ``run``'s report has points for."""
    import matplotlib

    runs = [(case, run) for case in report["cases"] for run in case.get("runs", ())]
    with matplotlib.rc_context(STYLE):
        drawn = (over_lookahead(runs, report), over_context(runs, report))
    return [picture for picture in drawn if picture is not None]


def over_lookahead(runs: Runs, report: dict[str, Any]) -> tuple[str, str] | None:
    """Tokens a second by how many may be drafted, a line for each model, format and length."""
    names = list(dict.fromkeys(run["lookahead"] for _, run in runs))
    if len(names) < 2:
        return None
    figure, (axes,) = _figure(1)
    for number, (label, some) in enumerate(_lines(runs, with_length=True)):
        at = {run["lookahead"]: run["tok_s"] for _, run in some}
        axes.plot(
            [names.index(name) for name in at],
            list(at.values()),
            marker=MARKS[number % len(MARKS)],
            color=COLOURS[number % len(COLOURS)],
            label=label,
        )
    axes.set_xticks(range(len(names)), labels=["off" if name == "0" else name for name in names])
    axes.set_xlabel("lookahead: most drafted tokens a step")
    axes.set_ylabel("tokens a second after the first")
    axes.set_ylim(bottom=0)
    same = all(run["identical"] for _, run in runs)
    said = "every answer has" if same else "NOT every answer has"
    return f"Speed by lookahead; {said} the same tokens as with lookahead off.", _svg(figure, report)


def over_context(runs: Runs, report: dict[str, Any]) -> tuple[str, str] | None:
    """Time to the first token, and plain decoding's speed, by the tokens before."""
    plain = [(case, run) for case, run in runs if run["lookahead"] == "0"]
    if len({case["tokens_in"] for case, _ in plain}) < 2:
        return None
    figure, (first, rest) = _figure(2)
    for number, (label, some) in enumerate(_lines(plain, with_length=False)):
        some = sorted(some, key=lambda pair: pair[0]["tokens_in"])
        length = [case["tokens_in"] for case, _ in some]
        look = {"marker": MARKS[number % len(MARKS)], "color": COLOURS[number % len(COLOURS)], "label": label}
        first.plot(length, [1e3 * run["first_token_seconds"] for _, run in some], **look)
        rest.plot(length, [run["tok_s"] for _, run in some], **look)
    first.set_ylabel("milliseconds to the first token")
    rest.set_ylabel("tokens a second after the first")
    for axes in (first, rest):
        axes.set_xlabel("tokens in")
        axes.set_ylim(bottom=0)
    return "Latency and plain decoding's speed over the length of the prompt.", _svg(figure, report)


def _lines(runs: Runs, *, with_length: bool) -> Iterable[tuple[str, Runs]]:
    """(label, runs) of what belongs on one line; a label says only what differs."""
    keys = ("model", "low_bit", "api", "threads", "batch", *(("tokens_in", "tokens_out") if with_length else ()))
    differing = [key for key in keys if len({case[key] for case, _ in runs}) > 1]
    groups: dict[str, Runs] = {}
    for case, run in runs:
        groups.setdefault(_label(case, differing), []).append((case, run))
    return groups.items()


def _label(case: dict[str, Any], differing: list[str]) -> str:
    said = []
    for key in differing:
        if key == "tokens_in":
            said.append(f"{case['tokens_in']} in, {case['tokens_out']} out")
        elif key == "batch":
            said.append(f"batch {case['batch']}")
        elif key == "threads":
            said.append(f"{case['threads']} threads")
        elif key != "tokens_out" or "tokens_in" not in differing:
            said.append(str(case[key] or "as in the file"))
    return ", ".join(said) or str(case["model"])


def _figure(panels: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.2), layout="constrained", facecolor="white")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    for one in axes:
        one.grid(color="#dddddd", linewidth=0.6)
        one.set_axisbelow(True)
    return figure, axes


def _svg(figure: Any, report: dict[str, Any]) -> str:
    axes = figure.axes[0]
    if len(axes.lines) > 1:
        drawn = axes.get_legend_handles_labels()  # the other axes have the same
        figure.legend(*drawn, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    machine = report["machine"]
    said = [
        machine.get("processor", ""),
        machine.get("isa", ""),
        f"ipex-lookahead {report['versions']['ipex-lookahead']}",
    ]
    figure.suptitle(" · ".join([*filter(None, said), report["date"][:10]]), fontsize=8, color="#666666")
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]
