"""The CSV file and the HTML page of ``bench run``.

The CSV file begins with the columns of ipex-llm's all-in-one benchmark, so that existing spreadsheets keep working.
Figures named "avg" are medians of the trials.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from html import escape
from typing import Any

from ipex_lookahead.system.terminal import counted

Column = Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], Any]
"""(case, one of its runs, settings of the plan) -> cell."""
COLUMNS: dict[str, Column] = {
    "model": lambda case, run, settings: case["model"],
    "1st token avg latency (ms)": lambda case, run, settings: round(1e3 * run["first_token_seconds"], 2),
    "2+ avg latency (ms/token)": lambda case, run, settings: round(1e3 * run["next_token_seconds"], 3),
    "encoder time (ms)": lambda case, run, settings: 0.0,
    "input/output tokens": lambda case, run, settings: f"{case['tokens_in']}-{case['tokens_out']}",
    "batch_size": lambda case, run, settings: case["batch"],
    "actual input/output tokens": lambda case, run, settings: f"{case['tokens_in']}-{run['tokens_out']}",
    "num_beams": lambda case, run, settings: 1,
    "low_bit": lambda case, run, settings: case["low_bit"],
    "cpu_embedding": lambda case, run, settings: settings.get("cpu_embedding", False),
    "model loading time (s)": lambda case, run, settings: round(case["loading_seconds"], 3),
    "peak mem (GB)": lambda case, run, settings: (
        "" if case["peak_bytes"] is None else round(case["peak_bytes"] / 1e9, 3)
    ),
    "streaming": lambda case, run, settings: settings.get("streaming", False),
    "use_fp16_torch_dtype": lambda case, run, settings: settings.get("use_fp16_torch_dtype", False),
    # further columns
    "lookahead": lambda case, run, settings: run["lookahead"],
    "tok/s": lambda case, run, settings: round(run["tok_s"], 2),
    "tok/s least": lambda case, run, settings: round(run["tok_s_range"][0], 2),
    "tok/s most": lambda case, run, settings: round(run["tok_s_range"][1], 2),
    "speedup": lambda case, run, settings: round(run["speedup"], 3),
    "noise": lambda case, run, settings: run["ratio_is_noise"],
    "tokens/step": lambda case, run, settings: round(run["tokens_a_step"], 3),
    "acceptance": lambda case, run, settings: round(run["acceptance_rate"], 3),
    "identical": lambda case, run, settings: run["identical"],
    "engine": lambda case, run, settings: case["engine"],
    "isa": lambda case, run, settings: case["isa"],
    "threads": lambda case, run, settings: case["threads"],
    "api": lambda case, run, settings: case["api"],
}
"""Heading -> cell; the columns of ipex-llm are first."""
_STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1b1b1b; --line: #d5d5d5; --faint: #666666; }
@media (prefers-color-scheme: dark) {
  :root { --page: #16181c; --ink: #e8e8e8; --line: #3a3d44; --faint: #a0a4ac; }
}
body { background: var(--page); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; margin: 0 auto;
  max-width: 62rem; padding: 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .7rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th.case { padding-top: 1.1rem; white-space: normal; }
figure { margin: 1rem 0; background: #ffffff; color: #1b1b1b; border: 1px solid var(--line); border-radius: 6px;
  padding: .5rem; max-width: 44rem; }
figure svg { display: block; width: 100%; height: auto; }
@media (max-width: 36rem) { body { padding: .6rem; } table { font-size: .7rem; } th, td { padding: .3rem .2rem; } }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; } dt { color: var(--faint); }
dd { margin: 0; overflow-wrap: anywhere; } .bad { color: #c02a2a; font-weight: 600; }
.noise { color: var(--faint); }
""".strip()


SHOWN = {
    "lookahead": "lookahead",
    "1st token avg latency (ms)": "1st ms",
    "2+ avg latency (ms/token)": "2+ ms",
    "tok/s": "tok/s",
    "speedup": "ratio",
    "tokens/step": "tok/step",
    "peak mem (GB)": "GB",
    "identical": "same",
}
"""Columns of the table on the page -> headings that are short enough for a phone."""


def rows_of(report: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield one row with the names of ``COLUMNS`` for each measured case and mode."""
    for case in report["cases"]:
        for run in case.get("runs", ()):
            yield {name: cell(case, run, report["settings"]) for name, cell in COLUMNS.items()}


def as_csv(report: dict[str, Any]) -> str:
    """Return the CSV file."""
    out = io.StringIO()
    table = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(rows_of(report))
    return out.getvalue()


def as_html(report: dict[str, Any], pictures: Iterable[tuple[str, str]]) -> str:
    """Return a self-contained page with facts, the table, and pictures as (caption, SVG)."""
    rows = list(rows_of(report))
    facts = {"date": report["date"], **report["versions"], **report["machine"]}
    trials, warm_up = report["settings"].get("num_trials", 3), report["settings"].get("warm_up", 1)
    medians = f"medians of {counted(trials, 'trial')}{f' after {warm_up} to warm up' if warm_up else ''}"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>ipex-lookahead bench run</title><style>{_STYLE}</style></head><body>",
        "<h1>Speed with and without lookahead</h1>",
        f"<p>Greedy answers of exactly the given lengths, modes alternating, {escape(medians)}. "
        "<b>1st ms</b>: milliseconds to the first token; <b>2+ ms</b>: for each further token; <b>ratio</b>: speed "
        "relative to lookahead 0, <b>noise</b> with too few tokens or trials, or both slower and faster ones; "
        "<b>GB</b>: peak memory; <b>same</b>: the tokens are those of plain decoding.</p>",
        *(f"<figure>{svg}<figcaption>{escape(title)}</figcaption></figure>" for title, svg in pictures),
        '<h2>All cases</h2><div class="scroll"><table><thead><tr>',
        *(f"<th>{escape(heading)}</th>" for heading in SHOWN.values()),
        "</tr></thead><tbody>",
    ]
    before = None
    for row in rows:
        if (case := _case(row)) != before:
            parts.append(f'<tr><th class="case" colspan="{len(SHOWN)}">{escape(case)}</th></tr>')
            before = case
        parts.append("<tr>" + "".join(_cell(name, row) for name in SHOWN) + "</tr>")
    parts.append("</tbody></table></div>")
    failed = [(case["key"], case["error"]) for case in report["cases"] if "error" in case]
    if failed:
        parts.append("<h2>Not measured</h2><ul>")
        parts += [f"<li><b>{escape(key)}</b>: {escape(why)}</li>" for key, why in failed]
        parts.append("</ul>")
    if any(case.get("text_repeats") for case in report["cases"]):
        parts.append(
            "<p>The text of the prompts was too short for some cases and was repeated, which favors lookahead.</p>"
        )
    parts.append("<h2>Machine and versions</h2><dl>")
    parts += [f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items()]
    parts.append("</dl></body></html>\n")
    return "\n".join(parts)


def _case(row: dict[str, Any]) -> str:
    """Return the description of the case of a row."""
    words = [row["model"], row["low_bit"] or "as in the file", f"{row['input/output tokens']} tokens in and out"]
    if row["batch_size"] > 1:
        words.append(f"batch {row['batch_size']}")
    return " · ".join([*words, f"{row['engine']} engine", counted(row["threads"], "thread")])


def _cell(name: str, row: dict[str, Any]) -> str:
    value = row[name]
    if name == "speedup" and row["noise"]:
        return f'<td class="noise">~{value:.2f} (noise)</td>'
    if name == "identical":
        return "<td>yes</td>" if value is True else '<td class="bad">NO</td>'
    if isinstance(value, float):  # three digits; the CSV file has more
        value = f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"
    return f"<td>{escape(str(value))}</td>"
