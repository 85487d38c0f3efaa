"""``ipex-lookahead doctor``: check that everything works on this machine, as a report for an issue.

The checks are in ``examine.py`` and, for OpenCL devices, in ``examine_opencl.py``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from ipex_lookahead.bench.examine_embedding import embedding_lines
from ipex_lookahead.bench.options import json_option
from ipex_lookahead.bench.roofline import HEADINGS, table, title
from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import PLACES, model_option, threads_option
from ipex_lookahead.cli.names import WEIGHTS
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.tables import markdown_lines, terminal_width
from ipex_lookahead.cli.types import LowBit
from ipex_lookahead.errors import SaveError
from ipex_lookahead.files.temporary import temporary_file

WIDE = 200
"""Columns of the report in a file."""


@dataclass
class Examined:
    """The checks."""

    device: str = option("Device: cpu, xpu[:N] (Intel GPU), cuda or opencl[:N].", "cpu", type=PLACES)
    model: str = model_option
    tiny: bool = option("Use a small random model instead of downloading one; speeds are meaningless.", False)
    low_bit: str | None = option(f"Weight format: {WEIGHTS}. Default: the file's own.", type=LowBit())
    threads: int | None = threads_option
    answers: int | None = option("Answers to compare per mode. Default: 20 on OpenCL, else 3.", low=1, high=60)
    max_new_tokens: int = option("Maximum number of tokens per answer.", 48, "-n", low=8)
    report: Path | None = option("Folder for the report to attach to an issue. Default on OpenCL: the current folder.")


@command("ipex-lookahead doctor", "ipex-lookahead doctor --device xpu --tiny")
def doctor(what: Examined, as_json: bool = json_option) -> None:
    """Check versions, device, kernels, exactness and speed; exit code 1 if something is wrong.

    The report has no paths, host names or user names. Paste it into an issue.
    """
    from ipex_lookahead.bench.examine import examine
    from ipex_lookahead.bench.examine_opencl import examine_opencl, uses_opencl

    by_opencl = uses_opencl(what.device)
    report = (examine_opencl if by_opencl else examine)(
        **{name: value for name, value in vars(what).items() if name not in ("answers", "report")},
        prompts=what.answers or (20 if by_opencl else 3),
        say=lambda line: click.echo(f"{line} ...", err=True),
    )
    click.echo("\n".join(lines(report, terminal_width(to_stderr=as_json))), err=as_json)
    folder = what.report or (Path() if by_opencl else None)
    if folder is not None:
        file = write_report(folder, lines(report, WIDE), report)
        click.echo(f"Attach this file to an issue: {file}", err=True)
    if as_json:
        click.echo(json.dumps(report))
    if not report["healthy"]:
        raise click.exceptions.Exit(1)


def lines(report: dict[str, Any], width: int) -> list[str]:
    """Return the report as Markdown; tables become lists if ``width`` columns are too few."""
    output = ["### ipex-lookahead doctor", ""]
    output += [f"- {name} {number}" for name, number in report["versions"].items()]
    for part in ("machine", "device"):
        output += [f"- {key.replace('_', ' ')}: {_spoken(key, value)}" for key, value in report[part].items()]
    kernels = [
        (
            entry["backend"],
            entry["format"],
            entry.get("problem", "passed"),
            ", ".join(f"{value:.3f}" for value in entry.get("milliseconds", {}).values()),
        )
        for entry in report["kernels"]
    ]
    if kernels:
        output += ["", *markdown_lines(("kernel", "format", "self-test", "ms for 1, 4, 16 rows"), kernels, width)]
    if by_bytes := report.get("by_bytes"):
        equal = by_bytes.get("formats", 0) - len(by_bytes.get("different", ()))
        compared = f"Kernels of {by_bytes.get('isa')} compared with scalar ones: the same bytes in {equal} formats."
        output += ["", f"Native kernels: {by_bytes['problem']}" if "problem" in by_bytes else compared]
    output += _of_opencl(report, width)
    output += ["", f"Model: {report['model']}", ""]
    if found := report.get("embedding"):
        problems = [f"**Problem**: {line}" for line in report["problems"]]
        return output + embedding_lines(found) + ["", *(problems or ["Everything works."])]
    headings = ("engine", "plain", "lookahead", "tok/s", "tok/step", "equal")
    output += markdown_lines(headings, [row for tried in report["engines"] for row in _rows(tried)], width)
    for tried in report["engines"]:
        if "problem" in tried:
            output += ["", f"{_name(tried)} cannot run: {tried['problem']}"]
    output += [""]
    if (tried := next((one for one in report["engines"] if one.get("backends")), None)) is not None:
        served = ", ".join(f"{low_bit} by {name}" for low_bit, name in tried["backends"].items())
        output.append(f"Linear layers of {tried['engine']}: {served}.")
    same = "plain decoding" if "paths" not in report else "plain decoding on the CPU"
    output += [f"plain: tokens per second without lookahead; equal: answers with the same tokens as {same}.", ""]
    if left_out := report.get("without_torch"):
        output += [left_out, ""]
    output += ["Equal text is promised for native and opencl, and for torch with --deterministic.", ""]
    return output + ([f"**Problem**: {line}" for line in report["problems"] or ()] or ["Everything works."])


def _of_opencl(report: dict[str, Any], width: int) -> list[str]:
    if "paths" not in report:
        return []
    output = ["", *(f"- {name}: {state}" for name, state in report["paths"].items())]
    output += of_device(report)
    if "logits" in report:
        output += ["", f"Logits by bytes: {report['logits']['equal']} of {report['logits']['answers']} answers equal."]
    if "steps" in report:
        contexts = list(report["steps"])
        rows = list(report["steps"][contexts[0]])
        steps = [(row, *(_milliseconds(report["steps"][context].get(row)) for context in contexts)) for row in rows]
        output += ["", *markdown_lines(("rows of a step", *(f"ms at {one}" for one in contexts)), steps, width)]
        output += ["", f"Prompts are read at {_speed(report['prefill_tok_s'])} tokens per second."]
    return output + [line for profile in report.get("profiles", ()) for line in of_profile(profile, width)]


def of_profile(profile: dict[str, Any], width: int) -> list[str]:
    """Return the roofline of a step as Markdown, with an empty line before it."""
    return ["", title(profile), "", *markdown_lines(HEADINGS, table(profile), width)]


def of_device(report: dict[str, Any]) -> list[str]:
    """Return bandwidth and launch overhead of a device as Markdown, with an empty line before each."""
    output = []
    if "bandwidth" in report:
        rates = ", ".join(f"{name.replace('_', ' ')} {rate} GB/s" for name, rate in report["bandwidth"].items())
        output += ["", f"Memory: {rates}."]
    if "launches" in report:
        launch = report["launches"]
        output += [
            "",
            f"Launches: {launch['enqueue_us']} us to enqueue, {launch['launched_us']} us until finished, one of many;"
            f" {launch['alone_us']} us alone.",
        ]
    return output


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def write_report(folder: Path, output: list[str], report: dict[str, Any], name: str = "ipex-lookahead-doctor") -> Path:
    """Write the report and all figures as JSON to ``name-DATE-TIME.md`` for an issue, atomically. Raises SaveError."""
    file = folder / f"{name}-{datetime.now():%Y%m%d-%H%M%S}.md"
    figures = ["", "<details><summary>All figures</summary>", "", "```json", json.dumps(report, indent=1), "```", ""]
    try:
        with temporary_file(file) as half:
            half.write_text("\n".join([*output, *figures, "</details>", ""]), encoding="utf-8")
            half.rename(file)
    except OSError as error:
        raise SaveError(
            f"the report could not be written to {file}: {error.strerror}",
            hint="choose a writable folder with --report",
        ) from None
    return file


def _rows(tried: dict[str, Any]) -> list[tuple[object, ...]]:
    if tried.get("lookahead") == []:  # the baseline of the comparison
        return [(_name(tried), _speed(tried["plain_tok_s"]), "", "", "", "")]
    return [
        (
            _name(tried),
            _speed(tried["plain_tok_s"]),
            f"{row['strategy']} {row['draft_tokens'] or ''}".strip(),
            _speed(row["tok_s"]),
            row["tokens_per_step"],
            f"{row['equal']}/{row['answers']}",
        )
        for row in tried.get("lookahead", ())
    ]


def _speed(rate: float) -> str:
    return f"{rate:.1f}" if rate < 1000 else f"{rate:.0f}"


def _name(tried: dict[str, Any]) -> str:
    return str(tried["engine"]) + (", deterministic" if tried["deterministic"] else "")


def _spoken(key: str, value: object) -> str:
    return (
        f"{value / 1e9:.1f} GB" if key in ("total_memory", "largest_buffer") and isinstance(value, int) else str(value)
    )
