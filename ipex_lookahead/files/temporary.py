"""Files and folders that are written under a temporary name and then renamed to their target.

A temporary is named ``.NAME.saving-HEX`` and locked by the process that creates it. If the process is killed, the lock
is released, and the next process with the same target removes the temporary. On file systems without locks (some
network file systems) a process removes only its own temporaries.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """Create an empty folder next to ``target``; it is removed unless it was renamed. May raise OSError."""
    sweep(target)
    folder, lock = _create_locked(target, lambda path: path.mkdir(parents=True))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def temporary_file(target: Path) -> Iterator[Path]:
    """Create an empty file next to ``target``; it is removed unless it was renamed. May raise OSError."""
    sweep(target)
    file, lock = _create_locked(target, lambda path: path.open("xb").close())
    try:
        yield file
    finally:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(lock), os.lstat(file)):
                file.unlink()
        os.close(lock)


def put_in_place(temporary: Path, target: Path) -> None:
    """Rename a folder to ``target``, atomically replacing a folder that exists there. May raise OSError.

    The replaced folder is at ``temporary`` afterwards. If the system cannot exchange two names (old kernels, some file
    systems), two renames are used; the first one is reverted if the second fails.
    """
    if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
        temporary.rename(target)
        return
    if _exchange(temporary, target):
        return
    aside = target.with_name(f".{target.name}.old-{secrets.token_hex(4)}")
    target.rename(aside)
    try:
        temporary.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    aside.rename(temporary)


def sweep(target: Path) -> None:
    """Remove the temporaries of killed processes for this target, and restore a folder that one of them moved aside."""
    with contextlib.suppress(OSError):
        for left in target.parent.glob(f".{glob.escape(target.name)}.saving-????????"):
            _remove_if_dead(left)
        aside = sorted(target.parent.glob(f".{glob.escape(target.name)}.old-????????"))
        if aside and not os.path.lexists(target):
            aside.pop().rename(target)  # the process was killed between the two renames
        for left in aside:
            shutil.rmtree(left, ignore_errors=True)


def sweep_folder(folder: Path) -> None:
    """Remove the temporary files of killed processes for all targets in a folder."""
    with contextlib.suppress(OSError):
        for left in folder.glob(".*.saving-????????"):
            _remove_if_dead(left)


def _create_locked(target: Path, make: Callable[[Path], None]) -> tuple[Path, int]:
    """Create, open and lock a temporary; retry if another process removes it before it is locked."""
    while True:
        path = target.with_name(f".{target.name}.saving-{secrets.token_hex(4)}")
        make(path)
        try:
            lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.lstat(path)):
                return path, lock
        except BlockingIOError:
            pass  # another process holds the lock and will remove it
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno in (errno.ENOTSUP, errno.ENOLCK, errno.EINVAL, errno.ENOSYS):
                return path, lock  # without locks, no other process can remove it either
            os.close(lock)
            raise
        os.close(lock)


def _remove_if_dead(left: Path) -> None:
    """Remove a temporary unless a process holds its lock."""
    try:
        lock = os.open(left, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink()
    except OSError:
        return  # a process holds the lock, or the file system has no locks
    finally:
        os.close(lock)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names atomically; return False if the system does not support it."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), str(other))
