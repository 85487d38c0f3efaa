"""``ipex-lookahead pull``: fetch a model and say what it is; or list those that are recommended."""

from __future__ import annotations

import json

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.options import json_alone_option
from ipex_lookahead.cli.types import Model


@command(
    "ipex-lookahead pull",
    "ipex-lookahead pull qwen3-4b",
    "ipex-lookahead pull owner/repo:model.Q4_0.gguf",
    "ipex-lookahead pull owner/repo",
)
@click.argument("model", required=False, type=Model())
def pull(model: str | None, as_json: bool = json_alone_option) -> None:
    """Fetch MODEL from the hub: a short name, owner/repo[:file.gguf], owner/repo:Q8_0, or the address of its page.

    A trained head that is recommended for the model of a short name is fetched with it.

    Without MODEL: the recommended models by their short names, what each takes, and the speed to expect here.

    Only what is needed is fetched, never pickles or code; an interrupted fetch goes on where it stopped, and large
    files are checked by their checksum. Wherever --model is asked for, the same names are taken; a file or folder of
    a short name's spelling comes before it. Behind a proxy set HTTPS_PROXY; for private models HF_TOKEN, or hf auth
    login; HF_HOME is where models are kept.
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
        try:  # the model answers without it
            fetched = resolve_model(named, progress=not as_json)
            facts, drafter = describe(path, fetched), fetched
        except LookaheadError as error:
            click.echo(f"{named}, which would draft for it, cannot be used: {error}", err=True)
    kept = {"format": main_format(facts["formats"]), "bytes": facts["bytes"], "engine": facts["engine"]}
    if as_json:
        kept |= {} if drafter is None else {"drafter": str(drafter)}
        click.echo(json.dumps({"model": model, "path": str(path), "architecture": facts["architecture"], **kept}))
    else:
        about = f"{facts['architecture']}, {facts['bytes'] / 1e6:,.1f} MB, most of it in {kept['format']}"
        click.echo(f"{model}: {about}\n{path}")
        if drafter is not None:
            click.echo(f"what drafts for it: {named}, {facts['drafter']['bytes'] / 1e6:,.1f} MB\n{drafter}")
    if facts["engine"] is None:
        raise UnsupportedModelError(f"it was fetched, but cannot be run: {facts['problem']}", hint=facts["hint"])
    if not as_json:
        click.echo(f"try it: ipex-lookahead run {model}" + (f" --drafter {named}" if drafter else ""))
