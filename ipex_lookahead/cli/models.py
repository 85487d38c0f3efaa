"""``ipex-lookahead pull``, ``list`` and ``rm``: the models on this machine."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
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
    """Download MODEL: a short name, owner/repo[:file.gguf], owner/repo:q4_k_m, or the URL of its page.

    Without MODEL: list recommended models with size and expected speed.

    Only needed files are downloaded, never pickles or code. Interrupted downloads resume. HTTPS_PROXY sets a proxy,
    HF_TOKEN gives access to private models, HF_HOME is the download folder.
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
            click.echo(f"warning: draft head {named} cannot be used: {error}", err=True)
    kept = {"format": main_format(facts["formats"]), "bytes": facts["bytes"], "engine": facts["engine"]}
    if as_json:
        kept |= {} if drafter is None else {"drafter": str(drafter)}
        click.echo(json.dumps({"model": model, "path": str(path), "architecture": facts["architecture"], **kept}))
    else:
        about = f"{facts['architecture']}, {facts['bytes'] / 1e6:,.1f} MB, {kept['format']}"
        click.echo(f"{model}: {about}\n{path}")
        if drafter is not None:
            click.echo(f"draft head: {named}, {facts['drafter']['bytes'] / 1e6:,.1f} MB\n{drafter}")
    if facts["engine"] is None:
        raise UnsupportedModelError(f"downloaded, but the model cannot run: {facts['problem']}", hint=facts["hint"])
    if not as_json:
        click.echo(f"try it: ipex-lookahead run {model}" + (f" --drafter {named}" if drafter else ""))


@command("ipex-lookahead rm owner/repo")
@click.argument("name", type=Cached())
def rm(name: str, yes: bool = option("Do not ask for confirmation.", False, "-y")) -> None:
    """Delete the downloaded model NAME (see list). Other programs that use the hub's cache lose it too."""
    from ipex_lookahead.hub import removal_of

    removal = removal_of(name)
    size = f"{removal.size / 1e6:,.1f} MB"
    if not yes:
        if not is_terminal(sys.stdin):
            raise Refused(
                "rm needs confirmation, but standard input is not a terminal", hint=f"ipex-lookahead rm --yes {name}"
            )
        click.confirm(f"Delete {name} ({size}) from {removal.folder}?", abort=True, err=True)
    removal.execute()
    click.echo(f"removed {name}: freed {removal.size:,} bytes ({size})")


@command("ipex-lookahead list")
def list(as_json: bool = json_alone_option) -> None:
    """List downloaded models, most recently used first."""
    from ipex_lookahead.hub import cache_folder, cached_models, hub_cache_folder

    models = [_facts(model) for model in cached_models()]
    folders = {"cache_folder": str(cache_folder()), "hub_cache_folder": str(hub_cache_folder())}
    if as_json:
        click.echo(json.dumps({"models": models, **folders}))
        return
    if not models:
        click.echo("no models yet; ipex-lookahead pull NAME downloads one")
        return
    _print_list(models)


def print_models() -> None:
    """Print the downloaded models, and the recommended ones."""
    from ipex_lookahead.cli.recommended import print_recommended
    from ipex_lookahead.hub import cached_models

    if models := [_facts(model) for model in cached_models()]:
        click.echo("Downloaded models:")
        _print_list(models)
        click.echo()
    click.echo("Recommended models:")
    print_recommended()


def _print_list(models: Sequence[dict[str, Any]]) -> None:
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
