"""Files with parts of KV caches: the prefix cache on disk, saved caches, and saved slots.

A file is a sequence of records under one key. A record has a kind, a range of positions and bytes, and is stored as
one or more chunks of at most 16 MB. All numbers are little-endian:

    chunk   16 bytes   ``ipex-lookahead C``
            4          version, 1
            4          1 if another chunk follows, 0 for the last one
            32         key
            8          kind: up to 8 ASCII letters, then zeros
            8, 8       first position of the record, and the position after its last one
            8, 8       number of bytes of the record, and of its bytes in earlier chunks
            4          number of bytes in this chunk
            4          CRC-32 of these bytes
            4          CRC-32 of all preceding bytes of the chunk
            n          the bytes

A file is written under a temporary name with mode 0600, synchronized to disk and renamed, so it is complete or absent.
A reader checks every number before it allocates memory, and every byte before it returns a record.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from ipex_lookahead.errors import CacheFileError, SaveError
from ipex_lookahead.files.temporary import temporary_file

CHUNK_BYTES = 2**24
"""Maximum number of bytes of a record in one chunk."""
KEY_BYTES = 32

_MAGIC, _VERSION = b"ipex-lookahead C", 1
_HEAD = struct.Struct("<16sII32s8sQQQQII")
_CHECK = struct.Struct("<I")
_HEAD_BYTES = _HEAD.size + _CHECK.size
_MAX_POSITION = 2**40


@dataclass(frozen=True)
class Record:
    """Bytes of a range of positions.

    Attributes:
        kind: 1 to 8 ASCII letters.
        first: first position.
        last: the position after the last one.
        data: uint8 [bytes].
    """

    kind: str
    first: int
    last: int
    data: npt.NDArray[np.uint8]


def write_records(file: Path, key: bytes, records: Iterable[Record]) -> int:
    """Write a file, which replaces an older one atomically, and wait until it is on disk.

    Args:
        file: its folder exists.
        key: 32 bytes, which readers compare.
        records: at least one; they are taken one after the other, so a generator needs memory for one of them.

    Returns:
        The size of the file in bytes.

    Raises:
        SaveError: the file cannot be written; an older one is unchanged.
    """
    try:
        with temporary_file(file) as temporary:
            with temporary.open("wb") as out:
                os.fchmod(out.fileno(), 0o600)
                size = _write(out, key, records)
                out.flush()
                os.fsync(out.fileno())
            temporary.replace(file)
        _synchronize(file.parent)
    except OSError as error:
        raise SaveError(f"the cache file {file} cannot be written: {error.strerror or error}") from error
    return size


def read_records(file: Path, key: bytes | None = None) -> Iterator[Record]:
    """Yield the records of a file, each after all its bytes were checked.

    Args:
        file: a regular file.
        key: 32 bytes, the expected key; None = any.

    Raises:
        CacheFileError: the file is missing or cannot be read, is not a cache file, has another version or key, is
            truncated, or is damaged.
    """
    try:
        with _opened(file) as source:
            yield from _read(file, source, os.fstat(source.fileno()).st_size, key)
    except OSError as error:
        raise CacheFileError(file, f"cannot be read: {error.strerror or error}") from error


def read_key(file: Path) -> bytes:
    """Return the key of a file, 32 bytes, from its first chunk's header.

    Raises:
        CacheFileError: as ``read_records``; only the header is checked.
    """
    try:
        with _opened(file) as source:
            return _head(file, source, os.fstat(source.fileno()).st_size)[1]
    except OSError as error:
        raise CacheFileError(file, f"cannot be read: {error.strerror or error}") from error


_Head = tuple[bool, bytes, tuple[str, int, int, int], int, int, int]
"""Header of a chunk: whether another follows; key; the record's kind, positions and bytes; its bytes in earlier chunks
and in this one; checksum."""


def _write(out: BinaryIO, key: bytes, records: Iterable[Record]) -> int:
    """Write all records; return the number of bytes."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"internal error: a key of {len(key)} bytes; it must have {KEY_BYTES}")
    size, before = 0, None
    for record in records:
        if before is not None:
            size += _write_record(out, key, before, more=True)
        before = record
    if before is None:
        raise ValueError("internal error: a cache file without records")
    return size + _write_record(out, key, before, more=False)


def _write_record(out: BinaryIO, key: bytes, record: Record, *, more: bool) -> int:
    data = np.ascontiguousarray(record.data, np.uint8).data
    kind, total = record.kind.encode("ascii"), len(data)
    size = 0
    for offset in range(0, max(total, 1), CHUNK_BYTES):
        part = data[offset : offset + CHUNK_BYTES]
        follows = more or offset + len(part) < total
        numbers = (record.first, record.last, total, offset, len(part), zlib.crc32(part))
        head = _HEAD.pack(_MAGIC, _VERSION, follows, key, kind, *numbers)
        size += out.write(head) + out.write(_CHECK.pack(zlib.crc32(head))) + out.write(part)
    return size


def _opened(file: Path) -> BinaryIO:
    """Open a regular file. Raises OSError or CacheFileError."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe would block
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CacheFileError(file, "is not a regular file")
    return os.fdopen(descriptor, "rb", buffering=0)


def _read(file: Path, source: BinaryIO, size: int, key: bytes | None) -> Iterator[Record]:
    end, more = 0, True
    record: tuple[str, int, int, int] | None = None  # with chunks still to read
    data, done = np.empty(0, np.uint8), 0
    while more:
        more, own, named, offset, count, check = _head(file, source, size - end)
        end += _HEAD_BYTES + count
        if key is not None and own != key:
            raise CacheFileError(file, "belongs to another model, or to other settings")
        key = own
        kind, first, last, total = named
        if record is None:
            if total - count > size - end:
                raise CacheFileError(file, f"is truncated: its size is {size} bytes")
            record, data, done = named, np.empty(total, np.uint8), 0
        if named != record or offset != done:
            raise CacheFileError(file, "is damaged: its chunks do not follow each other")
        part = data.data[offset : offset + count]
        _fill(file, source, part)
        if zlib.crc32(part) != check:
            raise CacheFileError(file, "is damaged: a checksum is wrong")
        done += count
        if done == total:
            yield Record(kind, first, last, data)
            record = None
        elif not more:
            raise CacheFileError(file, "is truncated: chunks are missing")
    if end != size:
        raise CacheFileError(file, f"is damaged: {size - end} bytes follow its last chunk")


def _head(file: Path, source: BinaryIO, left: int) -> _Head:
    """Read the header of a chunk from a file with ``left`` bytes left."""
    head = source.read(min(max(left, 0), _HEAD_BYTES)) or b""
    if not head.startswith(_MAGIC[: max(len(head), 1)]):
        raise CacheFileError(file, "is not a cache file, or is damaged")
    if len(head) < _HEAD_BYTES:
        raise CacheFileError(file, "is truncated: the header of a chunk is missing")
    if zlib.crc32(head[: _HEAD.size]) != _CHECK.unpack_from(head, _HEAD.size)[0]:
        raise CacheFileError(file, "is damaged: the checksum of a header is wrong")
    _, version, more, key, kind, first, last, total, offset, count, check = _HEAD.unpack_from(head)
    if version != _VERSION:
        raise CacheFileError(file, f"has version {version}; this package reads version {_VERSION}")
    name = kind.rstrip(b"\0")
    fits = first <= last <= _MAX_POSITION and offset + count <= total and count <= CHUNK_BYTES
    if not fits or more > 1 or not name.isalpha() or (not count and total):
        raise CacheFileError(file, "is damaged: the header of a chunk contradicts itself")
    if count > left - _HEAD_BYTES:
        raise CacheFileError(file, "is truncated: bytes of a chunk are missing")
    return more == 1, key, (name.decode("ascii"), first, last, total), offset, count, check


def _fill(file: Path, source: BinaryIO, part: memoryview) -> None:
    """Read the bytes of ``part``."""
    while part:
        count = source.readinto(part)  # type: ignore[attr-defined]
        if not count:
            raise CacheFileError(file, "is truncated: it became shorter while it was read")
        part = part[count:]


def _synchronize(folder: Path) -> None:
    """Wait until a renamed file has its new name on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError:
        return  # some network file systems cannot synchronize a folder
    finally:
        os.close(descriptor)
