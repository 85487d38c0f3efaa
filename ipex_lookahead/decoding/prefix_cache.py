"""Prefix cache: KV caches of earlier texts, found by the tokens that a new text begins with, in pages of 64 positions.

A page's key is the hash of its tokens and the key of the previous page; in the page where two texts diverge, tokens
are compared. A cache hit returns a fork, which shares its pages, so a request computes the same bits on a hit and on a
miss.

The same object counts the pages of running sequences. Stored prefixes are evicted first, least recently used first, so
that running sequences and prefixes together stay within one budget.

A cache on disk is a second level: stored prefixes are written to it in the background, and longer ones are read
from it.

The states of recurrent layers roll back to few lengths. The cache itself reports which lengths it can reach, and
several lengths of one text may be stored: each entry is a fork that shares its pages and counts its own states, and the
features that a head has yet to read.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.decoding.stored_prefix import (
    PAGE,
    StoredPrefix,
    Transfer,
    alike,
    crop_to_shared,
    cropped,
    page_hashes,
    pages_of,
    unlist,
)
from ipex_lookahead.engines.api import Cache, Checkpointed
from ipex_lookahead.engines.prefill import PREFILL_ROWS
from ipex_lookahead.errors import InputError

if TYPE_CHECKING:
    from ipex_lookahead.decoding.disk_cache import DiskCache

__all__ = ["PAGE", "RUNNING_STATES", "PrefixCache", "alike", "crop_to_shared", "pages_of"]

RUNNING_STATES = 2
"""States of a running sequence: a prompt chunk reads one and writes the other."""
FOLLOW = 0.3
"""Weight of a new forward in the running mean of the time of a position."""
APART = 64 * PAGE
"""Positions between two stored lengths of a text where pages take no memory."""


class PrefixCache:
    """A memory budget for running sequences and for prefixes of later ones.

    A running sequence has a list of page numbers, which ``extend`` and ``extend_to`` make longer and ``release``
    returns; a page of several sequences is counted once.

    Args:
        budget: in pages, or in bytes where ``page`` or ``state`` is given.
        page: bytes of a page; 1 = the budget is in pages.
        state: bytes of a sequence's recurrent states; 0 = there are none.
        keeps: False stores nothing and only counts pages: for engines without row invariance, on which a sequence that
            was read in other chunks may have other bits.

    Attributes:
        budget: as given.
        hits: number of positions found so far.
        most_kept: largest number of pages of stored prefixes, in addition to the most recently used one; None: only the
            budget limits them.
        disk: the second level, or None.

    Example: with 64 tokens ``a`` and ``b`` each, ``keep(a + b, ...)`` lets ``take(a + b + [1])`` find 128 positions,
    and ``take(a + b[:10] + [1])`` find 74.
    """

    def __init__(self, budget: int, *, page: int = 1, state: int = 0, keeps: bool = True) -> None:
        self.budget = budget
        self._page = page
        self._state = state
        self._in_bytes = page != 1 or state > 0
        if self.pages < 1:
            there = f"{max(self.pages, 0)} pages of {PAGE} positions"
            states = f" in addition to {RUNNING_STATES * state} bytes for its states" if state else ""
            raise InputError(f"the memory for keys and values has {there}{states}; it needs one")
        self.hits = 0
        self.most_kept: int | None = None
        self.disk: DiskCache | None = None
        self._keeps = keeps
        self._sequences = 0  # that run
        self._states = 0  # of the budget, by those that are kept
        self._running: Counter[int] = Counter()  # page -> running sequences that have it
        self._kept: Counter[int] = Counter()  # page -> kept sequences that have it
        self._used = 0
        self._numbers = 0
        self._order: OrderedDict[StoredPrefix, None] = OrderedDict()  # least recently used first
        self._reading: list[StoredPrefix] = []  # from disk
        self._position_seconds: float | None = None
        self._by_page: dict[bytes, list[StoredPrefix]] = {}  # hash -> those that begin so
        self._by_end: dict[bytes, list[StoredPrefix]] = {}  # hash -> those that have no whole page more

    @property
    def pages(self) -> int:
        """Largest number of pages of a sequence that runs alone."""
        return self._pages_in(self.budget - RUNNING_STATES * self._state)

    @property
    def used(self) -> int:
        """Part of the budget that running sequences and stored prefixes use."""
        return self._used * self._page + self._sequences * RUNNING_STATES * self._state + self._states

    @property
    def states(self) -> int:
        """Part of the budget that the states of stored prefixes, and features that a head has yet to read, use."""
        return self._states

    @property
    def available(self) -> int:
        """Number of pages that running sequences can still get."""
        return self._pages_in(self._free)

    @property
    def has_states(self) -> bool:
        """Whether sequences have recurrent states, so that prefixes are stored at chosen lengths."""
        return self._state > 0

    @property
    def apart(self) -> int:
        """Positions between two stored lengths of a text: their pages take the memory of a state, in whole chunks."""
        if not self._page:
            return APART
        return -(-self._state // (self._page * (PREFILL_ROWS // PAGE))) * PREFILL_ROWS

    @property
    def kept(self) -> int:
        """Number of pages of stored prefixes."""
        return len(self._kept)

    @property
    def _free(self) -> int:
        """Part of the budget that running sequences can still get if all prefixes are evicted."""
        return self.budget - len(self._running) * self._page - self._sequences * RUNNING_STATES * self._state

    def _pages_in(self, room: int) -> int:
        return room // self._page if self._page else sys.maxsize // PAGE if room >= 0 else -1

    # ---- running sequences -------------------------------------------------------------------------------------------

    def extend(self, pages: list[int], positions: int) -> bool:
        """Extend a running sequence's pages to ``positions``; without room return False and change nothing."""
        more = pages_of(positions) - len(pages)
        return more <= 0 or self._grow(pages, more, joins=not pages)

    def admits(self, pages: int, others: int) -> bool:
        """Return True if a sequence that needs ``pages`` pages can start, with one page for each of ``others``."""
        return (pages + others) * self._page + RUNNING_STATES * self._state <= self._free

    def extend_to(self, pages: list[int], positions: int, rows: int) -> int:
        """Reserve up to ``rows`` positions after ``positions``; return the number reserved."""
        if self.extend(pages, positions + rows):
            return rows
        joins = 0 if pages else RUNNING_STATES * self._state
        room = len(pages) + max(0, self._pages_in(self._free - joins))
        self.extend(pages, room * PAGE)
        return max(0, min(rows, room * PAGE - positions))

    def release(self, pages: Sequence[int]) -> None:
        """Return the pages of a running sequence that has ended."""
        if pages:
            self._sequences -= 1
            self._drop(self._running, pages)

    def _grow(self, pages: list[int], more: int, *, joins: bool) -> bool:
        """Add new pages to a running or starting sequence; return False where there is no room."""
        cost = more * self._page + joins * RUNNING_STATES * self._state
        if cost > self._free:
            return False
        self._make_room(cost)
        self._sequences += joins
        fresh = range(self._numbers, self._numbers + more)
        self._numbers += more
        self._hold(self._running, fresh)
        pages.extend(fresh)
        return True

    def _make_room(self, cost: int) -> None:
        """Evict prefixes, least recently used first, until ``cost`` fits or none is left."""
        while self._order and self.used + cost > self.budget:
            self._give_up(next(iter(self._order)))

    # ---- stored prefixes ---------------------------------------------------------------------------------------------

    def match(self, tokens: npt.NDArray[Any], key: str = "") -> int:
        """Return the number of whole pages that ``take`` would find."""
        most = len(tokens) - 1
        if not self._state:
            return self._find(tokens, most, key)[1] // PAGE
        found = self._reach(tokens, most, key)
        return 0 if found is None else found[1].length // PAGE

    def parts(self, tokens: npt.NDArray[Any], key: str = "") -> int:
        """Return the length of the longest prefix shared with a stored text, reachable by its cache or not."""
        return self._find(tokens, len(tokens) - 1, key)[1]

    def take(self, tokens: npt.NDArray[Any], key: str = "") -> tuple[Cache, list[int]] | None:
        """Return a fork of the longest stored prefix of a text, shorter than the text, for a sequence that starts now.

        If the last of its pages is not full it belongs to the sequence alone, which will write to it.

        Args:
            tokens: integers [n].
            key: tenant that stored the prefix.

        Returns:
            A cache and its pages' numbers, or None.
        """
        self._settle()
        most = len(tokens) - 1
        some = self._reach(tokens, most, key) if self._state else self._longest(tokens, most, key)
        if some is None:
            return None
        found, cache = some
        count = cache.length
        pages = found.pages[: count // PAGE]
        self._hold(self._running, pages)
        self._order.move_to_end(found)
        if self.disk is not None and found.transfer is not None:
            self.disk.use(found.transfer)
        if self._state and (shortest := next(self._prefixes(tokens[:-1], page_hashes(tokens, key)), None)):
            self._order.move_to_end(shortest)  # other conversations with this system prompt need it
        if not self._grow(pages, pages_of(count) - len(pages), joins=True):
            whole = count - count % PAGE
            count = cache.crop(whole)
            if not count or count < whole or not self._grow(pages, 0, joins=True):
                self._drop(self._running, pages)
                return None
        self.hits += count
        return cache, pages

    def keep(
        self, tokens: npt.NDArray[Any], cache: Cache, pages: Sequence[int], key: str = "", *, goes_on: bool = False
    ) -> None:
        """Store a sequence for later, unless it is stored already.

        Args:
            tokens: the tokens in the cache, or the first of them, integers [n].
            cache: a fork of it is stored.
            pages: its pages' numbers, those of a running sequence.
            key: tenant that may find it.
            goes_on: the sequence will write to its last page, if that is not full. Without states only full pages are
                stored then; with states a copy of the last page is counted.
        """
        if goes_on and not self._state:
            tokens = tokens[: len(tokens) // PAGE * PAGE]
        count = len(tokens)
        if not self._keeps or not count:
            return
        if self._state:
            reached = self._reach(tokens, count, key)
            found, held = (None, 0) if reached is None else (reached[0], reached[1].length)
        else:
            found, held = self._find(tokens, count, key)
        if found is not None and held == count:
            self._order.move_to_end(found)
            return
        fork = cropped(cache, count)
        if fork is None:
            return
        own = list(pages[: pages_of(count)])
        states = fork.state_bytes if self._in_bytes and isinstance(fork, Checkpointed) else 0
        copied = goes_on and count % PAGE > 0
        if states or self._state:
            ends = 0 if goes_on else RUNNING_STATES * self._state  # the sequence is about to release them
            cost = states + copied * self._page - ends
            self._make_room(cost)
            if self.used + cost > self.budget:
                return
            if copied:
                own[-1] = self._numbers
                self._numbers += 1
        stored = StoredPrefix(fork, np.array(tokens, np.int64), key, own, states)
        for shorter in self._prefixes(tokens, stored.hashes):
            if len(shorter.tokens) < count and cropped(fork, len(shorter.tokens)) is not None:
                self._give_up(shorter, replaced=True)
        self._hold(self._kept, own)
        self._states += states
        self._order[stored] = None
        self._list(stored)
        if self.disk is not None:
            stored.transfer = self.disk.save(stored.tokens, fork, key)

    def add(self, tokens: npt.NDArray[Any], cache: Cache, key: str = "") -> bool:
        """Store a KV cache that does not come from a running sequence; return False where there is no room.

        Args:
            tokens: the tokens in the cache, integers [n].
            cache: the prefix cache owns it from now on.
            key: tenant that may find it.
        """
        stored = self._reserve(tokens, key)
        if stored is not None:
            stored.cache = cache
            self._list(stored)
        return stored is not None

    def peek(self, tokens: npt.NDArray[Any], key: str = "") -> Cache | None:
        """Return a fork of the longest stored prefix of a text, which may be all of it, or None."""
        self._settle()
        some = self._reach(tokens, len(tokens), key) if self._state else self._longest(tokens, len(tokens), key)
        return None if some is None else some[1]

    def _reserve(self, tokens: npt.NDArray[Any], key: str) -> StoredPrefix | None:
        """Return an entry with memory but without a KV cache, which ``take`` does not find yet."""
        count = pages_of(len(tokens))
        cost = count * self._page + self._state
        if not self._keeps or cost > self._free:
            return None
        self._make_room(cost)
        pages = list(range(self._numbers, self._numbers + count))
        self._numbers += count
        stored = StoredPrefix(None, np.array(tokens, np.int64), key, pages, self._state)
        self._hold(self._kept, pages)
        self._states += stored.states
        self._order[stored] = None
        return stored

    def _list(self, stored: StoredPrefix) -> None:
        """Let ``take`` find an entry."""
        self._by_end.setdefault(stored.hashes[-1], []).append(stored)
        for page in stored.hashes:
            self._by_page.setdefault(page, []).append(stored)
        while self.most_kept is not None and self.kept > self.most_kept and len(self._order) > 1:
            self._give_up(next(iter(self._order)))

    # ---- the cache on disk -------------------------------------------------------------------------------------------

    def fetch(self, tokens: npt.NDArray[Any], key: str = "") -> Transfer | None:
        """Begin to read a prefix of a text from disk if it is longer than the one in memory, and reading it pays.

        Returns:
            The read; ``take`` finds the prefix once it has ended. None: there is none to read, or no room for it.
        """
        self._settle()
        if self.disk is None or not self._keeps:
            return None
        most = len(tokens) - 1
        reached = self._reach(tokens, most, key) if self._state else self._longest(tokens, most, key)
        above = 0 if reached is None else reached[1].length
        found = self.disk.find(tokens[:most], key, above, self._position_seconds)
        if found is None:
            return None
        for other in self._reading:
            if other.transfer is not None and other.transfer.names == found.names:
                return other.transfer
        stored = self._reserve(found.tokens, key)
        if stored is None:
            return None
        stored.transfer = found
        self._reading.append(stored)
        self.disk.load(found)
        return found

    def flush(self) -> None:
        """Begin to write the stored prefixes that are not on disk, most recently used first."""
        for stored in reversed(self._order):
            unwritten = stored.transfer is None or stored.transfer.failed
            if self.disk is not None and unwritten and stored not in self._reading:
                stored.transfer = self.disk.save(stored.tokens, stored.cache, stored.key, limited=False)

    def computed(self, rows: int, seconds: float) -> None:
        """Take note of the time of a forward that computed ``rows`` rows of prompts; short ones show no rate."""
        if rows < PAGE:
            return
        known, new = self._position_seconds, seconds / rows
        self._position_seconds = new if known is None else known + FOLLOW * (new - known)

    def _settle(self) -> None:
        """Let ``take`` find the prefixes that have been read from disk."""
        for stored in [one for one in self._reading if one.transfer is None or one.transfer.ended]:
            self._reading.remove(stored)
            read = stored.transfer
            if read is None or read.cache is None:
                self._give_up(stored)
                continue
            stored.cache, read.cache = read.cache, None
            states = stored.cache.state_bytes if self._in_bytes and isinstance(stored.cache, Checkpointed) else 0
            self._states += states - stored.states
            stored.states = states
            self._list(stored)

    def _prefixes(self, tokens: npt.NDArray[Any], hashes: Iterable[bytes]) -> Iterator[StoredPrefix]:
        """Yield the entries that a text begins with, or all of it, shortest first."""
        for page in hashes:
            for stored in list(self._by_end.get(page, ())):
                held = len(stored.tokens)
                if held <= len(tokens) and (stored.tokens == tokens[:held]).all():
                    yield stored

    def forget(self, tokens: npt.NDArray[Any], key: str = "") -> None:
        """Evict a text and its stored prefixes."""
        for stored in self._prefixes(tokens, page_hashes(tokens, key)):
            self._give_up(stored)

    def clear(self) -> None:
        """Evict all prefixes."""
        while self._order:
            self._give_up(next(iter(self._order)))

    def _longest(self, tokens: npt.NDArray[Any], most: int, key: str) -> tuple[StoredPrefix, Cache] | None:
        """Return the entry with the longest prefix of a text, and a fork of that length."""
        while True:
            found, count = self._find(tokens, most, key)
            if found is None:
                return None
            cache = cropped(found.cache, count)
            if cache is not None:
                return found, cache
            for page in found.hashes[: count // PAGE + 1]:  # its window has moved on
                unlist(self._by_page, page, found)

    def _reach(self, tokens: npt.NDArray[Any], most: int, key: str) -> tuple[StoredPrefix, Cache] | None:
        """Return the entry that reaches the longest prefix of a text, up to ``most`` tokens, and a fork of it."""
        best: tuple[StoredPrefix, Cache] | None = None
        for kept, same in self._sharing(tokens, most, key):
            if best is not None and same <= best[1].length:
                break
            if same < kept.least:
                continue
            fork = kept.cache.fork()
            reached = fork.crop(same)
            if reached < same:
                kept.least = same + 1
            if reached and (best is None or reached > best[1].length):
                best = kept, fork
        return best

    def _sharing(self, tokens: npt.NDArray[Any], most: int, key: str) -> Iterator[tuple[StoredPrefix, int]]:
        """Yield the entries that share a prefix with a text, and its length, longest first."""
        levels: list[list[StoredPrefix]] = []
        for page in page_hashes(tokens[:most], key):
            if page not in self._by_page:
                break
            levels.append(self._by_page[page])
        seen: set[StoredPrefix] = set()
        for number in reversed(range(len(levels))):
            whole = number * PAGE
            rest = tokens[whole : min(most, whole + PAGE)]
            fresh = [kept for kept in reversed(levels[number]) if kept not in seen]
            same = [whole + alike(kept.tokens[whole : whole + len(rest)], rest) for kept in fresh]
            seen.update(fresh)
            yield from sorted(zip(fresh, same, strict=True), key=lambda one: -one[1])

    def _find(self, tokens: npt.NDArray[Any], most: int, key: str) -> tuple[StoredPrefix | None, int]:
        """Return the entry that shares the longest prefix with a text, and its length, at most ``most``."""
        holders: list[StoredPrefix] = []
        whole = 0
        for number, page in enumerate(page_hashes(tokens[:most], key)):
            if page not in self._by_page:
                break
            holders, whole = self._by_page[page], number * PAGE
        best, count = (holders[-1] if whole else None), whole
        rest = tokens[whole : min(most, whole + PAGE)]
        for kept in reversed(holders) if len(rest) else ():
            same = alike(kept.tokens[whole : whole + len(rest)], rest)
            if whole + same > count:
                best, count = kept, whole + same
                if same == len(rest):
                    break
        return best, count

    def _give_up(self, kept: StoredPrefix, *, replaced: bool = False) -> None:
        """Remove an entry; ``replaced``: another one shares its pages."""
        del self._order[kept]
        if kept in self._reading:
            self._reading.remove(kept)
            if kept.transfer is not None:
                kept.transfer.cancelled = True
        elif self.disk is not None and kept.transfer is not None:
            self.disk.release(kept.transfer, kept.states if replaced else None)
        unlist(self._by_end, kept.hashes[-1], kept)
        for page in kept.hashes:
            unlist(self._by_page, page, kept)
        self._drop(self._kept, kept.pages)
        self._states -= kept.states

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
