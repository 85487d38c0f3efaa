"""Files and folders that are made whole beside their place and then take it in one step.

Each is called ``.NAME.saving-HEX`` and locked by its maker for as long as that lives. A maker that was killed leaves
its own behind unlocked, and the next one for the same place removes it. Where locks are not to be had (some network
filesystems), nothing is ever removed but one's own.
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
    """An empty folder beside ``target``, gone afterwards where it has not taken its place. May raise OSError."""
    sweep(target)
    folder, lock = _claim(target, lambda path: path.mkdir(parents=True))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def temporary_file(target: Path) -> Iterator[Path]:
    """An empty file beside ``target``, gone afterwards where it has not taken its place. May raise OSError."""
    sweep(target)
    file, lock = _claim(target, lambda path: path.open("xb").close())
    try:
        yield file
    finally:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(lock), os.lstat(file)):
                file.unlink()
        os.close(lock)


def put_in_place(temporary: Path, target: Path) -> None:
    """A folder takes the place of another, or of none, in one step: at no moment is neither there.

    What was at ``target`` is at ``temporary`` afterwards. Where the system cannot exchange two names at once (an old
    kernel, some filesystems), it is two steps, undone where the second fails. May raise OSError.
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
    """Remove what killed makers left for this place, and give back what one of them had moved aside."""
    with contextlib.suppress(OSError):
        for left in target.parent.glob(f".{glob.escape(target.name)}.saving-????????"):
            _remove_if_dead(left)
        aside = sorted(target.parent.glob(f".{glob.escape(target.name)}.old-????????"))
        if aside and not os.path.lexists(target):
            aside.pop().rename(target)  # its maker was killed between the two steps
        for left in aside:
            shutil.rmtree(left, ignore_errors=True)


def _claim(target: Path, make: Callable[[Path], None]) -> tuple[Path, int]:
    """Make it, open it and lock it; again where a sweeper was quicker than the lock."""
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
            pass  # a sweeper has it, and will remove it
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno in (errno.ENOTSUP, errno.ENOLCK, errno.EINVAL, errno.ENOSYS):
                return path, lock  # no locks here: nobody can sweep it either
            os.close(lock)
            raise
        os.close(lock)


def _remove_if_dead(left: Path) -> None:
    """Remove a temporary whose maker is gone: nobody holds its lock."""
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
        return  # its maker lives, or there are no locks here
    finally:
        os.close(lock)


def _exchange(one: Path, other: Path) -> bool:
    """Let two names change places at once. False where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), str(other))
