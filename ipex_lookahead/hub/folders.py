"""Locations of the local model caches, and errors of their disks."""

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
    """Return the user's home folder; None if HOME is not set and the system does not know the user."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def cache_folder() -> Path:
    """Return ``$IPEX_LOOKAHEAD_CACHE``, ``$XDG_CACHE_HOME/ipex-lookahead`` or ``~/.cache/ipex-lookahead``.

    Raises:
        InputError: if none of them is available.
    """
    folder = cache_folder_if_any()
    if folder is None:
        raise InputError(
            "no cache folder: HOME is not set and the system does not know this user",
            hint="set IPEX_LOOKAHEAD_CACHE to a writable folder",
        )
    return folder


def cache_folder_if_any() -> Path | None:
    """Return :func:`cache_folder`, or None if there is none, for data that is cached only to save time."""
    if chosen := os.environ.get("IPEX_LOOKAHEAD_CACHE"):
        return given_path(chosen)
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return Path(chosen) / "ipex-lookahead"
    home = home_folder()
    return None if home is None else home / ".cache" / "ipex-lookahead"


def hub_cache_folder(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the hub library's cache folder: ``cache_dir``, or the one set by HF_HUB_CACHE and HF_HOME.

    Raises:
        InputError: if none of these is set and there is no home folder.
    """
    if cache_dir is not None:
        return given_path(cache_dir)
    from huggingface_hub import constants

    if constants.HF_HUB_CACHE.startswith("~") and home_folder() is None:
        raise InputError(
            "no download folder: HOME is not set and the system does not know this user",
            hint="set HF_HOME to a writable folder",
        )
    return given_path(constants.HF_HUB_CACHE)


def require_space(folder: Path, needed: int, hint: str) -> None:
    """Raise DownloadError if fewer than ``needed`` bytes are free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(
            f"not enough space in {folder}: {needed / 1e6:,.0f} MB needed, {free / 1e6:,.0f} MB free", hint=hint
        )


@contextmanager
def reported_disk_faults(folder: Path, called: str, hint: str) -> Iterator[None]:
    """Convert errors of a full or read-only disk to DownloadError; other OSErrors, such as network errors, pass.

    Args:
        folder: the folder that is written to.
        called: its name in messages, such as "the cache folder".
        hint: the remedy.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            problem = f"the disk of {folder} is full"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            problem = f"{called} {folder} is not writable"
        else:
            raise
        raise DownloadError(problem, hint=hint) from error
