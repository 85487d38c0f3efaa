"""``ipex-lookahead pull``, ``list`` and ``rm``: the models on this machine."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.options import json_alone_option, option
from ipex_lookahead.cli.tables import print_table
from ipex_lookahead.cli.types import Cached, Model, Refused
from ipex_lookahead.system.terminal import counted, is_terminal

if TYPE_CHECKING:
    from ipex_lookahead.hub import CachedModel


TRY_IT = {
    "text": "run {}",
    "embedding": 'embed -m {} "a text"',
    "reranking": 'rank -m {} "a query" "a document" "another one"',
}
"""Purpose of a model -> the command that uses it."""
_NOT_ALONE = {"adapter": "its model, with --lora", "vision": "its model, for images"}
"""Kinds of files that run with others only -> how."""


@command(
    "ipex-lookahead pull",
    "ipex-lookahead pull qwen3-4b",
    "ipex-lookahead pull owner/repo:model.Q4_0.gguf",
    "ipex-lookahead pull owner/repo",
)
@click.argument("model", required=False, type=Model())
def pull(model: str | None, as_json: bool = json_alone_option) -> None:
    """Download MODEL: a short name, owner/repo[:file.gguf], owner/repo:q4_k_m, or the URL of its page.

    A series without a size (qwen3.6, gemma4, granite4) is its largest size that fits this machine.

    Without MODEL: list recommended models with size and expected speed.

    The file with the vision part (mmproj) of a GGUF model that takes images is downloaded too.

    Only needed files are downloaded, never pickles or code. Interrupted downloads resume. HTTPS_PROXY sets a proxy,
    HF_TOKEN gives access to private models, HF_HOME is the download folder.
    """
    if model is None:
        from ipex_lookahead.cli.recommended import facts as recommended
        from ipex_lookahead.cli.recommended import print_recommended

        click.echo(json.dumps(recommended())) if as_json else print_recommended()
        return
    from ipex_lookahead.checkpoints.adapters import is_adapter
    from ipex_lookahead.cli.model_facts import describe, main_format
    from ipex_lookahead.errors import LookaheadError, UnsupportedModelError
    from ipex_lookahead.hub import resolve_model
    from ipex_lookahead.hub.choosing import is_vision_part
    from ipex_lookahead.hub.recommended import find_recommended

    path = resolve_model(model, progress=not as_json)
    if is_adapter(path):
        _print_adapter(model, path, as_json=as_json)
        return
    if path.is_file() and is_vision_part(path.name):
        _print_vision_part(model, path, as_json=as_json)
        return
    known = find_recommended(model)
    if known is not None and known.said and Path(model).exists():  # a path comes before a name that is not exact
        known = None
    named, drafter = None if known is None else known.model.drafter, None
    facts = describe(path)
    if named is not None:
        try:  # the head is optional
            fetched = resolve_model(named, progress=not as_json)
            facts, drafter = describe(path, fetched), fetched
        except LookaheadError as error:
            click.echo(f"warning: draft head {named} cannot be used: {error}", err=True)
    kept = {"format": main_format(facts["formats"]), "bytes": facts["bytes"], "engine": facts["engine"]}
    sees = _with_vision_part(model, path, facts.get("images"), progress=not as_json)
    if as_json:
        kept |= {} if sees is None else {"images": sees}
        kept |= {} if drafter is None else {"drafter": str(drafter)}
        click.echo(json.dumps({"model": model, "path": str(path), "architecture": facts["architecture"], **kept}))
    else:
        about = f"{facts['architecture']}, {facts['bytes'] / 1e6:,.1f} MB, {kept['format']}"
        click.echo(f"{model}: {about}\n{path}")
        if drafter is not None:
            click.echo(f"draft head: {named}, {facts['drafter']['bytes'] / 1e6:,.1f} MB\n{drafter}")
        if sees is not None and "problem" not in sees:
            click.echo(f"takes images: {sees['tower']}, {sees['bytes'] / 1e6:,.1f} MB" + _file_line(sees))
    if facts["engine"] is None:
        raise UnsupportedModelError(f"downloaded, but the model cannot run: {facts['problem']}", hint=facts["hint"])
    if not as_json:
        command_line = TRY_IT[facts["purpose"]].format(model)
        click.echo(f"try it: ipex-lookahead {command_line}" + (f" --drafter {named}" if drafter else ""))


def _with_vision_part(name: str, path: Path, found: dict[str, Any] | None, *, progress: bool) -> dict[str, Any] | None:
    """Return the facts of a model's vision part, which is downloaded for a GGUF model of the hub; it is optional.

    ``found`` has the facts so far; None: the model takes no images.
    """
    from ipex_lookahead.cli.model_facts import describe
    from ipex_lookahead.errors import LookaheadError
    from ipex_lookahead.hub import vision_part_of

    if found is None or path.is_dir():
        return found
    try:
        fetched = vision_part_of(name, progress=progress)
        images: dict[str, Any] = describe(path, mmproj=fetched)["images"]
    except LookaheadError as error:
        images = {"problem": str(error)}
    if "problem" in images:
        click.echo(f"warning: the model cannot take images: {images['problem']}", err=True)
    return images


def _file_line(images: dict[str, Any]) -> str:
    return f"\n{images['file']}" if "file" in images else ""


def _print_vision_part(name: str, path: Path, *, as_json: bool) -> None:
    """Print the facts of a downloaded ``mmproj`` file. Raises ModelFormatError or UnsupportedModelError for others."""
    from ipex_lookahead.vision.mmproj import MmprojFile

    file = MmprojFile(path)
    file.close()
    size = path.stat().st_size
    if as_json:
        facts = {"kind": "vision", "hidden_size": file.hidden, "bytes": size}
        click.echo(json.dumps({"model": name, "path": str(path), **facts}))
        return
    click.echo(f"{name}: vision part for models of hidden size {file.hidden}, {size / 1e6:,.1f} MB\n{path}")
    click.echo(f"try it: ipex-lookahead chat -m MODEL --mmproj {name}")


def _print_adapter(name: str, path: Path, *, as_json: bool) -> None:
    """Print the facts of a downloaded adapter, and the command that runs its base model with it."""
    from ipex_lookahead.cli.adapters import adapter_facts
    from ipex_lookahead.errors import UnsupportedModelError

    facts = adapter_facts(path)
    if as_json:
        click.echo(json.dumps({"model": name, "path": str(path), **facts}))
    elif "problem" not in facts:
        click.echo(f"{name}: LoRA adapter for {facts['base'] or 'an unnamed model'}, {facts['bytes'] / 1e6:,.1f} MB")
        click.echo(f"{path}")
    if "problem" in facts:
        raise UnsupportedModelError(f"downloaded, but the adapter cannot run: {facts['problem']}", hint=facts["hint"])
    if not as_json:
        click.echo(f"try it: ipex-lookahead chat -m {facts['base'] or 'BASE_MODEL'} --lora {name}")


@command("ipex-lookahead rm owner/repo", "ipex-lookahead rm --session work")
@click.argument("name", required=False, type=Cached())
def rm(
    name: str | None,
    session: str | None = option("Delete this session of chat instead of a model.", metavar="NAME"),
    yes: bool = option("Do not ask for confirmation.", False, "-y"),
) -> None:
    """Delete the downloaded model NAME (see list). Other programs that use the hub's cache lose it too."""
    if (name is None) == (session is None):
        raise Refused("rm needs the NAME of a model, or --session NAME", hint="ipex-lookahead list shows the names")
    if name is not None:
        from ipex_lookahead.hub import removal_of

        removal = removal_of(name)
    else:
        from ipex_lookahead.cli.saved_sessions import session_removal

        assert session is not None
        removal, name = session_removal(session), f"session {session}"
    size = f"{removal.size / 1e6:,.1f} MB"
    if not yes:
        if not is_terminal(sys.stdin):
            what = name if session is None else f"--session {session}"
            raise Refused(
                "rm needs confirmation, but standard input is not a terminal", hint=f"ipex-lookahead rm --yes {what}"
            )
        click.confirm(f"Delete {name} ({size}) from {removal.folder}?", abort=True, err=True)
    removal.execute()
    click.echo(f"removed {name}: freed {removal.size:,} bytes ({size})")


@command("ipex-lookahead list")
def list(as_json: bool = json_alone_option) -> None:
    """List downloaded models and saved sessions of chat, most recently used first."""
    from ipex_lookahead.cli.saved_sessions import saved_sessions
    from ipex_lookahead.hub import cache_folder, cached_models, hub_cache_folder

    models = [_facts(model) for model in cached_models()]
    sessions = saved_sessions()
    folders = {"cache_folder": str(cache_folder()), "hub_cache_folder": str(hub_cache_folder())}
    if as_json:
        stored = [{**asdict(one), "path": str(one.path)} for one in sessions]
        click.echo(json.dumps({"models": models, "sessions": stored, **folders}))
        return
    if models:
        _print_list(models)
    else:
        click.echo("no models yet; ipex-lookahead pull NAME downloads one")
    if sessions:
        rows = [
            (one.name, one.model or "-", "damaged" if one.turns is None else f"{one.turns}",
             f"{one.bytes / 1e6:,.1f} MB", _ago(time.time() - one.last_used))
            for one in sessions
        ]  # fmt: skip
        click.echo()
        print_table(("session", "model", "turns", "size", "last used"), rows)


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
         _runs_on(found), _ago(time.time() - found["last_used"]))
        for found in models
    ]  # fmt: skip
    print_table(("name", "architecture", "format", "size", "runs on", "last used"), rows)


def _runs_on(found: dict[str, Any]) -> str:
    engine = found["engine"] or _NOT_ALONE.get(found["kind"], "no: see info")
    return engine if found["purpose"] in (None, "text") else f"{engine}, for {found['purpose']}"


def _facts(model: CachedModel) -> dict[str, Any]:
    """Return the facts of a model; a damaged one is listed too, so that it can be removed."""
    from ipex_lookahead.checkpoints.adapters import is_adapter
    from ipex_lookahead.cli.model_facts import describe, main_format
    from ipex_lookahead.errors import LookaheadError
    from ipex_lookahead.hub.choosing import is_vision_part, type_in

    found: dict[str, Any] = {
        "name": model.name,
        "path": None if model.path is None else str(model.path),
        "kind": None,
        "architecture": None,
        "format": "incomplete" if model.path is None else "damaged",
        "engine": None,
        "purpose": None,
        "bytes": model.size,
        "last_used": model.last_used,
    }
    if model.path is not None and is_adapter(model.path):
        return found | {"kind": "adapter", "format": "LoRA"}
    if model.path is not None and is_vision_part(model.path.name):
        return found | {"kind": "vision", "format": type_in(model.path.name)}
    if model.path is not None:
        try:
            facts = describe(model.path)
        except LookaheadError:
            return found
        found |= {name: facts[name] for name in ("kind", "architecture", "engine", "purpose")}
        found["format"] = main_format(facts["formats"])
    return found


def _ago(seconds: float) -> str:
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f"{counted(int(seconds // length), unit)} ago"
    return "just now"
