"""Keys and values that outlive their request: what a prompt begins with is found again, in pages of 64 positions.

A page is known by a hash of its tokens and of all pages before it; in the page where two texts part, tokens are
compared. What is found is a fork, which shares its pages; so what a request computes is the same whether its beginning
was kept, was given up, or was never there.

The same object counts the pages of running sequences, so that both together stay within one budget: what is kept goes
first, least recently used first.

A sequence may have states beside its pages, which go back to few of its lengths. What such a cache can give is asked of
it, and kept are as many lengths of a text as there is reason for: each is a fork, which shares its pages and counts its
states, and the features that a head has yet to read.
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
"""Positions of a page, as the native core has them (``kPage``)."""
RUNNING_STATES = 2
"""States that a running sequence counts: a prompt's chunk reads one and writes the other."""
APART = 64 * PAGE
"""Positions between two kept lengths of a text where pages take no memory."""


def pages_of(positions: int) -> int:
    """Pages that so many positions take."""
    return -(-positions // PAGE)


def memory_for(engine: Engine, positions: Sequence[int], kept: int = 0) -> PrefixCache:
    """Room for sequences of so many positions each on an engine, and for the states of ``kept`` that are over."""
    pages, state = sum(pages_of(count) + 1 for count in positions), state_bytes(engine)
    if not state:
        return PrefixCache(pages)
    page = PAGE * position_bytes(engine)
    budget = (pages + kept) * page + (RUNNING_STATES * len(positions) + kept) * state
    return PrefixCache(budget, page=page, state=state)


class _Kept:
    """A sequence that is kept: its cache, its tokens, and its pages' numbers.

    ``hashes``: of no page, of its first whole page, of its first two, ...; so the last is that of all whole ones.
    ``states``: what its states and features take of the budget. ``least``: it has been seen not to go back to a length
    below.
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
    """A budget of memory, for running sequences and for the beginnings of later ones.

    A running sequence has a list of page numbers, which ``extend`` and ``extend_to`` make longer and ``release`` gives
    back; a page that several have is counted once.

    Args:
        budget: in any unit.
        page: what a page takes of it. 1 = the budget is in pages, else it is in bytes.
        state: what a sequence's states take, in bytes; 0 = caches have none.
        keeps: False keeps nothing, and only counts: for engines whose rows are not invariant, where a sequence that was
            read in other pieces may have other bits.

    Attributes:
        budget: as given.
        hits: positions found so far.

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
            states = f" beside {RUNNING_STATES * state} bytes for its states" if state else ""
            raise InputError(f"the memory for keys and values has {there}{states}; it needs one")
        self.hits = 0
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
        """Pages that a sequence could have if it ran alone."""
        return self._pages_in(self.budget - RUNNING_STATES * self._state)

    @property
    def used(self) -> int:
        """What is in use of the budget, by running sequences and by kept ones."""
        return self._used * self._page + self._sequences * RUNNING_STATES * self._state + self._states

    @property
    def states(self) -> int:
        """What the states of kept sequences, and features that a head has yet to read, take of it."""
        return self._states

    @property
    def available(self) -> int:
        """Pages that running sequences could still get."""
        return self._pages_in(self._free)

    @property
    def has_states(self) -> bool:
        """Whether sequences have states, so that it matters at which lengths they are kept."""
        return self._state > 0

    @property
    def apart(self) -> int:
        """Positions from which on a text's length is worth keeping: as many as take a state's memory, whole chunks."""
        if not self._page:
            return APART
        return -(-self._state // (self._page * (PREFILL_ROWS // PAGE))) * PREFILL_ROWS

    @property
    def kept(self) -> int:
        """Pages that are kept."""
        return len(self._kept)

    @property
    def _free(self) -> int:
        """What running sequences could still get, if nothing were kept."""
        return self.budget - len(self._running) * self._page - self._sequences * RUNNING_STATES * self._state

    def _pages_in(self, room: int) -> int:
        return room // self._page if self._page else sys.maxsize // PAGE if room >= 0 else -1

    # ---- running sequences -------------------------------------------------------------------------------------------

    def extend(self, pages: list[int], positions: int) -> bool:
        """Make a running sequence's list long enough; False, and it is as it was, where there is no room."""
        more = pages_of(positions) - len(pages)
        return more <= 0 or self._grow(pages, more, joins=not pages)

    def admits(self, pages: int, beside: int) -> bool:
        """Whether one more sequence can run that needs so many more pages, and one each for ``beside`` others."""
        return (pages + beside) * self._page + RUNNING_STATES * self._state <= self._free

    def extend_to(self, pages: list[int], positions: int, rows: int) -> int:
        """Room for up to ``rows`` more positions than ``positions``; returns for how many there is."""
        if self.extend(pages, positions + rows):
            return rows
        joins = 0 if pages else RUNNING_STATES * self._state
        room = len(pages) + max(0, self._pages_in(self._free - joins))
        self.extend(pages, room * PAGE)
        return max(0, min(rows, room * PAGE - positions))

    def release(self, pages: Sequence[int]) -> None:
        """A running sequence, whose pages these are, is over."""
        if pages:
            self._sequences -= 1
            self._drop(self._running, pages)

    def _grow(self, pages: list[int], more: int, *, joins: bool) -> bool:
        """So many new pages for a sequence that runs, or begins to; False where there is no room."""
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
        """Give up what is kept, least recently used first, until there is so much room or nothing is kept."""
        while self._order and self.used + cost > self.budget:
            self._give_up(next(iter(self._order)))

    # ---- kept ones ---------------------------------------------------------------------------------------------------

    def match(self, tokens: npt.NDArray[Any], key: str = "") -> int:
        """Whole pages that ``take`` would find."""
        most = len(tokens) - 1
        if not self._state:
            return self._find(tokens, most, key)[1] // PAGE
        found = self._reach(tokens, most, key)
        return 0 if found is None else found[1].length // PAGE

    def parts(self, tokens: npt.NDArray[Any], key: str = "") -> int:
        """How many tokens a text begins with that some kept one does, whether or not that can give them."""
        return self._find(tokens, len(tokens) - 1, key)[1]

    def take(self, tokens: npt.NDArray[Any], key: str = "") -> tuple[Cache, list[int]] | None:
        """What is kept of the beginning of a text, less than all of it, for a sequence that runs from now on.

        The last of its pages is the sequence's own, where that is not whole: it will be written to.

        Args:
            tokens: integers [n].
            key: as it was kept.

        Returns:
            A cache of its own and its pages' numbers, or None.
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
        """Keep a sequence for later, in so far as it is not kept already.

        Args:
            tokens: what the cache holds, or the first of it, integers [n].
            cache: a fork of it is kept.
            pages: its pages' numbers, those of a running sequence.
            key: who may find it.
            goes_on: it will write to its last page, where that is not whole. Where there are no states, whole pages are
                kept then; else a copy is.
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
            ends = 0 if goes_on else RUNNING_STATES * self._state  # it gives them back in a moment
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
                    self._give_up(shorter)  # a beginning, which this one gives too
        kept = _Kept(fork, np.array(tokens, np.int64), hashes, own, states)
        self._hold(self._kept, kept.pages)
        self._states += states
        self._order[kept] = None
        self._by_end.setdefault(hashes[-1], []).append(kept)
        for page in hashes:
            self._by_page.setdefault(page, []).append(kept)

    def clear(self) -> None:
        """Keep nothing of what is kept."""
        while self._order:
            self._give_up(next(iter(self._order)))

    def _longest(self, tokens: npt.NDArray[Any], most: int, key: str) -> tuple[_Kept, Cache] | None:
        """Who has the longest beginning of a text, and a fork of it."""
        while True:
            found, count = self._find(tokens, most, key)
            if found is None:
                return None
            cache = _cut(found.cache, count)
            if cache is not None:
                return found, cache
            for page in found.hashes[: count // PAGE + 1]:  # a window has moved on: of these it can give nothing
                _unlist(self._by_page, page, found)

    def _reach(self, tokens: npt.NDArray[Any], most: int, key: str) -> tuple[_Kept, Cache] | None:
        """Who can give the longest beginning of a text, at most ``most`` tokens, and a fork of that."""
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
        """Those that begin as a text, and with how many of its tokens, most first."""
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
    """Bring a cache back to what a prompt, integers [n], begins with, less than all of it: it holds ``tokens``.

    Or to less, where its layers cannot go back to that.
    """
    cache.crop(alike(tokens[: len(prompt) - 1], prompt))


def alike(some: npt.NDArray[Any], others: npt.NDArray[Any]) -> int:
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
