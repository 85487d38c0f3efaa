"""``ipex-lookahead drafter``: heads for drafting. One subcommand a file, imported when it is asked for."""

from __future__ import annotations

import click

from ipex_lookahead.cli.commands import LazyGroup

COMMANDS = {
    "cut": "choose the tokens that a head drafts, by texts",
}
"""Subcommand -> its line in ``--help``."""


@click.group(cls=LazyGroup, lines=COMMANDS, module="ipex_lookahead.cli.drafter_{}")
def drafter() -> None:
    """Heads that draft for a model."""
