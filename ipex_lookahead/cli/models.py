"""``ipex-lookahead pull``, ``list`` and ``rm``: the models on this machine."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.options import json_alone_option, option
from ipex_lookahead.cli.tables import print_table
from ipex_lookahead.cli.types import Cached, Model, Refused
from ipex_lookahead.system.terminal import counted, is_terminal

if TYPE_CHECKING:
    from ipex_lookahead.hub import CachedModel


@command(
    "ipex-lookahead pull",
    "ipex-lookahead pull qwen3-4b",
    "ipex-lookahead pull owner/repo:model.Q4_0.gguf",
    "ipex-lookahead pull owner/repo",
)
@click.argument("model", required=False, type=Model())
def pull(model: str | None, as_json: bool = json_alone_option) -> None:
    """Fetch MODEL from the hub: a short name, owner/repo[:file.gguf], owner/repo:Q8_0, or the URL of its page.

    The drafting head recommended for a short name is fetched too.

    Without MODEL: list the recommended models by short name, with their size and the speed to expect here.

    Only the necessary files are fetched, never pickles or code. An interrupted download resumes, and large files are
    verified by their checksum. --model of all commands accepts the same names; a local file or folder takes precedence
    over a short name. Behind a proxy set HTTPS_PROXY; for private models HF_TOKEN, or use hf auth login. HF_HOME is the
    folder of the models.
    """
    if model is None:
        from ipex_lookahead.cli.recommended import facts as recommended
        from ipex_lookahead.cli.recommended import print_recommended

        click.echo(json.dumps(recommended())) if as_json else print_recommended()
        return
    from ipex_lookahead.cli.model_facts import describe, main_format
    from ipex_lookahead.errors import LookaheadError, UnsupportedModelError
    from ipex_lookahead.hub import resolve_model
    from ipex_lookahead.hub.recommended import recommended_models

    path, known = resolve_model(model, progress=not as_json), recommended_models().get(model)
    named, drafter = None if known is None else known.drafter, None
    facts = describe(path)
    if named is not None:
        try:  # the head is optional
            fetched = resolve_model(named, progress=not as_json)
            facts, drafter = describe(path, fetched), fetched
        except LookaheadError as error:
            click.echo(f"the drafting head {named} cannot be used: {error}", err=True)
    kept = {"format": main_format(facts["formats"]), "bytes": facts["bytes"], "engine": facts["engine"]}
    if as_json:
        kept |= {} if drafter is None else {"drafter": str(drafter)}
        click.echo(json.dumps({"model": model, "path": str(path), "architecture": facts["architecture"], **kept}))
    else:
        about = f"{facts['architecture']}, {facts['bytes'] / 1e6:,.1f} MB, most of it in {kept['format']}"
        click.echo(f"{model}: {about}\n{path}")
        if drafter is not None:
            click.echo(f"drafting head: {named}, {facts['drafter']['bytes'] / 1e6:,.1f} MB\n{drafter}")
    if facts["engine"] is None:
        raise UnsupportedModelError(f"the model was fetched, but cannot run: {facts['problem']}", hint=facts["hint"])
    if not as_json:
        click.echo(f"try it: ipex-lookahead run {model}" + (f" --drafter {named}" if drafter else ""))


@command("ipex-lookahead rm owner/repo")
@click.argument("name", type=Cached())
def rm(name: str, yes: bool = option("Do not prompt for confirmation.", False, "-y")) -> None:
    """Remove the model NAME, as shown by `list`, from the cache. Files outside of the cache are not touched.

    Other programs share the hub's cache: the model is removed for them too.
    """
    from ipex_lookahead.hub import removal_of

    removal = removal_of(name)
    size = f"{removal.size / 1e6:,.1f} MB"
    if not yes:
        if not is_terminal(sys.stdin):
            raise Refused("rm needs confirmation, and standard input is not a terminal", hint=f"rm --yes {name}")
        click.confirm(f"remove {name}, {size}, from {removal.folder}?", abort=True, err=True)
    removal.execute()
    click.echo(f"removed {name}: {removal.size:,} bytes ({size}) are free again")


@command("ipex-lookahead list")
def list(as_json: bool = json_alone_option) -> None:
    """List the models in the caches of this package and of the hub, the last used first; `rm NAME` removes one."""
    from ipex_lookahead.hub import cache_folder, cached_models, hub_cache_folder

    models = [_facts(model) for model in cached_models()]
    folders = {"cache_folder": str(cache_folder()), "hub_cache_folder": str(hub_cache_folder())}
    if as_json:
        click.echo(json.dumps({"models": models, **folders}))
        return
    if not models:
        click.echo("no models yet; `ipex-lookahead pull NAME` fetches one, and 'default' is fetched when it is used")
        return
    rows = [
        (found["name"], found["architecture"] or "-", found["format"] or "-", f"{found['bytes'] / 1e6:,.0f} MB",
         found["engine"] or "no: see info", _ago(time.time() - found["last_used"]))
        for found in models
    ]  # fmt: skip
    print_table(("name", "architecture", "format", "size", "runs on", "last used"), rows)


def _facts(model: CachedModel) -> dict[str, Any]:
    """Return the facts of a model; a damaged one is listed too, so that it can be removed."""
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
