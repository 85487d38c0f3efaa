"""Stored prefixes: KV caches of earlier texts, with the keys of their pages.

A page's key is the hash of its tokens and the key of the previous page.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.engines.api import Cache

PAGE = 64
"""Positions of a page, as in the native core (``kPage``)."""


def pages_of(positions: int) -> int:
    """Return the number of pages needed for a number of positions."""
    return -(-positions // PAGE)


@dataclass(slots=True, eq=False)
class Transfer:
    """A KV cache on its way to files, or from files.

    Attributes:
        tokens: int64 [n], the keys of the rows in the cache.
        tenant: key of the prefix cache.
        names: its files, the first chunk first; when it is written, those that exist so far.
        size: bytes of the KV cache in memory, or of the files.
        cache: the KV cache to write; or the one that was read, None before that and after a failure.
        ended: whether it is written, read, failed or cancelled.
        failed: whether it is not complete: it was dropped, cancelled, or could not be read or written.
        cancelled: set by the owner, to end it early.
        again: for a read that failed: whether its files are gone, so that another search finds another prefix.
        held: whether the KV cache has left memory and counts in ``disk_cache.HELD_BYTES``.
        used_at: time (monotonic) when its use was last noted.
    """

    tokens: npt.NDArray[np.int64]
    tenant: str
    names: list[str] = field(default_factory=list)
    size: int = 0
    cache: Cache | None = None
    ended: bool = False
    failed: bool = False
    cancelled: bool = False
    again: bool = False
    held: bool = False
    used_at: float = 0.0


class StoredPrefix:
    """A stored prefix.

    Attributes:
        cache: its KV cache; None while it is read from disk.
        tokens: int64 [n], the keys of its rows: token ids, or negative numbers for rows of images.
        key: its tenant.
        hashes: keys of no page, of its first whole page, of its first two, ...; the last is that of all whole pages.
        pages: its pages' numbers.
        states: units of the budget that its states and features take.
        least: shortest length that its cache is known to reach.
        transfer: its way to the disk, or from it; None: it was never written.
    """

    __slots__ = ("cache", "hashes", "key", "least", "pages", "states", "tokens", "transfer")

    def __init__(
        self, cache: Cache | None, tokens: npt.NDArray[np.int64], key: str, pages: list[int], states: int
    ) -> None:
        self.cache: Cache = cache  # type: ignore[assignment]  # once it is found it has one
        self.tokens = tokens
        self.key = key
        self.hashes = list(page_hashes(tokens, key))
        self.pages = pages
        self.states = states
        self.least = 0
        self.transfer: Transfer | None = None


def unlist(holders: dict[bytes, list[StoredPrefix]], page: bytes, kept: StoredPrefix) -> None:
    """Remove an entry from a list, if it is there."""
    some = holders.get(page, [])
    if kept in some:
        some.remove(kept)
        if not some:
            del holders[page]


def cropped(cache: Cache, length: int) -> Cache | None:
    """Return a fork of the first positions; None where a layer's state cannot roll back to them."""
    fork = cache.fork()
    return fork if fork.crop(length) == length else None


def crop_to_shared(cache: Cache, tokens: npt.NDArray[Any], prompt: npt.NDArray[Any]) -> None:
    """Crop a cache of ``tokens`` to the prefix that it shares with a prompt, integers [n], shorter than the prompt.

    The result is shorter where a layer's state cannot roll back to that length.
    """
    cache.crop(alike(tokens[: len(prompt) - 1], prompt))


def alike(some: npt.NDArray[Any], others: npt.NDArray[Any]) -> int:
    """Return the length of the common prefix of two texts."""
    if not len(some) or some[0] != others[0]:  # mostly
        return 0
    both = some == others[: len(some)]
    return len(both) if both.all() else int(both.argmin())


def page_hashes(tokens: npt.NDArray[Any], key: str) -> Iterator[bytes]:
    """Yield a hash of the tenant's key, then for each whole page one of its tokens and of the previous hash."""
    known = hashlib.sha256(key.encode()).digest()
    yield known
    whole = np.ascontiguousarray(tokens, "<i8")
    for end in range(PAGE, len(whole) + 1, PAGE):
        known = hashlib.sha256(known + whole[end - PAGE : end].tobytes()).digest()
        yield known
