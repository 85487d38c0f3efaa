"""Prefix cache: KV caches of earlier texts, found by the tokens that a new text begins with, in pages of 64 positions.

A page's key is the hash of its tokens and the key of the previous page; in the page where two texts diverge, tokens
are compared. A cache hit returns a fork, which shares its pages, so a request computes the same bits on a hit and on a
miss.

The same object counts the pages of running sequences. Stored prefixes are evicted first, least recently used first, so
that running sequences and prefixes together stay within one budget.

The states of recurrent layers roll back to few lengths. The cache itself reports which lengths it can reach, and
several lengths of one text may be stored: each entry is a fork that shares its pages and counts its own states, and the
features that a head has yet to read.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.engines.api import Cache, Checkpointed, Engine, position_bytes, state_bytes
from ipex_lookahead.engines.prefill import PREFILL_ROWS
from ipex_lookahead.errors import InputError

PAGE = 64
"""Positions of a page, as in the native core (``kPage``)."""
RUNNING_STATES = 2
"""States of a running sequence: a prompt chunk reads one and writes the other."""
CONVERSATION_STATES = 8
"""Number of prefixes of a conversation with stored recurrent states."""
CONVERSATION_BYTES = 2**30
"""Bytes of keys and values that are stored of conversations other than the last one."""
APART = 64 * PAGE
"""Positions between two stored lengths of a text where pages take no memory."""


def pages_of(positions: int) -> int:
    """Return the number of pages needed for a number of positions."""
    return -(-positions // PAGE)


def memory_for(engine: Engine, positions: Sequence[int], kept: int = 0) -> PrefixCache:
    """Return a prefix cache with room for sequences of these numbers of positions and for ``kept`` stored states."""
    pages, state = sum(pages_of(count) + 1 for count in positions), state_bytes(engine)
    if not state:
        return PrefixCache(pages)
    page = PAGE * position_bytes(engine)
    budget = (pages + kept) * page + (RUNNING_STATES * len(positions) + kept) * state
    return PrefixCache(budget, page=page, state=state)


class _Kept:
    """A stored prefix.

    Attributes:
        cache: its KV cache.
        tokens: int64 [n].
        hashes: keys of no page, of its first whole page, of its first two, ...; the last is that of all whole pages.
        pages: its pages' numbers.
        states: units of the budget that its states and features take.
        least: shortest length that its cache is known to reach.
    """

    __slots__ = ("cache", "hashes", "least", "pages", "states", "tokens")

    def __init__(
        self, cache: Cache, tokens: npt.NDArray[np.int64], hashes: list[bytes], pages: list[int], states: int
    ) -> None:
        self.cache = cache
        self.tokens = tokens
        self.hashes = hashes
        self.pages = pages
        self.states = states
        self.least = 0


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
        self._keeps = keeps
        self._sequences = 0  # that run
        self._states = 0  # of the budget, by those that are kept
        self._running: Counter[int] = Counter()  # page -> running sequences that have it
        self._kept: Counter[int] = Counter()  # page -> kept sequences that have it
        self._used = 0
        self._numbers = 0
        self._order: OrderedDict[_Kept, None] = OrderedDict()  # least recently used first
        self._by_page: dict[bytes, list[_Kept]] = {}  # hash -> those that begin so
        self._by_end: dict[bytes, list[_Kept]] = {}  # hash -> those that have no whole page more

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
        most = len(tokens) - 1
        some = self._reach(tokens, most, key) if self._state else self._longest(tokens, most, key)
        if some is None:
            return None
        found, cache = some
        count = cache.length
        pages = found.pages[: count // PAGE]
        self._hold(self._running, pages)
        self._order.move_to_end(found)
        if self._state:
            self._use_shortest(tokens, key)
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
        fork = _cut(cache, count)
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
        hashes = list(_hashes(tokens, key))
        for page in hashes:
            for shorter in list(self._by_end.get(page, ())):
                held = len(shorter.tokens)
                if held < count and (shorter.tokens == tokens[:held]).all() and _cut(fork, held) is not None:
                    self._give_up(shorter)  # the new entry has this prefix
        kept = _Kept(fork, np.array(tokens, np.int64), hashes, own, states)
        self._hold(self._kept, kept.pages)
        self._states += states
        self._order[kept] = None
        self._by_end.setdefault(hashes[-1], []).append(kept)
        for page in hashes:
            self._by_page.setdefault(page, []).append(kept)
        while self.most_kept is not None and self.kept > self.most_kept and len(self._order) > 1:
            self._give_up(next(iter(self._order)))

    def _use_shortest(self, tokens: npt.NDArray[Any], key: str) -> None:
        """Mark the shortest entry that a text begins with as recently used.

        The other turns of a conversation hit longer entries, and other conversations with its system prompt need this.
        """
        for page in _hashes(tokens, key):
            for kept in self._by_end.get(page, ()):
                held = len(kept.tokens)
                if held < len(tokens) and (kept.tokens == tokens[:held]).all():
                    self._order.move_to_end(kept)
                    return

    def clear(self) -> None:
        """Evict all prefixes."""
        while self._order:
            self._give_up(next(iter(self._order)))

    def _longest(self, tokens: npt.NDArray[Any], most: int, key: str) -> tuple[_Kept, Cache] | None:
        """Return the entry with the longest prefix of a text, and a fork of that length."""
        while True:
            found, count = self._find(tokens, most, key)
            if found is None:
                return None
            cache = _cut(found.cache, count)
            if cache is not None:
                return found, cache
            for page in found.hashes[: count // PAGE + 1]:  # its window has moved on
                _unlist(self._by_page, page, found)

    def _reach(self, tokens: npt.NDArray[Any], most: int, key: str) -> tuple[_Kept, Cache] | None:
        """Return the entry that reaches the longest prefix of a text, up to ``most`` tokens, and a fork of it."""
        best: tuple[_Kept, Cache] | None = None
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

    def _sharing(self, tokens: npt.NDArray[Any], most: int, key: str) -> Iterator[tuple[_Kept, int]]:
        """Yield the entries that share a prefix with a text, and its length, longest first."""
        levels: list[list[_Kept]] = []
        for page in _hashes(tokens[:most], key):
            if page not in self._by_page:
                break
            levels.append(self._by_page[page])
        seen: set[_Kept] = set()
        for number in reversed(range(len(levels))):
            whole = number * PAGE
            rest = tokens[whole : min(most, whole + PAGE)]
            fresh = [kept for kept in reversed(levels[number]) if kept not in seen]
            same = [whole + alike(kept.tokens[whole : whole + len(rest)], rest) for kept in fresh]
            seen.update(fresh)
            yield from sorted(zip(fresh, same, strict=True), key=lambda one: -one[1])

    def _find(self, tokens: npt.NDArray[Any], most: int, key: str) -> tuple[_Kept | None, int]:
        """Return the entry that shares the longest prefix with a text, and its length, at most ``most``."""
        holders: list[_Kept] = []
        whole = 0
        for number, page in enumerate(_hashes(tokens[:most], key)):
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

    def _give_up(self, kept: _Kept) -> None:
        del self._order[kept]
        _unlist(self._by_end, kept.hashes[-1], kept)
        for page in kept.hashes:
            _unlist(self._by_page, page, kept)
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


def _unlist(holders: dict[bytes, list[_Kept]], page: bytes, kept: _Kept) -> None:
    """Remove an entry from a list, if it is there."""
    some = holders.get(page, [])
    if kept in some:
        some.remove(kept)
        if not some:
            del holders[page]


def _cut(cache: Cache, length: int) -> Cache | None:
    """Return a fork of the first positions; None where a layer's state cannot roll back to them."""
    fork = cache.fork()
    return fork if fork.crop(length) == length else None


def conversation_memory(engine: Engine) -> PrefixCache:
    """Return a prefix cache with room for one conversation of the engine's full context length.

    Earlier conversations stay as far as they take no more than ``CONVERSATION_BYTES``.
    """
    memory = memory_for(engine, [engine.max_context], CONVERSATION_STATES)
    if size := position_bytes(engine):
        memory.most_kept = CONVERSATION_BYTES // (PAGE * size)
    return memory


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


def _hashes(tokens: npt.NDArray[Any], key: str) -> Iterator[bytes]:
    """Yield a hash of the tenant's key, then for each whole page one of its tokens and of the previous hash."""
    known = hashlib.sha256(key.encode()).digest()
    yield known
    whole = np.ascontiguousarray(tokens, "<i8")
    for end in range(PAGE, len(whole) + 1, PAGE):
        known = hashlib.sha256(known + whole[end - PAGE : end].tobytes()).digest()
        yield known
