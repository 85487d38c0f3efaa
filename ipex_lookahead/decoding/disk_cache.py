"""The prefix cache's second level: KV caches in files, found by the tokens that a text begins with.

A text is stored as chunks of whole pages, which texts with the same beginning share, and one file with the rest of its
pages and the state at its end. The key of a chunk is an HMAC of its tokens and of the previous key; the first key is an
HMAC of the tenant. The HMAC's secret comes from the folder's secret and from all that the bytes of a KV cache depend
on, so another model, format, layout or tenant finds nothing.

A writer and a reader thread export and import KV caches. The decoding thread looks up names in memory, and never waits
for either of them.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import threading
from collections.abc import Iterator
from time import monotonic, perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.decoding.background import Background
from ipex_lookahead.decoding.cache_chunks import Record
from ipex_lookahead.decoding.cache_folder import CacheFolder
from ipex_lookahead.decoding.stored_prefix import PAGE, Transfer
from ipex_lookahead.engines.api import Cache, Checkpointed, position_bytes
from ipex_lookahead.errors import CacheFileError, InputError, first_line

log = logging.getLogger("ipex_lookahead")

CHUNK_GOAL = 2**22
"""Bytes of a chunk of several pages: large enough to read at the disk's rate, small enough to be shared."""
MAX_CHUNK_PAGES = 64
SMALL_STATE = 2**16
"""Maximum bytes of a state that is stored with every chunk, so that any text with the chunk can begin there."""
MIN_POSITIONS = 2 * PAGE
"""Length of the shortest text that is stored."""
HELD_BYTES = 2**28
"""Maximum bytes of KV caches that have left memory and are still to be written; more are dropped."""
MAX_WRITES = 256
"""Maximum number of texts that are still to be written; more are dropped."""
FLUSH_SECONDS = 10.0
"""Maximum time at shutdown for texts that are still to be written."""
FIRST_RATE = 256e6
"""Bytes per second of reading, before the first read."""
FILE_SECONDS = 5e-4
"""Seconds of opening a file."""
FOLLOW = 0.3
"""Weight of a new read in the running mean of the rate."""
POLL_SECONDS = 0.001
"""Pause of a scheduler's step in which all sequences wait for the disk."""
USED_SECONDS = 60.0
"""Interval at which the use of a text in memory is noted in its files."""


class DiskCache:
    """The KV caches of one engine in a folder.

    ``find``, ``load``, ``save``, ``release``, ``use`` and ``close`` are for the thread that decodes; none of them but
    ``close`` waits.

    Args:
        folder: shared with other engines and processes.
        engine: exports and imports KV caches (:class:`~ipex_lookahead.engines.api.ImportsCache`).
        fingerprint: identifies the model: its weights, formats and all else that the bytes of KV caches depend on.

    Attributes:
        folder: as given.
        hits, tokens: numbers of reads so far, and of positions that they found.
        dropped: number of texts that were not written, or not completely.
        rate: measured bytes per second of reading.
    """

    def __init__(self, folder: CacheFolder, engine: Any, fingerprint: bytes) -> None:
        self.folder = folder
        self.hits = self.tokens = self.dropped = 0
        self.rate = FIRST_RATE
        self._engine = engine
        self._position_bytes = position_bytes(engine)
        pages = CHUNK_GOAL // (PAGE * self._position_bytes or CHUNK_GOAL)
        self.chunk = PAGE * min(MAX_CHUNK_PAGES, 1 << max(pages, 1).bit_length() - 1)
        facts = f"1 {engine.cache_layout} {self.chunk} ".encode() + fingerprint
        self._secret = _mac(folder.secret, facts)
        self._model = _mac(self._secret, b"model").hex()[:16]
        self._small_states = True
        self._held = 0
        self._lock = threading.Lock()
        self._writer = Background("ipex-lookahead cache writer", folder.refresh)
        self._reader = Background("ipex-lookahead cache reader")

    # ---- the decoding thread -------------------------------------------------------------------------------------

    def find(
        self, tokens: npt.NDArray[Any], tenant: str, above: int, position_seconds: float | None = None
    ) -> Transfer | None:
        """Return the longest stored prefix of a text that pays to read, or None.

        Args:
            tokens: integers [n], the prefix may have all of them.
            tenant: key of the prefix cache.
            above: length that memory holds; the prefix is longer.
            position_seconds: seconds of computing a position, None where it is not known: then reading pays.
        """
        tokens = np.ascontiguousarray(tokens, "<i8")
        keys: list[bytes] = []
        names: list[str] = []
        for number, key in enumerate(self._keys(tokens, tenant)):
            if number:
                name = self._stored_chunk(key, number)
                if not name:
                    break
                names.append(name)
            keys.append(key)
        while keys:
            boundary, name = (len(keys) - 1) * self.chunk, self._name(keys[-1])
            length, end = self._longest_end(name, keys[-1], tokens, boundary)
            if not end and names and names[-1] == f"{name}-{boundary}":
                length = boundary
            if length and length <= above:
                return None
            if length:
                files = [*names, end] if end else names
                size = sum(map(self.folder.size, files))
                seconds = size / self.rate + FILE_SECONDS * len(files)
                if position_seconds is not None and seconds >= (length - above) * position_seconds:
                    return None
                return Transfer(tokens[:length], tenant, files, size)
            keys.pop()
            names = names[: max(len(keys) - 1, 0)]
        return None

    def load(self, found: Transfer) -> None:
        """Begin to read what ``find`` has found."""
        self._reader.put(lambda: self._load(found))

    def save(self, tokens: npt.NDArray[Any], cache: Cache, tenant: str, *, limited: bool = True) -> Transfer | None:
        """Begin to write a KV cache; return None for one that is too short.

        Args:
            tokens: integers [n], the tokens in the cache.
            cache: a fork of it is written.
            tenant: key of the prefix cache.
            limited: whether it is dropped if ``MAX_WRITES`` texts are waiting.
        """
        if len(tokens) < MIN_POSITIONS:
            return None
        size = len(tokens) * self._position_bytes + (cache.state_bytes if isinstance(cache, Checkpointed) else 0)
        write = Transfer(np.array(tokens, "<i8"), tenant, size=size, cache=cache.fork())
        if limited and self._writer.waiting >= MAX_WRITES:
            self._end_write(write, failed=True)
        else:
            self._writer.put(lambda: self._save(write))
        return write

    def release(self, write: Transfer, size: int | None = None) -> None:
        """Note that a KV cache has left memory: if it is still to be written, its memory is bounded from now on.

        ``size``: bytes that it takes alone, where another KV cache in memory shares the rest.
        """
        with self._lock:
            if write.ended or write.held:
                return
            write.size = write.size if size is None else size
            if self._held + write.size <= HELD_BYTES:
                self._held += write.size
                write.held = True
            else:
                write.cancelled = True

    def use(self, write: Transfer) -> None:
        """Note that a text was found in memory, so that its files are not the next to be deleted."""
        if write.names and write.ended and monotonic() - write.used_at > USED_SECONDS:
            write.used_at = monotonic()
            self._writer.put(lambda: self.folder.touch(write.names))

    def close(self, seconds: float = FLUSH_SECONDS) -> None:
        """Write what is still to be written, for at most this time, and end the threads."""
        self._reader.close(0.0)
        if not self._writer.close(seconds):
            log.warning("the cache in %s: not all texts were written within %.0f s", self.folder.folder, seconds)

    # ---- keys ----------------------------------------------------------------------------------------------------

    def _keys(self, tokens: npt.NDArray[np.int64], tenant: str) -> Iterator[bytes]:
        """Yield the key of no chunk, of the first one, of the first two, ..."""
        known = _mac(self._secret, b"tenant " + tenant.encode())
        yield known
        for end in range(self.chunk, len(tokens) + 1, self.chunk):
            known = _mac(self._secret, known + _bytes(tokens[end - self.chunk : end]))
            yield known

    def _end_key(self, key: bytes, rest: npt.NDArray[np.int64]) -> bytes:
        """Return the key of a text that ends behind a chunk."""
        return _mac(self._secret, b"end " + key + _bytes(rest))

    def _name(self, key: bytes) -> str:
        return f"{self._model}-{key.hex()[:32]}"

    def _stored_chunk(self, key: bytes, number: int) -> str:
        """Return the name of the file of a chunk, or ""."""
        name = self._name(key)
        with_state = f"{name}-{number * self.chunk}"
        return with_state if self.folder.size(with_state) else name if self.folder.size(name) else ""

    def _longest_end(self, name: str, key: bytes, tokens: npt.NDArray[np.int64], boundary: int) -> tuple[int, str]:
        """Return the length and the name of the longest text behind a chunk that is a prefix of ``tokens``."""
        ends = [(int(end.rpartition("-")[2]), end) for end in self.folder.behind(name)]
        for length, end in sorted(ends, reverse=True):
            if boundary < length <= len(tokens):
                own = self._end_key(key, tokens[boundary:length])
                if end.split("-")[2] == own.hex()[:32]:
                    return length, end
        return 0, ""

    # ---- the writer ----------------------------------------------------------------------------------------------

    def _save(self, write: Transfer) -> None:
        failed = True
        try:
            failed = not self._write(write)
        finally:
            self._end_write(write, failed=failed)

    def _end_write(self, write: Transfer, *, failed: bool) -> None:
        with self._lock:
            write.cache, write.ended, write.failed = None, True, failed
            self.dropped += failed
            if write.held:
                self._held -= write.size

    def _write(self, write: Transfer) -> bool:
        """Write the files of a text that do not exist yet; return False if one is missing at the end."""
        cache: Any = write.cache
        tokens, names = write.tokens, write.names
        keys = list(self._keys(tokens, write.tenant))
        for number, key in enumerate(keys[1:], 1):
            first, last = (number - 1) * self.chunk, number * self.chunk
            name = self._stored_chunk(key, number)
            if not name:
                if write.cancelled:
                    return False
                records = [Record("pages", first, last, cache.export_pages(first, last))]
                name = self._name(key)
                if (state := self._small_state(cache, last)) is not None:
                    name += f"-{last}"
                    records.append(Record("state", last, last, state))
                if not self.folder.write(name, key, records):
                    return False
            names.append(name)
        boundary, length = (len(keys) - 1) * self.chunk, len(tokens)
        if length > boundary or names[-1].count("-") == 1:
            if write.cancelled:
                return False
            key = self._end_key(keys[-1], tokens[boundary:])
            name = f"{self._name(keys[-1])}-{key.hex()[:32]}-{length}"
            if not self.folder.size(name):
                records = [Record("state", length, length, cache.export_state())]
                if length > boundary:
                    records.append(Record("pages", boundary, length, cache.export_pages(boundary, length)))
                if not self.folder.write(name, key, records):
                    return False
            names.append(name)
        self.folder.touch(names)
        return True

    def _small_state(self, cache: Cache, length: int) -> npt.NDArray[np.uint8] | None:
        """Return the state at a shorter length; None where it is large, or the cache cannot roll back to it."""
        if not self._small_states:
            return None
        fork: Any = cache.fork()
        if fork.crop(length) != length:
            return None
        state: npt.NDArray[np.uint8] = fork.export_state()
        if state.nbytes > SMALL_STATE:
            self._small_states = False
            return None
        return state

    # ---- the reader ----------------------------------------------------------------------------------------------

    def _load(self, read: Transfer) -> None:
        try:
            if not read.cancelled:
                began = perf_counter()
                read.cache = self._read(read)
                rate = read.size / max(perf_counter() - began, 1e-6)
                self.rate = rate if self.rate == FIRST_RATE else self.rate + FOLLOW * (rate - self.rate)
                self.hits += 1
                self.tokens += len(read.tokens)
                self.folder.touch(read.names)
        except CacheFileError:
            read.again = True  # the folder has deleted the file
        except InputError as error:
            if not read.cancelled:
                log.warning("files in %s do not fit the model: %s; they were deleted", self.folder.folder, error)
                self.folder.delete(read.names)
                read.again = True
        except Exception as error:
            log.warning("a prefix was not read from %s: %s", self.folder.folder, first_line(error))
        finally:
            read.failed = read.cache is None
            read.ended = True

    def _read(self, read: Transfer) -> Cache:
        keys = list(self._keys(read.tokens, read.tenant))
        boundary, length = (len(keys) - 1) * self.chunk, len(read.tokens)
        names = dict(zip(read.names, keys[1:], strict=False))
        last = read.names[-1]
        if last not in names:
            names[last] = self._end_key(keys[-1], read.tokens[boundary:])
        records = list(self.folder.read(last, names[last]))
        states = [record.data for record in records if record.kind == "state"]
        if len(states) != 1:
            raise InputError(f"{last} has {len(states)} states")
        tail = [record for record in records if record.kind == "pages"]

        def pages() -> Iterator[tuple[int, int, npt.NDArray[np.uint8]]]:
            for name in read.names[:-1]:
                if read.cancelled:
                    raise InputError("the read was cancelled")
                for record in self.folder.read(name, names[name]):
                    if record.kind == "pages":
                        yield record.first, record.last, record.data
            for record in tail:
                yield record.first, record.last, record.data

        cache: Cache = self._engine.import_cache(length, pages(), states[0])
        return cache


def _bytes(tokens: npt.NDArray[np.int64]) -> bytes:
    """Return what a key is made of: int32 for token ids, int64 if there are rows of images."""
    return tokens.astype("<i4").tobytes() if not len(tokens) or tokens.min() >= 0 else b"images " + tokens.tobytes()


def _mac(secret: bytes, message: bytes) -> bytes:
    return hmac.digest(secret, message, hashlib.sha256)
