"""``ipex-lookahead bench``: one subcommand for each benchmark, in ``bench/<name>.py``."""

from __future__ import annotations

import click

from ipex_lookahead.cli.commands import LazyGroup

COMMANDS = {
    "decode": "decoding speed with and without lookahead, and whether the tokens are the same",
    "exact": "whether any strategy, draft length or sampling method changes a token",
    "step": "a whole decoder step on random weights of a known shape, by rows",
    "kernels": "linear layers by format, instruction set and rows",
    "replay": "proposers and draft lengths on recorded answers, without a model",
    "run": "a plan of models, formats and lengths, with a report",
    "serve": "a server under load, and whether load changes an answer",
    "quality": "perplexity, KL divergence and speed of formats, compared with float32",
}
"""Subcommand -> its line in ``--help``."""


@click.group(cls=LazyGroup, lines=COMMANDS, module="ipex_lookahead.bench.{}")
def bench() -> None:
    """Benchmarks. Every command has --json, which prints one JSON object as the last line."""
