"""Resolution of model names to local paths: a path, the embedded model ``default``, or a model of the hub."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ipex_lookahead.errors import InputError
from ipex_lookahead.hub.cached import CachedModel, Removal, cached_models, removal_of
from ipex_lookahead.hub.choosing import choose_vision
from ipex_lookahead.hub.embedded import DEFAULT, EmbeddedModel, fetch_embedded
from ipex_lookahead.hub.folders import cache_folder, cache_folder_if_any, home_folder, hub_cache_folder
from ipex_lookahead.hub.names import HubName, HubOptions, parse_name
from ipex_lookahead.hub.progress import Observe, Progress, unobserved
from ipex_lookahead.hub.recommended import find_recommended
from ipex_lookahead.hub.repository import fetch_repository
from ipex_lookahead.system.terminal import note

__all__ = [
    "DEFAULT",
    "CachedModel",
    "EmbeddedModel",
    "HubName",
    "HubOptions",
    "Progress",
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
    "vision_part_of",
]


def resolve_model(
    name: str, *, progress: bool = True, options: HubOptions | None = None, observe: Observe = unobserved
) -> Path:
    """Return the local file or folder of a model; it is downloaded if necessary.

    Args:
        name: a local file or folder; ``default``, the embedded model; a short name or a series (``qwen3.6``);
            ``owner/repo``, ``owner/repo@revision``, ``owner/repo:file.gguf`` or ``owner/repo:Q8_0`` on the hub; or the
            URL of a model's page.
        progress: show progress on standard error.
        options: revision, subfolder and download options.
        observe: receives the progress of a download.

    Raises:
        InputError: if a path does not exist, the name is invalid, or options do not apply to it.
        DownloadError: if the model could not be downloaded or saved, or its checksum is wrong.
        UnsupportedModelError: if the repository has no supported files.
    """
    options = options or HubOptions()
    found = parse_name(name)
    if found is None:
        _refuse(options, "'default' has no revisions and no folders", subfolder=options.subfolder)
        return fetch_embedded(DEFAULT, progress=progress, observe=observe)
    if isinstance(found, Path):
        _refuse(options, f"{name} is a local path, which has no revisions")
        if options.subfolder and not (found / options.subfolder).exists():
            raise InputError(
                f"{found} has no folder {options.subfolder!r}", hint="give a folder inside the model's folder"
            )
        return found / options.subfolder if options.subfolder else found
    if "/" not in name and (short := find_recommended(name)) is not None:
        note(progress and bool(short.said), short.said)
    wanted = replace(found, revision=found.revision or options.revision, subfolder=found.subfolder or options.subfolder)
    return fetch_repository(wanted, options, progress=progress, observe=observe)


def vision_part_of(
    name: str, *, progress: bool = True, options: HubOptions | None = None, observe: Observe = unobserved
) -> Path | None:
    """Return the ``mmproj`` file with the vision part of a GGUF model of the hub; it is downloaded if necessary.

    Returns None if ``name`` is a local path or ``default``. Pairing with the model's file on this machine is by
    folder, so the file is in the same folder as that of :func:`resolve_model`.

    Raises:
        InputError: if the repository has no such file, or the name is invalid.
        DownloadError: if the file could not be downloaded or saved, or its checksum is wrong.
    """
    options, found = options or HubOptions(), parse_name(name)
    if not isinstance(found, HubName):
        return None
    wanted = replace(found, revision=found.revision or options.revision, subfolder=found.subfolder or options.subfolder)
    return fetch_repository(wanted, options, progress=progress, observe=observe, choosing=choose_vision)


def _refuse(options: HubOptions, why: str, **more: str) -> None:
    revision = None if options.revision == "main" else options.revision
    for option, value in {"revision": revision, **more}.items():
        if value:
            raise InputError(f"{option}={value!r} does not apply to this model: {why}", hint=f"leave {option} out")
