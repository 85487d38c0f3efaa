"""Where models are kept on this machine, our own cache folder and the hub's; and what can be wrong with their disks."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ipex_lookahead.errors import DownloadError, InputError
from ipex_lookahead.files.paths import given_path


def home_folder() -> Path | None:
    """The user's own folder; None where there is none: HOME is not set, and the system does not list this user."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def cache_folder() -> Path:
    """``$IPEX_LOOKAHEAD_CACHE``, else ``$XDG_CACHE_HOME/ipex-lookahead``, else ``~/.cache/ipex-lookahead``.

    Raises InputError where none of these is to be had.
    """
    folder = cache_folder_if_any()
    if folder is None:
        raise InputError(
            "there is no place to keep models: HOME is not set, and the system does not list this user",
            hint="set IPEX_LOOKAHEAD_CACHE to a folder that you may write",
        )
    return folder


def cache_folder_if_any() -> Path | None:
    """As :func:`cache_folder`, for what is only kept to save time; None where there is none."""
    if chosen := os.environ.get("IPEX_LOOKAHEAD_CACHE"):
        return given_path(chosen)
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return Path(chosen) / "ipex-lookahead"
    home = home_folder()
    return None if home is None else home / ".cache" / "ipex-lookahead"


def hub_cache_folder(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder in which the hub's library keeps models: ``cache_dir``, else what HF_HUB_CACHE and HF_HOME say.

    Raises InputError where none of these is given and there is no home folder.
    """
    if cache_dir is not None:
        return given_path(cache_dir)
    from huggingface_hub import constants

    if constants.HF_HUB_CACHE.startswith("~") and home_folder() is None:
        raise InputError(
            "there is no place to keep the hub's models: HOME is not set, and the system does not list this user",
            hint="set HF_HOME to a folder that you may write",
        )
    return given_path(constants.HF_HUB_CACHE)


def require_space(folder: Path, needed: int, hint: str) -> None:
    """Raise DownloadError where fewer than ``needed`` bytes are free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(f"{folder} has {free / 1e6:,.0f} MB free; {needed / 1e6:,.0f} MB are needed", hint=hint)


@contextmanager
def reported_disk_faults(folder: Path, called: str, hint: str) -> Iterator[None]:
    """A full or write-protected disk as a DownloadError; other OSErrors, which may be the network's, pass.

    Args:
        folder: what is written to.
        called: "the cache folder", say.
        hint: what mends it.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            problem = f"the disk of {folder} is full"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            problem = f"{called} {folder} cannot be written"
        else:
            raise
        raise DownloadError(problem, hint=hint) from error
