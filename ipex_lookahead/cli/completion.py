"""``ipex-lookahead completion``: the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ipex_lookahead.cli.commands import command


@command('eval "$(ipex-lookahead completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script for SHELL. Add the line below to the shell's startup file."""
    from ipex_lookahead.cli.main import cli

    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"click has no completion for {shell}")
    click.echo(made(cli, {}, "ipex-lookahead", "_IPEX_LOOKAHEAD_COMPLETE").source())
