"""Reading ahead: one thread reads and checks what is next while another packs what is there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")


@contextmanager
def prefetched(
    make: Callable[[S], T], wanted: Iterable[S], size: Callable[[S], int], *, run: int, most: int
) -> Iterator[Iterator[T]]:
    """What ``make`` makes of each of ``wanted``, in their order, by a thread of its own while those before are in use.

    They are made and handed over in runs, since taking turns costs more than a small item does. A further run is begun
    as long as it and those that are being made or wait come to at most ``most`` bytes; one always is. What making an
    item raises is raised in place of its run. Leaving the context waits for the run in hand, and begins no more.

    Args:
        make: called in that thread alone.
        wanted: what to make.
        size: bytes of what is made of it.
        run: bytes at which a run ends.
        most: bytes that may be in the making or wait.
    """
    runs = deque(_runs(wanted, size, run))
    going: deque[tuple[Future[deque[T]], int]] = deque()
    with ThreadPoolExecutor(1, "reading-ahead") as pool:

        def begin() -> None:
            while runs and (not going or sum(held for _, held in going) + runs[0][1] <= most):
                items, held = runs.popleft()
                going.append((pool.submit(_made, make, items), held))

        def taken() -> Iterator[T]:
            while going:
                made = going.popleft()[0].result()
                begin()
                while made:
                    yield made.popleft()

        begin()
        try:
            yield taken()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _runs(wanted: Iterable[S], size: Callable[[S], int], least: int) -> Iterator[tuple[list[S], int]]:
    """Items of at least so many bytes together, and how many; the last may have fewer."""
    items: list[S] = []
    held = 0
    for item in wanted:
        items.append(item)
        held += size(item)
        if held >= least:
            yield items, held
            items, held = [], 0
    if items:
        yield items, held


def _made(make: Callable[[S], T], items: list[S]) -> deque[T]:
    return deque(map(make, items))
