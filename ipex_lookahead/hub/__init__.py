"""From a model's name to a path here: a local path, the embedded model ``default``, or a model of the hub."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ipex_lookahead.errors import InputError
from ipex_lookahead.hub.cached import CachedModel, Removal, cached_models, removal_of
from ipex_lookahead.hub.embedded import DEFAULT, EmbeddedModel, fetch_embedded
from ipex_lookahead.hub.folders import cache_folder, cache_folder_if_any, home_folder, hub_cache_folder
from ipex_lookahead.hub.names import HubName, HubOptions, parse_name
from ipex_lookahead.hub.repository import fetch_repository

__all__ = [
    "DEFAULT",
    "CachedModel",
    "EmbeddedModel",
    "HubName",
    "HubOptions",
    "Removal",
    "cache_folder",
    "cache_folder_if_any",
    "cached_models",
    "fetch_embedded",
    "home_folder",
    "hub_cache_folder",
    "parse_name",
    "removal_of",
    "resolve_model",
]


def resolve_model(name: str, *, progress: bool = True, options: HubOptions | None = None) -> Path:
    """The file or folder that a model name stands for; fetched if it is not here yet.

    Args:
        name: a local file or folder; ``default``, the embedded model; ``owner/repo``, ``owner/repo@revision``,
            ``owner/repo:file.gguf`` or ``owner/repo:Q8_0`` on the hub; or the address of a model's page.
        progress: show progress on standard error.
        options: which revision and subfolder, and how it is fetched.

    Raises:
        InputError: a path that does not exist, no kind of name, or options that do not go with it.
        DownloadError: the model could not be fetched or saved, or its checksum is wrong.
        UnsupportedModelError: a repository without anything that this package reads.
    """
    options = options or HubOptions()
    found = parse_name(name)
    if found is None:
        _refuse(options, "the embedded model has one version and no folders", subfolder=options.subfolder)
        return fetch_embedded(DEFAULT, progress=progress)
    if isinstance(found, Path):
        _refuse(options, f"{name} is on this machine, where a model has no revisions")
        if options.subfolder and not (found / options.subfolder).exists():
            raise InputError(
                f"{found} has no folder {options.subfolder!r}", hint="subfolder is the model's folder inside it"
            )
        return found / options.subfolder if options.subfolder else found
    wanted = replace(found, revision=found.revision or options.revision, subfolder=found.subfolder or options.subfolder)
    return fetch_repository(wanted, options, progress=progress)


def _refuse(options: HubOptions, why: str, **more: str) -> None:
    revision = None if options.revision == "main" else options.revision
    for option, value in {"revision": revision, **more}.items():
        if value:
            raise InputError(f"{option}={value!r} does not go with this model: {why}", hint=f"leave {option} out")
