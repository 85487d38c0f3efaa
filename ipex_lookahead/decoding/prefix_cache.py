"""Keys and values that outlive their request: what a prompt begins with is found again, in pages of 64 positions.

A page is known by a hash of its tokens and of all pages before it; in the page where two texts part, tokens are
compared. What is found is a fork, which shares its pages; so what a request computes is the same whether its beginning
was kept, was given up, or was never there.

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
from ipex_lookahead.errors import InputError

PAGE = 64
"""Positions of a page, as the native core has them (``kPage``)."""


def pages_of(positions: int) -> int:
    """Pages that so many positions take."""
    return -(-positions // PAGE)


class _Kept:
    """A sequence that is kept: its cache, its tokens, and its pages' numbers.

    ``hashes``: of no page, of its first whole page, of its first two, ...; so the last is that of all whole ones.
    """

    __slots__ = ("cache", "hashes", "pages", "tokens")

    def __init__(self, cache: Cache, tokens: npt.NDArray[np.int64], hashes: list[bytes], pages: list[int]) -> None:
        self.cache = cache
        self.tokens = tokens
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
    and ``take(a + b[:10] + [1])`` find 74.
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
        self._order: OrderedDict[_Kept, None] = OrderedDict()  # least recently used first
        self._by_page: dict[bytes, list[_Kept]] = {}  # hash -> those that begin so
        self._by_end: dict[bytes, list[_Kept]] = {}  # hash -> those that have no whole page more

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
                self._give_up(next(iter(self._order)))
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
        """Whole pages that ``take`` would find."""
        return self._find(tokens, len(tokens) - 1, key)[1] // PAGE

    def take(self, tokens: npt.NDArray[Any], key: str = "") -> tuple[Cache, list[int]] | None:
        """What is kept of the beginning of a text, less than all of it, for a sequence that runs from now on.

        The last of its pages is the sequence's own, where that is not whole: it will be written to.

        Args:
            tokens: integers [n].
            key: as it was kept.

        Returns:
            A cache of its own and its pages' numbers, or None.
        """
        while True:
            found, count = self._find(tokens, len(tokens) - 1, key)
            if found is None:
                return None
            cache = _cut(found.cache, count)
            if cache is not None:
                break
            for page in found.hashes[: count // PAGE + 1]:  # a window has moved on: of these it can give nothing
                _unlist(self._by_page, page, found)
        pages = found.pages[: count // PAGE]
        self._hold(self._running, pages)
        self._order.move_to_end(found)
        if not self.extend(pages, count):
            count = cache.crop(count - count % PAGE)
            if not count:
                self._drop(self._running, pages)
                return None
        self.hits += count
        return cache, pages

    def keep(self, tokens: npt.NDArray[Any], cache: Cache, pages: Sequence[int], key: str = "") -> None:
        """Keep a sequence for later, in so far as it is not kept already.

        Args:
            tokens: what the cache holds, or the first of it, integers [n]. Of a sequence that goes on these must be
                whole pages: the next one it writes to.
            cache: a fork of it is kept.
            pages: its pages' numbers, those of a running sequence.
            key: who may find it.
        """
        count = len(tokens)
        if not self._keeps or not count:
            return
        found, held = self._find(tokens, count, key)
        if found is not None and held == count:
            self._order.move_to_end(found)
            return
        fork = _cut(cache, count)
        if fork is None:
            return
        hashes = list(_hashes(tokens, key))
        for page in hashes:
            for shorter in list(self._by_end.get(page, ())):
                held = len(shorter.tokens)
                if held < count and (shorter.tokens == tokens[:held]).all() and _cut(fork, held) is not None:
                    self._give_up(shorter)  # a beginning, which this one gives too
        kept = _Kept(fork, np.array(tokens, np.int64), hashes, list(pages[: pages_of(count)]))
        self._hold(self._kept, kept.pages)
        self._order[kept] = None
        self._by_end.setdefault(hashes[-1], []).append(kept)
        for page in hashes:
            self._by_page.setdefault(page, []).append(kept)

    def clear(self) -> None:
        """Keep nothing of what is kept."""
        while self._order:
            self._give_up(next(iter(self._order)))

    def _find(self, tokens: npt.NDArray[Any], most: int, key: str) -> tuple[_Kept | None, int]:
        """Who has the longest beginning of a text, and how many of its tokens, at most ``most``."""
        holders: list[_Kept] = []
        whole = 0
        for number, page in enumerate(_hashes(tokens[:most], key)):
            if page not in self._by_page:
                break
            holders, whole = self._by_page[page], number * PAGE
        best, count = (holders[-1] if whole else None), whole
        rest = tokens[whole : min(most, whole + PAGE)]
        for kept in reversed(holders) if len(rest) else ():
            same = _alike(kept.tokens[whole : whole + len(rest)], rest)
            if whole + same > count:
                best, count = kept, whole + same
                if same == len(rest):
                    break
        return best, count

    def _give_up(self, kept: _Kept) -> None:
        del self._order[kept]
        _unlist(self._by_end, kept.hashes[-1], kept)
        for page in kept.hashes:
            _unlist(self._by_page, page, kept)
        self._drop(self._kept, kept.pages)

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


def _unlist(holders: dict[bytes, list[_Kept]], page: bytes, kept: _Kept) -> None:
    """Take one out of a list, if it is in it."""
    some = holders.get(page, [])
    if kept in some:
        some.remove(kept)
        if not some:
            del holders[page]


def _cut(cache: Cache, length: int) -> Cache | None:
    """A fork of the first positions; None where a layer's state cannot go back to them."""
    fork = cache.fork()
    return fork if fork.crop(length) == length else None


def crop_to_shared(cache: Cache, tokens: npt.NDArray[Any], prompt: npt.NDArray[Any]) -> None:
    """Bring a cache back to what a prompt, integers [n], begins with, less than all of it: it holds ``tokens``."""
    cache.crop(_alike(tokens[: len(prompt) - 1], prompt))


def _alike(some: npt.NDArray[Any], others: npt.NDArray[Any]) -> int:
    """How many tokens two texts begin with that are the same."""
    if not len(some) or some[0] != others[0]:  # mostly
        return 0
    both = some == others[: len(some)]
    return len(both) if both.all() else int(both.argmin())


def _hashes(tokens: npt.NDArray[Any], key: str) -> Iterator[bytes]:
    """A hash of the key, and for each whole page one of its tokens, of those before it, and of the key."""
    known = hashlib.sha256(key.encode()).digest()
    yield known
    whole = np.ascontiguousarray(tokens, "<i8")
    for end in range(PAGE, len(whole) + 1, PAGE):
        known = hashlib.sha256(known + whole[end - PAGE : end].tobytes()).digest()
        yield known
