"""The file of a store: a base that is written whole, and appended frames of later texts.

All numbers are little-endian:

    base    16 bytes   ``ipex-lookahead S``
            4          version, 2
            4          vocabulary size
            32         SHA-256 of the vocabulary, or zeros
            8, 8       number of texts, total number of tokens
            4 each     length of each text, oldest first
            4 each     the tokens
            32         SHA-256 of all preceding bytes
    frame   4, 4       number of texts, number of tokens
            4          CRC-32 of these two
            4 each     length of each text, oldest first
            4 each     the tokens
            32         SHA-256 of the preceding bytes of the frame

Version 1, which is still supported, is a base without frames. The base is replaced atomically. The last frame can be
torn: a killed process or a power loss leaves part of it. Readers ignore that part and the next writer removes it. Any
other inconsistency is damage and raises an error.

Writers hold a lock (``flock``) on the file. A writer that locks a file that was replaced meanwhile opens the new one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import struct
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ipex_lookahead.errors import InputError, SaveError, arg
from ipex_lookahead.files.temporary import temporary_file

Text = npt.NDArray[np.int32]

MAGIC, VERSION = b"ipex-lookahead S", 2
_HEAD = struct.Struct("<16sII32sQQ")
_FRAME = struct.Struct("<III")
_DIGEST = 32
_MAX_TOKENS = 2**24
"""Maximum number of tokens of a base."""

_MAX_BYTES = 2**28
"""Maximum size of a file in bytes."""

_LOCK_SECONDS = {fcntl.LOCK_EX: 5.0, fcntl.LOCK_SH: 1.0}
"""Maximum wait in seconds for another process that holds the lock. After it, readers read without the lock."""

_TRIES = 9
"""Maximum number of attempts to open or create a file that other processes create and remove."""

_NO_LOCKS = (errno.ENOTSUP, errno.ENOLCK, errno.EINVAL, errno.ENOSYS)
"""Errors of filesystems without locks."""

_OTHER = f"name another file with {arg('store')}; it need not exist yet"
_BROKEN = f"delete the file, or name another with {arg('store')}"
"""Deleting is suggested only for files that begin with this format's magic bytes, so that no other file is deleted."""


@dataclass(frozen=True)
class Owner:
    """The vocabulary of a file: its size, and its SHA-256 (32 bytes) or zeros."""

    vocab_size: int
    digest: bytes


@dataclass
class Content:
    """The content of a file.

    Attributes:
        texts: oldest first.
        end: size of the file in bytes without a torn last frame.
        base: size of its base in bytes.
        version: format version.
    """

    texts: list[Text]
    end: int
    base: int
    version: int


def trimmed(texts: Iterable[Text], capacity: int) -> deque[Text]:
    """Return the texts that remain in a store of ``capacity`` tokens after they are added one after the other."""
    kept, tokens = deque[Text](), 0
    for text in texts:
        kept.append(text[-capacity:])
        tokens = drop_oldest(kept, tokens + len(kept[-1]), capacity)
    return kept


def drop_oldest(texts: deque[Text], tokens: int, capacity: int) -> int:
    """If texts exceed the capacity, drop the oldest until a quarter is free; return the number of remaining tokens."""
    if tokens > capacity:
        while len(texts) > 1 and tokens > capacity - capacity // 4:
            tokens -= len(texts.popleft())
    return tokens


def read(file: Path, owner: Owner) -> list[Text] | None:
    """Return the texts of a file, or None if it does not exist.

    Raises:
        InputError: the file cannot be read, is damaged, is not a store, or belongs to another vocabulary.
    """
    try:
        with _opened(file, os.O_RDONLY, fcntl.LOCK_SH) as descriptor:
            return _read(file, descriptor, owner).texts
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"the store {file} cannot be read: {error.strerror or error}") from error


def write(file: Path, owner: Owner, texts: Sequence[Text]) -> None:
    """Replace the base atomically; with concurrent writers, the last one wins.

    Raises:
        SaveError: the file cannot be written; the old file is unchanged.
    """
    with _save_errors(file):
        _put(file, _base(owner, texts), replace=True)


class Appender:
    """Appends texts to a file, and compacts the file when the frames exceed four bytes per token of capacity.

    Texts that other processes appended are kept.

    Args:
        file: without symbolic links.
        owner: the vocabulary that it belongs to.
        capacity: tokens that remain after a compaction.

    Attributes:
        unwritten: texts that are not in the file yet; the caller's.
    """

    def __init__(self, file: Path, owner: Owner, capacity: int) -> None:
        self._file, self._owner, self._capacity = file, owner, capacity
        self._seen: tuple[int, int, int] | None = None  # device, inode and size after the last append
        self._base = 0
        self.unwritten = deque[Text]()

    def append(self, texts: Sequence[Text], everything: Sequence[Text]) -> None:
        """Append texts and wait until they are on disk.

        Args:
            texts: the new texts.
            everything: all texts of the store, for a file that does not exist (any more).

        Raises:
            SaveError: the file cannot be written; its texts are unchanged.
            InputError: the file is damaged, is not a store, or belongs to another vocabulary; it is unchanged.
        """
        with _save_errors(self._file):
            for _ in range(_TRIES):
                try:
                    with _opened(self._file, os.O_RDWR, fcntl.LOCK_EX) as descriptor:
                        self._append(descriptor, texts)
                    return
                except FileNotFoundError:
                    with contextlib.suppress(FileExistsError):  # another process was first: append to its file
                        _put(self._file, _base(self._owner, everything), replace=False)
                        return
            raise FileNotFoundError(errno.ENOENT, "it does not exist and cannot be created")

    def _append(self, descriptor: int, texts: Sequence[Text]) -> None:
        status = os.fstat(descriptor)
        content = None
        end = status.st_size
        if self._seen != (status.st_dev, status.st_ino, status.st_size):  # another process wrote, or the first append
            content = _read(self._file, descriptor, self._owner)
            end, self._base = content.end, content.base
        frame = _frame(texts)
        if (content and content.version < VERSION) or end - self._base + len(frame) > 4 * self._capacity:
            content = content or _read(self._file, descriptor, self._owner)
            self._seen = None
            kept = trimmed([*content.texts, *texts], self._capacity)
            _put(self._file, _base(self._owner, kept), replace=True)
            return
        self._seen = None
        try:
            if end < status.st_size:
                os.ftruncate(descriptor, end)
            os.lseek(descriptor, end, os.SEEK_SET)
            rest = memoryview(frame)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, end)
            raise
        self._seen = (status.st_dev, status.st_ino, end + len(frame))


def is_store(file: Path) -> bool:
    """Return True if a file begins with the magic bytes of a store. Raises OSError if it cannot be read."""
    with file.open("rb") as source:
        return source.read(len(MAGIC)) == MAGIC


# ---- bytes -----------------------------------------------------------------------------------------------------------


def _body(texts: Sequence[Text]) -> bytes:
    lengths = np.array([len(text) for text in texts], "<u4")
    return b"".join([lengths.tobytes(), *(text.astype("<u4").tobytes() for text in texts)])


def _sealed(content: bytes) -> bytes:
    return content + hashlib.sha256(content).digest()


def _base(owner: Owner, texts: Sequence[Text]) -> bytes:
    tokens = sum(map(len, texts))
    head = _HEAD.pack(MAGIC, VERSION, owner.vocab_size, owner.digest, len(texts), tokens)
    return _sealed(head + _body(texts))


def _frame(texts: Sequence[Text]) -> bytes:
    head = struct.pack("<II", len(texts), sum(map(len, texts)))
    return _sealed(head + struct.pack("<I", zlib.crc32(head)) + _body(texts))


def _read(file: Path, descriptor: int, owner: Owner) -> Content:
    size = os.fstat(descriptor).st_size
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(os.dup(descriptor), "rb") as source:
        head = _check_head(file, source.read(_HEAD.size), size, owner)
        if head is None:
            raise InputError(f"the store {file} is damaged ({size} bytes)", hint=_BROKEN)
        version, texts, tokens = head
        source.seek(0)
        content = source.read(size)
    base = _HEAD.size + 4 * (texts + tokens) + _DIGEST
    if len(content) < base or not _is_right(content[:base]):
        raise InputError(f"the store {file} is damaged: its checksum is wrong", hint=_BROKEN)
    found = Content(_texts(file, content, _HEAD.size, texts, tokens, owner), base, base, version)
    while (rest := len(content) - found.end) >= _FRAME.size:
        at, counts = found.end, _frame_counts(content, found.end)
        if counts is None:
            if not any(memoryview(content)[at + _FRAME.size :]):  # a loss of power can leave zeros
                break
            raise InputError(f"the store {file} is damaged from byte {at}", hint=_BROKEN)
        size = _FRAME.size + 4 * sum(counts) + _DIGEST
        if rest < size or not _is_right(content[at : at + size]):
            if not any(memoryview(content)[at + size :]):
                break
            raise InputError(f"the store {file} is damaged: its checksum is wrong", hint=_BROKEN)
        found.texts += _texts(file, content, at + _FRAME.size, *counts, owner)
        found.end += size
    return found


def _is_right(content: bytes) -> bool:
    return hashlib.sha256(content[:-_DIGEST]).digest() == content[-_DIGEST:]


def _frame_counts(content: bytes, at: int) -> tuple[int, int] | None:
    """Return the number of texts and tokens of the frame at a byte; None if no frame begins there."""
    texts, tokens, check = _FRAME.unpack_from(content, at)
    return (texts, tokens) if zlib.crc32(content[at : at + 8]) == check and 0 < texts <= tokens else None


def _texts(file: Path, content: bytes, at: int, texts: int, tokens: int, owner: Owner) -> list[Text]:
    lengths = np.frombuffer(content, "<u4", texts, at).astype(np.int64)
    ids = np.frombuffer(content, "<u4", tokens, at + 4 * texts)
    if lengths.sum() != tokens or (texts and lengths.min() < 1) or (tokens and ids.max() >= owner.vocab_size):
        raise InputError(f"the store {file} contradicts itself", hint=_BROKEN)
    return [text.astype(np.int32) for text in np.split(ids, np.cumsum(lengths)[:-1])] if texts else []


def _check_head(file: Path, head: bytes, size: int, owner: Owner) -> tuple[int, int, int] | None:
    """Return version, number of texts and number of tokens; None if they contradict the file's size.

    Raises InputError for a file that is not a store, or that belongs to another release or model.
    """
    if not head.startswith(MAGIC):
        raise InputError(f"{file} is not a lookahead store; it was not changed", hint=_OTHER)
    if len(head) < _HEAD.size:
        return None
    _, version, vocabulary, digest, texts, tokens = _HEAD.unpack(head)
    if not 1 <= version <= VERSION:
        raise InputError(
            f"the store {file} has version {version}; this package reads versions 1 to {VERSION}", hint=_OTHER
        )
    base = _HEAD.size + 4 * (texts + tokens) + _DIGEST
    if texts > tokens or tokens > _MAX_TOKENS or size < base or size > max(base, _MAX_BYTES * (version > 1)):
        return None
    if vocabulary != owner.vocab_size or digest != owner.digest:
        raise InputError(
            f"the store {file} belongs to a model with another vocabulary ({vocabulary} tokens, this model's has"
            f" {owner.vocab_size}); use one store per vocabulary",
            hint=_OTHER,
        )
    return version, texts, tokens


# ---- files -----------------------------------------------------------------------------------------------------------


@contextmanager
def _save_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SaveError(f"the store {file} cannot be written: {error.strerror or error}") from error


@contextmanager
def _opened(file: Path, flags: int, lock: int) -> Iterator[int]:
    """Open and lock a file; retry if another process replaced it before the lock was acquired. May raise OSError."""
    until = time.monotonic() + _LOCK_SECONDS[lock]
    while True:
        if file.exists() and not file.is_file():  # opening a pipe would block
            raise InputError(f"the store {file} is not a regular file", hint=f"name a file with {arg('store')}")
        descriptor = os.open(file, flags | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InputError(f"the store {file} is not a regular file", hint=f"name a file with {arg('store')}")
            _lock(descriptor, lock, until)
            if os.path.samestat(os.fstat(descriptor), os.stat(file)):
                yield descriptor
                return
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked process may hold a copy of the descriptor
            os.close(descriptor)


def _lock(descriptor: int, kind: int, until: float) -> None:
    """Lock a file. Raises BlockingIOError for a writer if another process holds it until ``until`` (monotonic)."""
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                if kind == fcntl.LOCK_SH:
                    return
                seconds = _LOCK_SECONDS[kind]
                raise BlockingIOError(errno.EWOULDBLOCK, f"another process locks it for {seconds:.0f} s") from None
            time.sleep(0.005)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return
            raise


def _put(file: Path, content: bytes, *, replace: bool) -> None:
    """Write a file atomically. Without ``replace``, raises FileExistsError if it exists."""
    with temporary_file(file) as temporary:
        with temporary.open("wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        if not replace:
            try:
                os.link(temporary, file)
            except FileExistsError:
                raise
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EMLINK):
                    raise
            else:
                return
        temporary.replace(file)
