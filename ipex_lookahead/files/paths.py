"""Paths as people give them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ipex_lookahead.errors import InputError

_MAY_BE_MADE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""What a path may be short of without being wrong: whoever opens it says so better."""


def is_drafter(name: str) -> bool:
    """Whether a file is by its name a model's block for drafting alone: ``mtp-NAME.gguf``, as llama.cpp writes them."""
    name = os.path.basename(name).lower()
    return name.startswith("mtp-") and name.endswith(".gguf")


def given_path(path: str | os.PathLike[str]) -> Path:
    """The path with ``~`` spelled out, whether or not anything lies there.

    Raises InputError for what no file can be called (a null byte, letters that file names cannot have, too long), for
    the home of a user who is not there, and where a folder on the way may not be looked into. Without this check each
    of these would be an error of Python's, at whatever line comes to ask for the file.
    """
    try:
        found = Path(path).expanduser()
        found.lstat()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{path!r:.200} is no path: {error}", hint="check the name") from None
    except OSError as error:
        if error.errno not in _MAY_BE_MADE:
            raise InputError(f"{path!r:.200} cannot be looked at: {error.strerror}", hint="check the name") from None
    return found
