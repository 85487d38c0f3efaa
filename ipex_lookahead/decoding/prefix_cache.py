"""Keys and values that outlive their request: what a prompt begins with is found again, in pages of 64 positions.

A page is known by a hash of its tokens and of all pages before it. What is found is a fork, which shares its pages; so
what a request computes is the same whether its beginning was kept, was given up, or was never there.

The same object counts the pages of running sequences, so that both together stay within one budget: what is kept goes
first, least recently used first.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.engines.base import Cache
from ipex_lookahead.errors import ForgottenKeysError, InputError

PAGE = 64
"""Positions of a page, as the native core has them (``kPage``)."""


def pages_of(positions: int) -> int:
    """Pages that so many positions take."""
    return -(-positions // PAGE)


class _Kept:
    """A sequence that is kept: its cache of whole pages, their hashes, and their numbers."""

    __slots__ = ("cache", "hashes", "pages")

    def __init__(self, cache: Cache, hashes: list[bytes], pages: list[int]) -> None:
        self.cache = cache
        self.hashes = hashes
        self.pages = pages


class PrefixCache:
    """A budget of pages, for running sequences and for the beginnings of later ones.

    A running sequence has a list of page numbers, which ``extend`` and ``extend_to`` make longer and ``release`` gives
    back; a page that several have is counted once.

    Args:
        pages: the budget.
        keeps: False keeps nothing, and only counts: for engines whose rows are not invariant, where a sequence that was
            read in other pieces may have other bits.

    Attributes:
        pages: the budget.
        hits: positions found so far.

    Example: with 64 tokens ``a`` and ``b`` each, ``keep(a + b, ...)`` lets ``take(a + b + [1])`` find 128 positions,
    and ``take(a + [1])`` find 64.
    """

    def __init__(self, pages: int, *, keeps: bool = True) -> None:
        if pages < 1:
            raise InputError(f"the memory for keys and values has {pages} pages of {PAGE} positions; it needs one")
        self.pages = pages
        self.hits = 0
        self._keeps = keeps
        self._running: Counter[int] = Counter()  # page -> running sequences that have it
        self._kept: Counter[int] = Counter()  # page -> kept sequences that have it
        self._used = 0
        self._numbers = 0
        self._by_end: OrderedDict[bytes, _Kept] = OrderedDict()  # least recently used first
        self._by_page: dict[bytes, list[_Kept]] = {}

    @property
    def used(self) -> int:
        """Pages in use, running or kept."""
        return self._used

    @property
    def available(self) -> int:
        """Pages that running sequences could still get."""
        return self.pages - len(self._running)

    @property
    def kept(self) -> int:
        """Pages that are kept."""
        return len(self._kept)

    # ---- running sequences -------------------------------------------------------------------------------------------

    def extend(self, pages: list[int], positions: int) -> bool:
        """Make a running sequence's list long enough; False, and it is as it was, where there is no room."""
        more = pages_of(positions) - len(pages)
        if more > 0:
            if more > self.available:
                return False
            while self._used + more > self.pages:
                self._give_up(next(iter(self._by_end.values())))
            fresh = range(self._numbers, self._numbers + more)
            self._numbers += more
            self._hold(self._running, fresh)
            pages.extend(fresh)
        return True

    def extend_to(self, pages: list[int], positions: int, rows: int) -> int:
        """Room for up to ``rows`` more positions than ``positions``; returns for how many there is."""
        if self.extend(pages, positions + rows):
            return rows
        room = len(pages) + self.available
        self.extend(pages, room * PAGE)
        return max(0, min(rows, room * PAGE - positions))

    def release(self, pages: Sequence[int]) -> None:
        """A running sequence needs these no more."""
        self._drop(self._running, pages)

    # ---- kept ones ---------------------------------------------------------------------------------------------------

    def match(self, tokens: npt.NDArray[Any], key: str = "") -> int:
        """Pages that ``take`` would find."""
        return self._find(tokens, key)[1]

    def take(self, tokens: npt.NDArray[Any], key: str = "") -> tuple[Cache, list[int]] | None:
        """What is kept of the beginning of a text, less than all of it, for a sequence that runs from now on.

        Args:
            tokens: integers [n].
            key: as it was kept.

        Returns:
            A cache of its own and its pages' numbers, or None.
        """
        while True:
            found, count = self._find(tokens, key)
            if found is None:
                return None
            cache = _cut(found.cache, count)
            if cache is not None:
                break
            for page in found.hashes[:count]:  # a window has moved on: of these it can give nothing
                self._unlist(page, found)
        pages = found.pages[:count]
        self._hold(self._running, pages)
        self._by_end.move_to_end(found.hashes[-1])
        self.hits += count * PAGE
        return cache, pages

    def keep(self, tokens: npt.NDArray[Any], cache: Cache, pages: Sequence[int], key: str = "") -> None:
        """Keep a sequence's whole pages for later, in so far as they are not kept already.

        Args:
            tokens: what the cache holds, integers [n].
            cache: a fork of it is kept.
            pages: its pages' numbers, those of a running sequence.
            key: who may find it.
        """
        count = len(tokens) // PAGE
        if not self._keeps or not count:
            return
        hashes = list(_hashes(tokens[: count * PAGE], key))
        last = hashes[-1]
        if last in self._by_page:  # it, or a longer one
            self._by_end.move_to_end(self._by_page[last][-1].hashes[-1])
            return
        fork = _cut(cache, count)
        if fork is None:
            return
        for number, page in enumerate(hashes[:-1], 1):
            if page in self._by_end and _cut(fork, number) is not None:  # a beginning, which this one gives too
                self._give_up(self._by_end[page])
        kept = _Kept(fork, hashes, list(pages[:count]))
        self._hold(self._kept, kept.pages)
        self._by_end[last] = kept
        for page in hashes:
            self._by_page.setdefault(page, []).append(kept)

    def clear(self) -> None:
        """Keep nothing of what is kept."""
        while self._by_end:
            self._give_up(next(iter(self._by_end.values())))

    def _find(self, tokens: npt.NDArray[Any], key: str) -> tuple[_Kept | None, int]:
        found, count = None, 0
        for number, page in enumerate(_hashes(tokens[: max(0, len(tokens) - 1)], key), 1):
            holders = self._by_page.get(page)
            if holders is None:
                break
            found, count = holders[-1], number
        return found, count

    def _give_up(self, kept: _Kept) -> None:
        del self._by_end[kept.hashes[-1]]
        for page in kept.hashes:
            self._unlist(page, kept)
        self._drop(self._kept, kept.pages)

    def _unlist(self, page: bytes, kept: _Kept) -> None:
        holders = self._by_page.get(page, [])
        if kept in holders:
            holders.remove(kept)
            if not holders:
                del self._by_page[page]

    def _hold(self, holders: Counter[int], pages: Sequence[int]) -> None:
        for page in pages:
            self._used += page not in self._running and page not in self._kept
            holders[page] += 1

    def _drop(self, holders: Counter[int], pages: Sequence[int]) -> None:
        for page in pages:
            holders[page] -= 1
            if not holders[page]:
                del holders[page]
            self._used -= page not in self._running and page not in self._kept


def _cut(cache: Cache, pages: int) -> Cache | None:
    """A fork of the first pages; None where a window's layers have given them back."""
    fork = cache.fork()
    try:
        fork.crop(pages * PAGE)
    except ForgottenKeysError:
        return None
    return fork


def _hashes(tokens: npt.NDArray[Any], key: str) -> Iterator[bytes]:
    """For each whole page a hash of its tokens, of those before it, and of the key."""
    known = hashlib.sha256(key.encode()).digest()
    whole = np.ascontiguousarray(tokens, "<i8")
    for end in range(PAGE, len(whole) + 1, PAGE):
        known = hashlib.sha256(known + whole[end - PAGE : end].tobytes()).digest()
        yield known
