"""``benchmarks.compare`` as a picture: each program's plain and own drafted speed, with how many outputs stay equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ipex_lookahead.bench.plots.drawing import ALERT, COLORS, FAINT, entitle, picture

MODES = {"plain": COLORS[5], "lookahead": COLORS[0], "auto": COLORS[2]}


def plot_compare(report: dict[str, Any], file: Path) -> None:
    """Tokens per second of decoding, and of the prompt. Raises InputError if the file cannot be saved."""
    rows = report["rows"]
    with picture(file, (11.0, 1.6 + 0.42 * len(rows)), columns=2) as (figure, (decode, prompt)):
        for axes, key in ((decode, "decode_tok_s"), (prompt, "prefill_tok_s")):
            most = max(row[key] for row in rows)
            for place, row in enumerate(rows):
                axes.barh(place, row[key], color=MODES[row["mode"]], alpha=0.9)
                same, _, count = row["identical_to_plain"].partition("/")
                text, color = f"{row[key]:,.0f}", "black"
                if key == "decode_tok_s" and row["mode"] != "plain":
                    text += f"   {row['ratio']:.2f} x, {same} of {count} outputs as plain"
                    color = "black" if same == count else ALERT
                axes.annotate(
                    text, (row[key], place), (4, 0), textcoords="offset points", va="center", color=color, fontsize=8
                )
            axes.invert_yaxis()
            axes.set_xlim(0, most * (2.3 if key == "decode_tok_s" else 1.2))
        labels = [f"{row['peer']} {row['version']}, {row['mode']}" for row in rows]
        decode.set_yticks(range(len(rows)), labels=labels)
        prompt.set_yticks(range(len(rows)), labels=[])
        decode.set_xlabel("decoding, tokens per second")
        prompt.set_xlabel("prompt, tokens per second until the first answers")
        weights = "\n".join(dict.fromkeys(f"{row['peer']}: {row['weights']}; {row['lookup']}" for row in rows))
        figure.supxlabel(weights, fontsize=7.5, color=FAINT)
        what = (
            f"{report['prompts']} prompts, up to {report['max_new_tokens']} tokens each, {report['lookahead']} drafted"
        )
        entitle(figure, what, report)
