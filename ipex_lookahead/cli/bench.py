"""``ipex-lookahead bench``: one subcommand for each benchmark, in ``bench/<name>.py``."""

from __future__ import annotations

import click

from ipex_lookahead.cli.commands import LazyGroup

COMMANDS = {
    "decode": "decoding speed with and without lookahead",
    "exact": "check that no strategy, draft length or sampling method changes a token",
    "step": "time of a decoder step by number of rows, on random weights",
    "image": "time of encoding an image and reading its rows by size",
    "kernels": "speed of linear layers by format, instruction set and number of rows",
    "replay": "strategies and draft lengths on recorded answers, without a model",
    "run": "run a plan of models, formats and lengths, and write a report",
    "serve": "throughput and latency of a server under load",
    "embed": "texts per second of an embedding model by length and batch size",
    "retrieval": "cosine and nDCG@10 of the formats of an embedding model",
    "agent": "time to first token in the turns of a coding agent: cold, warm, after a restart",
    "quality": "perplexity, KL divergence and speed of formats, compared with float32",
}
"""Subcommand -> its line in ``--help``."""


@click.group(cls=LazyGroup, lines=COMMANDS, module="ipex_lookahead.bench.{}")
def bench() -> None:
    """Run benchmarks. --json prints one JSON object as the last line."""
