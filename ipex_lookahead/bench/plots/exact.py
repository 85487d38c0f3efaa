"""The picture of ``bench exact``: answers equal to plain decoding by strategy, mode, draft length and sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ipex_lookahead.bench.plots.drawing import ALERT, COLORS, entitle, picture
from ipex_lookahead.system.terminal import counted

EQUAL, DIFFERS = "#dce8f5", "#f7d9d9"


def plot_exact(report: dict[str, Any], file: Path) -> None:
    """Draw a cell for each configuration, red if an answer differs. Raises InputError if the file cannot be saved."""
    found = report["rows"]
    lines, budgets, samplings = (
        list(dict.fromkeys(of(row) for row in found))
        for of in (lambda row: f"{row['strategy']}, {row['mode']}", _budget, lambda row: row["sampling"])
    )
    size = (1.9 + len(samplings) * max(2.4, 0.75 * len(budgets)), 1.5 + 0.28 * len(lines))
    with picture(file, size, columns=len(samplings)) as (figure, panels):
        for sampling, axes in zip(samplings, panels, strict=True):
            for row in found:
                if row["sampling"] == sampling:
                    place = budgets.index(_budget(row)), lines.index(f"{row['strategy']}, {row['mode']}")
                    _cell(axes, place, row["equal"], row["total"])
            axes.grid(visible=False)
            axes.set_xlim(-0.5, len(budgets) - 0.5)
            axes.set_ylim(len(lines) - 0.5, -0.5)
            axes.set_xticks(range(len(budgets)), labels=budgets)
            axes.set_yticks(range(len(lines)), labels=lines if axes is panels[0] else [""] * len(lines))
            axes.tick_params(length=0)
            axes.spines[["left", "bottom"]].set_visible(False)
            axes.set_xlabel(f"{sampling}: most drafted tokens per step")
        total, equal = (sum(row[key] for row in found) for key in ("total", "equal"))
        verdict = f"all {total:,} answers have" if equal == total else f"{equal:,} of {total:,} answers have"
        what = f"{report['model']}, {report['low_bit']}, {counted(report['prompts'], 'prompt')}, "
        what += f"up to {counted(report['max_new_tokens'], 'token')} each\n{verdict} plain decoding's tokens"
        entitle(figure, what, report)


def _budget(row: dict[str, Any]) -> str:
    return str(row["draft_tokens"])


def _cell(axes: Any, place: tuple[int, int], equal: int, total: int) -> None:
    from matplotlib.patches import Rectangle

    same = equal == total
    column, line = place
    axes.add_patch(Rectangle((column - 0.47, line - 0.43), 0.94, 0.86, color=EQUAL if same else DIFFERS))
    axes.text(
        column,
        line,
        f"{equal}/{total}",
        ha="center",
        va="center",
        fontsize=8,
        color=COLORS[0] if same else ALERT,
        weight="normal" if same else "bold",
    )
