"""Options that all benchmarks share: prompts, a plot, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipex_lookahead.cli.options import option

if TYPE_CHECKING:
    from ipex_lookahead.cli.prompts import Prompt

PACKAGED_PROMPTS = Path(__file__).with_name("prompts.jsonl")
"""Prompts of several categories; the default."""
STEP = {"rows": "{rows}", "ms": "{ms:.3f}", "ratio": "{ratio:.2f}", "GB/s": "{gb_s:.1f}", "GOPS": "{gops:.0f}"}
"""Columns for ``print_rows``: one line for each number of rows in a step."""
limit_option = option("Use the first K prompts of each file.", low=1, metavar="K")
json_option = option("Print one JSON object as the last line.", False, "--json")


def comma_separated(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int] | None:
    """Click callback: parse ``1,2,4``; None if the option is missing."""
    if value is None:
        return None
    try:
        numbers = [int(part) for part in value.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise click.BadParameter(f"must be positive integers such as 1,2,4, got {value!r}")
    return numbers


def comma_separated_rates(ctx: click.Context, param: click.Parameter, value: str) -> list[float]:
    """Click callback: parse ``0.8,0.65``; an empty string is an empty list."""
    try:
        rates = [float(part) for part in value.split(",")] if value else []
    except ValueError:
        rates = [-1.0]
    if not all(0 <= rate <= 1 for rate in rates):
        raise click.BadParameter(f"must be rates from 0 to 1 such as 0.8,0.65,0.5, got {value!r}")
    return rates


@dataclass
class Prompts:
    """The prompts of a benchmark."""

    prompts: tuple[str, ...] = option(
        "Prompt file or folder. Repeatable; default: packaged prompts.",
        (),
        type=click.Path(),
        metavar="FILE.jsonl",
    )
    limit: int | None = limit_option

    def read(self) -> list[Prompt]:
        """Return the prompts of the given files, by default the packaged ones."""
        from ipex_lookahead.cli.prompts import read_prompts

        return read_prompts(self.prompts or [PACKAGED_PROMPTS], self.limit)


@dataclass
class Report:
    """Outputs of a benchmark in addition to its table."""

    plot: Path | None = option(
        "Save a plot as SVG or PNG; needs matplotlib.",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE.svg",
    )
    as_json: bool = json_option

    def check(self) -> None:
        """Raise before the measurement if the plot cannot be drawn or saved."""
        if self.plot is not None:
            from ipex_lookahead.bench.plots.drawing import check_plot

            check_plot(self.plot)

    def write(self, report: dict[str, Any], draw: Callable[[dict[str, Any], Path], None] | None) -> None:
        """Add version, date and machine to the report, draw it (``--plot``) and print it (``--json``)."""
        from ipex_lookahead.bench.facts import where_and_when

        found = {**report, **where_and_when()}
        if self.plot is not None and draw is not None:
            draw(found, self.plot)
            click.echo(f"saved {self.plot}", err=True)
        if self.as_json:
            click.echo(json.dumps(found))
