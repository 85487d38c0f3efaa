"""Expansion and checks of paths that users provide."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ipex_lookahead.errors import InputError

DRAFTER_FOLDER = "drafter"
"""Subfolder of a saved model that holds its drafting head."""
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors that are left to the code that opens the path, which reports them better."""


def is_drafter(name: str) -> bool:
    """Return True if a file's name is that of a separate MTP block: ``mtp-NAME.gguf``, llama.cpp's convention."""
    name = os.path.basename(name).lower()
    return name.startswith("mtp-") and name.endswith(".gguf")


def given_path(path: str | os.PathLike[str]) -> Path:
    """Return the path with ``~`` expanded; it need not exist.

    Without this check, each of the following would raise a Python error at an arbitrary place later.

    Raises:
        InputError: if the path is invalid (null byte, unsupported characters, too long), the user of ``~user`` is
            unknown, or a parent folder is not accessible.
    """
    try:
        found = Path(path).expanduser()
        found.lstat()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{path!r:.200} is not a valid path: {error}", hint="check the name") from None
    except OSError as error:
        if error.errno not in _ABSENT:
            raise InputError(f"{path!r:.200} is not accessible: {error.strerror}", hint="check the name") from None
    return found
