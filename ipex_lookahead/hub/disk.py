"""What can be wrong with the disk that a model is kept on, as sentences."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ipex_lookahead.errors import DownloadError


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
