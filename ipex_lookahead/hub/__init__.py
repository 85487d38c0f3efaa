"""From a model's name to a path here: a local path, the embedded model ``default``, or a model of the hub."""

from __future__ import annotations

import os
from pathlib import Path

from ipex_lookahead.hub.embedded import DEFAULT, EmbeddedModel, fetch_embedded
from ipex_lookahead.hub.folders import cache_folder, hub_cache_folder
from ipex_lookahead.hub.names import HubName, parse_name
from ipex_lookahead.hub.repository import Access, fetch_repository

__all__ = [
    "DEFAULT",
    "EmbeddedModel",
    "HubName",
    "cache_folder",
    "fetch_embedded",
    "hub_cache_folder",
    "parse_name",
    "resolve_model",
]


def resolve_model(
    name: str,
    *,
    progress: bool = True,
    revision: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    token: str | bool | None = None,
    local_files_only: bool = False,
    subfolder: str | None = None,
    endpoint: str | None = None,
) -> Path:
    """The file or folder that a model name stands for; fetched if it is not here yet.

    Args:
        name: a local file or folder; ``default``, the embedded model; ``owner/repo``, ``owner/repo@revision``,
            ``owner/repo:file.gguf`` or ``owner/repo:Q8_0`` on the hub; or the address of a model's page.
        progress: show progress on standard error.
        revision: the branch, tag or commit of a hub model, where the name has none.
        cache_dir: the hub's cache; None for its library's own.
        token: for the hub; None for the one that is logged in.
        local_files_only: ask nobody: only what is on this machine.
        subfolder: the folder in the repository, or in the local folder, that holds the model.
        endpoint: the hub's address; None for its library's own.

    Raises:
        InputError: a path that does not exist, or no kind of name.
        DownloadError: the model could not be fetched or saved, or its checksum is wrong.
        UnsupportedModelError: a repository without anything that this package reads.
    """
    found = parse_name(name)
    if found is None:
        return fetch_embedded(DEFAULT, progress=progress)
    if isinstance(found, Path):
        return found / subfolder if subfolder else found
    asked = HubName(found.repo, found.revision or revision, found.file, found.subfolder or subfolder or "")
    return fetch_repository(asked, Access(cache_dir, endpoint, token, local_files_only), progress=progress)
