"""The store: outputs of earlier generations, which later ones draft from.

It holds outputs only: a prompt is indexed by its own generation and is not shared with other users. The index is built
when a store is opened (a quarter of a second for a full one); the file has the texts only
(:mod:`ipex_lookahead.drafting.store_file`).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.config import is_memory
from ipex_lookahead.drafting import store_file
from ipex_lookahead.drafting.partial_matching import LONGEST_CONTEXT, native_core
from ipex_lookahead.drafting.store_file import Appender, Owner, Text, is_store
from ipex_lookahead.errors import InputError, LookaheadError, SaveError
from ipex_lookahead.files.paths import given_path

__all__ = ["Store", "Stores", "is_store", "vocabulary_digest"]

log = logging.getLogger("ipex_lookahead")

CAPACITY = 131_072
"""Tokens of a store with a file: half a mebibyte in the file, up to 100 in memory."""

MEMORY_CAPACITY = 32_768
"""Tokens of a store without a file, which may be open by default: up to 40 mebibytes."""

MEMORY_IN_ALL = 8 * MEMORY_CAPACITY
"""Tokens of all stores without a file; beyond it, the least recently used ones are dropped."""

MAX_MEMORY_STORES = 1024
"""Maximum number of stores without a file."""

_LONG_TEXT = 1024
"""Tokens from which a text is indexed by the thread instead of in place, which takes 1 to 4 us per token."""

_FIRST_ROOM = 4096
"""Tokens of the first index. A larger one is built in time, because its tables double, which takes up to 50 ms."""


def vocabulary_digest(vocabulary: Mapping[str, int]) -> bytes:
    """Return the SHA-256 of a tokenizer's tokens and ids (``tokenizer.get_vocab()``), 32 bytes."""
    digest = hashlib.sha256()
    for token, number in sorted(vocabulary.items(), key=lambda item: (item[1], item[0])):
        digest.update(struct.pack("<q", number) + token.encode("utf-8", "surrogatepass") + b"\0")
    return digest.digest()


_MAX_RESERVED = 1 << 26
"""Maximum number of nodes that an index reserves, a limit of the core; a larger index grows on demand."""


class Store:
    """Texts, oldest first, with at most ``capacity`` tokens, and their counted suffixes.

    Example: ``store.add([5, 6, 7])`` makes ``suffix(store.suffixes)`` draft 7 after ``5 6`` in any later generation.

    Args:
        vocab_size: of the model; ids are below it.
        digest: ``vocabulary_digest`` of its tokenizer, or empty: then only the size distinguishes models.
        capacity: maximum number of tokens; beyond it the oldest texts are dropped, a quarter of the store at a time.

    Attributes:
        suffixes: the native index, for ``suffix`` and ``auto``. It grows with ``add``; where old texts go, a new index
            takes its place, and generations under way keep the one that they began with.
        is_stale: whether ``suffixes`` is to be made anew: it has texts that are gone, lacks some, or is out of room.
    """

    def __init__(self, vocab_size: int, digest: bytes = b"", *, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            raise InputError(f"the store's capacity is {capacity}; it must be at least one token")
        self.owner = Owner(vocab_size, digest.ljust(32, b"\0"))
        self.capacity = capacity
        self.is_stale = False
        self._fill(())

    def _fill(self, texts: Iterable[Text]) -> None:
        self._texts = deque(texts)
        self._tokens = sum(map(len, self._texts))
        self._added = 0  # number of texts added
        self.index([*self._texts], 0)

    def __len__(self) -> int:
        """Number of tokens."""
        return self._tokens

    def texts(self) -> list[list[int]]:
        """Return the texts, oldest first."""
        return [text.tolist() for text in self._texts]

    def add(self, output: Sequence[int] | npt.NDArray[np.int32]) -> None:
        """Add the new tokens of a finished generation, or the end of a very long one, and update the index.

        Raises:
            InputError: an id is outside the vocabulary.
        """
        self.note(output)
        if self.is_stale:
            self.index(*self.snapshot())

    def note(self, output: Sequence[int] | npt.NDArray[np.int32]) -> Text | None:
        """Add a text, and index it if that takes a few milliseconds at most; else set ``is_stale``.

        Returns the stored text, or None for an empty one. Raises InputError for an id outside the vocabulary.
        """
        if len(output) == 0:
            return None
        ids = np.array(output[-self.capacity :], np.int64)
        if ids.min() < 0 or ids.max() >= self.owner.vocab_size:
            got = f"{ids.min()} to {ids.max()}"
            raise InputError(f"the store takes token ids from 0 to {self.owner.vocab_size - 1}, got {got}")
        text = ids.astype(np.int32)
        self._texts.append(text)
        self._added += 1
        tokens = self._tokens + len(text)
        self._tokens = store_file.drop_oldest(self._texts, tokens, self.capacity)
        if self._tokens < tokens or len(text) > _LONG_TEXT or self._indexed + len(text) > self._room:
            self.is_stale = True
        if len(text) <= _LONG_TEXT and self._indexed + len(text) <= _with_spare(self._room):
            self.suffixes.extend(text)
            self._indexed += len(text)
        return text

    def snapshot(self) -> tuple[list[Text], int]:
        """Return the texts to index, and the number of texts added in all."""
        self._tokens = sum(map(len, self._texts))  # a process can be forked in the middle of note()
        return [*self._texts], self._added

    def make_index(self, texts: Sequence[Text]) -> tuple[Any, int]:
        """Build an index of texts. Returns it and the number of tokens that it has room for.

        The store is not changed and the GIL is released most of the time, so any thread may call this.
        """
        suffixes = native_core().SuffixTrie(LONGEST_CONTEXT)
        lengths = np.array([len(text) for text in texts], np.int32)
        tokens = int(lengths.sum())
        room = min(max(2 * tokens, _FIRST_ROOM), max(self.capacity, tokens))
        if tokens:
            suffixes.extend_all(np.concatenate(texts), lengths)
            suffixes.reserve(min(len(suffixes) * _with_spare(room) // tokens, _MAX_RESERVED))
        return suffixes, room

    def use_index(self, made: tuple[Any, int], texts: Sequence[Text], added: int) -> None:
        """Install an index that was built from ``snapshot()``, and add the short texts that arrived meanwhile."""
        self.suffixes, self._room = made
        self._indexed = sum(map(len, texts))
        for text in islice(self._texts, max(0, len(self._texts) - (self._added - added)), None):
            if len(text) <= _LONG_TEXT:
                self.suffixes.extend(text)
                self._indexed += len(text)

    def index(self, texts: Sequence[Text], added: int) -> None:
        """Build the index of a snapshot and install it."""
        self.is_stale = False
        self.use_index(self.make_index(texts), texts, added)

    # ---- the file --------------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls, path: str | PathLike[str], vocab_size: int, digest: bytes = b"", *, capacity: int = CAPACITY
    ) -> Store:
        """Read a store, or create an empty one if the file does not exist.

        Raises:
            InputError: the file cannot be read, is damaged, is not a store, or belongs to another vocabulary.
        """
        store = cls(vocab_size, digest, capacity=capacity)
        texts = store_file.read(given_path(path), store.owner)
        if texts:
            store._fill(store_file.trimmed(texts, capacity))
        return store

    def save(self, path: str | PathLike[str]) -> None:
        """Write the store atomically; with concurrent writers, the last one wins.

        Raises:
            SaveError: the file cannot be written; the old file is unchanged.
        """
        store_file.write(Path(os.path.realpath(given_path(path))), self.owner, self._texts)


class Stores:
    """The open stores of a model, by file: each is read once, and written after every generation that used it.

    Stores for which ``is_memory`` is true have no file. One thread per object builds indexes and writes files; its
    pending work is completed before the program ends.

    Args:
        vocab_size: the model's.
        vocabulary: returns its tokenizer's tokens and ids (``get_vocab``), or None.
    """

    def __init__(self, vocab_size: int, vocabulary: Callable[[], Mapping[str, int]] | None = None) -> None:
        self._vocab_size, self._vocabulary = vocab_size, vocabulary
        self._open: dict[str, Store] = {}
        self._left_out = set[str]()  # those that could not be opened
        self._warned = set[tuple[str, int | None]]()  # folders that could not be written, with the reason
        self._appenders: dict[str, Appender] = {}  # of the stores with a file that was added to
        self._begin()
        _ALL.add(self)

    def _begin(self) -> None:
        """Initialize without a thread, in the parent and in each forked process, which may have copied a held lock.

        Pending texts are written by the parent.
        """
        self._lock = threading.RLock()  # generations of several threads may end at the same time
        self._idle = threading.Condition(self._lock)
        self._thread: ThreadPoolExecutor | None = None
        self._is_working = False
        self._due: dict[str, Store] = {}
        for appender in self._appenders.values():
            appender.unwritten.clear()
        for store in self._open.values():
            store.is_stale = True  # the index may be one that the parent's thread was about to replace

    def get(self, path: str) -> Store:
        """Return the store of that name. Raises what :meth:`Store.open` raises."""
        with self._lock:
            return self._get(path)

    def open_or_none(self, path: str) -> Store | None:
        """Return the store of that name, or None if it cannot be opened.

        A damaged file must not fail a server's requests: the error is logged once, and the file is not opened again.
        """
        with self._lock:
            if path in self._left_out:
                return None
            try:
                return self._get(path)
            except (LookaheadError, OSError, MemoryError) as error:
                self._left_out.add(path)
                log.warning("%s; until the next start requests are answered without it", error)
                return None

    def _get(self, path: str) -> Store:
        key = _key(path)
        if key not in self._open and is_memory(path):
            self._make_room()
            self._open[key] = Store(self._vocab_size, capacity=MEMORY_CAPACITY)
        elif key not in self._open:
            digest = b"" if self._vocabulary is None else vocabulary_digest(self._vocabulary())
            self._open[key] = Store.open(key, self._vocab_size, digest)
        found = self._open[key] = self._open.pop(key)  # the last in order is the one that was used last
        return found

    def _make_room(self) -> None:
        """Drop stores without a file, least recently used first, until another full one fits."""
        memories = deque(key for key in self._open if is_memory(key))
        tokens = sum(len(self._open[key]) for key in memories)
        while tokens + MEMORY_CAPACITY > MEMORY_IN_ALL or len(memories) >= MAX_MEMORY_STORES:
            tokens -= len(self._open.pop(memories.popleft()))

    def forget(self) -> None:
        """Drop every store that has no file."""
        with self._lock:
            self._open = {key: store for key, store in self._open.items() if not is_memory(key)}

    def add(self, path: str, outputs: Iterable[Sequence[int] | npt.NDArray[np.int32]]) -> None:
        """Add finished generations to a store. If its file cannot be written, this logs a warning.

        Later generations may draft from them at once, or about 0.1 s later if a new index must be built.
        """
        with self._lock:
            key, store = _key(path), self.get(path)
            if not is_memory(path) and key not in self._appenders:
                self._appenders[key] = Appender(Path(key), store.owner, store.capacity)
            appender = self._appenders.get(key)
            try:
                for output in outputs:
                    text = store.note(output)
                    if text is not None and appender is not None:
                        appender.unwritten.append(text)
            finally:
                if store.is_stale or (appender is not None and appender.unwritten):
                    self._due[key] = store
            if self._is_working or not self._due:
                return
            self._is_working = True
            with contextlib.suppress(RuntimeError):  # no thread can be started, or the program is ending
                self._thread = self._thread or ThreadPoolExecutor(1, "lookahead-stores")
                self._thread.submit(self._work)
                return
        self._work()

    def flush(self) -> None:
        """Wait until every index is built and every file is written or has failed."""
        with self._idle:
            self._idle.wait_for(lambda: not self._is_working)

    def close(self) -> None:
        """Flush and end the thread; a later ``add`` starts another."""
        self.flush()
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown()

    # ---- the thread ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._work_off()
        finally:  # also after an interrupt: flush() must return
            with self._lock:
                self._is_working = False
                self._idle.notify_all()

    def _work_off(self) -> None:
        while True:
            with self._lock:
                if not self._due:
                    self._is_working = False  # under the lock, so that a text that arrives now restarts the work
                    return
                key = next(iter(self._due))
                store, appender = self._due.pop(key), self._appenders.get(key)
            try:
                if store.is_stale:
                    self._index(store)
                if appender is not None:
                    self._write(key, store, appender)
            except Exception as error:  # such as no memory: later stores are not to wait for this one
                log.warning("the store %s is not up to date: %s", key, error)

    def _index(self, store: Store) -> None:
        with self._lock:
            texts, added = store.snapshot()
            store.is_stale = False
        made = store.make_index(texts)
        with self._lock:
            store.use_index(made, texts, added)

    def _write(self, key: str, store: Store, appender: Appender) -> None:
        with self._lock:
            texts, (everything, _) = [*appender.unwritten], store.snapshot()
            appender.unwritten.clear()
        if not texts:
            return
        try:
            appender.append(texts, everything)
        except (SaveError, InputError) as error:
            with self._lock:
                appender.unwritten = store_file.trimmed([*texts, *appender.unwritten], store.capacity)
            where = (os.path.dirname(key), getattr(error.__cause__, "errno", None))
            if where not in self._warned:  # a full disk fails every generation
                self._warned.add(where)
                log.warning("%s; new texts are kept in memory until the program ends", error)


_ALL = weakref.WeakSet[Stores]()


def _forked() -> None:
    for stores in _ALL:
        stores._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _with_spare(room: int) -> int:
    """Return the number of tokens that an index of this room takes without growing while the next one is built."""
    return room + room // 8


def _key(path: str) -> str:
    return path if is_memory(path) else os.path.realpath(given_path(path))
