"""Measure every format on the embedded model, and llama.cpp's files of the same weights, for docs/formats.md.

python scripts/formats_table.py --llama-quantize PROGRAM   everything, on a machine with nothing else to do
python scripts/formats_table.py --llama-quantize PROGRAM --speed   the speeds alone
python scripts/formats_table.py --render                   table and picture again, from docs/results/formats.json
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from ipex_lookahead.bench.plots.drawing import check_plot
from ipex_lookahead.bench.plots.quality import plot_quality
from ipex_lookahead.hub import resolve_model

DOCS = Path(__file__).resolve().parents[1] / "docs"
RESULTS, PICTURE, PAGE = DOCS / "results" / "formats.json", DOCS / "formats.svg", DOCS / "formats.md"
BEGIN, END = "<!-- table: scripts/formats_table.py -->\n", "<!-- end of table -->\n"
KINDS = "Q2_K Q3_K_S Q3_K_M Q4_0 Q4_1 IQ4_NL IQ4_XS Q4_K_S Q4_K_M Q5_0 Q5_1 Q5_K_S Q5_K_M Q6_K Q8_0".split()
"""What llama-quantize makes, without an importance matrix."""
SPEED_TOKENS = 200
"""Number of tokens for a measurement of speed only."""


@click.command()
@click.option("--llama-quantize", "program", type=click.Path(exists=True, dir_okay=False), help="llama.cpp's program.")
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), help="Keep the files that it makes here.")
@click.option("--tokens", type=click.IntRange(2), default=20_000, help="Of the packaged text, which has fewer.")
@click.option("--speed", is_flag=True, help="Measure the speeds alone, and put them into the results.")
@click.option("--render", is_flag=True, help="Measure nothing.")
def main(program: str | None, work: Path | None, tokens: int, speed: bool, render: bool) -> None:
    """See the top of the file."""
    check_plot(PICTURE)
    if not render:
        if program is None:
            raise click.UsageError("--llama-quantize is needed to make llama.cpp's files; --render measures nothing")
        with tempfile.TemporaryDirectory() as folder:
            files = make_files(program, work or Path(folder))
            report = measure(files, SPEED_TOKENS if speed else tokens)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(with_speeds(report) if speed else report, indent=1) + "\n", encoding="utf-8")
    report = json.loads(RESULTS.read_text(encoding="utf-8"))
    plot_quality(report, PICTURE)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + table(report) + END + rest.partition(END)[2], encoding="utf-8")


def make_files(program: str, folder: Path) -> list[Path]:
    """The embedded model as float32, and what llama-quantize makes of that."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "f32.gguf"
    if not source.exists():
        command = [program, "--allow-requantize", str(resolve_model("default")), str(source), "F32"]
        subprocess.run(command, check=True, capture_output=True)
    for kind in KINDS:
        if not (made := folder / f"{kind}.gguf").exists():
            begun = made.with_suffix(".part")
            said = subprocess.run([program, str(source), str(begun), kind], capture_output=True, text=True)
            if said.returncode:
                raise click.ClickException(f"{program} made no {kind}: {said.stderr[-2000:]}")
            begun.rename(made)
    return [folder / f"{kind}.gguf" for kind in KINDS]


def measure(files: list[Path], tokens: int) -> dict[str, Any]:
    """``bench quality``'s report of all formats, of the file as it is, and of the others."""
    others = [argument for file in files for argument in ("--with-model", str(file))]
    said = run(
        "bench", "quality", "--low-bit", "all", "--with-model", "default", *others, "--tokens", str(tokens),
        "--json",
    )  # fmt: skip
    report: dict[str, Any] = json.loads(said.splitlines()[-1])
    return report


def with_speeds(measured: dict[str, Any]) -> dict[str, Any]:
    """The results so far with these speeds in them."""
    speeds = {row["name"]: row["decode_tok_s"] for row in measured["formats"]}
    report: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    for row in report["formats"]:
        row["decode_tok_s"] = speeds.get(row["name"])
    return report


def run(*arguments: str) -> str:
    """Return the standard output of a command; its standard error is shown."""
    command = [sys.executable, "-m", "ipex_lookahead.cli.main", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def table(report: dict[str, Any]) -> str:
    """Picture and table in Markdown, by bits."""
    lines = [f"![KL divergence over bits per weight]({PICTURE.name})", ""]
    lines += ["| | bits per weight | MB | perplexity | vs float32 | KL divergence | same top 1 | tok/s |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for row in sorted(report["formats"], key=lambda row: (row["bits"], row["kl"])):
        name = f"llama.cpp's {row['name']}" if row["other_file"] else f"`{row['name']}`"
        if row["name"] == "default":
            name = "the file as it is"
        speed = f"{row['decode_tok_s']:.0f}" if row["decode_tok_s"] else ""
        lines.append(
            f"| {name} | {row['bits']:.2f} | {row['bytes'] / 1e6:.0f} | {row['perplexity']:.2f} | {row['ratio']:.3f}"
            f" | {row['kl']:.4f} | {100 * row['top1']:.1f} % | {speed} |"
        )
    reference = report["reference"]
    lines += [
        "",
        f"{report['tokens']:,} tokens in windows of {report['window']}; the reference has perplexity"
        f" {reference['perplexity']:.2f}. Speeds with {report['threads']} threads on {report['isa']}."
        f" ipex-lookahead {report['version']}, {report['date']}.",
        "",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
