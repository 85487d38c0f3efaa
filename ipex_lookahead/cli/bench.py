"""``ipex-lookahead bench``: measure. One subcommand a file, ``bench_<name>.py``, imported when it is asked for."""

from __future__ import annotations

import importlib

import click

COMMANDS = {
    "decode": "decoding speed with and without lookahead, and whether the tokens are the same",
    "exact": "whether any strategy, budget or way of sampling changes a token",
    "step": "a whole decoder step on random weights of a known shape, by rows",
    "kernels": "linear layers by format, instruction set and rows",
    "replay": "proposers and budgets on recorded answers, without a model",
    "quality": "perplexity beside transformers in float32 on the same weights",
}
"""Subcommand -> its line in ``--help``."""


class Benchmarks(click.Group):
    """The subcommands of ``bench``, imported lazily."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of ``COMMANDS``."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of that name, its module imported now."""
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"ipex_lookahead.cli.bench_{name}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Benchmarks)
def bench() -> None:
    """Measure. Every command takes --json and then prints one JSON object as its last line."""
