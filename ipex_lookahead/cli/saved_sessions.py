"""Named sessions of ``chat``: conversations in folders below the cache folder.

A session is a folder ``sessions/NAME`` with mode 0700. Its file ``conversation.json`` is a conversation as ``/save``
writes it, ``images`` has the images of its messages, and ``kv`` is the folder of its KV cache. A chat locks the folder,
so that no second chat overwrites it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ipex_lookahead.cli.chat_images import ChatImage, read_written, remove_others, written
from ipex_lookahead.errors import InputError, ModelFormatError, SaveError
from ipex_lookahead.files.safe_json import load_object
from ipex_lookahead.files.temporary import temporary_file
from ipex_lookahead.hub import Removal, cache_folder

MAX_BYTES = 256 << 20
"""Maximum size of a saved conversation."""
MAX_NAME = 64
"""Maximum number of characters of a session's name."""
_NAME = re.compile(r"\w(?:[\w.-]*\w)?")
_CONVERSATION = "conversation.json"
_CACHE = "kv"
IMAGES = "images"
"""Folder of a session's images; the name of each is its SHA-256."""


@dataclass(slots=True)
class Saved:
    """A saved conversation.

    Attributes:
        system: The system prompt, or None.
        turns: (message, answer, token ids of the answer, images of the message) of each turn; the ids are empty if the
            file has none.
        model: Name of the model, "" if the file has none.
        fingerprint: Fingerprint of the model, "" if the file has none.
        settings: Setting -> value.
    """

    system: str | None
    turns: list[tuple[str, str, list[int], list[ChatImage]]]
    model: str = ""
    fingerprint: str = ""
    settings: dict[str, Any] | None = None

    def write(self, file: Path, images: Path | None = None) -> None:
        """Write the conversation as JSON with mode 0600; an older file is replaced atomically.

        Args:
            file: The file.
            images: Folder for the images; None: they are in the file, in base64.

        Raises SaveError.
        """
        try:
            self._write(file, images)
        except OSError as error:
            raise SaveError(f"cannot write {file}: {error.strerror or error}") from None

    def _write(self, file: Path, images: Path | None) -> None:
        content = {
            "model": self.model,
            "fingerprint": self.fingerprint,
            "settings": self.settings or {},
            "system": self.system,
            "turns": [
                {"user": user, "assistant": answer, "token_ids": ids}
                | ({"images": [written(one, images) for one in seen]} if seen else {})
                for user, answer, ids, seen in self.turns
            ],
        }
        with temporary_file(file) as temporary:
            temporary.chmod(0o600)
            with temporary.open("w", encoding="utf-8") as out:
                json.dump(content, out, ensure_ascii=False)
                out.flush()
                os.fsync(out.fileno())
            if (size := temporary.stat().st_size) > MAX_BYTES:
                most = f"at most {MAX_BYTES / 1e6:,.0f} MB can be read again"
                raise SaveError(
                    f"{file} would have {size / 1e6:,.0f} MB with the images; {most}",
                    hint="--session NAME stores images of any number",
                )
            temporary.replace(file)
        if images is not None:
            remove_others(images, {one.digest for *_, seen in self.turns for one in seen})


def read_conversation(file: Path) -> Saved:
    """Return the conversation in a file. Raises InputError for any other file."""
    try:
        found = load_object(file, MAX_BYTES)
        turns = [
            (turn["user"], turn["assistant"], turn.get("token_ids", []), _images(file, turn)) for turn in found["turns"]
        ]
        saved = Saved(found["system"], turns, found.get("model", ""), found.get("fingerprint", ""))
        saved.settings = found.get("settings", {})
    except ModelFormatError as error:
        raise InputError(f"{file} is not a conversation saved by /save: {error.problem}") from None
    except (AttributeError, KeyError, TypeError):
        _refuse(file, "'system' or 'turns' is missing or invalid")
    texts = [saved.model, saved.fingerprint, *(text for turn in turns for text in turn[:2])]
    if not all(isinstance(text, str) for text in texts) or not isinstance(saved.system, str | None):
        _refuse(file, "'system' or 'turns' is missing or invalid")
    if not all(isinstance(ids, list) and all(type(i) is int and 0 <= i < 2**31 for i in ids) for _, _, ids, _ in turns):
        _refuse(file, "'token_ids' must be lists of token ids")
    if not isinstance(saved.settings, dict):
        _refuse(file, "'settings' must be an object")
    return saved


def _images(file: Path, turn: Any) -> list[ChatImage]:
    """Return the images of a turn in a file. Raises InputError, TypeError or AttributeError for an invalid one."""
    try:
        return [read_written(one, file.parent / IMAGES) for one in turn.get("images", [])]
    except InputError as error:
        return cast(list[ChatImage], _refuse(file, str(error)))


def _refuse(file: Path, problem: str) -> Any:
    raise InputError(f"{file} is not a conversation saved by /save: {problem}")


class SessionFolder:
    """The folder of a session, locked until it is closed.

    Args:
        name: The session's name; a missing folder is created.

    Raises:
        InputError: The name is invalid, another chat has locked the folder, or there is no cache folder.
        SaveError: The folder cannot be created.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._path = session_folder(name)
        try:
            for folder in (self._path.parent, self._path):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                folder.chmod(0o700)
            self._lock = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise SaveError(f"cannot create the session folder {self._path}: {error.strerror or error}") from None
        if not _take(self._lock):
            os.close(self._lock)
            raise InputError(
                f"session {name!r} is open in another chat", hint="close that chat, or choose another name"
            )

    @property
    def cache(self) -> Path:
        """Folder of the KV cache."""
        return self._path / _CACHE

    def read(self) -> Saved | None:
        """Return the saved conversation, or None for a new session. Raises InputError for a damaged file."""
        file = self._path / _CONVERSATION
        if not os.path.lexists(file):
            return None
        try:
            return read_conversation(file)
        except InputError as error:
            raise InputError(
                f"session {self.name!r} cannot be read: {error}",
                hint=f"repair the file, or remove the session: ipex-lookahead rm --session {self.name}",
            ) from None

    def write(self, saved: Saved) -> None:
        """Save the conversation. Raises SaveError."""
        saved.write(self._path / _CONVERSATION, self._path / IMAGES)

    def close(self) -> None:
        """Release the lock; a session without a saved conversation leaves no folder."""
        if not os.path.lexists(self._path / _CONVERSATION):
            remove = Removal(self._path.parent, (self._path,), 0)
            remove.execute()
        os.close(self._lock)


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """A saved session.

    Attributes:
        name: Its name.
        path: Its folder.
        model: Name of its model; "" for a damaged file.
        turns: Number of turns; None for a damaged file.
        bytes: Size on disk.
        last_used: Seconds since 1970.
    """

    name: str
    path: Path
    model: str
    turns: int | None
    bytes: int
    last_used: float


def saved_sessions() -> list[SessionFacts]:
    """Return the saved sessions, most recently used first."""
    found = []
    for path in _listed(_sessions()):
        file = path / _CONVERSATION
        try:
            if _NAME.fullmatch(path.name) and stat.S_ISDIR(path.lstat().st_mode):
                used = file.lstat().st_mtime
                found.append(_facts(path, used))
        except OSError:  # not a session, or it was just removed
            continue
    return sorted(found, key=lambda session: -session.last_used)


def session_removal(name: str) -> Removal:
    """Return what removing a session would delete, without deleting anything.

    Raises:
        InputError: There is no such session, or a chat has it open.
    """
    path = session_folder(name)
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        raise InputError(
            f"no session named {name!r} is stored here", hint="ipex-lookahead list shows the stored sessions"
        ) from None
    try:
        if not _take(lock):
            raise InputError(f"session {name!r} is open in a chat", hint="close the chat first")
    finally:
        os.close(lock)
    return Removal(path.parent, (path,), _size(path))


def session_folder(name: str) -> Path:
    """Return the folder of a session. Raises InputError for an invalid name."""
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME or len(name.encode()) > 200:
        raise InputError(
            f"{name!r} is not a session name: it must have 1 to {MAX_NAME} letters, digits, '.', '_' or '-', and begin "
            "and end with a letter, a digit or '_'"
        )
    return _sessions() / name


def _sessions() -> Path:
    return cache_folder() / "sessions"


def _take(lock: int) -> bool:
    """Lock a folder; return False if another process has the lock. File systems without locks lock nothing."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _facts(path: Path, used: float) -> SessionFacts:
    try:
        saved = read_conversation(path / _CONVERSATION)
    except InputError:
        return SessionFacts(path.name, path, "", None, _size(path), used)
    return SessionFacts(path.name, path, saved.model, len(saved.turns), _size(path), used)


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if stat.S_ISREG(path.lstat().st_mode))
