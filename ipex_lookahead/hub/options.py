"""How a model is fetched from the hub, in transformers' words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from ipex_lookahead.errors import InputError


@dataclass(frozen=True, slots=True)
class HubOptions:
    """Which files of a hub repository, and how they are fetched; the names are transformers'.

    Attributes:
        revision: a branch, tag or commit; None = the main branch.
        cache_dir: where the hub's files are kept; None = the hub library's own place.
        token: a token, True for the one that was saved, False for none, None = as the hub library is set.
        local_files_only: never ask the hub, only look whether the files are here.
        force_download: fetch again what is here.
        subfolder: the folder of the model inside the repository, or inside a local folder.
        endpoint: the hub's address; None = the hub library's own.
    """

    revision: str | None = None
    cache_dir: str | None = None
    token: str | bool | None = None
    local_files_only: bool = False
    force_download: bool = False
    subfolder: str = ""
    endpoint: str | None = None

    def __post_init__(self) -> None:
        parts = PurePosixPath(self.subfolder).parts
        if ".." in parts or self.subfolder.startswith(("/", "~")):
            raise InputError(f"subfolder is {self.subfolder!r}; it must be a path inside the model's folder")
