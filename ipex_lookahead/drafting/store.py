"""The store: outputs of earlier generations, which later ones look into.

Outputs only: what a prompt holds is indexed by its own generation, and a prompt is nobody else's business. The index is
made of the texts when a store is opened (a quarter of a second for a full one); only the texts are in the file.

The file, all numbers little-endian:

    16 bytes   ``ipex-lookahead S``
    4          version, 1
    4          vocabulary size
    32         SHA-256 of the vocabulary, or zeros
    8, 8       number of texts, number of tokens in all
    4 each     length of each text, oldest first
    4 each     the tokens
    32         SHA-256 of all before
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.config import is_memory
from ipex_lookahead.drafting.partial_matching import LONGEST_CONTEXT, native_core
from ipex_lookahead.errors import InputError, LookaheadError, SaveError, arg
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.files.temporary import temporary_file

log = logging.getLogger("ipex_lookahead")

CAPACITY = 131_072
"""Tokens that a store holds: half a mebibyte in the file, up to 100 in memory."""

MEMORY_CAPACITY = 32_768
"""Tokens of a store that has no file, which nobody may have asked for: up to 40 mebibytes."""

MEMORY_IN_ALL = 8 * MEMORY_CAPACITY
"""Tokens of all stores without a file: where there are more, those that were used least recently go."""

MOST_MEMORIES = 1024
"""And there are no more of them than that, however small."""

_MOST = 2**24
"""Tokens of the largest file that is read at all."""
_MAGIC, _VERSION = b"ipex-lookahead S", 1
_HEAD = struct.Struct("<16sII32sQQ")
_DIGEST = 32
_OTHER = f"name another file with {arg('store')}; it need not exist yet"
_BROKEN = f"delete the file, or name another with {arg('store')}"
"""What mends it: only a file that begins as a store does is certainly nobody's but ours."""


def vocabulary_digest(vocabulary: Mapping[str, int]) -> bytes:
    """SHA-256 of a tokenizer's tokens and their ids (``tokenizer.get_vocab()``), 32 bytes."""
    digest = hashlib.sha256()
    for token, number in sorted(vocabulary.items(), key=lambda item: (item[1], item[0])):
        digest.update(struct.pack("<q", number) + token.encode("utf-8", "surrogatepass") + b"\0")
    return digest.digest()


class Store:
    """Texts, oldest first, at most ``capacity`` tokens of them, and the counted suffixes of all.

    Example: ``store.add([5, 6, 7])`` makes ``Suffix(store.suffixes)`` draft 7 after ``5 6`` in any later generation.

    Args:
        vocab_size: of the model; ids are below it.
        digest: ``vocabulary_digest`` of its tokenizer, or empty: then the size alone tells models apart.
        capacity: tokens; where they are exceeded the oldest texts go, a quarter of the store at once.

    Attributes:
        suffixes: the native index, for ``Suffix`` and ``Auto``. It grows with ``add``; where old texts go, a new index
            takes its place, and generations under way keep the one that they began with.
    """

    def __init__(self, vocab_size: int, digest: bytes = b"", *, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            raise InputError(f"the store's capacity is {capacity}; it must be at least one token")
        self._vocab_size, self._digest, self._capacity = vocab_size, digest.ljust(_DIGEST, b"\0"), capacity
        self._texts: deque[npt.NDArray[np.int32]] = deque()
        self._tokens = 0
        self.suffixes: Any = native_core().SuffixTrie(LONGEST_CONTEXT)

    def __len__(self) -> int:
        """Tokens held."""
        return self._tokens

    def texts(self) -> list[list[int]]:
        """The texts, oldest first."""
        return [text.tolist() for text in self._texts]

    def add(self, output: Sequence[int] | npt.NDArray[np.int32]) -> None:
        """Remember the new tokens of a finished generation; of a very long one the end.

        Raises:
            InputError: an id outside the vocabulary.
        """
        if len(output) == 0:
            return
        text = np.array(output[-self._capacity :], np.int64)
        if text.min() < 0 or text.max() >= self._vocab_size:
            got = f"{text.min()} to {text.max()}"
            raise InputError(f"the store takes token ids from 0 to {self._vocab_size - 1}, got {got}")
        self._append(text.astype(np.int32))
        if self._tokens > self._capacity:
            while len(self._texts) > 1 and self._tokens > self._capacity - self._capacity // 4:
                self._tokens -= len(self._texts.popleft())
            self.suffixes = native_core().SuffixTrie(LONGEST_CONTEXT)
            for kept in self._texts:
                self.suffixes.extend(kept)
        else:
            self.suffixes.extend(self._texts[-1])

    def _append(self, text: npt.NDArray[np.int32]) -> None:
        self._texts.append(text)
        self._tokens += len(text)

    # ---- the file --------------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls, path: str | PathLike[str], vocab_size: int, digest: bytes = b"", *, capacity: int = CAPACITY
    ) -> Store:
        """Read a store, or begin one where there is no file yet.

        Raises:
            InputError: the file cannot be read, is damaged or no store, or belongs to another vocabulary.
        """
        store = cls(vocab_size, digest, capacity=capacity)
        file = given_path(path)
        try:
            if file.exists() and not file.is_file():  # opening a pipe would wait for ever
                raise InputError(f"the store {file} is no file", hint=f"name a file with {arg('store')}")
            with file.open("rb") as source:
                size = os.fstat(source.fileno()).st_size
                head = _check_head(file, source.read(_HEAD.size), size, vocab_size, store._digest)
                if head is None:
                    raise InputError(f"the store {file} is damaged ({size} bytes)", hint=_BROKEN)
                texts, tokens = head
                source.seek(0)
                content = source.read(size)
        except FileNotFoundError:
            return store
        except OSError as error:
            raise InputError(f"the store {file} cannot be read: {error.strerror or error}") from error
        if len(content) != size or hashlib.sha256(content[:-_DIGEST]).digest() != content[-_DIGEST:]:
            raise InputError(f"the store {file} is damaged: its checksum is wrong", hint=_BROKEN)
        lengths = np.frombuffer(content, "<u4", texts, _HEAD.size).astype(np.int64)
        ids = np.frombuffer(content, "<u4", tokens, _HEAD.size + 4 * texts)
        if lengths.sum() != tokens or (texts and lengths.min() < 1) or (tokens and ids.max() >= vocab_size):
            raise InputError(f"the store {file} contradicts itself", hint=_BROKEN)
        for text in np.split(ids, np.cumsum(lengths)[:-1]) if texts else ():
            store.add(text.astype(np.int32))
        return store

    def save(self, path: str | PathLike[str]) -> None:
        """Write the store so that a reader finds the old file or the new one, whole; the last of two writers wins.

        Raises:
            SaveError: the file cannot be written; what was there is as it was.
        """
        file = Path(os.path.realpath(given_path(path)))
        lengths = np.array([len(text) for text in self._texts], "<u4")
        head = _HEAD.pack(_MAGIC, _VERSION, self._vocab_size, self._digest, len(self._texts), self._tokens)
        content = b"".join([head, lengths.tobytes(), *(text.astype("<u4").tobytes() for text in self._texts)])
        try:
            with temporary_file(file) as temporary:
                with temporary.open("wb") as out:
                    out.write(content + hashlib.sha256(content).digest())
                    out.flush()
                    os.fsync(out.fileno())
                temporary.replace(file)
        except OSError as error:
            raise SaveError(f"the store {file} cannot be written: {error.strerror or error}") from error


class Stores:
    """The stores that a model has open, by file: each is read once, and written after every generation that used it.

    Those that ``is_memory`` tells have no file.

    Args:
        vocab_size: the model's.
        vocabulary: gives its tokenizer's tokens and ids (``get_vocab``), or None.
    """

    def __init__(self, vocab_size: int, vocabulary: Callable[[], Mapping[str, int]] | None = None) -> None:
        self._vocab_size, self._vocabulary = vocab_size, vocabulary
        self._open: dict[str, Store] = {}
        self._left_out = set[str]()  # those that could not be opened
        self._warned = set[tuple[str, int | None]]()  # folders that could not be written, with the reason
        self._lock = threading.RLock()  # generations of several threads may end at a time

    def get(self, path: str) -> Store:
        """The store of that name. Raises what :meth:`Store.open` raises."""
        with self._lock:
            return self._get(path)

    def open_or_none(self, path: str) -> Store | None:
        """Return the store of that name, or None for one that cannot be opened.

        A damaged file must not fail a server's requests. The log says once what is wrong with it; the file stays as it
        is and is not opened again.
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
        key = path if is_memory(path) else os.path.realpath(given_path(path))
        if key not in self._open and is_memory(path):
            self._make_room()
            self._open[key] = Store(self._vocab_size, capacity=MEMORY_CAPACITY)
        elif key not in self._open:
            digest = b"" if self._vocabulary is None else vocabulary_digest(self._vocabulary())
            self._open[key] = Store.open(key, self._vocab_size, digest)
        found = self._open[key] = self._open.pop(key)  # the last in order is the one that was used last
        return found

    def _make_room(self) -> None:
        """Drop stores without a file, the least recently used first, until another full one has room."""
        memories = deque(key for key in self._open if is_memory(key))
        tokens = sum(len(self._open[key]) for key in memories)
        while tokens + MEMORY_CAPACITY > MEMORY_IN_ALL or len(memories) >= MOST_MEMORIES:
            tokens -= len(self._open.pop(memories.popleft()))

    def forget(self) -> None:
        """Drop every store that has no file."""
        with self._lock:
            self._open = {key: store for key, store in self._open.items() if not is_memory(key)}

    def add(self, path: str, outputs: Iterable[Sequence[int] | npt.NDArray[np.int32]]) -> None:
        """Remember finished generations in a store. A file that cannot be written costs a warning, not the output."""
        with self._lock:
            store = self.get(path)
            for output in outputs:
                store.add(output)
            if is_memory(path):
                return
            try:
                store.save(path)
            except SaveError as error:
                where = (os.path.dirname(path), getattr(error.__cause__, "errno", None))
                if where not in self._warned:  # a full disk fails every generation alike
                    self._warned.add(where)
                    log.warning("%s; what was generated is remembered until the program ends", error)


def is_store(file: Path) -> bool:
    """Whether a file begins as every store does. Raises OSError where it cannot be read."""
    with file.open("rb") as source:
        return source.read(len(_MAGIC)) == _MAGIC


def _check_head(file: Path, head: bytes, size: int, vocab_size: int, digest: bytes) -> tuple[int, int] | None:
    """Number of texts and of tokens, which together with the file's size prove the head; None where they do not.

    Raises InputError for a file that is no store, or a store that belongs to another release or model.
    """
    if not head.startswith(_MAGIC):
        raise InputError(f"{file} is no lookahead store; it is left as it is", hint=_OTHER)
    if len(head) < _HEAD.size:
        return None
    _, version, vocabulary, of, texts, tokens = _HEAD.unpack(head)
    if version != _VERSION:
        raise InputError(f"the store {file} has version {version}; this package reads version {_VERSION}", hint=_OTHER)
    if size != _HEAD.size + 4 * (texts + tokens) + _DIGEST or texts > tokens or tokens > _MOST:
        return None
    if vocabulary != vocab_size or of != digest:
        raise InputError(
            f"the store {file} belongs to a model with another vocabulary ({vocabulary} tokens, this model's has"
            f" {vocab_size}); every vocabulary needs a store of its own",
            hint=_OTHER,
        )
    return texts, tokens
