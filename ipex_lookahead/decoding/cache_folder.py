"""A folder of cache files that several processes share, bounded by its size: least recently used files go first.

    DIR/secret         32 random bytes, the key of all names
    DIR/lock           locked (``flock``) by the process that writes or deletes files
    DIR/xx/NAME.kv     a file of :mod:`ipex_lookahead.decoding.cache_chunks`; xx: the first two digits of NAME's key

    NAME               MODEL-KEY                  pages of one chunk
                       MODEL-KEY-LENGTH           the same, and the state at its end
                       MODEL-KEY-KEY-LENGTH       the rest of a text behind a chunk, and the state at its end

Names are HMACs, so they reveal no text, and a file is never rewritten with another content. The modification time is
the time of the last use. Every process has an index in memory; it lists a subfolder again if its time has changed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import heapq
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ipex_lookahead.decoding.cache_chunks import Record, read_records, write_records
from ipex_lookahead.errors import CacheFileError, InputError, SaveError, arg, first_line
from ipex_lookahead.files.temporary import sweep_folder, temporary_file

log = logging.getLogger("ipex_lookahead")

SUFFIX = ".kv"
KEPT_PART = 0.95
"""Part of the budget that remains in use when files are deleted, so that files are not deleted at every write."""
PAUSE_SECONDS = 60.0
"""Time without writes after a failed one."""
LOCK_SECONDS = 2.0
"""Maximum wait for another process that writes or deletes."""
_SETTLED_NS = 10**9
"""Age of a subfolder's time at which no later change can have the same time."""
_HEAD_BYTES = 256
"""Upper bound of the bytes of a file in addition to a record's own, for each record."""
_NAME = re.compile(r"[0-9a-f]{16}-([0-9a-f]{32})(-[0-9a-f]{32}-[0-9]{1,12}|-[0-9]{1,12})?")


class CacheFolder:
    """The files of a folder. Any thread may call any method.

    Args:
        folder: created if it does not exist, with mode 0700.
        budget: maximum total size of all files in it in bytes, those of other processes included.

    Attributes:
        folder, budget: as given.
        secret: 32 random bytes, the same for all processes.
        written, dropped: numbers of files that were written, and that could not be written.

    Raises InputError for a folder that cannot be created or written to.
    """

    def __init__(self, folder: Path, budget: int) -> None:
        self.folder, self.budget = folder, budget
        self.written = self.dropped = 0
        self._shards: dict[str, int] = {}  # subfolder -> its time when it was listed; 0: list it again
        self._sizes: dict[str, dict[str, int]] = {}  # subfolder -> name -> bytes
        self._used: dict[str, int] = {}  # name -> time of the last use in ns, as far as it is known
        self._behind: dict[str, set[str]] = {}  # MODEL-KEY -> names of the texts that end behind it
        self._bytes = 0
        self._changing = threading.Lock()  # never held during input or output: the decoding thread takes it
        self._writing = threading.Lock()
        self._paused_until = 0.0
        self._warned = False
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked():
                self.secret = self._secret()
                for shard in self._shards_on_disk():
                    sweep_folder(folder / shard)
                self._refresh()
        except (OSError, SaveError) as error:
            said = getattr(error, "strerror", None) or first_line(error)
            hint = f"name a folder of your own with {arg('cache_dir')}"
            raise InputError(f"the cache folder {folder} cannot be used: {said}", hint=hint) from error

    # ---- the index -----------------------------------------------------------------------------------------------

    @property
    def total_bytes(self) -> int:
        """Total size of the files, as far as this process knows."""
        return self._bytes

    def size(self, name: str) -> int:
        """Return the size of a file in bytes; 0 if there is none."""
        return self._sizes.get(_shard(name), {}).get(name, 0)

    def behind(self, name: str) -> Collection[str]:
        """Return the names of the texts that end behind a chunk, ``MODEL-KEY``."""
        with self._changing:
            return tuple(self._behind.get(name, ()))

    def refresh(self) -> None:
        """Take note of files that other processes have written or deleted."""
        with self._writing, contextlib.suppress(OSError):
            self._refresh()

    def _refresh(self) -> None:
        found = set(self._shards_on_disk())
        for shard in [*found, *(self._sizes.keys() - found)]:
            path = self.folder / shard
            try:
                changed = path.stat().st_mtime_ns
                if self._shards.get(shard) == changed:
                    continue
                listed = {
                    entry.name.removesuffix(SUFFIX): entry.stat()
                    for entry in os.scandir(path)
                    if entry.name.endswith(SUFFIX) and _NAME.fullmatch(entry.name.removesuffix(SUFFIX))
                }
            except FileNotFoundError:
                changed, listed = 0, {}
            for name in self._sizes.get(shard, {}).keys() - listed.keys():
                self._forget(name)
            for name, status in listed.items():
                self._note(name, status.st_size, status.st_mtime_ns)
            self._shards[shard] = changed if time.time_ns() - changed > _SETTLED_NS else 0

    def _shards_on_disk(self) -> list[str]:
        return [entry.name for entry in os.scandir(self.folder) if re.fullmatch("[0-9a-f]{2}", entry.name)]

    def _note(self, name: str, size: int, used: int) -> None:
        with self._changing:
            own = self._sizes.setdefault(_shard(name), {})
            self._bytes += size - own.get(name, 0)
            own[name] = size
            self._used[name] = max(used, self._used.get(name, 0))
            if name.count("-") == 3:
                self._behind.setdefault(_chunk(name), set()).add(name)

    def _forget(self, name: str) -> None:
        with self._changing:
            self._bytes -= self._sizes.get(_shard(name), {}).pop(name, 0)
            self._used.pop(name, None)
            if name.count("-") == 3 and (others := self._behind.get(_chunk(name))) is not None:
                others.discard(name)
                if not others:
                    del self._behind[_chunk(name)]

    # ---- reading -------------------------------------------------------------------------------------------------

    def read(self, name: str, key: bytes) -> Iterator[Record]:
        """Yield the records of a file.

        Raises:
            CacheFileError: the file is missing or damaged, or its key is not ``key``. It was deleted, with a warning if
                it was damaged.
        """
        file = self._file(name)
        try:
            yield from read_records(file, key)
        except CacheFileError as error:
            if file.exists():
                log.warning("%s; it was deleted, and its text is computed again", error)
            self.delete([name])
            raise

    def delete(self, names: Iterable[str]) -> None:
        """Delete files that cannot be used."""
        for name in names:
            with contextlib.suppress(OSError):
                self._file(name).unlink()
            self._forget(name)

    def touch(self, names: Sequence[str]) -> None:
        """Note the use of the files of a text, first chunk first; the last ones are deleted first."""
        now = time.time_ns()
        for number, name in enumerate(names):
            used = now - 1000 * number
            with contextlib.suppress(OSError):
                os.utime(self._file(name), ns=(used, used))
                if self.size(name):
                    self._used[name] = used

    # ---- writing -------------------------------------------------------------------------------------------------

    def write(self, name: str, key: bytes, records: Sequence[Record]) -> bool:
        """Write a file after others are deleted as the budget requires; return False if it cannot be written.

        After a failure, which is logged once, nothing is written for ``PAUSE_SECONDS``.
        """
        size = sum(record.data.nbytes + _HEAD_BYTES for record in records)
        if time.monotonic() < self._paused_until or size > self.budget:
            self.dropped += 1
            return False
        file = self._file(name)
        try:
            with self._locked():
                self._refresh()
                self._make_room(size)
                file.parent.mkdir(mode=0o700, exist_ok=True)
                size = write_records(file, key, records)
                self._note(name, size, time.time_ns())
        except BlockingIOError:
            self.dropped += 1  # another process writes for a long time
            return False
        except (OSError, SaveError) as error:
            self._paused_until = time.monotonic() + PAUSE_SECONDS
            self.dropped += 1
            if not self._warned:
                log.warning("%s; the cache in %s is used without writing to it", first_line(error), self.folder)
            self._warned = True
            return False
        self.written += 1
        return True

    def _make_room(self, size: int) -> None:
        """Delete the least recently used files if ``size`` more bytes exceed the budget."""
        if self._bytes + size <= self.budget:
            return
        with self._changing:
            oldest = [(used, name) for name, used in self._used.items()]
        heapq.heapify(oldest)
        while oldest and self._bytes + size > KEPT_PART * self.budget:
            known, name = heapq.heappop(oldest)
            file = self._file(name)
            try:
                used = file.stat().st_mtime_ns
                if used > known:  # another process has used it
                    heapq.heappush(oldest, (used, name))
                    continue
                file.unlink()
            except FileNotFoundError:
                pass
            self._forget(name)

    def _secret(self) -> bytes:
        """Return the folder's secret; the first process makes it."""
        file = self.folder / "secret"
        with contextlib.suppress(FileNotFoundError):
            found = file.read_bytes()
            if len(found) == 32:
                return found
            log.warning("%s is damaged and was replaced; earlier files of the cache cannot be found", file)
        made = secrets.token_bytes(32)
        with temporary_file(file) as temporary:
            with temporary.open("wb") as out:
                os.fchmod(out.fileno(), 0o600)
                out.write(made)
                out.flush()
                os.fsync(out.fileno())
            temporary.replace(file)
        return made

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder's lock. Raises BlockingIOError if another process holds it for ``LOCK_SECONDS``."""
        with self._writing:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            lock = os.open(self.folder / "lock", flags, 0o600)
            try:
                until = time.monotonic() + LOCK_SECONDS
                while True:
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        if time.monotonic() >= until:
                            raise
                        time.sleep(0.002)
                    except OSError as error:
                        if error.errno not in (errno.ENOTSUP, errno.ENOLCK, errno.EINVAL, errno.ENOSYS):
                            raise
                        break  # the file system has no locks
                yield
            finally:
                os.close(lock)

    def _file(self, name: str) -> Path:
        return self.folder / _shard(name) / f"{name}{SUFFIX}"


def _shard(name: str) -> str:
    return name[17:19]


def _chunk(name: str) -> str:
    return name[:49]
