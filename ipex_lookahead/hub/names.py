"""Parsing of model names: ``default``, a path, a short name, ``owner/repo``, a file of a repository, or a page's URL.

Download options follow transformers' names.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from urllib.parse import parse_qs, unquote, urlsplit

from ipex_lookahead.errors import InputError
from ipex_lookahead.hub.recommended import find_recommended, near_names

HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
FORMS = (
    "a folder with config.json, a .gguf file, a short name (ipex-lookahead pull lists them), owner/repo, "
    "owner/repo:file.gguf, the URL of a model's page, or 'default'"
)

_PART = r"[A-Za-z0-9][\w.-]*"
_HUB_NAME = re.compile(rf"(?P<repo>{_PART}/{_PART})(?:@(?P<revision>[\w./-]+))?(?::(?P<file>[^:\s]+))?", re.ASCII)
_PAGES = ("tree", "blob", "resolve", "raw")


@dataclass(frozen=True, slots=True)
class HubName:
    """A model in a repository of the hub.

    Attributes:
        repo: ``owner/name``.
        revision: a branch, tag or commit; None for the main branch.
        file: a file's path in the repository, or a GGUF type such as ``Q8_0`` in its name; None: chosen
            automatically.
        subfolder: folder of the model in the repository; empty for the top.
    """

    repo: str
    revision: str | None = None
    file: str | None = None
    subfolder: str = ""

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        inside = f"{self.subfolder}/" if self.subfolder and not self.file else ""
        return f"{self.repo}{revision}" + (f":{self.file or inside}" if self.file or inside else "")


@dataclass(frozen=True, slots=True)
class HubOptions:
    """Selection of a hub repository's files, and how they are downloaded; names are transformers'.

    Attributes:
        revision: a branch, tag or commit; None: the main branch.
        cache_dir: the hub cache; None: the hub library's default.
        token: a token, True for the saved one, False for none, None: the hub library's default.
        local_files_only: use cached files only, without contacting the hub.
        force_download: download again even if cached.
        subfolder: folder of the model inside the repository, or inside a local folder.
        endpoint: the hub's URL; None: the hub library's default.
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
            raise InputError(f"subfolder must be a path inside the model's folder, got {self.subfolder!r}")


def parse_name(name: str) -> Path | HubName | None:
    """Parse a model name; return None for ``default``. Local paths take precedence over other names.

    Raises:
        InputError: if a path does not exist or the name is invalid.
    """
    if name == "default":
        return None
    path = Path(os.path.expanduser(name)) if not name.startswith("~") or "/" in name else Path(name)
    if name and _exists(path):
        return path
    if "/" not in name and (short := find_recommended(name)) is not None:
        name = short.model.model
    if "://" in name or name.partition("/")[0].lower() in HOSTS:
        return _from_address(name)
    found = _HUB_NAME.fullmatch(name)
    if found and not (name.startswith((".", "~", "/")) or (found["file"] is None and _is_file_name(name))):
        return _checked(HubName(found["repo"], found["revision"], found["file"]), name)
    hint = f"give {FORMS}"
    if "/" not in name and (near := near_names(name)):
        hint = f"did you mean {near[0]}?" if len(near) == 1 else f"choose one of {', '.join(near)}"
    parts = name.split("/")
    if len(parts) > 2 and _is_file_name(name) and re.fullmatch(rf"{_PART}/{_PART}", "/".join(parts[:2]), re.ASCII):
        hint = f"write a file of a hub repository as {'/'.join(parts[:2])}:{'/'.join(parts[2:])}"
    raise InputError(f"no model named {name!r}: no such file, folder or short name", hint=hint)


def _is_file_name(name: str) -> bool:
    return name.endswith((".gguf", ".safetensors"))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or contains a null byte
        return False


def _from_address(name: str) -> HubName:
    """Parse ``https://huggingface.co/owner/repo``, with or without ``/tree/main``, ``/blob/main/file``, ..."""
    try:
        address = urlsplit(name if "://" in name else f"https://{name}")
    except ValueError:
        raise InputError(f"{name!r} is not a valid URL", hint=f"give {FORMS}") from None
    own = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co").netloc
    if address.scheme not in ("http", "https", "hf") or (address.netloc.lower() not in (*HOSTS, own.lower())):
        if address.scheme != "hf":
            other = repr(name) if address.netloc in ("", *HOSTS) else address.netloc
            raise InputError(
                f"only {HOSTS[0]} model pages are supported, not {other}",
                hint="download the file or folder yourself and give its path",
            )
        address = address._replace(path=f"/{address.netloc}{address.path}")
    parts = [unquote(part) for part in address.path.split("/") if part]
    if parts and parts[0] in ("datasets", "spaces", "collections", "papers", "docs", "models", "api"):
        raise InputError(f"{name!r} is a {parts[0]} page, not a model page", hint=f"give {FORMS}")
    found = _HUB_NAME.fullmatch("/".join(parts[:2]))
    if found is None or (len(parts) > 2 and (parts[2] not in _PAGES or len(parts) < 4)):
        raise InputError(
            f"{name!r} is not a model page; expected {HOSTS[0]}/OWNER/REPO, or its /tree/, /blob/ or /resolve/ pages",
            hint=f"give {FORMS}",
        )
    made = HubName(found["repo"], found["revision"], found["file"])
    if len(parts) > 2:
        made = replace(made, revision=None if parts[3] == "main" else parts[3])
        inside = "/".join(parts[4:])
        if parts[2] == "tree":
            made = replace(made, subfolder=inside)
        elif inside:
            made = replace(made, file=inside)
    if shown := parse_qs(address.query).get("show_file_info"):  # set by the page's GGUF viewer
        made = replace(made, file=shown[0])
    return _checked(made, name)


def _checked(made: HubName, name: str) -> HubName:
    """Check that file and folder are inside the repository; replace a file of a Hugging Face folder by the folder."""
    for part in (made.file or "", made.subfolder):
        if part.startswith("/") or ".." in part.split("/"):
            raise InputError(f"{name!r} is outside the repository", hint=f"give {FORMS}")
    if made.file and made.file.endswith((".safetensors", ".json", ".jinja", ".model", ".md")):
        return replace(made, file=None, subfolder=made.file.rpartition("/")[0])
    if made.file and made.file.endswith("/"):
        return replace(made, file=None, subfolder=made.file.rstrip("/"))
    return made
