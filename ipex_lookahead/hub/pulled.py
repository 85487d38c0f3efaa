"""The names under which servers have downloaded models, so that later servers list them again."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ipex_lookahead.errors import LookaheadError, SaveError
from ipex_lookahead.files.safe_json import load_object
from ipex_lookahead.files.temporary import temporary_file
from ipex_lookahead.hub.folders import cache_folder

_MAX_BYTES = 1 << 20


def pulled_models() -> list[str]:
    """Return the names, in order; none if there is no list, or if it is damaged."""
    try:
        found = load_object(_file(), _MAX_BYTES).get("models")
    except (LookaheadError, OSError):
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def record_pull(name: str) -> None:
    """Append a name to the list, unless it has the name. Raises SaveError."""
    with _changing() as names:
        if name not in names:
            names.append(name)


def forget_pull(name: str) -> None:
    """Remove a name from the list, if it has the name. Raises SaveError."""
    with _changing() as names:
        if name in names:
            names.remove(name)


def _file() -> Path:
    return cache_folder() / "pulled.json"


@contextmanager
def _changing() -> Iterator[list[str]]:
    """Give the list, and write it if it was changed. Processes take turns."""
    file = _file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(file.with_name(f".{file.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            names = pulled_models()
            before = list(names)
            yield names
            if names != before:
                with temporary_file(file) as temporary:
                    temporary.write_text(json.dumps({"models": names}, indent=1), encoding="utf-8")
                    os.replace(temporary, file)
        finally:
            os.close(lock)
    except OSError as error:
        hint = "set IPEX_LOOKAHEAD_CACHE to a writable folder"
        raise SaveError(f"cannot write {file}: {error.strerror or error}", hint=hint) from error
