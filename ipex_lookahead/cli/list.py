"""``ipex-lookahead list``: the models that are kept on this machine."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.options import json_alone_option
from ipex_lookahead.cli.tables import print_table
from ipex_lookahead.system.terminal import counted

if TYPE_CHECKING:
    from ipex_lookahead.hub import CachedModel


@command("ipex-lookahead list")
def list(as_json: bool = json_alone_option) -> None:
    """The models in our cache and in the hub's, the last used first; `rm NAME` removes one."""
    from ipex_lookahead.hub import cache_folder, cached_models, hub_cache_folder

    models = [_facts(model) for model in cached_models()]
    folders = {"cache_folder": str(cache_folder()), "hub_cache_folder": str(hub_cache_folder())}
    if as_json:
        click.echo(json.dumps({"models": models, **folders}))
        return
    if not models:
        click.echo("no models are kept yet; `ipex-lookahead pull NAME` fetches one, and 'default' comes by itself")
        return
    rows = [
        (found["name"], found["architecture"] or "-", found["format"] or "-", f"{found['bytes'] / 1e6:,.0f} MB",
         found["engine"] or "no: see info", _ago(time.time() - found["last_used"]))
        for found in models
    ]  # fmt: skip
    print_table(("name", "architecture", "format", "size", "runs on", "last used"), rows)


def _facts(model: CachedModel) -> dict[str, Any]:
    """What the table and the JSON say of a model; one that is damaged is listed too, so that it can be removed."""
    from ipex_lookahead.cli.model_facts import describe, main_format
    from ipex_lookahead.errors import LookaheadError

    found: dict[str, Any] = {
        "name": model.name,
        "path": None if model.path is None else str(model.path),
        "kind": None,
        "architecture": None,
        "format": "incomplete" if model.path is None else "damaged",
        "engine": None,
        "bytes": model.size,
        "last_used": model.last_used,
    }
    if model.path is not None:
        try:
            facts = describe(model.path)
        except LookaheadError:
            return found
        found |= {name: facts[name] for name in ("kind", "architecture", "engine")}
        found["format"] = main_format(facts["formats"])
    return found


def _ago(seconds: float) -> str:
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f"{counted(int(seconds // length), unit)} ago"
    return "just now"
