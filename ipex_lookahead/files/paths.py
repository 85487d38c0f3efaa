"""Expansion and checks of paths that users provide."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ipex_lookahead.errors import InputError

DRAFTER_FOLDER = "drafter"
"""Subfolder of a saved model that holds its drafting head."""
PRESETS = Path(__file__).resolve().parents[1] / "configs"
"""Folder of the packaged YAML files, by kind: bench, lookahead, serve."""
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors that are left to the code that opens the path, which reports them better."""


def is_drafter(name: str) -> bool:
    """Return True if a file's name is that of a separate MTP block: ``mtp-NAME.gguf``, llama.cpp's convention."""
    name = os.path.basename(name).lower()
    return name.startswith("mtp-") and name.endswith(".gguf")


def given_preset(name: str | os.PathLike[str], *kinds: str) -> Path:
    """Return the path of a YAML file, or that of the packaged preset with this name.

    Args:
        name: a path, which need not exist, or the name of a preset; a file takes precedence.
        kinds: folders of presets.

    Raises:
        InputError: as :func:`given_path`.
    """
    path = given_path(name)
    if not path.is_file() and str(name) in preset_names(*kinds):
        return next(file for kind in kinds if (file := PRESETS / kind / f"{name}.yaml").is_file())
    return path


def preset_names(*kinds: str) -> list[str]:
    """Return the names of the packaged presets of some kinds."""
    return sorted(file.stem for kind in kinds for file in (PRESETS / kind).glob("*.yaml"))


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
