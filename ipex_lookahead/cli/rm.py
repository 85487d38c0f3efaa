"""``ipex-lookahead rm``: remove a model that was fetched."""

from __future__ import annotations

import sys

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.types import Cached, Refused
from ipex_lookahead.system.terminal import is_terminal


@command("ipex-lookahead rm owner/repo")
@click.argument("name", type=Cached())
def rm(name: str, yes: bool = option("Do not ask.", False, "-y")) -> None:
    """Remove the model NAME, as `list` names it, from the cache; files of yours are never touched.

    The hub's cache is shared with other programs: a model that is removed is removed for them too.
    """
    from ipex_lookahead.hub import removal_of

    removal = removal_of(name)
    size = f"{removal.size / 1e6:,.1f} MB"
    if not yes:
        if not is_terminal(sys.stdin):
            raise Refused("rm asks before it removes, and standard input is no terminal", hint=f"rm --yes {name}")
        click.confirm(f"remove {name}, {size}, from {removal.folder}?", abort=True, err=True)
    removal.execute()
    click.echo(f"removed {name}: {removal.size:,} bytes ({size}) are free again")
